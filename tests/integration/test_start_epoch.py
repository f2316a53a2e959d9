#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""The start epoch of config/dontcache-epoch: another number at each call, also when the clock stands still or is
set back, also for two callers at once; and what follows from it: two servers started within the same instant
have different write verifiers in every version, NFSv3 included, and different NFSv4 client ids.

The clock that stands still is a `date` of our own on the PATH: two real starts within one second would need a
machine that is never busy."""

import os
import re
import shutil
import subprocess

from support import *                                   # noqa: F403
from harness.testing import main

CONFIG = os.path.join(ROOT, 'config')
EPOCH = os.path.join(CONFIG, 'dontcache-epoch')
LAUNCHER = os.path.join(CONFIG, 'dontcache-ganesha')
INSTANT = 1700000000123456789


def environment(folder, instant=None):
    """PATH with a clock that says `instant`, and a memory of the last epoch of our own."""
    env = {'DONTCACHE_EPOCH_FILE': os.path.join(folder, 'state', 'epoch'), 'PATH': os.environ['PATH']}
    if instant is not None:
        stub = os.path.join(folder, 'bin')
        os.makedirs(stub, exist_ok=True)
        path = os.path.join(stub, 'date')
        with open(path, 'w', encoding='ascii') as date:
            date.write('#!/bin/sh\necho %s\n' % instant)
        os.chmod(path, 0o755)
        env['PATH'] = stub + os.pathsep + env['PATH']
    return env


def ask(env, *arguments):
    done = subprocess.run([EPOCH, *arguments], env={**os.environ, **env}, capture_output=True, text=True, check=False)
    equal(done.returncode, 0, 'exit code; stderr: %s' % done.stderr)
    return done.stdout.strip(), done.stderr


def test_epoch_grows():
    with workdir('epoch') as folder:
        env = environment(folder)
        seen = [int(ask(env)[0]) for _ in range(5)]
        assert all(b > a for a, b in zip(seen, seen[1:])), seen
        assert abs(seen[0] - time.time_ns()) < 60e9, '%d is not the time in nanoseconds' % seen[0]


def test_epoch_when_the_clock_is_set_back():
    with workdir('epoch') as folder:
        seen = [int(ask(environment(folder, instant))[0])
                for instant in (INSTANT, INSTANT, INSTANT - 10**18, INSTANT + 1, INSTANT + 10**9)]
        equal(seen, [INSTANT, INSTANT + 1, INSTANT + 2, INSTANT + 3, INSTANT + 10**9], 'epochs')


def test_epoch_of_two_callers_at_once():
    with workdir('epoch') as folder:
        env = environment(folder, INSTANT)
        callers = [subprocess.Popen([EPOCH], env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)
                   for _ in range(8)]
        seen = sorted(int(c.communicate()[0]) for c in callers)
        equal(seen, list(range(INSTANT, INSTANT + 8)), 'epochs')


def test_epoch_with_a_damaged_memory():
    """Whatever the file holds, an epoch comes out: a server must not stay down for that."""
    with workdir('epoch') as folder:
        env = environment(folder, INSTANT)
        ask(env)
        for junk in ('', 'junk\n', '0777\n', '-5\n', '9' * 40, '\0\n'):
            with open(env['DONTCACHE_EPOCH_FILE'], 'w', encoding='ascii') as state:
                state.write(junk)
            equal(ask(env)[0], str(INSTANT), 'epoch after %r' % junk)


def test_epoch_without_a_memory():
    """No place to write: the time all the same, and a warning."""
    with workdir('epoch') as folder:
        env = environment(folder, INSTANT)
        text, warning = ask(env, '/proc/no such place/epoch')
        equal(text, str(INSTANT), 'epoch')
        assert 'cannot write' in warning, warning
        equal(ask(env, '-e')[0], 'EPOCH=-E %d' % INSTANT, 'line for systemd')


def test_epoch_needs_nanoseconds():
    """A `date` that knows no %N is an error, not a weak epoch."""
    with workdir('epoch') as folder:
        env = environment(folder, "'1700000000%N'")
        done = subprocess.run([EPOCH], env={**os.environ, **env}, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and 'nanoseconds' in done.stderr and not done.stdout, done


@each_version(globals())
def check_two_starts_in_one_instant(version):
    """Killed and started again within the same nanosecond, says the clock: another verifier."""
    with workdir('epoch') as folder:
        env = environment(folder, INSTANT)
        verifiers, client_ids = [], []
        with served(start=False, program=LAUNCHER, env=env) as bed:
            for _ in range(3):
                bed.server.start()
                with bed.connect(version) as client, client.open('f', create=True) as f:
                    write = f.write(0, b'data').verifier
                    equal(f.commit().verifier, write, 'verifier of COMMIT')
                    client_ids.append(getattr(client, 'clientid', None))
                verifiers.append(write)
                bed.server.kill()
        if MODE != 'stock' or version == '3':
            equal(len(set(verifiers)), 3, 'different verifiers (%s)' % ' '.join(v.hex() for v in verifiers))
        if version == '3':
            equal([int.from_bytes(v, 'little') for v in verifiers], [INSTANT, INSTANT + 1, INSTANT + 2],
                  'NFSv3 verifiers as numbers')
        else:
            equal(len({c[:4] for c in client_ids}), 3,
                  'different client ids (%s)' % ' '.join(c.hex() for c in client_ids))


def test_control_without_the_launcher():
    """The same epoch twice: NFSv3 clients cannot tell the two servers apart. This is what is cured."""
    seen = set()
    with served(start=False, epoch=INSTANT // 10**9) as bed:
        for _ in range(2):
            bed.server.start()
            with bed.connect('3') as client, client.open('f', create=True) as f:
                seen.add(f.write(0, b'data').verifier)
            bed.server.kill()
    equal(len(seen), 1, 'verifiers of two servers with one epoch')


def test_systemd_drop_in():
    """Debian's unit with our drop-in is what systemd accepts, and its commands are there."""
    analyze = paths.find_program('systemd-analyze')
    requires(analyze, 'no systemd-analyze here')
    unit = next((u for u in ('/lib/systemd/system/nfs-ganesha.service', '/usr/lib/systemd/system/nfs-ganesha.service')
                 if os.path.exists(u)), None)
    requires(unit, 'the package nfs-ganesha brought no systemd unit')
    with open(unit, encoding='utf-8') as text:
        assert '${EPOCH}' in text.read(), unit + ' does not pass ${EPOCH} on any more: the drop-in has no effect'
    with workdir('systemd') as folder:
        shutil.copy(unit, folder)
        drop_ins = os.path.join(folder, 'nfs-ganesha.service.d')
        os.mkdir(drop_ins)
        with open(os.path.join(CONFIG, 'systemd', 'nfs-ganesha.service.d', 'dontcache.conf'), encoding='utf-8') as f:
            text = f.read().replace('@SBINDIR@', CONFIG)
        with open(os.path.join(drop_ins, 'dontcache.conf'), 'w', encoding='utf-8') as f:
            f.write(text)
        done = subprocess.run([analyze, 'verify', '--man=no', os.path.join(folder, 'nfs-ganesha.service')],
                              env={**os.environ, 'SYSTEMD_UNIT_PATH': folder + ':', 'SYSTEMD_LOG_LEVEL': 'warning'},
                              capture_output=True, text=True, check=False)
        # Other units of the machine may have faults of their own.
        ours = [line for line in (done.stdout + done.stderr).splitlines() if 'dontcache' in line]
        assert not ours, '\n'.join(ours)
        print('    systemd-analyze: code %d' % done.returncode, flush=True)
        # What systemd would run before the server writes the variable that ExecStart passes on.
        command = re.search(r"^ExecStartPre=/bin/sh -c '(.*)'$", text, re.MULTILINE)[1]
        line = os.path.join(folder, 'line')
        subprocess.run(['/bin/sh', '-c', command.replace('/run/ganesha/dontcache-epoch', line)], check=True,
                       env={**os.environ, **environment(folder, INSTANT)})
        with open(line, encoding='ascii') as written:
            equal(written.read(), 'EPOCH=-E %d\n' % INSTANT, 'the file for EnvironmentFile=')


if __name__ == '__main__':
    main(globals())

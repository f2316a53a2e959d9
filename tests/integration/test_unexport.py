#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""An export leaves the running server while it is dirty, has writes parked and stable writes on their way: within
Drain_Timeout_Ms and a little, said in the log; afterwards nothing of ours is open on its file system, which can be
unmounted; and what was committed is there when it comes back. The other export, on another disk, does not notice."""

import subprocess

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.testing import main

TIGHT = {'Dirty_Bytes': '8M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '1G', 'Audit': True}
DATA = Pattern(6)


def open_below(pid, folder):
    found = []
    for fd in os.listdir('/proc/%d/fd' % pid):
        with contextlib.suppress(OSError):
            target = os.readlink('/proc/%d/fd/%s' % (pid, fd))
            if target.startswith(folder):
                found.append(target)
    return found


@contextlib.contextmanager
def two_disks(params, write_bps=None):
    """(bed of the first disk, second disk, exports of both)."""
    requires_plugin()
    with workdir('second') as folder, LoopDisk(folder, 400 * MiB) as second:
        def both(disk):
            return [Export(EXPORT_ID, disk.export_dir, PSEUDO, 'dontcache', params),
                    Export(2, second.export_dir, '/other', 'dontcache', {'Audit': True})]
        with served(exports=both, write_bps=write_bps) as bed:
            yield bed, both(bed.disk)


def remove_first(bed, exports):
    began = time.monotonic()
    bed.server.rewrite_conf(exports[1:])
    bed.server.hup()
    wait_until(lambda: all(e['id'] != EXPORT_ID for e in bed.server.stats()['exports']), 15, what='the export gone')
    said = wait_until(lambda: [line.partition('dontcache: ')[2] for line in bed.server.log_text().splitlines()
                               if 'export 1: drained in' in line or 'were not written back within' in line],
                      15, what='a word in the log about draining')
    print('    gone after %.1f s: %s' % (time.monotonic() - began, said[0]), flush=True)
    return said[0]


def check_left_behind(bed):
    """Nothing is open on the file system, and it can be unmounted. Ganesha closes its own a moment later."""
    wait_until(lambda: not open_below(bed.server.pid, bed.disk.mountpoint), 10, 0.1,
               'no descriptor left below the export: %s' % open_below(bed.server.pid, bed.disk.mountpoint))
    wait_until(lambda: subprocess.run(['umount', bed.disk.mountpoint], capture_output=True, check=False).returncode == 0,
               10, 0.2, 'the file system unmounts')


def come_back(bed, exports, version):
    bed.disk.mount()
    bed.server.rewrite_conf(exports)
    bed.server.hup()

    def back():
        try:
            with bed.connect(version, source='127.0.0.9') as client, client.open('back', create=True) as f:
                f.write(0, b'back')
                f.commit()
            return True
        except (nfsraw.NfsError, nfsraw.RpcError):
            return False
    wait_until(back, 15, interval=0.2, what='the export served again')


@each_version(globals())
def check_removed_while_dirty(version):
    """On a fast disk all of it is drained."""
    lazy = {'Dirty_Bytes': '128M', 'Dirty_Background_Bytes': '96M', 'Dirty_Expire_Centisecs': 6000, 'Audit': True}
    with two_disks(lazy) as (bed, exports):
        f = bed.connect(version, source='127.0.0.2').open('f', create=True)
        stream = Stream(f, sequential(DATA, 48 * MiB), depth=8)
        run([stream], 20)
        no_errors([stream])
        assert bed.stats()['dirty'] >= 40 * MiB
        assert 'drained in' in remove_first(bed, exports), 'not drained'
        bed.kill_clients()
        check_left_behind(bed)
        come_back(bed, exports, version)
        check_file(bed, 'f', DATA, 48 * MiB, version, through_nfs=False)


@each_version(globals())
def check_removed_while_parked_and_slow(version):
    """On a slow one the time may be up first; the kernel writes the rest."""
    requires_slow_device()
    with two_disks({**TIGHT, 'Drain_Timeout_Ms': 300}, write_bps=8 * MiB) as (bed, exports):
        safe = bed.connect(version, source='127.0.0.3').open('safe', create=True)
        safe.write(0, DATA.view(0, MiB), nfsraw.FILE_SYNC)
        f = bed.connect(version, source='127.0.0.2').open('f', create=True)
        stream = Stream(f, sequential(DATA, 32 * MiB), depth=32)
        stream.fill(time.monotonic())
        stable = [safe.write_async(MiB + i * 8192, DATA.view(0, 4096), nfsraw.FILE_SYNC) for i in range(8)]
        while f.client.conn.unsent_bytes or safe.client.conn.unsent_bytes:
            f.client.conn.pump(0.05)
            safe.client.conn.pump(0.05)
        wait_until(lambda: bed.parked() >= 8, 10, what='parked writes')
        remove_first(bed, exports)      # drained or not: parked v4.1 requests keep the export until they are through
        run([stream], 20)
        safe.client.drain(20)
        said = {c.reply.status_name for c in stable if c.reply}
        print('    stable writes answered %s' % said, flush=True)
        assert said <= {'OK', 'DELAY', 'STALE', 'BADHANDLE', 'SERVERFAULT', 'NOENT'}, said
        with bed.connect(version, export='/other', source='127.0.0.4') as client, client.open('g', create=True) as g:
            g.write(0, b'fine', nfsraw.FILE_SYNC)
        bed.disk.set_write_bps(None)
        bed.kill_clients()
        check_left_behind(bed)
        come_back(bed, exports, version)
        with open(bed.local('safe'), 'rb') as local:
            assert local.read(MiB) == DATA.view(0, MiB), 'a stable write is gone'


if __name__ == '__main__':
    main(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Stable writes and COMMITs of a range: durable is what was asked for and no more, no worker waits for the
device, and a sync that fails fails its write."""

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.kernel import cachestat, requires_cachestat
from harness.testing import main

DATA = Pattern(3)
LAZY = {'Dirty_Bytes': '192M', 'Dirty_Background_Bytes': '160M', 'Dirty_Expire_Centisecs': 6000}


def dirty_stream(bed, version, name, size, offset=0):
    """`size` bytes dirty in the file, below every level; returns the client's file."""
    f = bed.connect(version, source='127.0.0.2').open(name, create=True)
    stream = Stream(f, sequential(DATA, size, start=offset), depth=8)
    run([stream], 30)
    no_errors([stream])
    return f, stream


@each_version(globals())
def check_small_stable_write_leaves_a_stream_alone(version):
    """64 MiB of another client stay dirty in the same file while 4 KiB writes become durable."""
    requires_plugin()
    with served({**LAZY, 'IO_Mode': 'dontcache'}) as bed:
        f, _ = dirty_stream(bed, version, 'shared', 64 * MiB)
        before = bed.stats()
        g = bed.connect(version, source='127.0.0.3').open('shared', access=nfsraw.WRITE)
        for i, how in enumerate((nfsraw.FILE_SYNC, nfsraw.DATA_SYNC) * 4):
            reply = g.write(100 * MiB + i * 50001, DATA.view(0, 4096), how)
            equal(reply.committed, nfsraw.FILE_SYNC, 'stability in the reply')
        left = bed.stats()
        print('    dirty before %s, after 8 stable writes %s' % (mb(before['dirty']), mb(left['dirty'])), flush=True)
        assert left['dirty'] >= before['dirty'], 'a small stable write flushed what others wrote'
        f.commit()
        equal(bed.stats()['dirty'], 0, 'dirty after COMMIT')


@each_version(globals())
def check_commit_of_a_range(version):
    requires_plugin()
    with served(LAZY) as bed:
        f, stream = dirty_stream(bed, version, 'shared', 64 * MiB)
        g = bed.connect(version, source='127.0.0.3').open('shared', access=nfsraw.WRITE)
        reply = g.write(100 * MiB, DATA.view(0, MiB))
        commit = g.commit(100 * MiB, MiB)
        equal(commit.verifier, reply.verifier, 'verifier')
        left = bed.stats()['dirty']
        assert 60 * MiB <= left <= 64 * MiB, 'after a COMMIT of 1 MiB %s are dirty, 64 MiB were' % mb(left)
        equal(f.commit().verifier, only(stream.verifiers, 'verifiers of the stream'), 'verifier of the COMMIT')
        equal(bed.stats()['dirty'], 0, 'dirty after COMMIT of everything')
        syncs = bed.stats()['syncs_total']
        g.commit(100 * MiB, MiB)                        # covered by now
        equal(bed.stats()['syncs_total'], syncs, 'syncs for a COMMIT that has nothing to do')


@each_version(globals())
def check_no_worker_waits(version):
    """The device hangs under 24 stable writes, the server has 3 workers: other clients do not notice."""
    requires_plugin()
    with served({'Fault_Injection': 'sync:hang'}, workers=3) as bed:
        client = bed.connect(version, source='127.0.0.2')
        files = [client.open('f%d' % i, create=True) for i in range(8)]
        calls = [f.write_async(i * 4096, DATA.view(0, 4096), nfsraw.FILE_SYNC) for i in range(3) for f in files]
        other = bed.connect(version, source='127.0.0.3')
        with other.open('other', create=True) as f:
            for i in range(50):
                f.write(i * 4096, DATA.view(0, 4096))
                equal(f.getattr().size, (i + 1) * 4096, 'size')
        equal([c.reply for c in calls if c.reply], [], 'answers from a device that hangs')
        bed.fault('off')
        client.drain(20)
        for c in calls:
            assert not c.error and c.reply.status == 0, c.error or c.reply.status_name
            equal(c.reply.committed, nfsraw.FILE_SYNC, 'stability in the reply')
        other.open('other', access=nfsraw.WRITE).commit()
        bed.settle()


@each_version(globals())
def check_sigterm_while_the_device_hangs(version):
    """Bounded by Drain_Timeout_Ms; nothing is answered that did not become durable."""
    requires_plugin()
    with served({'Fault_Injection': 'sync:hang', 'Drain_Timeout_Ms': 500}) as bed:
        client = bed.connect(version)
        f = client.open('f', create=True)
        calls = [f.write_async(i * 4096, DATA.view(0, 4096), nfsraw.FILE_SYNC) for i in range(8)]
        f.write(MiB, DATA.view(0, MiB))
        began = time.monotonic()
        code = bed.server.stop(timeout=10)
        print('    ended after %.1f s' % (time.monotonic() - began), flush=True)
        equal(code, 0, 'exit code')
        said_yes = [c for c in calls if c.reply and c.reply.status == 0]
        equal(said_yes, [], 'stable writes that were answered OK without a sync')


@each_version(globals())
def check_failing_sync_fails_the_write(version):
    requires_plugin()
    with served({'Fault_Injection': 'on'}) as bed:
        f = bed.connect(version).open('f', create=True)
        for name, status in (('EIO', 'IO'), ('ENOSPC', 'NOSPC'), ('EDQUOT', 'DQUOT'), ('ENOMEM', 'IO')):
            bed.fault('sync:%s:count=1' % name)
            reply = f.write(0, DATA.view(0, 4096), nfsraw.FILE_SYNC, check=False)
            equal(reply.status_name, status, 'FILE_SYNC write whose sync fails')
            equal(f.write(0, DATA.view(0, 4096), nfsraw.FILE_SYNC).committed, nfsraw.FILE_SYNC, 'the next one')
            equal(f.commit().status, 0, 'COMMIT: its error was told by the write')
        bed.fault('off')


def test_stable_stream_is_dropped_behind():
    """A stream of stable writes leaves as little in the page cache as one of unstable ones."""
    requires_plugin()
    requires_cachestat()
    with served({}) as bed:
        f = bed.connect('3').open('f', create=True)
        size = 64 * MiB
        stream = Stream(f, sequential(DATA, size), depth=4, stable=nfsraw.FILE_SYNC)
        run([stream], 40)
        no_errors([stream])
        wait_until(lambda: cachestat(bed.local('f')).cached * 4096 <= 6 * MiB, 5, 0.1, 'dropped behind')
        check_file(bed, 'f', DATA, size)


if __name__ == '__main__':
    main(globals())

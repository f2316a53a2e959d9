#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""A full disk is told, as NOSPC, promptly, at WRITE or at COMMIT; never by a file that is short, never by a
DELAY loop. With room again writing works again, and the counters return to zero."""

import os
import subprocess

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness import cleanup
from harness.testing import main

PARAMS = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M'}
ROOM = 24 * MiB


def fill_up(bed, room):
    """Leave about `room` bytes free, by a file beside the export."""
    filler = os.path.join(bed.disk.mountpoint, 'filler')
    free = os.statvfs(bed.disk.mountpoint)
    size = free.f_bavail * free.f_frsize - room
    fd = os.open(filler, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
    return filler


@each_version(globals())
def check_nospc_and_recovery(version):
    with served(PARAMS, size=400 * MiB) as bed:
        filler = fill_up(bed, ROOM)
        client = bed.connect(version)
        f = client.open('big', create=True)
        stream = Stream(f, sequential(Pattern(1), 3 * ROOM, 256 * 1024), depth=16, keep_acked=True)
        took = run([stream], 20)
        commit = f.commit(check=False)
        print('    after %.2f s: acked %s, errors %r, COMMIT %s, DELAY %d' % (
            took, mb(stream.acked), stream.errors, commit.status_name, stream.delayed), flush=True)
        assert set(stream.errors) <= {'NOSPC'}, stream.errors
        assert stream.errors or commit.status_name == 'NOSPC', 'the disk was full and nobody was told'
        equal(stream.delayed, 0, 'JUKEBOX/DELAY replies')
        if commit.ok:                       # then everything acknowledged is there
            pattern = Pattern(1)
            with open(bed.local('big'), 'rb') as local:
                for offset, n in stream.acked_ranges:
                    local.seek(offset)
                    assert local.read(n) == pattern.view(offset, n), 'acknowledged bytes at %d differ' % offset
        # A stable write that does not fit fails itself.
        status = f.write(4 * ROOM, Pattern(2).view(0, MiB), nfsraw.FILE_SYNC, check=False).status_name
        equal(status, 'NOSPC', 'FILE_SYNC write on a full disk')
        f.close()
        client.remove('big')
        os.unlink(filler)
        pattern = Pattern(5)
        with client.open('after', create=True) as f:
            stream = Stream(f, sequential(pattern, 2 * ROOM), depth=8)
            run([stream], 20)
            no_errors([stream])
            f.commit()
        check_file(bed, 'after', pattern, 2 * ROOM, version)
        bed.settle()


@contextlib.contextmanager
def small_ram_disk(size):
    """A folder in a tmpfs of `size` bytes: a larger sparse image in it runs out of space at writeback only."""
    requires_root()
    with workdir('ram') as folder:
        def unmount():
            cleanup.unregister(unmount)
            if cleanup.is_mounted(folder):
                cleanup.unmount(folder)
        cleanup.register(unmount)
        subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=%d' % size, 'none', folder], check=True)
        try:
            yield folder
        finally:
            unmount()


@each_version(globals())
def check_error_at_writeback_reaches_every_client(version):
    """The page cache took the data, the device did not: every client with uncommitted data in the file learns
    of it, by an error at its COMMIT or by a verifier that is not the one of its writes."""
    requires_root()
    requires(loop_supported(), 'no loop devices here')
    requires_plugin()                       # stock tells the first client only
    # Background level above what is written: the kernel and the plugin leave writeback to COMMIT.
    params = {'Dirty_Bytes': '256M', 'Dirty_Background_Bytes': '192M', 'Dirty_Expire_Centisecs': 6000}
    with small_ram_disk(96 * MiB) as ram, served(params, size=GiB, disk_dir=ram) as bed:
        files, streams = [], []
        for i in range(2):
            f = bed.connect(version, source='127.0.0.%d' % (2 + i)).open('shared', create=True)
            files.append(f)
            streams.append(Stream(f, sequential(Pattern(1), 60 * MiB, start=i * 60 * MiB), depth=8))
        run(streams, 20)
        no_errors(streams)
        told = []
        for f, stream in zip(files, streams):
            reply = f.commit(check=False)
            told.append('%s%s' % (reply.status_name, '' if not reply.ok or reply.verifier in stream.verifiers
                                  else ' with a new verifier'))
        print('    COMMITs answered: %s' % told, flush=True)
        assert 'OK' not in told, 'a client was told that lost data is safe: %s' % told
        bed.kill_clients()


if __name__ == '__main__':
    main(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""What becomes of dirty data that nobody needs any more, and of data nobody commits: a file that is unlinked,
renamed over or truncated while dirty costs no further writeback, old data is flushed at Dirty_Expire, and in
every case the counters return to zero."""

import os

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.kernel import PAGE_SIZE, cachestat, requires_cachestat
from harness.testing import main

SIZE = 32 * MiB
# Levels that this much does not reach, and no expiry during the test: the data stays dirty.
LAZY = {'Dirty_Bytes': '256M', 'Dirty_Background_Bytes': '128M', 'Dirty_Expire_Centisecs': 6000}
# What else a file system writes in a second or two (its log, inodes); far below SIZE.
NOISE = 4 * MiB


def write_dirty(bed, file):
    """SIZE dirty bytes in file, seen by the plugin and by the kernel."""
    stream = Stream(file, sequential(Pattern(3), SIZE), depth=8)
    run([stream])
    no_errors([stream])
    stats = bed.stats()
    assert stats['dirty'] >= SIZE, 'the plugin counts %s dirty after %s written below every level' % (
        mb(stats['dirty']), mb(SIZE))
    kernel = cachestat(bed.local(file.path)).dirty * PAGE_SIZE
    assert kernel >= SIZE, 'the kernel counts %s dirty' % mb(kernel)


def no_writeback_after(bed, action, name):
    """action() makes the dirty data useless: the device does not grow by it, the counters become zero."""
    before = bed.disk.device_bytes_written()
    action()
    bed.settle(5)
    time.sleep(1)
    grown = bed.disk.device_bytes_written() - before
    print('    %s: device wrote %s after it' % (name, mb(grown)), flush=True)
    assert grown <= NOISE, '%s: the device wrote %s for %s of useless data' % (name, mb(grown), mb(SIZE))


@each_version(globals())
def check_unlink(version):
    requires_plugin()
    requires_cachestat()
    with served(LAZY) as bed:
        client = bed.connect(version)
        f = client.open('f', create=True)
        write_dirty(bed, f)

        def action():
            f.close()                   # NFSv4: an open file would live on without a name
            client.remove('f')
        no_writeback_after(bed, action, 'unlink')
        assert not os.path.exists(bed.local('f'))


@each_version(globals(), ('4.0', '4.1'))
def check_unlink_while_open(version):
    """With an OPEN the file lives on, without a name, until CLOSE."""
    requires_plugin()
    requires_cachestat()
    with served(LAZY) as bed:
        client = bed.connect(version)
        f = client.open('f', create=True)
        write_dirty(bed, f)

        def action():
            client.remove('f')
            f.close(check=False)
        no_writeback_after(bed, action, 'unlink while open')


@each_version(globals())
def check_rename_over(version):
    requires_plugin()
    requires_cachestat()
    with served(LAZY) as bed:
        client = bed.connect(version)
        with client.open('new', create=True) as new:
            new.write(0, b'small', nfsraw.FILE_SYNC)
        f = client.open('f', create=True)
        write_dirty(bed, f)
        f.close()
        no_writeback_after(bed, lambda: client.rename('new', 'f'), 'rename over')
        equal(os.stat(bed.local('f')).st_size, 5, 'size of what it is now')


@each_version(globals())
def check_truncate(version):
    requires_plugin()
    requires_cachestat()
    with served(LAZY) as bed:
        client = bed.connect(version)
        with client.open('f', create=True) as f:
            write_dirty(bed, f)
            no_writeback_after(bed, lambda: f.truncate(0), 'truncate to 0')


@each_version(globals())
def check_shrink_then_extend_reads_zeros(version):
    """Truncated while dirty and made longer again: zeros, and none of the old bytes."""
    with served(LAZY) as bed:
        client = bed.connect(version)
        with client.open('f', create=True) as f:
            f.write(0, Pattern(1).view(0, MiB))
            f.truncate(5000)
            f.truncate(MiB)
            f.write(600000, b'x')
            f.commit()
            data = b''.join(f.pieces(MiB))
            equal(len(data), MiB, 'size')
            equal(data[:5000], bytes(Pattern(1).view(0, 5000)), 'what was left')
            equal(data[5000:600000], bytes(595000), 'the part that was cut off')
            equal(data[600000:], b'x' + bytes(MiB - 600001), 'the end')


@each_version(globals())
def check_close_and_expire(version):
    """Below every level, closed and never committed: written back when it is old enough."""
    requires_plugin()
    with served(dict(LAZY, Dirty_Expire_Centisecs=100)) as bed:
        before = bed.disk.device_bytes_written()
        client = bed.connect(version)
        with client.open('f', create=True) as f:
            write_dirty(bed, f)
        bed.settle(6)
        grown = bed.disk.device_bytes_written() - before
        assert grown >= SIZE, 'the counters say clean, but the device wrote only %s' % mb(grown)
        check_file(bed, 'f', Pattern(3), SIZE, version)


if __name__ == '__main__':
    main(globals())

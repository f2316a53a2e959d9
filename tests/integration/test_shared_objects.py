# SPDX-License-Identifier: LGPL-3.0-or-later
"""One file reached through two exports, and one connection used for more than writing.

MDCACHE gives one object to all exports of a file system that reach it; each export has a budget of its
own. And a connection whose writes are received one at a time must not keep a READ behind a COMMIT.
"""

import sys
import time

from support import *  # noqa: F401,F403
from harness.ganesha import Export
from harness.testing import main

PARAMS = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Dirty_Expire_Centisecs': 100}


def both(disk):
    return [Export(1, disk.export_dir, '/a', 'dontcache', PARAMS),
            Export(2, disk.export_dir, '/b', 'dontcache', PARAMS)]


def test_write_through_both():
    requires_plugin()
    with served(exports=both) as bed:
        a = bed.connect('3', export='/a')
        b = bed.connect('3', export='/b', source='127.0.0.2')
        first = a.open('f', create=True)
        first.write(0, b'x' * 4096)
        first.commit()
        second = b.open('f')
        for i in range(64):
            assert second.write(i * MiB, b'y' * MiB, check=False).ok
        assert second.commit().ok and first.commit().ok
        assert bed.server.running
        time.sleep(3)
        for export in (1, 2):
            stats = bed.server.export_stats(export)
            assert stats['dirty'] == stats['writeback'] == 0, stats
            assert stats['used'] <= 4 * MiB, 'export %d holds %s of its budget for nothing' % (
                export, mb(stats['used']))


def test_remove_the_export_that_saw_it_first():
    requires_plugin()
    with served(exports=both) as bed:
        a = bed.connect('3', export='/a')
        b = bed.connect('3', export='/b', source='127.0.0.2')
        first = a.open('f', create=True)
        first.write(0, b'x' * 4096)
        first.commit()
        second = b.open('f')
        assert second.read(0, 10).data == b'x' * 10
        bed.server.rewrite_conf(both(bed.disk)[1:])
        bed.server.hup()
        time.sleep(2)
        assert second.read(0, 10).data == b'x' * 10
        assert second.write(0, b'z' * 4096, check=False).ok and second.commit().ok
        assert bed.server.running


if __name__ == '__main__':
    sys.exit(main(globals()))

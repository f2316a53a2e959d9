#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""The audit of R3: no page is dirty because of an NFS client that nobody counts, also where it was not a write that
dirtied it. And the control: what a local process dirties is found, so the audit does look."""

from support import *                                   # noqa: F403
from nfsraw.pattern import Pattern
from harness.kernel import cachestat, requires_cachestat
from harness.testing import main

LAZY = {'Dirty_Expire_Centisecs': 6000}


def watch(bed, what, operation):
    """Runs it, gives the audit time to look, and compares the kernel's count with the plugin's."""
    looked = bed.stats()['audits_total']
    operation()
    wait_until(lambda: bed.stats()['audits_total'] >= looked + 2, 5, what='two looks of the audit')
    stats = bed.stats()
    kernel = cachestat(bed.local('f')).dirty * 4096
    print('    %-28s kernel %6d, counted %6d' % (what, kernel, stats['dirty']), flush=True)
    equal(stats['audit_unclaimed_bytes_total'], 0, what + ': dirty and counted by nobody')
    assert kernel <= stats['dirty'], '%s: the kernel has %d dirty, counted are %d' % (what, kernel, stats['dirty'])


def check_edges(fstype):
    requires_plugin()
    requires_cachestat()
    with served(LAZY, fstype=fstype) as bed:
        f = bed.connect('3').open('f', create=True)
        f.write(0, Pattern(1).view(0, MiB))
        watch(bed, 'a write', lambda: None)
        f.commit()
        watch(bed, 'truncated inside a page', lambda: f.truncate(500001))
        f.commit()
        watch(bed, 'extended from inside a page', lambda: f.truncate(900001))
        f.commit()
        watch(bed, 'a write beyond the end', lambda: f.write(2 * MiB, Pattern(1).view(0, 4096)))
        f.commit()
        watch(bed, 'stable and misaligned', lambda: f.write(3 * MiB + 5, Pattern(1).view(0, 5000), nfsraw.FILE_SYNC))
        watch(bed, 'cut to nothing', lambda: f.truncate(0))


def test_edges_xfs():
    check_edges('xfs')


def test_edges_ext4():
    check_edges('ext4')


def test_a_local_writer_is_found():
    requires_plugin()
    requires_cachestat()
    with served(LAZY) as bed:
        f = bed.connect('3').open('f', create=True)
        f.write(0, Pattern(1).view(0, 4096))
        with open(bed.local('f'), 'r+b') as local:
            local.seek(8 * 4096)
            local.write(b'x' * 5000)
        wait_until(lambda: bed.stats()['audit_unclaimed_bytes_total'] > 0, 5, what='found by the audit')
        assert 'that nobody counts' in bed.server.log_text(), 'not in the log'
        bed.check_audit = lambda: None


if __name__ == '__main__':
    main(globals())

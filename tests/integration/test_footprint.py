#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""The page cache is dropped behind the writer: after a stream and its COMMIT under 2 % of it is cached, also
after overwriting in place what had been cached before (the kernel's own RWF_DONTCACHE leaves all of that)."""

import os

from support import *                                   # noqa: F403
from nfsraw.load import write_and_commit
from nfsraw.pattern import Pattern
from harness.kernel import PAGE_SIZE, cachestat, requires_cachestat
from harness.testing import main

SIZE = 4 * GiB if FULL else GiB
OVERWRITE = GiB if FULL else 512 * MiB
SHARE = 0.02


def cached_bytes(path, length=0):
    return cachestat(path, 0, length).cached * PAGE_SIZE


def falls_below(path, length, what):
    """Dropping follows writeback at its own pace: a few seconds are allowed."""
    bound = SHARE * length
    least = cached_bytes(path, length)
    at_commit, end = least, time.monotonic() + 4
    while least > bound and time.monotonic() < end:
        time.sleep(0.05)
        least = cached_bytes(path, length)
    print('    %s: cached at COMMIT %s, then %s (bound %s)' % (what, mb(at_commit), mb(least), mb(bound)), flush=True)
    assert least <= bound, '%s: %s of %s still cached' % (what, mb(least), mb(length))


def test_stream_then_overwrite():
    requires_plugin()
    requires_cachestat()
    with served(size=SIZE + 2 * GiB) as bed:
        path = bed.local('f')
        f = bed.connect('3').open('f', create=True)
        stream, _ = write_and_commit(f, Pattern(1), SIZE, timeout=120)
        no_errors([stream])
        falls_below(path, SIZE, 'streamed ' + mb(SIZE))
        # Now cached by a reader, as a file in use is, and overwritten in place.
        with open(path, 'rb', buffering=0) as local:
            left = OVERWRITE
            while left > 0:
                left -= len(local.read(min(left, 4 * MiB)))
        warm = cached_bytes(path, OVERWRITE)
        assert warm > 0.9 * OVERWRITE, 'only %s cached before the overwrite: nothing to show' % mb(warm)
        stream, _ = write_and_commit(f, Pattern(2), OVERWRITE, timeout=60)
        no_errors([stream])
        falls_below(path, OVERWRITE, 'overwrote ' + mb(OVERWRITE))
        bed.settle()


def test_drop_behind_off_keeps_it():
    """Drop_Behind = false is honoured; and the measure above is able to fail."""
    requires_plugin()
    requires_cachestat()
    size = 128 * MiB
    with served({'Drop_Behind': False}) as bed:
        f = bed.connect('3').open('f', create=True)
        write_and_commit(f, Pattern(1), size)
        bed.settle()
        time.sleep(0.3)
        cached = cached_bytes(bed.local('f'))
        assert cached > 0.9 * size, 'only %s of %s cached with Drop_Behind = false' % (mb(cached), mb(size))


if __name__ == '__main__':
    main(globals())

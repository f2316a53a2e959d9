#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""COMMIT after a long stream has little left to do: less than a tenth of what it takes in buffered mode, on
the same slow device. The default size is a quarter of the specification's 2 GiB; DONTCACHE_TEST_FULL=1."""

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.testing import main

SIZE, SLOW = (2 * GiB, 100 * MiB) if FULL else (512 * MiB, 150 * MiB)


def stream_and_commit(mode, params):
    with served(params, mode=mode, size=SIZE + 2 * GiB, write_bps=SLOW) as bed:
        f = bed.connect('3').open('f', create=True)
        stream = Stream(f, sequential(Pattern(1), SIZE), depth=16)
        seconds = run([stream], 120)
        no_errors([stream])
        start = time.monotonic()
        f.commit()
        commit = time.monotonic() - start
        print('    %s: wrote %s in %.2f s, COMMIT %.3f s' % (mode, mb(SIZE), seconds, commit), flush=True)
        return commit


def test_a_tenth_of_buffered():
    requires_plugin()
    requires_slow_device()
    # A budget below a tenth of the size, or the quarter-size run would have nothing to show.
    params = {} if FULL else {'Dirty_Bytes': '32M', 'Dirty_Background_Bytes': '8M'}
    ours = stream_and_commit('dontcache', params)
    theirs = stream_and_commit('buffered', {})
    assert theirs > 1, 'COMMIT in buffered mode took %.2f s: the device was not slow' % theirs
    assert ours < theirs / 10, 'COMMIT took %.3f s, in buffered mode %.3f s' % (ours, theirs)


if __name__ == '__main__':
    main(globals())

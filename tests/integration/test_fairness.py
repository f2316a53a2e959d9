#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""The client that offers more than its part of Parked_Bytes is held back, and nobody else: while one client
keeps 256 writes of 1 MiB outstanding, a modest one with two outstanding still gets its writes done, without
JUKEBOX, and gets a fair part of the device."""

from support import *                                   # noqa: F403
from nfsraw.load import Stream, percentile, run
from nfsraw.pattern import Pattern
from harness.testing import main

SECONDS = 8
SHARE = 0.35            # of the bytes done; the fair one is a half
LONGEST_GAP = 2.0       # seconds without a reply to the modest client


def test_modest_client_beside_a_greedy_one():
    requires_plugin()
    requires_slow_device()
    params = {'Dirty_Bytes': '32M', 'Dirty_Background_Bytes': '8M', 'Parked_Bytes': '32M', 'Dirty_Expire_Centisecs': 300}
    with served(params, write_bps=30 * MiB) as bed:
        def jobs(pattern):
            for i in range(1 << 20):
                yield i % 128 * MiB, pattern.view(i % 128 * MiB, MiB)
        greedy = Stream(bed.connect('3', source='127.0.0.2').open('greedy', create=True), jobs(Pattern(1)), depth=256)
        modest = Stream(bed.connect('3', source='127.0.0.3').open('modest', create=True), jobs(Pattern(2)), depth=2)
        # The greedy one first, until everything it has is either parked or held back in its connection.
        end = time.monotonic() + 2
        with StatsSampler(bed) as watch:
            run([greedy], until=lambda: time.monotonic() > end, drain=False)
        parked_bytes, waiting = watch.peak('parked_bytes'), greedy.client.outstanding
        before, started = greedy.acked, time.monotonic()
        end = started + SECONDS
        replies = []

        def over():
            if len(modest.latencies) + modest.delayed != len(replies):
                replies.extend([time.monotonic()] * (len(modest.latencies) + modest.delayed - len(replies)))
            return time.monotonic() > end
        run([greedy, modest], SECONDS + 20, until=over, drain=False)
        done = greedy.acked - before
        gaps = [b - a for a, b in zip([started] + replies, replies + [time.monotonic()])]
        print('    greedy alone: parked at most %s, %d outstanding; beside each other: greedy %.1f MB/s, JUKEBOX %d; modest %.1f MB/s, JUKEBOX %d, p50 %.0f ms, '
              'p99 %.0f ms, longest gap %.0f ms' % (
                  mb(parked_bytes), waiting, done / SECONDS / 1e6, greedy.delayed, modest.acked / SECONDS / 1e6, modest.delayed,
                  1000 * (percentile(modest.latencies, 50) or 0), 1000 * (percentile(modest.latencies, 99) or 0),
                  1000 * max(gaps)), flush=True)
        no_errors([greedy, modest])
        assert parked_bytes > 0 and waiting >= 200, 'the greedy client was under no pressure: %d outstanding' % waiting
        equal(modest.delayed, 0, 'JUKEBOX replies to the modest client')
        assert max(gaps) <= LONGEST_GAP, 'the modest client had no reply for %.1f s' % max(gaps)
        assert modest.acked >= SHARE * (modest.acked + done), 'the modest client got %.0f%% of what was written' % (
            100 * modest.acked / (modest.acked + done))
        bed.kill_clients()
        bed.disk.set_write_bps(None)
        bed.settle(20)


if __name__ == '__main__':
    main(globals())

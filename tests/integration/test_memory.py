#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""The server's memory is bounded by what Parked_Bytes says, whatever clients offer: 64 writers with 1 GiB
outstanding in all, on a slow device, against Dirty_Bytes = Parked_Bytes = 64M.

The bound: a parked WRITE is held twice by Ganesha (the RPC record, and the decoded copy), so twice
Parked_Bytes; beside that SLACK for what does not depend on it: one request being received on each
connection, the allocator's free lists, the plugin's own tables."""

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run
from nfsraw.pattern import Pattern
from harness.testing import main

PARKED = 64 * MiB
SLACK = 128 * MiB
WRITERS = 64
SECONDS = 10


def test_rss_is_bounded():
    requires_plugin()
    requires_slow_device()
    requires(not ASAN, 'the sanitizer keeps freed memory: sizes mean nothing')
    params = {'Dirty_Bytes': 64 * MiB, 'Dirty_Background_Bytes': 16 * MiB, 'Parked_Bytes': PARKED,
              'Dirty_Expire_Centisecs': 300}
    with served(params, write_bps=30 * MiB) as bed:
        data = Pattern(1).view(0, MiB)          # one buffer, thrown by all

        def jobs():
            for i in range(1 << 20):
                yield i % 64 * MiB, data
        streams = []
        for i in range(WRITERS):
            f = bed.connect('3', source='127.0.0.%d' % (2 + i)).open('f%d' % i, create=True)
            streams.append(Stream(f, jobs(), depth=GiB // WRITERS // MiB))
        before = bed.server.rss_bytes()
        peak = [before]
        end = time.monotonic() + SECONDS

        def over():
            peak[0] = max(peak[0], bed.server.rss_bytes())
            return time.monotonic() > end
        with StatsSampler(bed, 0.1) as watch:
            run(streams, SECONDS + 20, until=over, drain=False)
        offered = sum(s.sent for s in streams) * MiB
        print('    offered %s, acknowledged %s, JUKEBOX %d; RSS before %s, peak +%s; bound 2 x Parked_Bytes + %s; '
              'parked at most %d (%s)' % (
                  mb(offered), mb(sum(s.acked for s in streams)), sum(s.delayed for s in streams), mb(before),
                  mb(peak[0] - before), mb(SLACK), watch.peak('parked'), mb(watch.peak('parked_bytes'))), flush=True)
        no_errors(streams)
        assert offered >= GiB, 'only %s offered' % mb(offered)
        assert peak[0] - before <= 2 * PARKED + SLACK, 'RSS grew by %s' % mb(peak[0] - before)
        # A request that is already being received when its connection is held back has to be parked, too.
        assert watch.peak('parked_bytes') <= PARKED + WRITERS * MiB, 'parked %s, Parked_Bytes is %s' % (
            mb(watch.peak('parked_bytes')), mb(PARKED))
        equal(sum(s.delayed for s in streams), 0, 'JUKEBOX replies: the last brake was used')
        # The server must still be well: all clients vanish, a new one is served.
        bed.kill_clients()
        bed.disk.set_write_bps(None)
        bed.settle(20)
        with bed.connect().open('after', create=True) as f:
            f.write(0, b'alive')
            f.commit()


if __name__ == '__main__':
    main(globals())

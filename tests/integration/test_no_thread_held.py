#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""A parked write holds no thread: with two workers and 64 writes parked, another client's GETATTR answers
within 50 ms; of another file, and of the very file that is being written."""

from support import *                                   # noqa: F403
from nfsraw.load import Probe, Stream, percentile, run, sequential
from nfsraw.pattern import Pattern
from harness.testing import main

LIMIT_MS = 50
SLOW = 8 * MiB
WATCH = 2.5
MANY = 64
# One connection may park a sixteenth of this before it is held back: here the writes are to be parked.
PARKED = '2G'


def fill(streams):
    """Send everything the streams have room for."""
    now = time.monotonic()
    for s in streams:
        s.fill(now)
    while any(s.client.conn.unsent_bytes for s in streams):
        nfsraw.pump_many([s.client.conn for s in streams], 0.1)


def parked_and_probed(version, clients):
    """96 writes of 1 MiB outstanding over `clients` connections; a probe meanwhile."""
    requires_plugin()
    requires_slow_device()
    params = {'Dirty_Bytes': '8M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': PARKED, 'Dirty_Expire_Centisecs': 100}
    with served(params, write_bps=SLOW, workers=2) as bed:
        bed.connect().open('quiet', create=True)
        streams = []
        for i in range(clients):
            f = bed.connect(version, source='127.0.0.%d' % (10 + i)).open('f%d' % i, create=True)
            streams.append(Stream(f, sequential(Pattern(i), 96 * MiB // clients, MiB), depth=96 // clients))
        where = dict(bed.address(), source='127.0.0.2')
        beside = dict(bed.address(), source='127.0.0.3')
        with Probe(version, 'quiet', 0.02, **where) as quiet, Probe('3', 'f0', 0.02, **beside) as same:
            with StatsSampler(bed) as watch:
                end = time.monotonic() + WATCH
                run(streams, until=lambda: time.monotonic() > end, drain=False)
            bed.disk.set_write_bps(None)
        # Only what was asked while that many were parked counts.
        stretches = watch.intervals(lambda stats: stats['parked'] >= MANY)
        times = [x for start, stop in stretches for x in quiet.latencies(start, stop)]
        own = [x for start, stop in stretches for x in same.latencies(start, stop)]
        print('    parked at most %d; %d GETATTRs meanwhile: p50 %.2f ms, max %.2f ms; of a file being written: '
              'max %.2f ms' % (watch.peak('parked'), len(times), 1000 * (percentile(times, 50) or 0),
                               1000 * max(times, default=0), 1000 * max(own, default=0)), flush=True)
        assert len(times) >= 20, 'only %d samples while %d writes were parked (peak %d)' % (
            len(times), MANY, watch.peak('parked'))
        assert 1000 * max(times) <= LIMIT_MS, 'GETATTR took %.1f ms' % (1000 * max(times))
        assert 1000 * max(own) <= LIMIT_MS, 'GETATTR of a file being written took %.1f ms' % (1000 * max(own))
        run(streams, 30)                # with the device fast again everything gets its answer
        no_errors(streams)
        equal(sum(s.acked for s in streams), 96 // clients * clients * MiB, 'bytes acknowledged')
        bed.settle()


@each_version(globals())
def check_eight_clients(version):
    parked_and_probed(version, 8)


def test_one_client_v3():
    parked_and_probed('3', 1)


def test_many_clients_v3():
    parked_and_probed('3', 32)


if __name__ == '__main__':
    main(globals())

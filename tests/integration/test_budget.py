#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""The hard budget: however many writers burst onto a slow device, dirty + writeback of the export's files
never exceed Dirty_Bytes: as the kernel counts them (cachestat), and as the plugin says.

The control is the same load in buffered mode. It must break the limit, or this test could not fail."""

from support import *                                   # noqa: F403
from nfsraw.load import Stream, percentile, run
from nfsraw.pattern import Pattern
from harness.kernel import Sampler, requires_cachestat
from harness.testing import main

LIMIT = 64 * MiB
SLOW = 50 * MiB
SECONDS = 6


def endless(pattern, chunk, start, size):
    """Sequential from start, over and over again within size bytes."""
    while True:
        offset = start
        while offset + chunk <= start + size:
            yield offset, pattern.view(offset, chunk)
            offset += chunk


def burst(mode, chunk, start, writers=16, depth=8, version='3'):
    """Returns (kernel sampler, stats sampler or None, streams) of SECONDS of burst."""
    requires_slow_device()
    requires_cachestat()
    params = {'Dirty_Bytes': LIMIT, 'Dirty_Background_Bytes': 16 * MiB, 'Parked_Bytes': 256 * MiB,
              'Dirty_Expire_Centisecs': 300}
    with served(params, mode=mode, write_bps=SLOW) as bed:
        streams = []
        for i in range(writers):
            f = bed.connect(version, source='127.0.0.%d' % (2 + i)).open('f%d' % i, create=True)
            streams.append(Stream(f, endless(Pattern(i), chunk, start, 48 * MiB), depth))
        end = time.monotonic() + SECONDS
        watch = StatsSampler(bed) if mode == 'dontcache' else None
        with Sampler(bed.export_dir, 0.01) as kernel, watch or contextlib.nullcontext():
            run(streams, timeout=SECONDS + 30, until=lambda: time.monotonic() > end, drain=False)
        bed.kill_clients()              # what is outstanding does not matter any more
        bed.disk.set_write_bps(None)
        if watch:
            bed.settle()
        return kernel, watch, streams


def report(kernel, streams):
    latencies = [x for s in streams for x in s.latencies]
    print('    %s acked, p99 %.0f ms; kernel peak dirty + writeback %s; %d samples, longest gap %.0f ms' % (
        mb(sum(s.acked for s in streams)), 1000 * (percentile(latencies, 99) or 0), mb(kernel.peak_dirty_writeback),
        len(kernel.samples), 1000 * kernel.longest_gap), flush=True)


def within_budget(chunk, start, **kw):
    requires_plugin()
    kernel, watch, streams = burst('dontcache', chunk, start, **kw)
    report(kernel, streams)
    print('    plugin peak dirty %s, writeback %s, dirty + writeback %s, with reserved %s; parked %d' % (
        mb(watch.peak('dirty')), mb(watch.peak('writeback')), mb(watch.peak('dirty', 'writeback')),
        mb(watch.peak('dirty', 'writeback', 'reserved')), watch.peak('parked')), flush=True)
    no_errors(streams)
    # The load must have been one that could break the limit, and the sampler must have been awake.
    assert sum(s.acked for s in streams) > 2 * LIMIT, 'too little was written to prove anything'
    assert watch.peak('parked') > 0, 'no write was ever parked: the budget was never under pressure'
    assert len(kernel.samples) > 20 * SECONDS, 'the sampler hardly ran: %d samples' % len(kernel.samples)
    assert kernel.peak_dirty_writeback <= LIMIT, 'the kernel counted %s dirty + writeback, Dirty_Bytes is %s' % (
        mb(kernel.peak_dirty_writeback), mb(LIMIT))
    peak = watch.peak('dirty', 'writeback', 'reserved')
    assert peak <= LIMIT, 'the plugin counted %s dirty + writeback + reserved, Dirty_Bytes is %s' % (mb(peak), mb(LIMIT))


def test_burst_1m():
    within_budget(MiB, 0)


def test_burst_64k_misaligned():
    within_budget(64 * 1024, 1001, depth=32)


@each_version(globals(), ('4.0', '4.1'))
def check_burst_1m(version):
    within_budget(MiB, 0, version=version)


def test_control_buffered_breaks_it():
    kernel, _, streams = burst('stock' if MODE == 'stock' else 'buffered', MiB, 0)
    report(kernel, streams)
    assert kernel.peak_dirty_writeback > LIMIT, \
        'buffered mode stayed within %s: this load proves nothing' % mb(LIMIT)


if __name__ == '__main__':
    main(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Pacing and the server's budget, on a real device: what is dirty is held at the set point, not at the limit;
limits change while writers wait; two exports share the server's Dirty_Bytes, which may change, too."""

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run
from nfsraw.pattern import Pattern
from harness.kernel import Sampler, requires_cachestat
from harness.testing import main

SLOW = 60 * MiB


def endless(pattern, chunk=256 << 10, size=48 * MiB):
    while True:
        for offset in range(0, size, chunk):
            yield offset, pattern.view(offset, chunk)


def writers(bed, count, path=PSEUDO, depth=4, first=2):
    return [Stream(bed.connect('3', export=path, source='127.0.0.%d' % (first + i)).open('f%d' % i, create=True),
                   endless(Pattern(i)), depth) for i in range(count)]


def write_for(streams, seconds):
    """The longest time in which none of them got a reply."""
    end = time.monotonic() + seconds
    seen = {'acked': -1, 'at': time.monotonic(), 'longest': 0.0}

    def over():
        now, acked = time.monotonic(), sum(s.acked for s in streams)
        if acked != seen['acked']:
            seen['longest'] = max(seen['longest'], now - seen['at'])
            seen.update(acked=acked, at=now)
        return now > end
    run(streams, until=over, drain=False)
    return seen['longest']


def end(bed):
    bed.kill_clients()
    bed.disk.set_write_bps(None)
    bed.settle(20)


def test_held_at_the_set_point():
    """Nobody waits for the hard limit: four fifths of the samples are within a tenth of the set point."""
    requires_plugin()
    requires_slow_device()
    with served({'Dirty_Bytes': '64M', 'Dirty_Background_Bytes': '16M'}, write_bps=SLOW) as bed:
        streams = writers(bed, 16)
        write_for(streams, 2)
        with StatsSampler(bed) as watch:
            longest = write_for(streams, 4)
        no_errors(streams)
        levels = [(s['dirty'] + s['writeback'], s['setpoint'], s['parked']) for _, s in watch.samples]
        near = [abs(used - at) <= at / 10 for used, at, _ in levels]
        print('    set point %s, dirty + writeback %s to %s, near it %.0f%% of %d samples; longest gap %.0f ms' % (
            mb(levels[0][1]), mb(min(x[0] for x in levels)), mb(max(x[0] for x in levels)),
            100 * sum(near) / len(near), len(near), 1000 * longest), flush=True)
        assert sum(1 for x in levels if x[2] > 0) > len(levels) / 2, 'writers hardly waited: nothing was tested'
        assert sum(near) >= 0.8 * len(near), 'only %d of %d samples are near the set point' % (sum(near), len(near))
        end(bed)


def test_a_budget_changes_under_load():
    """256 MiB to 16 MiB and back: in force within a second of what the device needs for the difference."""
    requires_plugin()
    requires_slow_device()
    requires_cachestat()
    rate = 200 * MiB

    def limit(bed, size):
        bed.server.rewrite_conf([Export(EXPORT_ID, bed.disk.export_dir, PSEUDO, 'dontcache',
                                        {'Audit': True, 'Dirty_Bytes': size})])
        bed.server.hup()
        wait_until(lambda: bed.stats()['limits']['dirty_bytes'] == int(size[:-1]) * MiB, 3, what='the new limit')
    with served({'Dirty_Bytes': '256M'}, write_bps=rate, size=4 * GiB) as bed:
        streams = writers(bed, 8, depth=8)
        write_for(streams, 3)
        high = bed.stats()
        limit(bed, '16M')
        # 216 MiB less 15 at 200 MiB/s, and a second.
        stall = write_for(streams, 2.1)
        with Sampler(bed.export_dir, 0.01) as kernel:
            low = write_for(streams, 1.5)
        limit(bed, '256M')
        back = write_for(streams, 3)
        used = bed.stats()
        no_errors(streams)
        print('    %s dirty + writeback before; peak under 16M %s; %s a while after; longest gaps %.0f, %.0f, %.0f ms' % (
            mb(high['dirty'] + high['writeback']), mb(kernel.peak_dirty_writeback),
            mb(used['dirty'] + used['writeback']), 1000 * stall, 1000 * low, 1000 * back), flush=True)
        assert high['dirty'] + high['writeback'] > 128 * MiB, 'the load never filled the large budget'
        assert kernel.peak_dirty_writeback <= 16 * MiB, 'still %s under 16M' % mb(kernel.peak_dirty_writeback)
        assert used['dirty'] + used['writeback'] > 128 * MiB, 'the budget did not come back'
        end(bed)


def server_budget(size):
    def exports(disk):
        other = os.path.join(disk.mountpoint, 'other')
        os.makedirs(other, exist_ok=True)
        os.chmod(other, 0o777)
        params = {'Audit': True, 'Dirty_Bytes': '64M'}
        return [Export(1, disk.export_dir, PSEUDO, 'dontcache', params), Export(2, other, '/other', 'dontcache', params)]
    return {'exports': exports, 'dontcache_params': {'Dirty_Bytes': size}}


def test_two_exports_share_the_servers_budget():
    """Their sum stays within it at any moment, as the kernel counts; each gets about half; a bad new value on
    SIGHUP changes nothing and is named with its line and range; a good one is in force."""
    requires_plugin()
    requires_slow_device()
    requires_cachestat()
    with served(write_bps=SLOW, strict=False, **server_budget('80M')) as bed:
        one, two = writers(bed, 4), writers(bed, 4, '/other', first=20)
        write_for(one, 2)
        alone = bed.stats()['usable']
        with Sampler(bed.disk.mountpoint, 0.02) as kernel:
            write_for(one + two, 6)
            shares = [bed.server.export_stats(i)['usable'] for i in (1, 2)]
        print('    alone: %s; together: %s and %s; kernel peak of both %s' % (
            mb(alone), mb(shares[0]), mb(shares[1]), mb(kernel.peak_dirty_writeback)), flush=True)
        assert alone >= 56 * MiB, 'alone an export may use no more than %s' % mb(alone)
        assert kernel.peak_dirty_writeback <= 80 * MiB, 'both together: %s' % mb(kernel.peak_dirty_writeback)
        assert max(shares) <= 1.3 * min(shares), 'not divided evenly: %s' % shares

        for bad in ('1K', 'lots', '99T'):
            bed.server.dontcache_params['Dirty_Bytes'] = bad
            bed.server.rewrite_conf(bed.server.exports)
            bed.server.hup()
            wait_until(lambda: '"%s"' % bad in bed.server.log_text(), 3, what='a word about %s' % bad)
            line = [x for x in bed.server.log_text().splitlines() if '"%s"' % bad in x][-1]
            assert 'ganesha.conf:' in line and '64M' in line and 'Dirty_Bytes' in line, line
            equal(bed.server.stats()['server']['dirty_bytes'], 80 * MiB, 'the server\'s Dirty_Bytes after a bad one')
        bed.server.dontcache_params['Dirty_Bytes'] = '64M'
        bed.server.rewrite_conf(bed.server.exports)
        bed.server.hup()
        wait_until(lambda: bed.server.stats()['server']['dirty_bytes'] == 64 * MiB, 3, what='the good value')
        write_for(one + two, 3)
        with Sampler(bed.disk.mountpoint, 0.02) as kernel:
            write_for(one + two, 1.5)
        assert kernel.peak_dirty_writeback <= 64 * MiB, 'both together: %s of 64 MiB' % mb(kernel.peak_dirty_writeback)
        no_errors(one + two)
        bed.kill_clients()
        bed.disk.set_write_bps(None)
        bed.settle(20)


def test_a_dead_device_leaves_room():
    """Two exports fill the server's budget on a device that then hangs; one on another device begins afterwards and
    is served, and the sum stays within the budget."""
    requires_plugin()
    requires_root()
    requires_fault_injection()
    requires_cachestat()
    with workdir('other') as folder, LoopDisk(folder, 2 * GiB) as good:
        def exports(disk):
            second = os.path.join(disk.mountpoint, 'second')
            os.makedirs(second, exist_ok=True)
            os.chmod(second, 0o777)
            p = {'Audit': True, 'Dirty_Bytes': '64M', 'Drain_Timeout_Ms': 200}
            return [Export(1, disk.export_dir, PSEUDO, 'dontcache', {**p, 'Fault_Injection': 'on'}),
                    Export(2, second, '/second', 'dontcache', {**p, 'Fault_Injection': 'on'}),
                    Export(3, good.export_dir, '/good', 'dontcache', p)]
        with served(exports=exports, dontcache_params={'Dirty_Bytes': '64M'}) as bed:
            stuck = writers(bed, 2) + writers(bed, 2, '/second', first=10)
            write_for(stuck, 1)
            bed.fault('writeback:hang')
            write_for(stuck, 2)
            others = writers(bed, 2, '/good', first=20)
            write_for(others, 1)
            before = sum(s.acked for s in others)
            with Sampler(good.mountpoint, 0.02) as kernel:
                write_for(others, 2)
            done = sum(s.acked for s in others) - before
            used = sum(bed.server.export_stats(i)['used'] for i in (1, 2))
            print('    the dead device holds %s of 64 MiB; the good one %s in 2 s, kernel peak there %s' % (
                mb(used), mb(done), mb(kernel.peak_dirty_writeback)), flush=True)
            assert done >= 64 * MiB, 'the good device wrote no more than %s in 2 s' % mb(done)
            assert used + kernel.peak_dirty_writeback <= 64 * MiB, 'more than the server has'
            bed.fault('off')
            bed.kill_clients()
            bed.settle(20)
            equal(bed.server.stop(20), 0, 'exit code')


if __name__ == '__main__':
    main(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Problems that people have had with servers like this one, re-enacted by their number in docs/problems.md: those
of the server as a whole (12 to 14, 16, 18, 20). Descriptors, the end, configuration, devices, what the kernel
refuses."""

import os
import threading

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.ganesha import preload_library
from harness.kernel import PAGE_SIZE, Sampler, cachestat, cachestat_supported, requires_cachestat
from harness.testing import main
from test_config import refused_at_start, refused_on_reload
from test_shutdown import stop_while_parked



# -- 12

class ManyFiles:
    """One client that writes, commits and closes file after file; what went wrong is in problem."""

    def __init__(self, bed, version, number, files):
        self.client = bed.connect(version, source='127.0.0.%d' % (2 + number))
        self.version, self.number, self.files = version, number, files
        self.delays = 0
        self.problem = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def name(self, i):
        return 'd%d/f%d' % (self.number, i)

    def data(self, i):
        return self.pattern_of(i).view(0, 4096 + i % 5000)

    def pattern_of(self, i):
        return Pattern(self.number * 100000 + i)

    def patiently(self, attempt):
        """A busy server may say DELAY; it may not say it for ever."""
        end = time.monotonic() + 30
        while True:
            try:
                return attempt()
            except nfsraw.NfsError as error:
                if error.status != nfsraw.Status.DELAY or time.monotonic() > end:
                    raise
                self.delays += 1
                time.sleep(0.05)

    def run(self):
        try:
            self.client.mkdir('d%d' % self.number)
            for i in range(self.files):
                f = self.patiently(lambda: self.client.open(self.name(i), create=True))
                write = self.patiently(lambda: f.write(0, self.data(i)))
                equal(write.count, len(self.data(i)), 'bytes written')
                # Half are committed at once; the others later, when their descriptor is long gone.
                if i % 2:
                    equal(self.patiently(f.commit).verifier, write.verifier, 'verifier')
                f.close()
            for i in range(0, self.files, 2):
                f = self.patiently(lambda: self.client.open(self.name(i)))
                self.patiently(f.commit)
                f.close()
        except Exception as error:
            self.problem = error


def descriptors(server):
    return len(os.listdir('/proc/%d/fd' % server.pid))


def many_files(nofile, per_client, **server):
    """16 clients of all versions, each writing file after file: no EBADF, no hang, no byte lost; and the server
    keeps within its descriptors with room to spare."""
    limit = ['sh', '-c', 'ulimit -n %d && exec "$@"' % nofile, 'sh']
    with served({'Dirty_Bytes': '32M'}, wrapper=limit, **server) as bed:
        with open('/proc/%d/limits' % bed.server.pid, encoding='ascii') as limits:
            line = next(line for line in limits if line.startswith('Max open files'))
        equal(line.split()[3:5], [str(nofile)] * 2, 'limits of the server')
        idle = descriptors(bed.server)
        writers = [ManyFiles(bed, nfsraw.VERSIONS[i % 3], i, per_client) for i in range(16)]
        for w in writers:
            w.thread.start()
        peak, end = 0, time.monotonic() + 60 + 0.2 * 16 * per_client
        while any(w.thread.is_alive() for w in writers):
            peak = max(peak, descriptors(bed.server))
            assert time.monotonic() < end, 'a client hangs: %s' % bed.stats()
            time.sleep(0.02)
        print('    %d files, at most %d descriptors (idle %d), DELAY %d, written through %s' % (
            16 * per_client, peak, idle, sum(w.delays for w in writers),
            bed.stats()['write_through_total'] if bed.has_stats else '-'), flush=True)
        for w in writers:
            if w.problem:
                raise AssertionError('client %d (NFS %s): %r' % (w.number, w.version, w.problem)) from w.problem
        # All of them may be in use for a moment: then ours are given back. What counts is above.
        assert peak <= nofile, '%d of %d descriptors in use' % (peak, nofile)
        assert 'EBADF' not in bed.server.log_text() and 'Bad file descriptor' not in bed.server.log_text()
        bed.settle()
        bed.close_clients()
        bed.server.stop()
        bed.disk.remount()
        for w in writers:
            for i in range(per_client):
                with open(bed.local(w.name(i)), 'rb') as local:
                    assert local.read() == w.data(i), w.name(i) + ' differs on the device'


# Ganesha keeps up to 99% of the descriptors by itself, and forgets its connections; with so few it must be told.
LOW_MARKS = {'MDCACHE': {'FD_Limit_Percent': 50, 'FD_HWMark_Percent': 40, 'FD_LWMark_Percent': 20}}


def test_problem_12_many_files_with_256_descriptors():
    many_files(256, 10000 // 16 if FULL else 60, blocks=LOW_MARKS)


def test_problem_12_many_files_with_1024_descriptors():
    """More files than descriptors, and Ganesha's own marks."""
    many_files(1024, 10000 // 16 if FULL else 80)


# -- 13

def test_problem_13_sigterm_while_dirty_and_throttled_v3():
    stop_while_parked('3')


def test_problem_13_sigterm_while_dirty_and_throttled_v41():
    stop_while_parked('4.1')


@each_version(globals(), ('3', '4.1'))
def check_problem_13_sigterm_while_the_device_hangs(version):
    """Worse: the device answers nothing at all, with writes parked, a COMMIT and a stable write outstanding."""
    requires_fault_injection()
    params = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Fault_Injection': 'on'}
    with served(params) as bed:
        with bed.connect(version).open('committed', create=True) as f:
            f.write(0, Pattern(13).view(0, MiB))
            f.commit()
        f = bed.connect(version).open('f', create=True)
        bed.fault('writeback|sync:hang')
        stream = Stream(f, sequential(Pattern(1), 64 * MiB), depth=32)
        run([stream], 20, until=lambda: bed.parked() >= 3, drain=False)
        waiting = [f.commit_async(), f.write_async(0, b'y' * 4096, nfsraw.FILE_SYNC)]
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            f.client.conn.pump(0.1)
        assert not any(call.done for call in waiting), 'the device did not hang'
        start = time.monotonic()
        code = bed.server.stop(timeout=60)
        took = time.monotonic() - start
        print('    exit code %s after %.1f s' % (code, took), flush=True)
        equal(code, 0, 'exit code')
        assert took < 10, 'the exit took %.1f s' % took
        bed.kill_clients()
        bed.disk.remount()
        check_file(bed, 'committed', Pattern(13), MiB, through_nfs=False)


# -- 14

def test_problem_14_one_bad_export_block():
    """A value below its range, a size that is none, a word that is none: the log names file, line, value and
    range; the other export serves."""
    for case in ('below_minimum', 'unknown_suffix', 'unknown_mode'):
        refused_at_start(case)


def test_problem_14_a_bad_server_block():
    """A wrong value in DONTCACHE { } takes no export away: said, and the default holds."""
    requires_plugin()

    def two(disk):
        other = os.path.join(disk.mountpoint, 'other')
        os.makedirs(other, exist_ok=True)
        return [Export(1, disk.export_dir, PSEUDO, 'dontcache'), Export(2, other, '/other', 'dontcache')]
    for value in ('-5', '99999999999', '3', 'lots'):
        with served(exports=two, dontcache_params={'Max_Open_Files': value}, strict=False) as bed:
            for path in (PSEUDO, '/other'):
                with bed.connect('3', export=path) as client, client.open('f', create=True) as f:
                    equal(f.write(0, b'x', nfsraw.FILE_SYNC).committed, nfsraw.FILE_SYNC, path + ' serves')
            assert 'DONTCACHE block' in bed.server.log_text(), 'nothing in the log about Max_Open_Files = ' + value
            bed.check_audit = lambda: None      # where the block is passed over there is no control socket


def test_problem_14_one_bad_export_block_on_reload():
    """The same on SIGHUP: besides, the export itself stays up, with the limits it had."""
    refused_on_reload('background_above_limit')


# -- 16 and 18

@contextlib.contextmanager
def two_disks(params):
    """(bed, slow disk, fast disk): export 1 on the first, export 2 on the second."""
    requires_plugin()
    requires_root()
    requires(loop_supported(), 'no loop devices here')
    with workdir('other') as folder, LoopDisk(folder, 1 * GiB) as fast:
        def exports(disk):
            return [Export(1, disk.export_dir, '/slow', 'dontcache', {'Audit': True, **params}),
                    Export(2, fast.export_dir, '/fast', 'dontcache', {'Audit': True, **params})]
        with served(exports=exports, workers=8) as bed:
            yield bed, bed.disk, fast
            # The fast disk goes first: nobody may have it open then.
            bed.kill_clients()
            bed.disk.set_write_bps(None)
            if bed.server.running:
                equal(bed.server.stop(20), 0, 'exit code')


def test_problem_16_a_second_device_starts_later():
    """What is dirty below the background level of one export stays where it is, whatever another device's export
    begins to do."""
    requires_cachestat()
    params = {'Dirty_Bytes': '64M', 'Dirty_Background_Bytes': '32M', 'Dirty_Expire_Centisecs': 6000}
    with two_disks(params) as (bed, first, second):
        f = bed.connect(export='/slow').open('f', create=True)
        stream = Stream(f, sequential(Pattern(16), 24 * MiB), depth=8)
        run([stream])
        before = first.device_bytes_written()
        for round_number in range(4):
            g = bed.connect('4.1', export='/fast', source='127.0.0.3').open('g%d' % round_number, create=True)
            burst = Stream(g, sequential(Pattern(round_number), 96 * MiB), depth=16)
            run([burst])
            no_errors([burst])
        assert bed.server.export_stats(2)['written_background_bytes_total'] > 0, 'the second one never flushed'
        dirty = cachestat(os.path.join(first.export_dir, 'f')).dirty * PAGE_SIZE
        grown = first.device_bytes_written() - before
        print('    still dirty on the first: %s; its device wrote %s' % (mb(dirty), mb(grown)), flush=True)
        equal(bed.server.export_stats(1)['dirty'], 24 * MiB, 'dirty bytes of the first export')
        equal(dirty, 24 * MiB, 'dirty bytes of its file as the kernel counts')
        assert grown < 2 * MiB, 'the first device wrote %s' % mb(grown)


def fill_with_parked(bed, version, clients):
    """Writers of the slow export, whose writes are parked or held back; nobody waits for them."""
    streams = []
    for i in range(clients):
        f = bed.connect(version, export='/slow', source='127.0.0.%d' % (10 + i)).open('s%d' % i, create=True)
        streams.append(Stream(f, sequential(Pattern(i), 64 * MiB), depth=24))
    run(streams, 20, until=lambda: bed.server.export_stats(1)['parked'] >= 16, drain=False)
    return streams


def rounds_on_the_fast_one(bed, version, seconds, streams):
    """[seconds of each round of 1 MiB of writes and a COMMIT], while the streams of the slow one are kept going."""
    pattern, took = Pattern(77), []
    f = bed.connect(version, export='/fast', source='127.0.0.9').open('f', create=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start, offset = time.monotonic(), len(took) % 128 * MiB
        calls = [f.write_async(offset + i * 65536, pattern.view(offset + i * 65536, 65536)) for i in range(16)]
        for call in calls:
            f.client.wait(call, 30)
            equal(call.reply.status_name, 'OK', 'WRITE to the fast export')
        f.client.reap()
        equal(f.commit().status_name, 'OK', 'COMMIT on the fast export')
        took.append(time.monotonic() - start)
        run(streams, until=lambda: True, drain=False)
    return took


def only_its_own_writers(version, slow_down, name):
    params = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '64M'}
    with two_disks(params) as (bed, slow, fast):
        alone = rounds_on_the_fast_one(bed, version, 1, [])
        slow_down(bed, slow)
        streams = fill_with_parked(bed, version, 6)
        before = sum(s.acked for s in streams)
        beside = rounds_on_the_fast_one(bed, version, 3, streams)
        stats = bed.server.export_stats(1)
        got = sum(s.acked for s in streams) - before
        print('    %s: %d rounds of 1 MiB + COMMIT beside it (%d in a third of the time alone), worst %.0f ms; its own '
              'writers got %s, %d parked' % (name, len(beside), len(alone), 1000 * max(beside), mb(got),
                                             stats['parked']), flush=True)
        assert stats['parked'] >= 8, 'nothing was parked on the slow export any more: no pressure'
        # Progress, not speed: a round that waited for the slow disk would take seconds, for 16 MiB at its rate.
        assert len(beside) >= 10, 'only %d rounds in 3 s' % len(beside)
        assert max(beside) < 1.5, 'a round took %.2f s' % max(beside)
        assert fast.device_bytes_written() >= len(beside) * MiB, 'COMMIT said OK before the device had the data'


@each_version(globals(), ('3', '4.1'))
def check_problem_18_a_slow_disk_blocks_only_its_own_writers(version):
    requires_slow_device()
    only_its_own_writers(version, lambda bed, slow: slow.set_write_bps(1 * MiB), 'a disk of 1 MiB/s')


# -- 20

def test_problem_20_io_uring_disabled():
    """The fallback serves: said once, data right, COMMIT right, budget kept."""
    requires_plugin()
    limit, size = 16 * MiB, 64 * MiB + 333
    params = {'Dirty_Bytes': limit, 'Dirty_Background_Bytes': '4M'}
    with served(params, preload=[preload_library('nouring')]) as bed:
        equal({d['backend'] for d in bed.server.stats()['devices']}, {'threads'}, 'backends')
        watch = Sampler(bed.export_dir, 0.01) if cachestat_supported() else contextlib.nullcontext()
        with watch, StatsSampler(bed) as own:
            streams = []
            for i, version in enumerate(nfsraw.VERSIONS):
                f = bed.connect(version, source='127.0.0.%d' % (2 + i)).open('f%d' % i, create=True)
                streams.append(Stream(f, sequential(Pattern(i), size), depth=16))
            run(streams)
            no_errors(streams)
            for s in streams:
                equal(s.file.commit().verifier, only(s.verifiers, 'verifiers of WRITE'), 'verifier of COMMIT')
        peak = own.peak('dirty', 'writeback', 'reserved')
        kernel = getattr(watch, 'peak_dirty_writeback', 0)
        print('    peak dirty + writeback: %s as the plugin counts, %s as the kernel does' % (mb(peak), mb(kernel)),
              flush=True)
        assert peak <= limit and kernel <= limit, 'the budget is %s' % mb(limit)
        said = [line for line in bed.server.log_text().splitlines() if 'io_uring is not available' in line]
        equal(len(said), 1, 'lines about it in the log: %s' % said)
        # What COMMIT promised is on the device: the page cache goes, without a clean end.
        if paths.find_program('xfs_io'):
            bed.disk.shutdown_fs()
        bed.server.kill()
        bed.kill_clients()
        bed.disk.remount()
        for i in range(len(streams)):
            check_file(bed, 'f%d' % i, Pattern(i), size, through_nfs=False)


def test_problem_20_an_operation_is_refused():
    """The ring is there, but the file system refuses its operation each time: done the plain way, and said once."""
    requires_fault_injection()
    size = 48 * MiB
    params = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Fault_Injection': 'on'}
    with served(params) as bed:
        bed.fault('writeback:ENOSYS')
        for i, version in enumerate(nfsraw.VERSIONS):
            f = bed.connect(version).open('f%d' % i, create=True)
            stream = Stream(f, sequential(Pattern(i), size), depth=8)
            run([stream])
            no_errors([stream])
            equal(f.commit().verifier, only(stream.verifiers, 'verifiers of WRITE'), 'verifier of COMMIT')
            check_file(bed, 'f%d' % i, Pattern(i), size, version)
        equal(bed.stats()['errors_total'], 0, 'errors')
        bed.settle()
        said = [line for line in bed.server.log_text().splitlines() if 'refused' in line]
        equal(len(said), 1, 'lines about it in the log, the first of them %r' % said[:1])


def test_problem_20_control_io_uring_allowed():
    """Without the filter the ring is used: the test above tests the fallback because of the filter."""
    requires_plugin()
    with served() as bed:
        backends = {d['backend'] for d in bed.server.stats()['devices']}
        requires(backends != {'threads'}, 'io_uring is refused on this machine anyway')
        assert 'io_uring is not available' not in bed.server.log_text()


if __name__ == '__main__':
    main(globals())

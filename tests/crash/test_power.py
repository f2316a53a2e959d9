#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Power loss under load, at any write and flush that the disk ever got: what a COMMIT or a stable write
promised is there.

The disk keeps a log of all it is asked for (harness/logdisk.py). After one load, the disk is rebuilt as it was
at many points of that log, each is mounted, which replays the journal, and every promised byte is compared. Half
of the points are of a disk with a volatile cache: each write since the last flush is kept, lost or torn.
From some points a server is started: its verifier is a new one, and clients that send again what they had not
committed end with the right bytes.

The controls: of what was only UNSTABLE something must be missing somewhere, and a server whose syncs lie must be
caught. The long version (DONTCACHE_TEST_FULL=1) tries more points; DONTCACHE_TEST_SEED repeats the choices of a run
(the load's timing is never the same)."""

import contextlib
import os
import random
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'integration'))

from support import *                                   # noqa: E402,F403
from harness.ganesha import preload_library             # noqa: E402
from harness.logdisk import ImageDisk, LogDisk, logdisk_problem     # noqa: E402
from harness.logwrites import DISCARD, FLUSH, FUA, MARK, LogError, Replay, WriteLog     # noqa: E402
from harness.testing import main                        # noqa: E402
from nfsraw.pattern import md5_file, md5_of             # noqa: E402
from powerload import Load, Writer                              # noqa: E402
from promises import examine, marks_before, uncommitted, wanted_md5     # noqa: E402

# So small that the flusher, the gate and a good many COMMITs are at work all the time; and some COMMITs come when
# the flusher has already written everything, which is no promise yet.
TIGHT = {'Dirty_Bytes': '8M', 'Dirty_Background_Bytes': '1M', 'Dirty_Expire_Centisecs': 10, 'Parked_Bytes': '64M'}
SIZE = 400 * MiB
SECONDS, POINTS, RESTARTS = (4, 60, 6) if FULL else (1.5, 20, 1)
SEED = int(os.environ.get('DONTCACHE_TEST_SEED') or time.time_ns() % 10**6)


class Run:
    """One load on one disk: its recording, and the log between its first promise and the last."""

    def __init__(self, folder, disk, load, last, recording):
        self.folder, self.disk, self.load = folder, disk, load
        self.recording, self.log, self.marks = recording, recording.log, recording.marks
        self.first, self.last = self.marks[1], self.marks[last]

    def points(self, count, rng):
        """[(n, harsh)] in ascending order: half of them right behind a reply, most often a COMMIT's, where promises
        are youngest; the others behind a flush, before one, anywhere."""
        span = range(self.first + 1, self.last + 2)
        flushes = [n for n in span if self.log.entries[n - 1].flags & FLUSH]
        replies = [m + 1 for m in self.marks if self.first < m <= self.last]
        commits = [self.marks[m] + 1 for m in self.load.commits if self.marks[m] <= self.last]
        kinds = (commits, flushes, replies, [n - 1 for n in flushes[1:]], commits, span)
        kinds = [kind for kind in kinds if kind]
        chosen = set()
        assert len(span) > count, 'hardly anything was written'
        while len(chosen) < count:
            kind = kinds[len(chosen) % len(kinds)]
            chosen.add((rng.choice(kind), len(chosen) // len(kinds) % 2 == 1))
        return sorted(chosen)


@contextlib.contextmanager
def recorded(fstype, mode, seconds=SECONDS, lonely=False, **server):
    """A Run: a load, ended in the middle by killing the server. The disk is off and its log whole.
    lonely: one client, whose COMMITs come when nothing is dirty or under writeback any more."""
    requires_root()
    requires(logdisk_problem() is None, logdisk_problem())
    with workdir('power') as folder, LogDisk(folder, SIZE, fstype) as disk:
        with server_on(folder, disk, mode, **server) as ganesha:
            bed = Bed(disk, ganesha, mode)
            only = dict(each=1, versions=('4.1',), rounds=Writer.LATE, pause=bed.settle) if lonely else {}
            load = Load(disk, lambda version, i: bed.connect(version, source='127.0.0.%d' % (2 + i)), SEED, **only)
            last = load.run(seconds)
            bed.kill_clients()
            ganesha.kill()
        disk.stop()
        with disk.recording() as recording:
            yield Run(folder, disk, load, last, recording)


def server_on(folder, disk, mode, **server):
    if ASAN and mode != 'stock':
        server.update(under_asan())
    params = {} if mode == 'stock' else dict(TIGHT)
    return Ganesha(folder, [Export(EXPORT_ID, disk.export_dir, PSEUDO, mode, params)], **server)


def start_again(run, disk, k):
    """A server on what the power loss left: a new verifier, and clients that send again end with the right bytes."""
    areas = [a for a in run.load.areas if wanted_md5(a, k)[1]]
    again = 0
    with server_on(run.folder, disk, MODE) as ganesha:
        bed = Bed(disk, ganesha, MODE)
        for i, version in enumerate(nfsraw.VERSIONS):
            with bed.connect(version) as client:
                for area in areas[i::len(nfsraw.VERSIONS)]:
                    with client.open(area.name, create=True) as file:
                        verifiers = {file.commit().verifier}
                        for slot, v in uncommitted(area, k):
                            verifiers.add(file.write(slot.offset, slot.view(v)).verifier)
                            again += slot.length
                        verifiers.add(file.commit().verifier)
                        assert len(verifiers) == 1 and not verifiers & run.load.verifiers(), \
                            'NFS %s: verifier %s after the power loss, %s before' % (
                                version, verifiers, run.load.verifiers())
                        md5, size = wanted_md5(area, k)
                        equal(md5_of(file.pieces(size)), md5, '%s: md5 through NFS %s' % (area.name, version))
                    equal((md5_file(bed.local(area.name)), os.stat(bed.local(area.name)).st_size), (md5, size),
                          area.name + ': on the local file system')
        bed.close_clients()
    return again


def try_points(run, points, restarts=0):
    """Cut the power at each point; returns (bytes promised, losses, UNSTABLE bytes gone)."""
    rng = random.Random(SEED)
    promised = gone = again = 0
    losses = []
    with_server = set(rng.sample(range(len(points)), restarts))
    image = os.path.join(run.folder, 'image')
    with run.recording.replay(run.folder) as replay:
        for i, (n, harsh) in enumerate(points):
            dropped = replay.image_at(n, image, random.Random(SEED + n) if harsh else None)
            k = marks_before(run.marks, n)
            with ImageDisk(run.folder, image, run.disk.fstype) as disk:
                verdict = examine(disk.export_dir, run.load.areas, k)
                promised += verdict.promised
                gone += verdict.unstable_gone
                losses += [('entry %d%s' % (n, ', %d writes lost or torn' % dropped if harsh else ''), loss)
                           for loss in verdict.lost]
                if i in with_server and not verdict.lost:
                    again += start_again(run, disk, k)
        # The replay is worth nothing unless all of the log makes what the disk holds.
        replay.image_at(len(run.log.entries), image)
        assert run.disk.image_is(image), 'the log is not what the disk was asked to write'
    print('    %s, seed %d: %d entries of log, %d crash points, %s promised, %d bytes lost; of UNSTABLE %s gone'
          ' (all points together); %d restarts, %s sent again'
          % (run.disk.fstype, SEED, len(run.log.entries), len(points), mb(promised),
             sum(loss.length for _, loss in losses), mb(gone), restarts, mb(again)), flush=True)
    for where, loss in losses[:5]:
        print('      %s: %s: %d bytes at %d are of no version from %d on'
              % (where, loss.name, loss.length, loss.offset, loss.version))
    return promised, losses, gone


def each_filesystem(function):
    """Decorator: check_x(fstype) becomes test_x_xfs and test_x_ext4."""
    for fstype in ('xfs', 'ext4'):
        name = '%s_%s' % (function.__name__.replace('check_', 'test_'), fstype)

        def test(fstype=fstype):
            function(fstype)
        test.__name__ = name
        globals()[name] = test
    return function


@each_filesystem
def check_power_loss(fstype):
    with recorded(fstype, MODE) as run:
        points = run.points(POINTS, random.Random(SEED))
        promised, losses, gone = try_points(run, points, RESTARTS)
        assert not losses, '%d bytes lost that were promised' % sum(loss.length for _, loss in losses)
        assert promised > MiB, 'next to nothing was promised'
        assert gone > 0, 'UNSTABLE writes survived everywhere: the power was never cut'


@each_filesystem
def check_commit_behind_the_flusher(fstype):
    """What the flusher has written is no promise yet: sizes and extents are in no journal, the cache of the disk was
    not flushed. With other clients about their syncs hide it, so here is only one."""
    with recorded(fstype, MODE, lonely=True) as run:
        promised, losses, _ = try_points(run, [(run.marks[m] + 1, i % 2 == 1) for i, m in enumerate(run.load.commits)
                                               if run.marks[m] <= run.last][:POINTS])
        assert not losses and promised, '%d bytes lost that were promised' % sum(loss.length for _, loss in losses)


def lying_server(fstype, lie):
    server = {'preload': [preload_library('nodeepbind'), preload_library('nofsync')], 'env': {'NOFSYNC': lie}}
    with recorded(fstype, 'stock', 1, **server) as run:
        _, losses, _ = try_points(run, run.points(4, random.Random(SEED)))
        assert losses, 'a server that lies about its syncs was not caught'


@each_filesystem
def check_no_sync_is_caught(fstype):
    """Stock Ganesha whose syncs do nothing."""
    lying_server(fstype, 'nothing')


@each_filesystem
def check_sync_of_pages_only_is_caught(fstype):
    """Stock Ganesha whose syncs hand the pages to the disk, and neither say where they are nor flush."""
    lying_server(fstype, 'pages')


# -- the log itself, without a disk

def written_log(path, entries, sector=512, magic=0x6a736677736872):
    with open(path, 'wb') as log:
        log.write(struct.pack('<QQQI', magic, 1, len(entries), sector).ljust(sector, b'\0'))
        for first, count, flags, data in entries:
            inline = data if flags & MARK else b''
            log.write((struct.pack('<QQQQ', first, count, flags, len(inline)) + inline).ljust(sector, b'\0'))
            log.write(b'' if flags & (MARK | DISCARD) else data)


def test_log_and_replay():
    a, b, c, d = (bytes([letter]) * 512 for letter in b'abcd')
    entries = [(0, 2, 0, a + a), (0, 0, FLUSH, b''), (0, 1, 0, b), (3, 1, FUA, c), (0, 0, MARK, b'name'),
               (1, 1, DISCARD, b''), (0, 0, FLUSH, b''), (2, 1, 0, d)]
    zero = bytes(512)
    states = {0: zero * 4, 1: a + a + zero * 2, 3: b + a + zero * 2, 4: b + a + zero + c, 6: b + zero * 2 + c,
              8: b + zero + d + c}
    with workdir('log') as folder:
        path, before, image = (os.path.join(folder, name) for name in ('log', 'before', 'image'))
        written_log(path, entries)
        with open(before, 'wb') as empty:
            empty.truncate(2048)

        def held():
            with open(image, 'rb') as f:
                return f.read()
        with WriteLog(path) as log:
            with Replay(log, before, folder) as replay:
                for n, state in states.items():
                    assert replay.image_at(n, image) == 0
                    equal(held(), state, 'after %d entries' % n)
            seen = set()
            for seed in range(60):
                with Replay(log, before, folder) as replay:
                    replay.image_at(6, image, random.Random(seed))
                    seen.add(held())
            # The flushed and the FUA write always, the other two each or not.
            equal(seen, {x + y + zero + c for x in (a, b) for y in (a, zero)}, 'what a volatile cache may lose')
        for broken in ((entries, 512, 1), ([(0, 4, 64, a)], 512, 0x6a736677736872)):
            written_log(path, *broken)
            try:
                WriteLog(path).close()
            except LogError:
                continue
            raise AssertionError('a log that is none was read')


if __name__ == '__main__':
    main(globals())

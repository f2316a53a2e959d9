#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""kill -9 of the server under load, and a power cut of the file system: whatever a COMMIT or a stable write
promised is there after the restart, byte for byte, and clients that send the rest again end with the right bytes.

The load: several clients, each writing its file in rounds of a few odd-sized writes and a COMMIT (every third
round stable writes instead), until the server dies. Only ranges whose promise was in the client's hands count.
The control writes and does not commit: after a power cut that data must be gone, or the cut proves nothing."""

import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'integration'))

from support import *                                   # noqa: E402,F403
from nfsraw.pattern import Pattern                      # noqa: E402
from harness.testing import main                        # noqa: E402

TIGHT = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '64M'}
CHUNK = 200001
PER_ROUND = 7
WRITERS = 6


class Writer:
    """Rounds of writes and a COMMIT; promised is the list of (offset, length, when) that are safe by now."""

    def __init__(self, bed, version, number):
        self.client = bed.connect(version, source='127.0.0.%d' % (2 + number))
        self.name = 'f%d' % number
        self.pattern = Pattern(number)
        self.file = self.client.open(self.name, create=True)
        self.promised = []
        self.sent = 0                   # everything below was sent
        self.verifiers = set()
        self.problem = None
        self.lost = False
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        offset, round_number = 0, 0
        try:
            while True:
                stable = nfsraw.FILE_SYNC if round_number % 3 == 2 else nfsraw.UNSTABLE
                ranges, calls = [], []
                for _ in range(PER_ROUND):
                    ranges.append((offset, CHUNK))
                    calls.append(self.file.write_async(offset, self.pattern.view(offset, CHUNK), stable))
                    offset += CHUNK
                    self.sent = offset
                self.client.drain(30)
                # Each stable write is a promise of its own, even if a later one had no reply any more.
                verifiers = set()
                for call, where in zip(calls, ranges):
                    if call.error:
                        raise call.error
                    if call.reply.status:
                        raise AssertionError('WRITE: ' + call.reply.status_name)
                    if call.reply.committed == nfsraw.FILE_SYNC:
                        self.promised.append(where + (time.monotonic(),))
                    verifiers.add(call.reply.verifier)
                    self.verifiers.add(call.reply.verifier)
                if stable == nfsraw.UNSTABLE:
                    commit = self.file.commit()
                    if {commit.verifier} != verifiers:
                        raise AssertionError('verifiers %s, COMMIT %s' % (verifiers, commit.verifier))
                    self.promised.extend(where + (time.monotonic(),) for where in ranges)
                round_number += 1
        except nfsraw.ConnectionLost:
            self.lost = True
        except Exception as error:
            self.problem = error


def load_until(bed, version, seconds, strike):
    writers = [Writer(bed, version, i) for i in range(WRITERS)]
    for w in writers:
        w.thread.start()
    time.sleep(seconds)
    strike()
    for w in writers:
        w.thread.join(40)
        assert not w.thread.is_alive(), '%s hangs after the server died' % w.name
    return writers


def check_promises(bed, writers, before=float('inf')):
    total = 0
    for w in writers:
        with open(bed.local(w.name), 'rb') as local:
            for offset, n, when in w.promised:
                if when >= before:
                    break
                local.seek(offset)
                got = local.read(n)
                assert got == w.pattern.view(offset, n), '%s: %d committed bytes at %d are not there' % (w.name, n, offset)
                total += n
    print('    %s promised and present' % mb(total), flush=True)
    assert total > 0, 'nothing was promised before the end'


@each_version(globals())
def check_kill_9_under_load(version):
    with served(TIGHT, size=8 * GiB) as bed:
        for _ in range(2):
            writers = load_until(bed, version, 1.2, bed.server.kill)
            for w in writers:
                assert w.lost and not w.problem, '%s: %r' % (w.name, w.problem)
            bed.kill_clients()
            bed.server.start()
            check_promises(bed, writers)
            for w in writers:           # and through the new server
                with bed.connect(version) as client, client.open(w.name, access=nfsraw.READ) as f:
                    for offset, n, _ in w.promised[-20:]:
                        equal(b''.join(f.pieces(n, offset=offset)), bytes(w.pattern.view(offset, n)), 'data through NFS')
            with bed.connect(version) as client:
                for w in writers:
                    client.remove(w.name)
        bed.settle()


@each_version(globals())
def check_clients_resume(version):
    """The next server comes within the second: its verifier is another all the same (NFSv3: by the epoch it was
    started with), so clients send again what they had not committed, and end with the right bytes."""
    if version != '3':
        requires_plugin()               # stock's verifier has a resolution of a second
    with served(TIGHT, size=8 * GiB, epoch=1700000000 if version == '3' else None) as bed:
        for _ in range(2):
            writers = load_until(bed, version, 0.7, bed.server.kill)
            bed.kill_clients()
            if version == '3':
                bed.server.epoch += 1
            bed.server.start()
            again = 0
            for w in writers:
                assert w.lost and not w.problem, '%s: %r' % (w.name, w.problem)
                safe = {offset for offset, _, _ in w.promised}
                with bed.connect(version) as client, client.open(w.name) as f:
                    calls = []
                    for offset in range(0, w.sent, CHUNK):
                        if offset not in safe:
                            calls.append(f.write_async(offset, w.pattern.view(offset, CHUNK)))
                            again += CHUNK
                    client.drain()
                    verifiers = {f.commit().verifier} | {call.reply.verifier for call in calls}
                    assert len(verifiers) == 1 and not verifiers & w.verifiers, \
                        'verifiers %r after the restart, %r before' % (verifiers, w.verifiers)
                check_file(bed, w.name, w.pattern, w.sent, version)
                with bed.connect(version) as client:
                    client.remove(w.name)
            print('    %s sent again' % mb(again), flush=True)
            assert again > 0, 'there was nothing to send again'
        bed.settle()


@each_version(globals())
def check_kill_9_on_a_slow_device(version):
    """The same with writes parked when it happens."""
    requires_slow_device()
    with served(TIGHT, size=8 * GiB, write_bps=40 * MiB) as bed:
        writers = load_until(bed, version, 3, bed.server.kill)
        for w in writers:
            assert w.lost and not w.problem, '%s: %r' % (w.name, w.problem)
        bed.kill_clients()
        bed.server.start()
        check_promises(bed, writers)


def power_cut(bed):
    """The file system first loses everything that is not on the device, then the server dies.

    Unlike a power cut, XFS's shutdown is not one instant: an fsync that it overtakes may still succeed
    (stock FSAL_VFS loses a stable write to that in about one run of thirty, as we do). So only promises
    from before it count; the time is returned."""
    began = time.monotonic()
    bed.disk.shutdown_fs()
    bed.server.kill()
    return began


@each_version(globals())
def check_power_cut(version):
    requires(paths.find_program('xfs_io'), 'xfs_io (xfsprogs) is not installed')
    with served(TIGHT, size=8 * GiB) as bed:
        began = []
        writers = load_until(bed, version, 1.5, lambda: began.append(power_cut(bed)))
        # Between the cut and the kill the server may answer IO: an error, and no promise.
        for w in writers:
            assert w.lost or w.problem, w.name + ' ended without noticing'
        bed.kill_clients()
        bed.disk.remount()
        check_promises(bed, writers, before=began[0])
        bed.server.start()
        # Ganesha may crash when it is stopped before it has served anything, stock too.
        with bed.connect(version) as client, client.open(writers[0].name, access=nfsraw.READ) as f:
            f.read(0, 4096)


def test_power_cut_control():
    """Written and not committed, below every level: gone after the cut."""
    requires(paths.find_program('xfs_io'), 'xfs_io (xfsprogs) is not installed')
    lazy = {'Dirty_Bytes': '256M', 'Dirty_Background_Bytes': '128M', 'Dirty_Expire_Centisecs': 6000}
    with served(lazy) as bed:
        f = bed.connect('3').open('f', create=True)
        f.write(0, Pattern(1).view(0, MiB))
        power_cut(bed)
        bed.kill_clients()
        bed.disk.remount()
        try:
            with open(bed.local('f'), 'rb') as local:
                assert local.read() != Pattern(1).view(0, MiB), 'uncommitted data survived: the cut is none'
        except FileNotFoundError:
            pass


if __name__ == '__main__':
    main(globals())

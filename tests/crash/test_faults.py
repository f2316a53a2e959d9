#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""A bad second and a full disk under load, survived as a client survives them: whatever a COMMIT did not confirm
is sent again, and in the end every byte is in its place and every counter back at zero.

The bad second: whatever touches one range of any file fails with EIO, for a second, then no more. The full disk is
real: eight writers run into it, then room is made. Writers write in their own files and in one they share."""

import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'integration'))

from support import *                                   # noqa: E402,F403
from test_disk_full import fill_up                      # noqa: E402
from nfsraw.pattern import Pattern                      # noqa: E402
from harness.testing import main                        # noqa: E402

TIGHT = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '64M'}
PIECE = 100003
ROUND = 12
SHARED = 64 * MiB                       # each writer's part of the shared file


class Writer(threading.Thread):
    """Rounds of unaligned writes, each sent again until a COMMIT (or the stable replies) confirms it."""

    def __init__(self, bed, version, number, rounds):
        super().__init__(daemon=True)
        client = bed.connect(version, source='127.0.0.%d' % (2 + number))
        self.name, self.pattern, self.rounds = 'f%d' % number, Pattern(number), rounds
        self.own = client.open(self.name, create=True)
        self.shared = client.open('shared', create=True)
        self.base = number * SHARED
        self.refused = {}                       # status -> times, of WRITE and COMMIT
        self.resent = self.delays = self.short = 0
        self.problem = None
        self.ends = {}                          # file name -> bytes confirmed

    def once(self, f, base, first, stable):
        """One try of a round. True if it is confirmed."""
        good, verifiers = True, set()
        for offset in range(first, first + ROUND * PIECE, PIECE):
            reply = f.write(base + offset, self.pattern.view(offset, PIECE), stable, check=False)
            if reply.status_name == 'DELAY':
                self.delays += 1
            if not reply.ok:
                self.refused[reply.status_name] = self.refused.get(reply.status_name, 0) + 1
                good = False
            else:
                verifiers.add(reply.verifier)
                if reply.count < PIECE:     # the disk was full in the middle of it
                    self.short += 1
                    good = False
        if stable == nfsraw.UNSTABLE:
            commit = f.commit(check=False)
            if not commit.ok:
                self.refused[commit.status_name] = self.refused.get(commit.status_name, 0) + 1
                return False
            good = good and verifiers == {commit.verifier}
        return good

    def run(self):
        try:
            for n in range(self.rounds):
                stable = nfsraw.FILE_SYNC if n % 3 == 2 else nfsraw.UNSTABLE
                for f, base, name in ((self.own, 0, self.name), (self.shared, self.base, 'shared')):
                    first = n * ROUND * PIECE
                    deadline = time.monotonic() + 30
                    while not self.once(f, base, first, stable):
                        self.resent += 1
                        assert time.monotonic() < deadline, 'round %d is never confirmed: %s' % (n, self.refused)
                        time.sleep(0.05)
                    self.ends[name] = first + ROUND * PIECE
        except Exception as error:
            self.problem = error


def run_writers(bed, version, count, rounds, meanwhile):
    writers = [Writer(bed, version, i, rounds) for i in range(count)]
    for w in writers:
        w.start()
    meanwhile(writers)
    for w in writers:
        w.join(90)
        assert not w.is_alive(), w.name + ' hangs'
        if w.problem:
            raise w.problem
    for w in writers:
        for name, base in ((w.name, 0), ('shared', w.base)):
            with open(bed.local(name), 'rb') as local:
                for offset in range(0, w.ends[name], MiB):
                    n = min(MiB, w.ends[name] - offset)
                    local.seek(base + offset)
                    assert local.read(n) == w.pattern.view(offset, n), '%s differs near %d' % (name, base + offset)
    bed.settle()
    return writers


def summary(writers):
    refused = {}
    for w in writers:
        for status, n in w.refused.items():
            refused[status] = refused.get(status, 0) + n
    print('    rounds sent again %d, short writes %d, refused %s' % (
        sum(w.resent for w in writers), sum(w.short for w in writers), refused), flush=True)
    return refused


@each_version(globals())
def check_a_bad_second(version):
    requires_plugin()

    def strike(writers):
        time.sleep(0.3)
        for spec in ('sync|writeback:EIO:range=1M-4M,for=1000', 'sync|writeback:EIO:range=64M-70M,for=500'):
            bed.fault(spec)
            time.sleep(1.1)
        bed.fault('off')
    with served({**TIGHT, 'Fault_Injection': 'on'}, size=4 * GiB) as bed:
        refused = summary(run_writers(bed, version, 6, 24, strike))
        assert set(refused) == {'IO'}, 'expected some IO and nothing else: %s' % refused
        assert bed.stats()['errors_total'] > 0


@each_version(globals())
def check_a_full_disk(version):
    with served(TIGHT, size=600 * MiB) as bed:
        filler = fill_up(bed, 48 * MiB)

        def strike(writers):
            wait_until(lambda: any(w.refused.get('NOSPC') for w in writers), 20, what='NOSPC told to somebody')
            time.sleep(0.5)
            os.unlink(filler)
        refused = summary(run_writers(bed, version, 8, 12, strike))
        assert set(refused) == {'NOSPC'}, 'expected NOSPC and nothing else: %s' % refused


if __name__ == '__main__':
    main(globals())

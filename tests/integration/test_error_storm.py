#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Errors at random, against an oracle: several clients write, commit and write stably in one file, now and then a
sync fails. Whoever certainly had uncommitted data when an error was recorded is told of it: its next COMMIT fails,
or has another verifier than its writes. A stable write whose sync failed fails. (Problem 2, at length.)

One operation at a time, so nothing depends on timing; DONTCACHE_TEST_SEED repeats a run. The oracle is cautious:
after any COMMIT that met no new error, everybody's data may be safe. Tellings in vain are counted, not judged."""

import os
import random

from support import *                                   # noqa: F403
from nfsraw.pattern import Pattern
from harness.testing import main

SEED = int(os.environ.get('DONTCACHE_TEST_SEED', '0')) or random.randrange(1, 1 << 31)
LAZY = {'Dirty_Bytes': '256M', 'Dirty_Background_Bytes': '128M', 'Dirty_Expire_Centisecs': 6000,
        'Fault_Injection': 'on'}
STEPS = 500
PIECE = 65536


class Actor:
    """A client, what it must be told, and its part of the file: 4 MiB of UNSTABLE, as much of stable writes. With
    several connections it uses any of them for anything (nconnect): it is one client all the same."""

    def __init__(self, bed, version, number, connections, dice):
        source = '127.0.0.%d' % (2 + number)
        self.files = [bed.connect(version, source=source).open('f', create=True) for _ in range(connections)]
        self.dice = dice
        self.number, self.start = number, number * 64 * MiB
        self.verifiers = set()
        self.dirty = self.owed = False

    @property
    def file(self):
        return self.dice.choice(self.files)

    def forget(self):
        """Told, or safe: as a client that gives its data up, or will send it anew."""
        self.verifiers, self.dirty, self.owed = set(), False, False


class Storm:
    def __init__(self, bed, versions, connections, dice):
        self.bed, self.dice = bed, dice
        self.actors = [Actor(bed, v, i, connections, dice) for i, v in enumerate(versions)]
        self.errors = self.told = self.in_vain = 0
        self.past = []                      # for a failure: what was done

    def with_faults(self, chance, operation):
        """Run the operation, perhaps with a sync that fails. Returns (reply, was an error recorded)."""
        before = self.bed.stats()['errors_total']
        if self.dice.random() < chance:
            self.bed.fault('sync:EIO:count=1')
        reply = operation()
        self.bed.fault('off')
        failed = self.bed.stats()['errors_total'] > before
        self.errors += failed
        return reply, failed

    def write(self, a):
        offset = a.start + self.dice.randrange(64) * PIECE
        a.verifiers.add(a.file.write(offset, Pattern(a.number).view(offset, PIECE)).verifier)
        a.dirty = True

    def stable(self, a):
        offset = a.start + 32 * MiB + self.dice.randrange(64) * PIECE
        kind = self.dice.choice((nfsraw.FILE_SYNC, nfsraw.DATA_SYNC))
        reply, failed = self.with_faults(0.2, lambda: a.file.write(offset, b's' * 4096, kind, check=False))
        self.past.append('stable by %d: %s%s' % (a.number, reply.status_name, ', an error' * failed))
        assert not (failed and reply.ok), 'a stable write was answered OK, and its sync had failed'
        for other in self.actors if failed else ():
            other.owed |= other.dirty
        if not reply.ok:
            self.in_vain += not (failed or a.owed)
            a.forget()

    def commit(self, a):
        where = (0, 0) if self.dice.random() < 0.6 else (a.start, 64 * PIECE)
        reply, failed = self.with_faults(0.3, lambda: a.file.commit(*where, check=False))
        self.past.append('COMMIT%r by %d: %s%s' % (where, a.number, reply.status_name, ', an error' * failed))
        for other in self.actors:
            if failed:
                other.owed |= other.dirty
            else:
                other.dirty = False
        safe = reply.ok and a.verifiers <= {reply.verifier}
        assert not (a.owed and safe), 'client %d (NFS %s) had uncommitted data when an error came, and was told OK' % (
            a.number, a.file.client.version)
        self.told += a.owed
        self.in_vain += not (safe or a.owed)
        a.forget()

    def run(self):
        for _ in range(STEPS):
            a, act = self.dice.choice(self.actors), self.dice.random()
            (self.write if act < 0.5 else self.commit if act < 0.8 else self.stable)(a)


def storms(versions, count=3, connections=1):
    requires_fault_injection()
    with served(LAZY) as bed:
        for seed in range(SEED, SEED + count):
            storm = Storm(bed, versions, connections, random.Random(seed))
            try:
                storm.run()
            except BaseException:
                print('    seed %d; the last steps:' % seed, *storm.past[-12:], sep='\n        ', flush=True)
                raise
            print('    seed %d: %d errors, told %d times, in vain %d times' % (
                seed, storm.errors, storm.told, storm.in_vain), flush=True)
            assert storm.told > 5, 'hardly anything happened'
            for a in storm.actors:
                for f in a.files:
                    f.commit(check=False)
                    f.client.close()
        bed.settle()


def test_problem_02_storm_v3():
    storms(('3', '3', '3'))


def test_problem_02_storm_v4():
    storms(('4.1', '4.1', '4.0'))


def test_problem_02_storm_of_clients_with_three_connections():
    storms(('3', '3'), connections=3)
    storms(('4.1', '3', '4.0'), connections=3)


def test_problem_02_storm_mixed():
    storms(('3', '4.1', '3', '4.0'))


if __name__ == '__main__':
    main(globals())

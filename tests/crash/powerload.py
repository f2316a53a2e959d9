# SPDX-License-Identifier: LGPL-3.0-or-later
"""The load of a power-loss test: clients of all versions of NFS that write until they are told to stop,
each into files of its own and, interleaved with the others, into two files that all share.

Every round takes another of the ways in which a client gets its promise: a COMMIT of the whole file, of a
range, one that meets further writes, one that comes late, FILE_SYNC and DATA_SYNC writes among UNSTABLE ones.
After each batch of replies the writer marks the disk's log: what it now holds in its hands counts from there."""

import random
import threading
import time

import nfsraw
from nfsraw.pattern import Pattern

from promises import Area

MiB = 1 << 20
LONGEST = 300001
NEW_FILE_AFTER = 5 * MiB
OWN_BYTES = 150 * MiB                       # of all writers together; then only overwrites
LATER = 0.15                                # more than the age at which the test's export writes back
LARGE_SLOTS, SMALL_SLOTS = 24, 150          # of each writer in the shared files


class Writer(threading.Thread):
    def __init__(self, load, number, version, client):
        super().__init__(daemon=True)
        self.load, self.number, self.client = load, number, client
        self.version = version
        self.random = random.Random(load.seed * 100 + number)
        self.problem = None
        self.verifiers = set()
        self.rounds = 0
        self._files = {}
        self._own = None

    # -- where to write

    def _file(self, area):
        if area not in self._files:
            self._files[area] = self.client.open(area.name, create=True)
        return self._files[area]

    def _private_slots(self, count):
        full = self.load.own_bytes > OWN_BYTES
        if self._own is None or self._own.slots[-1].end > NEW_FILE_AFTER and not full:
            self._own = self.load.new_area('w%d-%d' % (self.number, self.rounds))
        slots = []
        for _ in range(count):
            if self._own.slots and (full or self.random.random() < 0.2):
                slot = self.random.choice(self._own.slots)
            else:
                slot = self._own.append(self.random.randint(1, LONGEST))
                self.load.own_bytes += slot.length      # a lost update matters nothing
            if slot not in slots and slot.idle:
                slots.append(slot)
        return slots

    def _shared_slots(self, area, count):
        mine = [s for s in area.slots[self.number::self.load.writers_count] if s.idle]
        return self.random.sample(mine, min(count, len(mine)))

    def _choose(self):
        """(area, slots) of a round."""
        which = self.random.random()
        if which < 0.5:
            slots = self._private_slots(self.random.randint(2, 7))
            return self._own, slots
        if which < 0.8:
            return self.load.large, self._shared_slots(self.load.large, self.random.randint(1, 4))
        return self.load.small, self._shared_slots(self.load.small, self.random.randint(1, 20))

    # -- what the protocol says

    def _write(self, slot, stable):
        version = slot.new_version(self.load.disk.marked)
        self._file(slot.area).write_async(slot.offset, slot.view(version), stable, tag=(slot, version))

    def _commit(self, area, offset=0, count=0):
        """COMMIT of a range; it promises the versions that were acknowledged before it was sent."""
        end = offset + count if count else float('inf')
        covered = [s.versions[-1] for s in self._my_slots(area)
                   if s.versions and s.versions[-1].acked is not None and s.versions[-1].promised is None
                   and offset <= s.offset and s.end <= end]
        self._file(area).commit_async(offset, count, tag=covered)

    def _my_slots(self, area):
        return area.slots[self.number::self.load.writers_count] if area in self.load.shared else area.slots

    def _settle(self):
        deadline = time.monotonic() + 60
        while True:
            self._take(self.client.reap())
            if not self.client.outstanding:
                self._take(self.client.reap())
                return
            if time.monotonic() > deadline:
                raise nfsraw.Timeout('%d calls without a reply' % self.client.outstanding)
            self.client.conn.pump(1)

    def _take(self, calls):
        if not calls:
            return
        mark = self.load.disk.mark()
        for call in calls:
            if call.error:
                raise call.error
            reply = call.reply
            if reply.status:
                raise AssertionError('%s: %s' % (call.op, reply.status_name))
            self.verifiers.add(reply.verifier)
            if call.op == 'COMMIT':
                for version in call.tag:
                    if version.verifier != reply.verifier:
                        raise AssertionError('the verifier changed')
                    version.promised = mark
                self.load.commits.append(mark)
                continue
            slot, version = call.tag
            if reply.count != slot.length:
                raise AssertionError('WRITE of %d: %d' % (slot.length, reply.count))
            version.acked, version.verifier = mark, reply.verifier
            if reply.committed != nfsraw.UNSTABLE:
                version.promised = mark

    # -- the rounds

    def run(self):
        try:
            while not self.load.stopping:
                area, slots = self._choose()
                if slots:
                    self.load.rounds[self.rounds % len(self.load.rounds)](self, area, slots)
                self.rounds += 1
        except Exception as error:
            self.problem = error

    def _whole(self, area, slots):
        for slot in slots:
            self._write(slot, nfsraw.UNSTABLE)
        self._settle()
        self._commit(area)
        self._settle()

    def _range(self, area, slots):
        """The rest stays without a promise until somebody commits the whole file."""
        for slot in slots:
            self._write(slot, nfsraw.UNSTABLE)
        self._settle()
        chosen = slots[:(len(slots) + 1) // 2]
        first = min(s.offset for s in chosen)
        self._commit(area, first, max(s.end for s in chosen) - first)
        self._settle()

    def _stable(self, area, slots):
        how = self.random.choice((nfsraw.FILE_SYNC, nfsraw.DATA_SYNC))
        for slot in slots[:3]:
            self._write(slot, how)
        self._settle()

    def _overlapped(self, area, slots):
        for slot in slots[::2]:
            self._write(slot, nfsraw.UNSTABLE)
        self._settle()
        self._commit(area)
        for slot in slots[1::2]:
            self._write(slot, nfsraw.UNSTABLE)
        self._settle()

    def _mixture(self, area, slots):
        for i, slot in enumerate(slots[:8]):
            self._write(slot, (nfsraw.UNSTABLE, nfsraw.FILE_SYNC, nfsraw.DATA_SYNC)[i % 3])
        self._settle()

    def _late(self, area, slots):
        """The COMMIT comes when the flusher is done with the file, and nobody has synced it."""
        for slot in slots:
            self._write(slot, nfsraw.UNSTABLE)
        self._settle()
        self.load.pause()
        self._commit(area)
        self._settle()

    ROUNDS = (_whole, _range, _stable, _overlapped, _mixture, _late)
    LATE = (_late,)


class Load:
    """Writers on a LogDisk; areas holds what they remember, commits the marks behind COMMITs.
    connect(version, number) -> client; pause(): what a late COMMIT waits for."""

    def __init__(self, disk, connect, seed, each=2, versions=nfsraw.VERSIONS, rounds=Writer.ROUNDS,
                 pause=lambda: time.sleep(LATER)):
        self.disk, self.seed, self.rounds, self.pause = disk, seed, rounds, pause
        self.commits = []
        self.stopping = False
        self.own_bytes = 0
        self.areas = []
        self._lock = threading.Lock()
        self.writers_count = each * len(versions)
        rng = random.Random(seed)
        self.large = self.new_area('large').tile(
            rng.randint(3000, 99999) for _ in range(LARGE_SLOTS * self.writers_count))
        self.small = self.new_area('small').tile(
            rng.randint(200, 5000) for _ in range(SMALL_SLOTS * self.writers_count))
        self.shared = (self.large, self.small)
        self.writers = [Writer(self, i, versions[i % len(versions)], connect(versions[i % len(versions)], i))
                        for i in range(self.writers_count)]

    def new_area(self, name):
        with self._lock:
            self.areas.append(Area(name, len(self.areas), Pattern))
            return self.areas[-1]

    def run(self, seconds):
        """Returns the number of the last mark. A writer that failed raises here."""
        for writer in self.writers:
            writer.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(w.problem for w in self.writers):
            time.sleep(0.05)
        last = self.disk.mark()
        self.stopping = True
        for writer in self.writers:
            writer.join(70)
            assert not writer.is_alive(), 'writer %d hangs' % writer.number
            if writer.problem:
                raise writer.problem
        return last

    def verifiers(self):
        return {verifier for writer in self.writers for verifier in writer.verifiers}

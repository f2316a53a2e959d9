#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Random operations against a shadow: two clients of different versions write, truncate, extend, commit, read,
rename and remove a few files in random order; after every read, and at the end on the local file system, the
files equal a plain byte array that had the same done to it. (The idea is fsx's.)

Writes go out in pipelined batches that do not overlap, so their order among themselves does not matter. The
seed is printed; DONTCACHE_TEST_SEED repeats a run."""

import os
import random

from support import *                                   # noqa: F403
from nfsraw.pattern import Pattern
from harness.testing import main

SEED = int(os.environ.get('DONTCACHE_TEST_SEED', '0')) or random.randrange(1, 1 << 31)
TIGHT = {'Dirty_Bytes': '4M', 'Dirty_Background_Bytes': '1M', 'Parked_Bytes': '32M', 'Dirty_Expire_Centisecs': 20}
LARGEST = 3 * MiB
SECONDS = 5


class Shadowed:
    """A file, what must be in it, and how to reach it from each client."""

    def __init__(self, name, clients, dice):
        self.name, self.dice = name, dice
        self.bytes = bytearray()
        self.pattern = Pattern(dice.randrange(1000))
        self.shift = 0
        self.files = [c.open(name, create=True) for c in clients]

    def any(self):
        return self.dice.choice(self.files)

    def batch(self):
        """A few writes at once, no two of them overlapping."""
        f, calls, offset = self.any(), [], self.dice.randrange(0, LARGEST // 2)
        for _ in range(self.dice.randrange(1, 12)):
            offset += self.dice.choice((0, 1, 4095, 4096, 5000, 70000))
            n = min(self.dice.choice((1, 100, 4096, 8191, 65536, 200000)), LARGEST - offset)
            if n <= 0:
                break
            # Another part of the pattern each time: old data at the same place is told from new.
            self.shift += 7919
            data = self.pattern.view(offset + self.shift, n)
            stable = self.dice.choice((nfsraw.UNSTABLE,) * 8 + (nfsraw.DATA_SYNC, nfsraw.FILE_SYNC))
            calls.append((f.write_async(offset, data, stable), offset, data))
            offset += n
        for call, start, data in calls:
            f.client.wait(call)
            equal((call.reply.status_name, call.reply.count), ('OK', len(data)), 'WRITE at %d' % start)
            if len(self.bytes) < start:
                self.bytes.extend(bytes(start - len(self.bytes)))
            self.bytes[start:start + len(data)] = data
        f.client.reap()

    def truncate(self):
        size = self.dice.choice((0, 1, 4095, 4096, self.dice.randrange(LARGEST), self.dice.randrange(len(self.bytes) + 1)))
        self.any().truncate(size)
        if size <= len(self.bytes):
            del self.bytes[size:]
        else:
            self.bytes.extend(bytes(size - len(self.bytes)))

    def commit(self):
        if self.dice.random() < 0.5:
            self.any().commit()
        else:
            self.any().commit(self.dice.randrange(LARGEST), self.dice.randrange(LARGEST))

    def read(self):
        offset, n = self.dice.randrange(LARGEST), self.dice.randrange(1, 300000)
        f = self.any()
        got = b''.join(f.pieces(n, 65536, 4, offset))
        want = bytes(self.bytes[offset:offset + n])
        if got != want:
            where = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            raise AssertionError('%s: %d bytes read at %d over NFS %s: %d came, %d expected, first difference at %d' % (
                self.name, n, offset, f.client.version, len(got), len(want), offset + where))
        f.client.reap()

    def size(self):
        equal(self.any().getattr().size, len(self.bytes), self.name + ': size')

    def close(self):
        for f in self.files:
            f.close()


def shadow_run(versions, seconds=SECONDS, **kw):
    print('    seed %d' % SEED, flush=True)
    dice = random.Random(SEED)
    with served(TIGHT, **kw) as bed:
        clients = [bed.connect(v, source='127.0.0.%d' % (2 + i)) for i, v in enumerate(versions)]
        files = [Shadowed('f%d' % i, clients, dice) for i in range(4)]
        made, end, done = len(files), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            f = dice.choice(files)
            act = dice.random()
            done += 1
            if act < 0.45:
                f.batch()
            elif act < 0.60:
                f.read()
            elif act < 0.72:
                f.truncate()
            elif act < 0.82:
                f.commit()
            elif act < 0.92:
                f.size()
            elif act < 0.96:
                new = 'f%d' % made
                made += 1
                dice.choice(clients).rename(f.name, new)
                f.name = new
            else:
                # Gone while its data is dirty, and another file takes its place in the set.
                f.close()
                dice.choice(clients).remove(f.name)
                files[files.index(f)] = Shadowed('f%d' % made, clients, dice)
                made += 1
        for f in files:
            f.close()
        for f in files:
            with open(bed.local(f.name), 'rb') as local:
                assert local.read() == f.bytes, '%s differs from its shadow on the local file system' % f.name
        print('    %d operations' % done, flush=True)
        bed.settle()
        # And on the device: what is in the page cache says nothing about it.
        bed.close_clients()
        bed.server.stop()
        bed.disk.remount()
        for f in files:
            with open(bed.local(f.name), 'rb') as local:
                assert local.read() == f.bytes, '%s differs from its shadow on the device' % f.name


def test_v3_beside_v40():
    shadow_run(('3', '4.0'))


def test_v41_beside_v41():
    shadow_run(('4.1', '4.1'))


def test_ext4():
    shadow_run(('3', '4.1'), fstype='ext4')


if __name__ == '__main__':
    main(globals())

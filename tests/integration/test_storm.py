#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Everything at once: clients of all versions write, write stably, commit ranges, truncate, read, remove and rename
the same few files, at odd sizes and offsets; then the same while the device fails, hangs and refuses at random.
Every request is answered, nothing is dirty and uncounted, and every counter comes back to zero.

What the bytes are is nobody's concern here: random_ops and the crash tests see to that. DONTCACHE_TEST_SEED repeats the
choices, not the timing; DONTCACHE_TEST_FULL=1 runs longer."""

import random

from support import *                                   # noqa: F403
from harness.testing import main

SEED = int(os.environ.get('DONTCACHE_TEST_SEED', '0')) or random.randrange(1, 1 << 31)
SECONDS = 60 if FULL else 6
PARAMS = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Dirty_Expire_Centisecs': 50, 'Fault_Injection': 'on'}
FAULTS = ('off', 'sync:EIO:p=0.2,for=300', 'writeback:ENOSPC:p=0.3,for=300', 'any:delay=30:p=0.3',
          'sync:hang:for=200,p=0.2', 'sync|writeback:ENOMEM:p=0.2', 'writeback:ENOSYS', 'sync:ENOSYS:p=0.5',
          'write:short=100:p=0.3', 'write:EDQUOT:p=0.2')
BEYOND = (1 << 62) + 5                  # no file system has it: refused, and soon


class Actor(threading.Thread):
    """Two connections of one host, any operation through any of them."""

    def __init__(self, bed, version, number, until):
        super().__init__(daemon=True)
        self.dice = random.Random(SEED * 100 + number)
        self.until, self.version = until, version
        self.clients = [bed.connect(version, source='127.0.0.%d' % (2 + number // 2)) for _ in range(2)]
        self.refused = 0
        self.problem = None

    def offset(self):
        somewhere = self.dice.randrange(1 << 26)
        return self.dice.choice([0, 4095, 4096, somewhere, somewhere // 4096 * 4096, BEYOND])

    def one(self, client, f):
        dice, offset = self.dice, self.offset()
        size = 4096 if offset == BEYOND else dice.choice([1, 511, 4096, 4097, 65536, 200001, MiB])
        what = dice.random()
        if what < 0.3:
            f.write(offset, b'a' * size, check=False)
        elif what < 0.6:
            f.write(offset, b'b' * size, dice.choice([nfsraw.DATA_SYNC, nfsraw.FILE_SYNC]), check=False)
        elif what < 0.7:
            step = 0 if offset == BEYOND else size
            for i in range(8):
                f.write_async(offset + i * step, b'c' * size, dice.choice([0, 0, 2, 2, 1]))
            client.drain(30)
        elif what < 0.8:
            f.commit(dice.choice([0, offset]), dice.choice([0, 1, size, 1 << 31]), check=False)
        elif what < 0.9:
            f.truncate(dice.choice([0, dice.randrange(1 << 26)]))
        else:
            f.read(0 if offset == BEYOND else offset, 4096)

    def round(self):
        client = self.dice.choice(self.clients)
        name = 'f%d' % self.dice.randrange(4)
        f = client.open(name, create=True)
        try:
            for _ in range(self.dice.randrange(1, 12)):
                self.one(client, f)
        finally:
            if self.version != '3':
                f.close()
        if self.dice.random() < 0.15:
            client.remove(name)

    def run(self):
        try:
            while time.monotonic() < self.until:
                try:
                    self.round()
                except nfsraw.NfsError:         # removed meanwhile, refused, or a fault
                    self.refused += 1
        except Exception as error:
            self.problem = error


def storm(faults, **kw):
    requires_plugin()
    print('    seed %d' % SEED, flush=True)
    with served(PARAMS, size=4 * GiB, **kw) as bed:
        until = time.monotonic() + SECONDS
        actors = [Actor(bed, v, i, until) for i, v in enumerate(('3', '4.1', '4.0', '3', '4.1', '3'))]
        for a in actors:
            a.start()
        dice = random.Random(SEED)
        while time.monotonic() < until:
            if faults:
                bed.fault(dice.choice(FAULTS))
            time.sleep(0.5)
        bed.fault('off')
        for a in actors:
            a.join(40)
            assert not a.is_alive(), 'a request has no answer: %s' % bed.stats()
            if a.problem:
                raise a.problem
        bed.settle()
        stats = bed.stats()
        print('    %s; refused %d' % (', '.join('%s %d' % (n, stats[n]) for n in (
            'writes_total', 'commits_total', 'syncs_total', 'errors_total', 'audits_total')),
            sum(a.refused for a in actors)), flush=True)
        if faults:                      # what a failed device leaves dirty is not counted, and not to be
            bed.check_audit = lambda: None


def test_storm_xfs():
    storm(False)


def test_storm_ext4():
    storm(False, fstype='ext4')


def test_storm_with_faults():
    storm(True)


if __name__ == '__main__':
    main(globals())

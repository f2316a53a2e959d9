#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""What was written and committed is what is read: over NFSv3, 4.0 and 4.1, through NFS and on the local
file system, with the budget so small that most writes are parked on their way.

The data names its place (nfsraw.pattern), so a piece that is lost, doubled or at a wrong offset shows.
"""

import random

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.testing import main

TIGHT = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '64M'}


@each_version(globals())
def check_16_writers_distinct_files(version):
    size = 6 * MiB + 12345
    with served(TIGHT) as bed:
        streams = []
        for i in range(16):
            client = bed.connect(version, source='127.0.0.%d' % (2 + i % 4))
            f = client.open('f%d' % i, create=True)
            streams.append(Stream(f, sequential(Pattern(i), size, 256 * 1024 + 7), depth=8))
        run(streams)
        no_errors(streams)
        verifier = only(set().union(*(s.verifiers for s in streams)), 'verifiers of WRITE')
        equal(only(set().union(*(s.committed for s in streams)), 'committed'), nfsraw.UNSTABLE, 'committed')
        for s in streams:
            equal(s.file.commit().verifier, verifier, 'verifier of COMMIT')
            s.file.close()
        for i in range(16):
            check_file(bed, 'f%d' % i, Pattern(i), size, version)
        bed.settle()


@each_version(globals())
def check_8_writers_one_file_misaligned(version):
    """8 connections, deep queues, odd sizes at odd offsets, interleaved and in random order."""
    size = 24 * MiB + 4321
    dice = random.Random(8)
    pieces, offset = [], 0
    while offset < size:
        n = min(dice.choice((1, 511, 4095, 4097, 20011, 65537, 150001, 300007)), size - offset)
        pieces.append((offset, n))
        offset += n
    pattern = Pattern(99)
    with served(TIGHT) as bed:
        streams = []
        for i in range(8):
            own = pieces[i::8]
            dice.shuffle(own)
            f = bed.connect(version).open('one', create=True)
            streams.append(Stream(f, [(o, pattern.view(o, n)) for o, n in own], depth=64))
        run(streams)
        no_errors(streams)
        verifier = only(set().union(*(s.verifiers for s in streams)), 'verifiers of WRITE')
        for s in streams:
            equal(s.file.commit().verifier, verifier, 'verifier of COMMIT')
            s.file.close()
        check_file(bed, 'one', pattern, size, version)
        bed.settle()


@each_version(globals())
def check_small_sizes(version):
    with served() as bed:
        client = bed.connect(version)
        for size in (0, 1, 4095, 4097):
            name = 's%d' % size
            with client.open(name, create=True) as f:
                reply = f.write(0, Pattern(size).view(0, size))
                equal(reply.count, size, 'count')
                equal(f.commit().verifier, reply.verifier, 'verifier of COMMIT')
            check_file(bed, name, Pattern(size), size, version)
        bed.settle()


@each_version(globals())
def check_sparse_5_tib(version):
    """One write at 5 TiB: offsets do not lose their upper half anywhere."""
    start, size = 5 << 40, MiB - 5
    pattern = Pattern(5)
    with served() as bed:
        client = bed.connect(version)
        with client.open('sparse', create=True) as f:
            call = f.write_async(start, pattern.view(start, size))
            client.wait(call)
            equal(call.reply.status_name, 'OK', 'WRITE at 5 TiB')
            f.commit()
            equal(f.getattr().size, start + size, 'size')
            equal(b''.join(f.pieces(size, offset=start)), bytes(pattern.view(start, size)), 'data read at 5 TiB')
            equal(f.read(start - 4096, 4096).data, bytes(4096), 'the hole before it')
        with open(bed.local('sparse'), 'rb') as local:
            local.seek(start)
            equal(local.read(), bytes(pattern.view(start, size)), 'data on the local file system')
        bed.settle()


@each_version(globals())
def check_impossible_offsets(version):
    """Offset 2^64-1 is 'the current position' to pwritev2: it must never get that far."""
    with served() as bed:
        client = bed.connect(version)
        with client.open('f', create=True) as f:
            f.write(0, b'here')
            for offset, n in ((2 ** 64 - 1, 1), (2 ** 64 - 1, 4096), (2 ** 64 - 4096, 8192), (2 ** 63, 1), (2 ** 63 - 1, 2)):
                for stable in (nfsraw.UNSTABLE, nfsraw.FILE_SYNC):
                    status = f.write(offset, b'x' * n, stable, check=False).status_name
                    assert status in ('FBIG', 'INVAL'), 'WRITE of %d at %#x: %s' % (n, offset, status)
            equal(f.commit(check=False).status_name, 'OK', 'COMMIT afterwards')
            equal(f.read(0, 100).data, b'here', 'the file afterwards')
            equal(f.getattr().size, 4, 'size afterwards')
        bed.settle()


@each_version(globals())
def check_stable_writes(version):
    """FILE_SYNC and DATA_SYNC are answered FILE_SYNC, with the verifier of everything else."""
    with served() as bed:
        client = bed.connect(version)
        pattern = Pattern(11)
        verifiers = set()
        with client.open('f', create=True) as f:
            for i, stable in enumerate((nfsraw.UNSTABLE, nfsraw.DATA_SYNC, nfsraw.FILE_SYNC, nfsraw.UNSTABLE)):
                reply = f.write(i * 10000, pattern.view(i * 10000, 10000), stable)
                want = nfsraw.UNSTABLE if stable == nfsraw.UNSTABLE else nfsraw.FILE_SYNC
                equal(nfsraw.STABLE_NAMES[reply.committed], nfsraw.STABLE_NAMES[want],
                      'committed of a %s write' % nfsraw.STABLE_NAMES[stable])
                verifiers.add(reply.verifier)
            verifiers.add(f.commit().verifier)
            verifiers.add(f.commit(0, 100).verifier)
            verifiers.add(f.commit(10 ** 9, 10).verifier)
        with bed.connect(version) as other, other.open('g', create=True) as g:
            verifiers.add(g.write(0, b'other client, other file').verifier)
            verifiers.add(g.commit().verifier)
        assert any(only(verifiers, 'verifiers of one server run')), 'the verifier is all zeros'
        check_file(bed, 'f', pattern, 40000, version)
        bed.settle()


@each_version(globals())
def check_fragmented_records(version):
    """A request that comes in many RPC fragments, of sizes that divide nothing."""
    size = 2 * MiB + 1
    with served() as bed:
        client = bed.connect(version, fragment=9972)
        pattern = Pattern(12)
        f = client.open('f', create=True)
        stream = Stream(f, sequential(pattern, size, 300001), depth=4)
        run([stream])
        no_errors([stream])
        f.commit()
        f.close()
        check_file(bed, 'f', pattern, size, version)


if __name__ == '__main__':
    main(globals())

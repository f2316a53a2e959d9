# SPDX-License-Identifier: LGPL-3.0-or-later
"""Test data that names its place: the byte at each offset of a file is a function of (seed, offset).

A write that lands at the wrong offset, twice, from another file, or not at all then shows as a wrong
checksum whatever the sizes were. The data is a window into one random buffer whose period is a prime,
so no write size or page size divides it; windows are memoryviews: nothing is generated per write.
"""

import hashlib
import random

PERIOD = 4194319                        # a prime a little over 4 MiB
LONGEST = 4 << 20                       # the longest single view


class Pattern:
    _base = None

    def __init__(self, seed=0):
        if Pattern._base is None:
            base = random.Random(20240607).randbytes(PERIOD)
            Pattern._base = memoryview(base + base[:LONGEST])
        self.shift = seed * 104729 % PERIOD

    def view(self, offset, length):
        if length > LONGEST:
            raise ValueError('a view is at most %d bytes' % LONGEST)
        start = (offset + self.shift) % PERIOD
        return Pattern._base[start:start + length]

    def pieces(self, size, offset=0):
        end = offset + size
        while offset < end:
            n = min(LONGEST, end - offset)
            yield self.view(offset, n)
            offset += n

    def md5(self, size, offset=0):
        return md5_of(self.pieces(size, offset))


def md5_of(pieces):
    digest = hashlib.md5()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def md5_file(path, chunk=4 << 20):
    """The md5 of a local file, read through the page cache."""
    with open(path, 'rb', buffering=0) as f:
        return md5_of(iter(lambda: f.read(chunk), b''))


def first_difference(path, pattern, size):
    """For a failure message: the first offset at which the file is not the pattern, or None."""
    offset = 0
    with open(path, 'rb') as f:
        for want in pattern.pieces(size):
            got = f.read(len(want))
            if got != want:
                for i, byte in enumerate(got):
                    if byte != want[i]:
                        return offset + i
                return offset + len(got)
            offset += len(want)
    return None

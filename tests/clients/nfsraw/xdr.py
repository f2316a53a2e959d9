# SPDX-License-Identifier: LGPL-3.0-or-later
"""XDR (RFC 4506), as little of it as NFS needs: encoding by functions that return bytes, decoding by a
cursor. Bulk data is never copied while encoding: see rpc.Connection.send, which takes a list of parts."""

import struct

_U32 = struct.Struct('>I')
_U64 = struct.Struct('>Q')


def u32(*values):
    return struct.pack('>%dI' % len(values), *values)


def u64(*values):
    return struct.pack('>%dQ' % len(values), *values)


def pad(n):
    """The zero bytes that bring n to a multiple of four."""
    return bytes(-n % 4)


def opaque(data):
    return b''.join((u32(len(data)), data, pad(len(data))))


def string(text):
    return opaque(text.encode() if isinstance(text, str) else text)


def bitmap(*bits):
    """An NFSv4 attribute bitmap."""
    words = [0] * (max(bits) // 32 + 1) if bits else []
    for bit in bits:
        words[bit // 32] |= 1 << bit % 32
    return u32(len(words), *words)


class Reader:
    """A cursor over one decoded message."""

    __slots__ = ('buf', 'pos')

    def __init__(self, buf, pos=0):
        self.buf = buf
        self.pos = pos

    def u32(self):
        value, = _U32.unpack_from(self.buf, self.pos)
        self.pos += 4
        return value

    def u64(self):
        value, = _U64.unpack_from(self.buf, self.pos)
        self.pos += 8
        return value

    def fixed(self, n):
        if self.pos + n > len(self.buf):
            raise ValueError('message ends inside an opaque of %d bytes' % n)
        data = bytes(self.buf[self.pos:self.pos + n])
        self.pos += n + -n % 4
        return data

    def opaque(self):
        return self.fixed(self.u32())

    def bits(self):
        """The set bits of an attribute bitmap, in ascending order."""
        words = [self.u32() for _ in range(self.u32())]
        return [32 * i + b for i, word in enumerate(words) for b in range(32) if word >> b & 1]

# SPDX-License-Identifier: LGPL-3.0-or-later
"""NFS version 4.0 (RFC 7530) and 4.1 (RFC 8881): COMPOUNDs of the few operations the tests need.

4.0 and 4.1 differ in three places: how a client is made known (SETCLIENTID against EXCHANGE_ID and
CREATE_SESSION), that every 4.1 compound starts with SEQUENCE on a free slot, and open owners' seqids.
"""

import collections
import itertools
import os
import time

from .base import BOTH, UNSTABLE, Attr, Client, File, Reply, split_path
from .rpc import Timeout
from .xdr import bitmap, opaque, pad, string, u32, u64

NFS, VERS, COMPOUND = 100003, 4, 1

(OP_ACCESS, OP_CLOSE, OP_COMMIT, OP_CREATE, OP_GETATTR, OP_GETFH, OP_LOOKUP, OP_OPEN, OP_OPEN_CONFIRM,
 OP_PUTFH, OP_PUTROOTFH, OP_READ, OP_REMOVE, OP_RENAME, OP_RENEW, OP_SAVEFH, OP_SETATTR, OP_SETCLIENTID,
 OP_SETCLIENTID_CONFIRM, OP_WRITE, OP_EXCHANGE_ID, OP_CREATE_SESSION, OP_DESTROY_SESSION, OP_SEQUENCE,
 OP_DESTROY_CLIENTID, OP_RECLAIM_COMPLETE) = (
    3, 4, 5, 6, 9, 10, 15, 18, 20, 22, 24, 25, 28, 29, 30, 32, 34, 35, 36, 38, 42, 43, 44, 53, 57, 58)

# The attributes asked for, in bitmap order, and how each is decoded.
TYPE, SIZE, FILEID, MAXREAD, MAXWRITE, MODE, NLINK, OWNER, GROUP, USED, MTIME = (
    1, 4, 20, 30, 31, 33, 35, 36, 37, 45, 53)
WANTED = bitmap(TYPE, SIZE, FILEID, MAXREAD, MAXWRITE, MODE, NLINK, OWNER, GROUP, USED, MTIME)


def number(text):
    return int(text) if text.isdigit() else text.decode(errors='replace')


FIELDS = {
    TYPE: ('type', lambda r: r.u32()), SIZE: ('size', lambda r: r.u64()), FILEID: ('fileid', lambda r: r.u64()),
    MAXREAD: ('maxread', lambda r: r.u64()), MAXWRITE: ('maxwrite', lambda r: r.u64()),
    MODE: ('mode', lambda r: r.u32()), NLINK: ('nlink', lambda r: r.u32()),
    OWNER: ('uid', lambda r: number(r.opaque())), GROUP: ('gid', lambda r: number(r.opaque())),
    USED: ('used', lambda r: r.u64()), MTIME: ('mtime', lambda r: r.u64() + r.u32() / 1e9),
}


def fattr(r):
    a = Attr()
    bits = r.bits()
    r.u32()
    for bit in bits:
        name, decode = FIELDS[bit]
        setattr(a, name, decode(r))
    return a


def fattr_args(mode=None, size=None):
    """fattr4 with a mode and a size, if given."""
    bits, values = [], b''
    if size is not None:
        bits.append(SIZE)
        values += u64(size)
    if mode is not None:
        bits.append(MODE)
        values += u32(mode)
    return bitmap(*bits) + opaque(values)


# -- operations: each an (encoding, decoder of its result) pair. A decoder fills the compound's Reply. --

def skip(reply, r):
    pass


def change_info(reply, r):
    r.fixed(20)


def _access(reply, r):
    r.u32()
    reply.access = r.u32()


def _commit(reply, r):
    reply.verifier = r.fixed(8)


def _create(reply, r):
    r.fixed(20)
    r.bits()


def _getattr(reply, r):
    reply.attr = fattr(r)


def _getfh(reply, r):
    reply.fh = r.opaque()


def _open(reply, r):
    reply.stateid = r.fixed(16)
    r.fixed(20)
    reply.extra = r.u32()               # result flags
    r.bits()
    delegation = r.u32()
    if delegation == 3:                 # OPEN_DELEGATE_NONE_EXT: why there is none
        if r.u32() in (1, 2):
            r.u32()
    elif delegation:
        raise ValueError('the server granted a delegation nobody asked for')


def _read(reply, r):
    reply.eof, reply.data = bool(r.u32()), r.opaque()
    reply.count = len(reply.data)


def _stateid(reply, r):
    reply.stateid = r.fixed(16)


def _write(reply, r):
    reply.count, reply.committed, reply.verifier = r.u32(), r.u32(), r.fixed(8)


def putfh(fh):
    return [u32(OP_PUTFH) + opaque(fh)], skip


def op(number_, args=b'', decode=skip):
    return [u32(number_) + args], decode


def lookups(path):
    return [op(OP_LOOKUP, string(name)) for name in path.split('/') if name]


GETFH = op(OP_GETFH, b'', _getfh)
GETATTR = op(OP_GETATTR, WANTED, _getattr)


def _setattr_result(r):
    r.bits()


def decode_compound(decoders, r):
    """The result of the whole compound in one Reply: the status of the operation that failed, if one did."""
    reply = Reply(status=r.u32())
    r.opaque()
    done = r.u32()
    for i in range(done):
        number_, status = r.u32(), r.u32()
        if number_ == OP_SETATTR:           # the one result that has a body when it fails, too
            _setattr_result(r)
        if status:
            reply.status = status
            break
        decoders[i](reply, r)
    return reply


class Client4(Client):
    minor = None

    # -- compounds ----------------------------------------------------------------------------

    def _send(self, call, ops):
        """Build and queue a compound of (parts, decoder) pairs. call.decode is set here."""
        decoders = [decode for _, decode in ops]
        call.decode = lambda r: decode_compound(decoders, r)
        parts = [string('') + u32(self.minor, len(ops))]
        for op_parts, _ in ops:
            parts.extend(op_parts)
        self.conn.send(call, self.cred, NFS, VERS, COMPOUND, parts)

    def _start(self, name, ops, reap=False, tag=None):
        call = self._new(name, None, reap, tag)
        self._send(call, ops)
        return call

    def _call(self, name, ops, check=True, what=''):
        return self._finish(self._start(name, ops), check, what)

    def _find_root(self):
        if self.root is None:
            self.root = self._call('LOOKUP', [op(OP_PUTROOTFH)] + lookups(self.export) + [GETFH],
                                   True, self.export).fh
        attr = self.getattr_fh(self.root)
        self.max_write, self.max_read = attr.maxwrite, attr.maxread

    # -- names --------------------------------------------------------------------------------

    def _at(self, path):
        return [putfh(self.root)] + lookups(path)

    def lookup(self, path):
        return self._call('LOOKUP', self._at(path) + [GETFH], True, path).fh

    def getattr(self, path, check=True):
        reply = self._call('GETATTR', self._at(path) + [GETATTR], check, path)
        return reply.attr if check else reply

    def getattr_fh(self, fh, check=True):
        reply = self._call('GETATTR', [putfh(fh), GETATTR], check)
        return reply.attr if check else reply

    def getattr_async(self, fh, tag=None):
        return self._start('GETATTR', [putfh(fh), GETATTR], True, tag)

    def remove(self, path, check=True):
        parents, name = split_path(path)
        ops = self._at('/'.join(parents)) + [op(OP_REMOVE, string(name), change_info)]
        return self._call('REMOVE', ops, check, path)

    def rename(self, old, new, check=True):
        (from_dir, from_name), (to_dir, to_name) = split_path(old), split_path(new)
        ops = (self._at('/'.join(from_dir)) + [op(OP_SAVEFH)] + self._at('/'.join(to_dir)) +
               [op(OP_RENAME, string(from_name) + string(to_name), lambda reply, r: r.fixed(40))])
        return self._call('RENAME', ops, check, old)

    def mkdir(self, path, mode=0o755, check=True):
        parents, name = split_path(path)
        ops = self._at('/'.join(parents)) + [op(OP_CREATE, u32(2) + string(name) + fattr_args(mode=mode), _create)]
        return self._call('CREATE', ops, check, path)

    def access(self, path, mask=0x3f):
        return self._call('ACCESS', self._at(path) + [op(OP_ACCESS, u32(mask), _access)]).access

    # -- OPEN ---------------------------------------------------------------------------------

    _owners = itertools.count(1)

    def open(self, path, create=False, mode=0o644, access=BOTH, deny=0, truncate=False):
        return self._retry_grace(lambda: self._open(path, create, mode, access, deny, truncate))

    def _open(self, path, create, mode, access, deny, truncate):
        # An owner of its own for each open: opens are then independent of each other, and an owner's
        # seqid (4.0) cannot get out of step because some other open failed.
        parents, name = split_path(path)
        owner = self.clientid + opaque(b'owner-%d-%d' % (os.getpid(), next(self._owners)))
        how = u32(0)
        if create:
            how = u32(1, 0) + fattr_args(mode=mode, size=0 if truncate else None)
        args = u32(0) + u32(access, deny) + owner + how + u32(0) + string(name)
        reply = self._call('OPEN', self._at('/'.join(parents)) + [op(OP_OPEN, args, _open), GETFH], True, path)
        f = File4(self, reply.fh, path, reply.stateid)
        f.seqid = 1
        if reply.extra & 2:                 # OPEN4_RESULT_CONFIRM
            f.stateid = self._call('OPEN_CONFIRM', [putfh(f.fh), op(OP_OPEN_CONFIRM, f.stateid + u32(1), _stateid)],
                                   True, path).stateid
            f.seqid = 2
        if truncate and not create:
            f.truncate(0)
        return f


class File4(File):
    ANONYMOUS = bytes(16)

    def __init__(self, client, fh, path, stateid):
        super().__init__(client, fh, path)
        self.stateid = stateid
        self.seqid = 0

    def write_async(self, offset, data, stable=UNSTABLE, tag=None):
        n = len(data)
        head = u32(OP_WRITE) + self.stateid + u64(offset) + u32(stable, n)
        call = self.client._start('WRITE', [putfh(self.fh), ([head, data, pad(n)], _write)], True, tag)
        call.offset, call.size = offset, n
        return call

    def read_async(self, offset, count, tag=None):
        call = self.client._start('READ', [putfh(self.fh), op(OP_READ, self.stateid + u64(offset) + u32(count), _read)],
                                  True, tag)
        call.offset, call.size = offset, count
        return call

    def commit_async(self, offset=0, count=0, tag=None):
        return self.client._start('COMMIT', [putfh(self.fh), op(OP_COMMIT, u64(offset) + u32(count), _commit)],
                                  True, tag)

    def setattr(self, size=None, mode=None, check=True):
        args = self.stateid + fattr_args(mode, size)
        return self.client._call('SETATTR', [putfh(self.fh), op(OP_SETATTR, args)], check, self.path)

    def access(self, mask=0x3f):
        return self.client._call('ACCESS', [putfh(self.fh), op(OP_ACCESS, u32(mask), _access)]).access

    def close(self, check=True):
        return self.client._call('CLOSE', [putfh(self.fh), op(OP_CLOSE, u32(self.seqid) + self.stateid, _stateid)],
                                 check, self.path)


class Client40(Client4):
    version = '4.0'
    minor = 0

    def _establish(self):
        name = self.name or 'nfsraw-%d-%s' % (os.getpid(), os.urandom(6).hex())
        args = (os.urandom(8) + string(name) + u32(0x40000000) + string('tcp') + string('127.0.0.1.0.0') + u32(1))

        def decode(reply, r):
            reply.extra = r.fixed(8), r.fixed(8)
        self.clientid, confirm = self._call('SETCLIENTID', [op(OP_SETCLIENTID, args, decode)]).extra
        self._call('SETCLIENTID_CONFIRM', [op(OP_SETCLIENTID_CONFIRM, self.clientid + confirm)])
        self._find_root()

    def renew(self, check=True):
        return self._call('RENEW', [op(OP_RENEW, self.clientid)], check)


class Client41(Client4):
    version = '4.1'
    minor = 1
    MAX_IO = 1 << 20

    def _establish(self):
        self._free = []
        self._seq = []
        self._waiting = collections.deque()     # compounds for which no slot is free
        self.session = None
        name = self.name or 'nfsraw-%d-%s' % (os.getpid(), os.urandom(6).hex())
        args = os.urandom(8) + string(name) + u32(0, 0, 0)

        def decode_id(reply, r):
            reply.extra = r.fixed(8), r.u32()
        self.clientid, sequence = self._bare('EXCHANGE_ID', [op(OP_EXCHANGE_ID, args, decode_id)]).extra

        def channel(size, slots):
            return u32(0, size, size, 8192, 16, slots, 0)

        def decode_session(reply, r):
            session = r.fixed(16)
            r.u32()
            r.u32()
            r.u32()
            request, response = r.u32(), r.u32()
            r.u32()
            r.u32()
            reply.extra = session, request, response, r.u32()
        args = (self.clientid + u32(sequence, 0) + channel(self.MAX_IO + 65536, self.slots) + channel(4096, 1) +
                u32(0x40000000, 1, 0))
        self.session, self.max_request, self.max_response, granted = self._bare(
            'CREATE_SESSION', [op(OP_CREATE_SESSION, args, decode_session)]).extra
        self.slots = min(self.slots, granted)
        self._free = list(range(self.slots))
        self._seq = [0] * self.slots
        self._call('RECLAIM_COMPLETE', [op(OP_RECLAIM_COMPLETE, u32(0))])
        self._find_root()
        # The server's largest WRITE, as far as it fits a request of this session.
        self.max_write = min(self.max_write, self.max_request - 4096)
        self.max_read = min(self.max_read, self.max_response - 4096)

    def _bare(self, name, ops, check=True):
        """A compound outside any session."""
        call = self._new(name, None)
        super()._send(call, ops)
        return self._finish(call, check)

    def _send(self, call, ops):
        if not self._free:
            self._waiting.append((call, ops))
            return
        slot = call.slot = self._free.pop()
        self._seq[slot] += 1

        def decode_sequence(reply, r):
            r.fixed(16)
            r.fixed(20)
            reply.extra = None
        args = self.session + u32(self._seq[slot], slot, self.slots - 1, 0)
        super()._send(call, [op(OP_SEQUENCE, args, decode_sequence)] + ops)
        inner = call.decode

        def decode(r):
            start = r.pos
            reply = inner(r)
            # A SEQUENCE that itself failed has not used up the slot's sequence number.
            r.pos = start + 4
            r.opaque()
            if r.u32() and r.u32() == OP_SEQUENCE and r.u32():
                self._seq[slot] -= 1
            return reply
        call.decode = decode

    def _on_done(self, call):
        super()._on_done(call)
        if call.slot is not None:
            self._free.append(call.slot)
            while self._waiting and self._free and not self.conn.lost:
                self._send(*self._waiting.popleft())
        if self.conn.lost:
            while self._waiting:
                self._waiting.popleft()[0].on_lost(self.conn.lost)

    def renew(self, check=True):
        return self._call('SEQUENCE', [], check)

    def _farewell(self):
        if self.session is None:
            return
        try:
            deadline = time.monotonic() + 5
            while self.outstanding and not self.conn.lost and time.monotonic() < deadline:
                self.conn.pump(0.1)
            if not self.conn.lost and not self.outstanding:
                self.timeout = 5
                self._bare('DESTROY_SESSION', [op(OP_DESTROY_SESSION, self.session)], check=False)
                self._bare('DESTROY_CLIENTID', [op(OP_DESTROY_CLIENTID, self.clientid)], check=False)
        except (Timeout, OSError):
            pass

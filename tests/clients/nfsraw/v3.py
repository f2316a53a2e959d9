# SPDX-License-Identifier: LGPL-3.0-or-later
"""NFS version 3 (RFC 1813) and its MOUNT protocol."""

from .base import UNSTABLE, Attr, Client, File, NfsError, Reply, split_path
from .rpc import Connection
from .status import Status
from .xdr import opaque, pad, string, u32, u64

NFS, MOUNT, VERS = 100003, 100005, 3
(GETATTR, SETATTR, LOOKUP, ACCESS, READ, WRITE, CREATE, MKDIR, REMOVE, RENAME, FSINFO, COMMIT) = (
    1, 2, 3, 4, 6, 7, 8, 9, 12, 14, 19, 21)
UNCHECKED = 0


def sattr(mode=None, size=None):
    """sattr3: mode, uid, gid, size, atime, mtime; each one set or not."""
    return b''.join((u32(0) if mode is None else u32(1, mode), u32(0, 0),
                     u32(0) if size is None else u32(1) + u64(size), u32(0, 0)))


def fattr(r):
    a = Attr(type=r.u32(), mode=r.u32(), nlink=r.u32(), uid=r.u32(), gid=r.u32(), size=r.u64(), used=r.u64())
    r.fixed(8)
    r.u64()
    a.fileid = r.u64()
    r.fixed(8)
    a.mtime = r.u32() + r.u32() / 1e9
    r.fixed(8)
    return a


def post_op_attr(r):
    return fattr(r) if r.u32() else None


def wcc_data(r):
    if r.u32():
        r.fixed(24)
    return post_op_attr(r)


def decode_status(r):
    return Reply(status=r.u32())


def decode_getattr(r):
    reply = Reply(status=r.u32())
    if reply.ok:
        reply.attr = fattr(r)
    return reply


def decode_wcc(r):
    return Reply(status=r.u32(), attr=wcc_data(r))


def decode_lookup(r):
    reply = Reply(status=r.u32())
    if reply.ok:
        reply.fh = r.opaque()
        reply.attr = post_op_attr(r)
    return reply


def decode_create(r):
    reply = Reply(status=r.u32())
    if reply.ok:
        reply.fh = r.opaque() if r.u32() else None
        reply.attr = post_op_attr(r)
    return reply


def decode_write(r):
    reply = Reply(status=r.u32(), attr=wcc_data(r))
    if reply.ok:
        reply.count, reply.committed, reply.verifier = r.u32(), r.u32(), r.fixed(8)
    return reply


def decode_commit(r):
    reply = Reply(status=r.u32(), attr=wcc_data(r))
    if reply.ok:
        reply.verifier = r.fixed(8)
    return reply


def decode_read(r):
    reply = Reply(status=r.u32(), attr=post_op_attr(r))
    if reply.ok:
        reply.count, reply.eof, reply.data = r.u32(), bool(r.u32()), r.opaque()
    return reply


def decode_access(r):
    reply = Reply(status=r.u32(), attr=post_op_attr(r))
    if reply.ok:
        reply.access = r.u32()
    return reply


def decode_fsinfo(r):
    reply = Reply(status=r.u32(), attr=post_op_attr(r))
    if reply.ok:
        reply.extra = {'rtmax': r.u32(), 'rtpref': r.u32(), 'rtmult': r.u32(), 'wtmax': r.u32()}
    return reply


def decode_mount(r):
    reply = Reply(status=r.u32())
    if reply.ok:
        reply.fh = r.opaque()
    return reply


class Client3(Client):
    version = '3'

    def _establish(self):
        if self.root is None:
            if self.mnt_port is None:
                raise ValueError('NFSv3 needs mnt_port or root_fh')
            self.root = self._mount()
        info = self._call('FSINFO', FSINFO, [opaque(self.root)], decode_fsinfo)
        self.max_write, self.max_read = info.extra['wtmax'], info.extra['rtmax']

    def _mount(self):
        # MOUNT has a port of its own; its connection is needed for this one call.
        nfs, self.conn = self.conn, Connection(self.host, self.mnt_port, self.source)
        try:
            call = self._new('MNT', decode_mount)
            self.conn.send(call, self.cred, MOUNT, VERS, 1, [string(self.export)])
            return self._finish(call, True, self.export).fh
        finally:
            self.conn.close()
            self.conn = nfs

    def _start(self, op, proc, parts, decode, reap=False, tag=None):
        call = self._new(op, decode, reap, tag)
        self.conn.send(call, self.cred, NFS, VERS, proc, parts)
        return call

    def _call(self, op, proc, parts, decode, check=True, what=''):
        return self._finish(self._start(op, proc, parts, decode), check, what)

    def lookup(self, path):
        fh = self.root
        for name in path.split('/'):
            if name:
                fh = self._call('LOOKUP', LOOKUP, [opaque(fh), string(name)], decode_lookup, True, path).fh
        return fh

    def _dir(self, path):
        parents, name = split_path(path)
        return opaque(self.lookup('/'.join(parents))) + string(name)

    def open(self, path, create=False, mode=0o644, access=3, deny=0, truncate=False):
        if create:
            fh = self._create(path, mode, truncate)
        else:
            fh = self.lookup(path)
        f = File3(self, fh, path)
        if truncate and not create:
            f.truncate(0)
        return f

    def _create(self, path, mode, truncate):
        try:
            fh = self.lookup(path)              # UNCHECKED create would reset the mode of an existing file
            if truncate:
                File3(self, fh, path).truncate(0)
            return fh
        except NfsError as e:
            if e.status != Status.NOENT:
                raise
        reply = self._call('CREATE', CREATE, [self._dir(path), u32(UNCHECKED), sattr(mode=mode)],
                           decode_create, True, path)
        return reply.fh or self.lookup(path)

    def getattr_fh(self, fh, check=True):
        reply = self._call('GETATTR', GETATTR, [opaque(fh)], decode_getattr, check)
        return reply.attr if check else reply

    def getattr_async(self, fh, tag=None):
        return self._start('GETATTR', GETATTR, [opaque(fh)], decode_getattr, True, tag)

    def remove(self, path, check=True):
        return self._call('REMOVE', REMOVE, [self._dir(path)], decode_wcc, check, path)

    def rename(self, old, new, check=True):
        return self._call('RENAME', RENAME, [self._dir(old), self._dir(new)], decode_status, check, old)

    def mkdir(self, path, mode=0o755, check=True):
        return self._call('MKDIR', MKDIR, [self._dir(path), sattr(mode=mode)], decode_create, check, path)

    def access(self, path, mask=0x3f):
        return File3(self, self.lookup(path), path).access(mask)


class File3(File):
    def write_async(self, offset, data, stable=UNSTABLE, tag=None):
        n = len(data)
        head = b''.join((opaque(self.fh), u64(offset), u32(n, stable, n)))
        call = self.client._start('WRITE', WRITE, [head, data, pad(n)], decode_write, True, tag)
        call.offset, call.size = offset, n
        return call

    def read_async(self, offset, count, tag=None):
        call = self.client._start('READ', READ, [opaque(self.fh), u64(offset), u32(count)], decode_read, True, tag)
        call.offset, call.size = offset, count
        return call

    def commit_async(self, offset=0, count=0, tag=None):
        return self.client._start('COMMIT', COMMIT, [opaque(self.fh), u64(offset), u32(count)],
                                  decode_commit, True, tag)

    def setattr(self, size=None, mode=None, check=True):
        return self.client._call('SETATTR', SETATTR, [opaque(self.fh), sattr(mode, size), u32(0)],
                                 decode_wcc, check, self.path)

    def access(self, mask=0x3f):
        return self.client._call('ACCESS', ACCESS, [opaque(self.fh), u32(mask)], decode_access).access

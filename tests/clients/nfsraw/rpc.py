# SPDX-License-Identifier: LGPL-3.0-or-later
"""ONC RPC (RFC 5531) over TCP, pipelined: any number of calls outstanding, replies in any order.

Nothing here blocks except pump(): sending queues what the socket does not take, so that a server that
stops reading (which is one of the things under test) cannot dead-lock the test, and one thread can
drive many connections. Bulk data is passed by reference (a memoryview into a buffer that the caller
keeps unchanged until the reply), so a thousand outstanding writes of one buffer cost that buffer.
"""

import collections
import os
import select
import socket
import struct
import time

from .xdr import Reader, opaque, string, u32

AUTH_NONE, AUTH_SYS = 0, 1
LAST_FRAGMENT = 0x80000000
REJECT = {1: 'authentication refused', 0: 'RPC version refused'}
ACCEPT = {1: 'program unavailable', 2: 'program version mismatch', 3: 'procedure unavailable',
          4: 'garbage arguments', 5: 'system error'}


class RpcError(Exception):
    """The RPC layer refused the call, before any NFS status."""


class ConnectionLost(RpcError):
    """The connection closed while calls were outstanding."""


class Timeout(RpcError):
    """No reply within the time the test allows."""


def auth_sys(uid, gid, gids=(), machine='nfsraw'):
    body = u32(0) + string(machine) + u32(uid, gid, len(gids), *gids)
    return u32(AUTH_SYS) + opaque(body)


class Connection:
    """One TCP connection. Objects given to send() need: xid, on_sent(time), on_reply(Reader, time),
    on_lost(exception)."""

    RECV = 1 << 18

    def __init__(self, host, port, source=None, fragment=None, connect_timeout=10):
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if source:
                self.sock.bind((source, 0))
            self.sock.settimeout(connect_timeout)
            self.sock.connect((host, port))
        except BaseException:
            self.sock.close()
            raise
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.fragment = fragment            # split records into fragments of at most this many bytes
        self.pending = {}                   # xid -> call
        self._xid = int.from_bytes(os.urandom(4), 'big') & 0x7fffffff
        self._out = collections.deque()     # memoryviews still to be sent
        self._out_bytes = 0                 # their total length
        self._queued_total = 0              # bytes ever queued, and ever given to the socket
        self._sent_total = 0
        self._marks = collections.deque()   # (byte position at which a call is sent, call)
        self._in = bytearray()
        self._record = bytearray()          # fragments of an unfinished record
        self.lost = None

    # -- sending ------------------------------------------------------------------------------

    def next_xid(self):
        self._xid = (self._xid + 1) & 0xffffffff
        return self._xid

    def send(self, call, cred, prog, vers, proc, parts):
        """Queue one call; parts is a list of bytes-like objects that make up its arguments."""
        call.xid = self.next_xid()
        head = u32(call.xid, 0, 2, prog, vers, proc) + cred + u32(AUTH_NONE, 0)
        self.pending[call.xid] = call
        if self.lost:
            self._fail(self.lost)
            return
        for piece in self._record_parts([head, *parts]):
            self._out.append(piece)
            self._out_bytes += len(piece)
            self._queued_total += len(piece)
        self._marks.append((self._queued_total, call))
        self._flush()

    def _record_parts(self, parts):
        views = [memoryview(p).cast('B') for p in parts if len(p)]
        total = sum(len(v) for v in views)
        limit = self.fragment or total
        sent = 0
        while sent < total:
            size = min(limit, total - sent)
            sent += size
            yield memoryview(u32((LAST_FRAGMENT if sent == total else 0) | size))
            while size:
                take = views[0][:size]
                yield take
                size -= len(take)
                views[0] = views[0][len(take):]
                if not views[0]:
                    views.pop(0)

    def _flush(self):
        try:
            while self._out:
                sent = self.sock.sendmsg([self._out[i] for i in range(min(len(self._out), 64))])
                self._out_bytes -= sent
                self._sent_total += sent
                while sent:
                    first = self._out[0]
                    if sent >= len(first):
                        sent -= len(first)
                        self._out.popleft()
                    else:
                        self._out[0] = first[sent:]
                        sent = 0
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as e:
            self._fail(ConnectionLost('send: %s' % e))
            return
        now = time.monotonic()
        while self._marks and self._marks[0][0] <= self._sent_total:
            self._marks.popleft()[1].on_sent(now)

    @property
    def unsent_bytes(self):
        """Bytes that the socket has not taken: the server (or the kernel's buffers) holds us back."""
        return self._out_bytes

    # -- receiving ----------------------------------------------------------------------------

    def fileno(self):
        return self.sock.fileno()

    def events(self):
        return select.POLLIN | (select.POLLOUT if self._out else 0)

    def pump(self, timeout=0):
        """Send and receive what can be, waiting at most timeout seconds for the first event."""
        pump_many([self], timeout)

    def service(self, events):
        if self.lost:
            return
        if events & select.POLLOUT:
            self._flush()
        if events & ~select.POLLOUT:
            self._receive()

    def _receive(self):
        try:
            while not self.lost:
                data = self.sock.recv(self.RECV)
                if not data:
                    self._fail(ConnectionLost('the server closed the connection'))
                    return
                self._in += data
                self._parse()
                if len(data) < self.RECV:
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as e:
            self._fail(ConnectionLost('receive: %s' % e))

    def _parse(self):
        while len(self._in) >= 4:
            mark, = struct.unpack_from('>I', self._in)
            size = mark & ~LAST_FRAGMENT
            if len(self._in) < 4 + size:
                return
            self._record += memoryview(self._in)[4:4 + size]
            del self._in[:4 + size]
            if mark & LAST_FRAGMENT:
                record, self._record = self._record, bytearray()
                self._dispatch(record)

    def _dispatch(self, record):
        now = time.monotonic()
        r = Reader(record)
        xid, direction = r.u32(), r.u32()
        if direction != 1:                  # a call from the server (callback channel): not ours
            return
        call = self.pending.pop(xid, None)
        if call is None:
            return
        if r.u32() != 0:
            call.on_lost(RpcError(REJECT.get(r.u32(), 'call rejected')))
            return
        r.u32()
        r.opaque()
        accept = r.u32()
        if accept:
            call.on_lost(RpcError(ACCEPT.get(accept, 'accept status %d' % accept)))
            return
        call.on_reply(r, now)

    # -- the end ------------------------------------------------------------------------------

    def _fail(self, error):
        self.lost = error
        self._out.clear()
        self._out_bytes = 0
        self._marks.clear()
        calls, self.pending = list(self.pending.values()), {}
        for call in calls:
            call.on_lost(error)

    def close(self):
        if not self.lost:
            self._fail(ConnectionLost('closed by the test'))
        self.sock.close()

    def kill(self):
        """Vanish as a crashed client does: a reset, unsent data thrown away."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.close()


def pump_many(connections, timeout=0):
    """pump() for several connections at once. Returns whether anything happened."""
    live = {c.fileno(): c for c in connections if not c.lost}
    if not live:
        return False
    poll = select.poll()
    for fd, conn in live.items():
        poll.register(fd, conn.events())
    ready = poll.poll(max(0, timeout) * 1000)
    for fd, events in ready:
        live[fd].service(events)
    return bool(ready)

# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the three versions have in common: the Call, the Reply, and the Client and File interface.

A version supplies `_start(call, op, ...)` for each operation; everything about waiting, reaping and
errors is here. Synchronous operations raise NfsError unless check=False; asynchronous ones never
raise: look at call.status and call.error.
"""

import collections
import dataclasses
import time

from .rpc import Connection, Timeout, auth_sys
from .status import Status, status_name

UNSTABLE, DATA_SYNC, FILE_SYNC = 0, 1, 2
STABLE_NAMES = ('UNSTABLE', 'DATA_SYNC', 'FILE_SYNC')
READ, WRITE, BOTH = 1, 2, 3             # share access and share deny bits (NFSv4)


class NfsError(Exception):
    def __init__(self, op, status, what=''):
        super().__init__('%s %s: %s' % (op, what, status_name(status)))
        self.op = op
        self.status = status


@dataclasses.dataclass
class Attr:
    type: int = 0                       # 1 regular file, 2 directory
    mode: int = 0
    nlink: int = 0
    uid: object = None                  # a number, or the server's string in NFSv4
    gid: object = None
    size: int = 0
    used: int = 0
    fileid: int = 0
    mtime: float = 0.0
    maxread: int = 0
    maxwrite: int = 0


@dataclasses.dataclass
class Reply:
    status: int = 0
    count: int = None                   # WRITE, READ
    committed: int = None               # WRITE: a stable_how
    verifier: bytes = None              # WRITE, COMMIT
    data: bytes = None                  # READ
    eof: bool = None                    # READ
    attr: Attr = None                   # GETATTR; in NFSv3 what came after the operation
    access: int = None                  # ACCESS
    fh: bytes = None
    stateid: bytes = None
    extra: object = None                # what only one version has

    @property
    def ok(self):
        return self.status == 0

    @property
    def status_name(self):
        return status_name(self.status)


class Call:
    """One request: when it was queued, when the socket had taken it whole, when its reply came."""

    __slots__ = ('op', 'tag', 'xid', 'queued', 'sent', 'replied', 'reply', 'error', 'client', 'decode',
                 'reap', 'slot', 'size', 'offset')

    def __init__(self, client, op, decode, reap=False, tag=None):
        self.client, self.op, self.decode, self.reap, self.tag = client, op, decode, reap, tag
        self.xid = self.sent = self.replied = self.reply = self.error = self.slot = None
        self.size = self.offset = None
        self.queued = time.monotonic()

    @property
    def done(self):
        return self.reply is not None or self.error is not None

    @property
    def status(self):
        """The NFS status; None while there is none (still outstanding, or the connection was lost)."""
        return self.reply.status if self.reply else None

    @property
    def latency(self):
        """Seconds from the moment the test asked to the reply, waiting in our own queue included."""
        return self.replied - self.queued if self.replied else None

    # called by rpc.Connection
    def on_sent(self, now):
        self.sent = now

    def on_reply(self, reader, now):
        self.replied = now
        try:
            self.reply = self.decode(reader)
        except Exception as e:              # a reply that does not decode is a finding, not a crash
            self.error = e
        self.client._on_done(self)

    def on_lost(self, error):
        self.error = error
        self.client._on_done(self)

    def __repr__(self):
        return 'Call(%s, %s)' % (self.op, self.reply.status_name if self.reply else self.error or 'outstanding')


class Client:
    """host, port       the NFS service; mnt_port: the MOUNT service (NFSv3)
    export              the pseudo path (or, for NFSv3, whatever MOUNT accepts)
    uid, gid, gids      AUTH_SYS credentials
    source              local address, e.g. '127.0.0.2': the server then sees another client
    slots               NFSv4.1: size of the slot table asked for
    fragment            split RPC records into fragments of at most this many bytes
    root_fh             skip MOUNT / LOOKUP of the export and start at this file handle"""

    version = None

    def __init__(self, port, export, host='127.0.0.1', mnt_port=None, uid=0, gid=0, gids=(), source=None,
                 slots=64, fragment=None, root_fh=None, timeout=60, name=None):
        self.host, self.port, self.mnt_port, self.export = host, port, mnt_port, export
        self.source, self.slots, self.timeout, self.name = source, slots, timeout, name
        self.cred = auth_sys(uid, gid, gids)
        self.outstanding = 0
        self._reaped = collections.deque()
        self.conn = Connection(host, port, source, fragment)
        try:
            self.root = root_fh
            self._establish()
        except BaseException:
            self.conn.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # -- calls: for the versions -------------------------------------------------------------

    def _new(self, op, decode, reap=False, tag=None):
        self.outstanding += 1
        return Call(self, op, decode, reap, tag)

    def _on_done(self, call):
        self.outstanding -= 1
        if call.reap:
            self._reaped.append(call)

    def _finish(self, call, check=True, what=''):
        """Wait for a synchronous call."""
        self.wait(call)
        if check and call.reply.status:
            raise NfsError(call.op, call.reply.status, what)
        return call.reply

    # -- waiting ------------------------------------------------------------------------------

    def wait(self, call, timeout=None):
        """Pump until the call is done; raises its error, if it has one."""
        deadline = time.monotonic() + (timeout or self.timeout)
        while not call.done:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Timeout('%s: no reply within %g s' % (call.op, timeout or self.timeout))
            self.conn.pump(left)
        if call.error:
            raise call.error
        return call.reply

    def reap(self):
        """Asynchronous calls that finished since the last reap, in the order they finished."""
        calls = list(self._reaped)
        self._reaped.clear()
        return calls

    def drain(self, timeout=None):
        """Wait for everything outstanding; returns what reap() would."""
        deadline = time.monotonic() + (timeout or self.timeout)
        while self.outstanding:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Timeout('%d calls without a reply within %g s' % (self.outstanding, timeout or self.timeout))
            self.conn.pump(left)
        return self.reap()

    def kill(self):
        """Vanish: connection reset, no CLOSE, no session torn down."""
        self.conn.kill()

    def close(self):
        if not self.conn.lost:
            self._farewell()
        self.conn.close()

    # -- what a version implements ------------------------------------------------------------

    def _establish(self):
        raise NotImplementedError

    def _farewell(self):
        """Give server-side state back. Best effort."""

    def open(self, path, create=False, mode=0o644, access=BOTH, deny=0, truncate=False):
        """Open (and with create make, if it is not there) a file; returns a File. NFSv3 has no OPEN: it
        looks up or creates, and access and deny mean nothing."""
        raise NotImplementedError

    def lookup(self, path):
        """The file handle of path below the export's root."""
        raise NotImplementedError

    def getattr(self, path, check=True):
        return self.getattr_fh(self.lookup(path), check)

    def getattr_fh(self, fh, check=True):
        raise NotImplementedError

    def remove(self, path, check=True):
        raise NotImplementedError

    def rename(self, old, new, check=True):
        raise NotImplementedError

    def mkdir(self, path, mode=0o755, check=True):
        raise NotImplementedError

    def access(self, path, mask=0x3f):
        """The ACCESS bits granted: 1 read, 2 lookup, 4 modify, 8 extend, 16 delete, 32 execute."""
        raise NotImplementedError

    def _retry_grace(self, attempt, deadline=20):
        """After a restart a server may refuse opens for its grace period; nothing else is retried."""
        end = time.monotonic() + deadline
        while True:
            try:
                return attempt()
            except NfsError as e:
                if e.status != Status.GRACE or time.monotonic() > end:
                    raise
                time.sleep(0.2)


def split_path(path):
    """('dir', 'sub'), 'name' of 'dir/sub/name'."""
    parts = [p for p in path.split('/') if p]
    return parts[:-1], parts[-1]


class File:
    """An open file (NFSv4: with its state; NFSv3: a file handle)."""

    def __init__(self, client, fh, path):
        self.client, self.fh, self.path = client, fh, path

    def write_async(self, offset, data, stable=UNSTABLE, tag=None):
        """Start a WRITE; data must not change until the reply. Returns a Call."""
        raise NotImplementedError

    def read_async(self, offset, count, tag=None):
        raise NotImplementedError

    def commit_async(self, offset=0, count=0, tag=None):
        raise NotImplementedError

    def write(self, offset, data, stable=UNSTABLE, check=True):
        return self._sync(self.write_async(offset, data, stable), check)

    def read(self, offset, count, check=True):
        return self._sync(self.read_async(offset, count), check)

    def commit(self, offset=0, count=0, check=True):
        return self._sync(self.commit_async(offset, count), check)

    def _sync(self, call, check):
        # A call made here is waited for here: it must not turn up in a later reap().
        call.reap = False
        if call.done and call in self.client._reaped:
            self.client._reaped.remove(call)
        return self.client._finish(call, check, self.path)

    def getattr(self, check=True):
        return self.client.getattr_fh(self.fh, check)

    def setattr(self, size=None, mode=None, check=True):
        raise NotImplementedError

    def truncate(self, size, check=True):
        return self.setattr(size=size, check=check)

    def access(self, mask=0x3f):
        raise NotImplementedError

    def close(self, check=True):
        """NFSv4: CLOSE. NFSv3 has nothing to close."""

    def __enter__(self):
        return self

    def __exit__(self, exc_type, *rest):
        if not self.client.conn.lost:
            self.close(check=exc_type is None)

    def pieces(self, size, chunk=1 << 20, depth=8, offset=0):
        """The file's bytes in order, read with `depth` READs outstanding. Ends at the end of file."""
        end = offset + size
        calls = collections.deque()
        while True:
            while offset < end and len(calls) < depth:
                count = min(chunk, end - offset)
                call = self.read_async(offset, count)
                call.reap = False
                calls.append((offset, count, call))
                offset += count
            if not calls:
                return
            start, count, call = calls.popleft()
            reply = self.client._finish(call, True, self.path)
            data, eof = reply.data, reply.eof
            while len(data) < count and not eof and reply.count:
                reply = self.read(start + len(data), count - len(data))
                data, eof = data + reply.data, reply.eof
            yield data
            if len(data) < count:
                for _, _, rest in calls:
                    self.client.wait(rest)
                return

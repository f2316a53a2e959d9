# SPDX-License-Identifier: LGPL-3.0-or-later
"""Load: several write streams, each with its own depth, driven from one thread; and a probe that asks
for attributes from a process of its own, so that what it measures is the server and not this
interpreter.

A stream is a file and an iterable of (offset, data). run() keeps every stream's depth of requests
outstanding and collects what came back. A reply of JUKEBOX/DELAY is counted and the write sent again
after a pause, as a client must.
"""

import multiprocessing
import time
import traceback

from .base import UNSTABLE
from .rpc import ConnectionLost, Timeout, pump_many
from .status import Status

RESEND_AFTER = 0.1


class Stream:
    """jobs: iterable of (offset, data). After run(): acked bytes, latencies (seconds, in order of reply),
    committed and verifiers (sets), errors (status -> count), delayed (number of JUKEBOX/DELAY replies),
    and lost (the exception) if the connection ended."""

    def __init__(self, file, jobs, depth=16, stable=UNSTABLE, keep_acked=False):
        self.file, self.client = file, file.client
        self.jobs = iter(jobs)
        self.depth, self.stable = depth, stable
        self.acked = self.sent = self.offered = 0
        self.latencies = []
        self.committed, self.verifiers = set(), set()
        self.errors = {}
        self.delayed = 0
        self.short = 0
        self.exhausted = False
        self.lost = None
        self.acked_ranges = [] if keep_acked else None
        self._data = {}                     # outstanding call -> its data
        self._again = []                    # (time, offset, data) to send again

    @property
    def finished(self):
        return bool(self.lost) or (self.exhausted and not self._data and not self._again)

    def fill(self, now):
        while len(self._data) < self.depth and not self.lost:
            if self._again and self._again[0][0] <= now:
                _, offset, data = self._again.pop(0)
            elif self.exhausted:
                return
            else:
                try:
                    offset, data = next(self.jobs)
                except StopIteration:
                    self.exhausted = True
                    return
                self.offered += len(data)
            self._data[self.file.write_async(offset, data, self.stable, tag=self)] = data
            self.sent += 1

    def take(self, call, now):
        data = self._data.pop(call)
        if call.error:
            if isinstance(call.error, ConnectionLost):
                self.lost = call.error
            else:
                self.errors[repr(call.error)] = self.errors.get(repr(call.error), 0) + 1
            return
        reply = call.reply
        if reply.status == Status.DELAY:
            self.delayed += 1
            self._again.append((now + RESEND_AFTER, call.offset, data))
            return
        self.latencies.append(call.latency)
        if reply.status:
            self.errors[reply.status_name] = self.errors.get(reply.status_name, 0) + 1
            return
        self.acked += reply.count
        if reply.count != len(data):
            self.short += 1
            self._again.append((now, call.offset + reply.count, data[reply.count:]))
        self.committed.add(reply.committed)
        self.verifiers.add(reply.verifier)
        if self.acked_ranges is not None:
            self.acked_ranges.append((call.offset, reply.count))

    def stop(self):
        """No more new writes; outstanding ones are still waited for."""
        self.exhausted = True
        self._again.clear()


def run(streams, timeout=60, until=None, drain=True):
    """Drive the streams until all are finished, or until() says stop (then, with drain, the outstanding
    writes are waited for). Returns the seconds it took. Raises Timeout when no end is in sight."""
    start = time.monotonic()
    stopping = False
    clients = list({id(s.client): s.client for s in streams}.values())
    while True:
        now = time.monotonic()
        if until and not stopping and until():
            if not drain:
                return now - start
            stopping = True
            for s in streams:
                s.stop()
        for s in streams:
            s.fill(now)
        for c in clients:
            for call in c.reap():
                if isinstance(call.tag, Stream):
                    call.tag.take(call, now)
        if all(s.finished for s in streams):
            return time.monotonic() - start
        if now - start > timeout:
            raise Timeout('after %g s: %s' % (timeout, ', '.join(
                '%s acked %d of %d' % (s.file.path, s.acked, s.offered) for s in streams if not s.finished)))
        # until() wants to be asked often; a resend needs its time to be noticed.
        pump_many([c.conn for c in clients if c.outstanding], 0.02 if until or any(s._again for s in streams) else 0.2)


def sequential(pattern, size, chunk=1 << 20, start=0):
    """Jobs of one writer going through a file from start to start + size."""
    offset, end = start, start + size
    while offset < end:
        n = min(chunk, end - offset)
        yield offset, pattern.view(offset, n)
        offset += n


def write_and_commit(file, pattern, size, chunk=1 << 20, depth=16, timeout=60):
    """The usual case in one call: returns (stream, COMMIT reply)."""
    stream = Stream(file, sequential(pattern, size, chunk), depth)
    run([stream], timeout)
    return stream, file.commit()


def percentile(values, p):
    """The p-th percentile (0..100) of a list, nearest rank; None of an empty one."""
    if not values:
        return None
    values = sorted(values)
    return values[min(len(values) - 1, max(0, -(-len(values) * p // 100) - 1))] if p < 100 else values[-1]


class Probe:
    """GETATTR of one path every interval, from another process and usually another address.

    with Probe('3', path='f', interval=0.02, **connect_args) as probe: ...
    probe.samples afterwards: [(time.monotonic() at sending, latency or None, size or an error text)]"""

    def __init__(self, version, path, interval=0.02, **connect):
        self.version, self.path, self.interval, self.connect = version, path, interval, connect
        self.samples = []

    def __enter__(self):
        # fork, not spawn: nothing has to be importable or picklable, and the clock is shared.
        ctx = multiprocessing.get_context('fork')
        self._pipe, child = ctx.Pipe()
        self._process = ctx.Process(target=self._main, args=(child,), daemon=True)
        self._process.start()
        child.close()
        ready = self._pipe.recv() if self._pipe.poll(30) else 'the probe did not start'
        if ready != 'ready':
            self._end()
            raise RuntimeError(ready)
        return self

    def __exit__(self, *exc):
        try:
            self._pipe.send('stop')
            if self._pipe.poll(30):
                self.samples = self._pipe.recv()
        except (BrokenPipeError, EOFError):
            pass
        self._end()

    def _end(self):
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _main(self, pipe):
        from . import connect
        samples = []
        try:
            client = connect(self.version, **self.connect)
            fh = client.lookup(self.path)
        except Exception:
            pipe.send(traceback.format_exc())
            return
        pipe.send('ready')
        while not pipe.poll(self.interval):
            start = time.monotonic()
            try:
                size = client.getattr_fh(fh).size
                samples.append((start, time.monotonic() - start, size))
            except Exception as e:
                samples.append((start, None, repr(e)))
                if client.conn.lost:
                    break
        pipe.send(samples)
        client.close()

    def latencies(self, start=0, end=float('inf')):
        """Latencies of the samples sent between two times; a failed one counts as infinite."""
        return [float('inf') if lat is None else lat for t, lat, _ in self.samples if start <= t <= end]

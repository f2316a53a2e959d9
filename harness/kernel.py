# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the kernel itself says: cachestat(2) of files, /proc/meminfo, and a sampler of both.

The plugin's own counters are claims. A test that must believe nothing asks the kernel, which
counts a file's cached, dirty and written-back pages exactly.
"""

import collections
import ctypes
import errno
import os
import threading
import time

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_SYS_CACHESTAT = 451

CacheStat = collections.namedtuple(
    "CacheStat", "cached dirty writeback evicted recently_evicted")

_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in CacheStat._fields]


def _cachestat_fd(fd, offset, length):
    window, result = _Range(offset, length), _Stat()
    if _libc.syscall(ctypes.c_long(_SYS_CACHESTAT), ctypes.c_uint(fd), ctypes.byref(window),
                     ctypes.byref(result), ctypes.c_uint(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "cachestat: " + os.strerror(number))
    return CacheStat(*(getattr(result, name) for name in CacheStat._fields))


def cachestat(target, offset=0, length=0):
    """Pages of a file, given by path or descriptor; length 0 means to its end."""
    if isinstance(target, int):
        return _cachestat_fd(target, offset, length)
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return _cachestat_fd(fd, offset, length)
    finally:
        os.close(fd)


def cachestat_supported():
    try:
        cachestat(os.path.abspath(__file__))
        return True
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return False
        raise


def requires_cachestat():
    """Skip the running test on kernels before 6.5."""
    from .testing import requires

    requires(cachestat_supported(), f"cachestat(2) needs Linux 6.5, this is {os.uname().release}")


def meminfo():
    """/proc/meminfo as {name: bytes}; counts without a unit (HugePages_*) as they are."""
    result = {}
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            number, *unit = value.split()
            result[name] = int(number) * (1024 if unit else 1)
    return result


Sample = collections.namedtuple("Sample", "t dirty_bytes writeback_bytes cached_bytes")


class Sampler:
    """A thread that sums cachestat over files, each `interval` seconds.

    paths_or_dir: one folder (every regular file below it, also those that appear later), one
    file, or a list of either. Each file is opened, asked and closed again: a descriptor kept
    open would keep a removed file's pages alive, which is just what some tests look for.

        with Sampler(disk.export_dir) as sampler:
            ...
        assert sampler.peak_dirty_writeback <= budget
    """

    def __init__(self, paths_or_dir, interval=0.01):
        if isinstance(paths_or_dir, (str, os.PathLike)):
            paths_or_dir = [paths_or_dir]
        self._roots = [os.fspath(path) for path in paths_or_dir]
        self.interval = interval
        self.samples = []
        self.error = None
        self._folders = {}  # path -> (mtime_ns, [files], [folders]) as of the last listing
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cachestat-sampler", daemon=True)

    # -- which files there are

    def _list(self, folder, out):
        """Append the files below folder. Only a folder that changed is read again."""
        try:
            now = os.stat(folder).st_mtime_ns
            known = self._folders.get(folder)
            # A folder changed twice within one clock tick looks unchanged: distrust fresh ones.
            if known is None or known[0] != now or time.time_ns() - now < 50_000_000:
                with os.scandir(folder) as entries:
                    entries = [(entry.path, entry.is_dir(follow_symlinks=False),
                                entry.is_file(follow_symlinks=False)) for entry in entries]
                known = (now, [p for p, _, is_file in entries if is_file],
                         [p for p, is_dir, _ in entries if is_dir])
                self._folders[folder] = known
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            self._folders.pop(folder, None)
            return
        out.extend(known[1])
        for below in known[2]:
            self._list(below, out)

    def _files(self):
        files = []
        for root in self._roots:
            if os.path.isdir(root):
                self._list(root, files)
            else:
                files.append(root)
        return files

    # -- sampling

    def _sweep(self, paths):
        dirty = writeback = cached = 0
        for path in paths:
            try:
                stat = cachestat(path)
            except OSError as error:
                # Gone, or the file system was shut down under us: nothing to count.
                if error.errno in (errno.ENOENT, errno.EIO, errno.ESTALE, errno.ELOOP):
                    continue
                raise
            dirty += stat.dirty
            writeback += stat.writeback
            cached += stat.cached
        return dirty, writeback, cached

    def sample(self):
        """One sample, taken now.

        Files are looked at one after the other, so pages that one gives up and another takes
        meanwhile may be counted twice: in one order of the files or in the other, not in both. The
        smaller of a sweep forth and one back is therefore never above what really was.
        """
        started = time.monotonic()
        paths_now = list(self._files())
        sweeps = [self._sweep(paths_now)]
        if len(paths_now) > 1:
            sweeps.append(self._sweep(reversed(paths_now)))
        dirty, writeback, cached = min(sweeps, key=lambda sweep: sweep[0] + sweep[1])
        return Sample(started, dirty * PAGE_SIZE, writeback * PAGE_SIZE, cached * PAGE_SIZE)

    def _run(self):
        due = time.monotonic()
        try:
            while not self._stop.is_set():
                self.samples.append(self.sample())
                due += self.interval
                wait = due - time.monotonic()
                if wait > 0:
                    self._stop.wait(wait)
                else:
                    due = time.monotonic()  # late: do not catch up in a burst
        except BaseException as error:
            self.error = error

    def start(self):
        self._thread.start()
        return self

    def stop(self):
        """Ends the thread; raises what ended it early, so that no test passes unsampled."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.samples

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        try:
            self.stop()
        except BaseException:
            if kind is None:
                raise

    # -- what came out

    @property
    def peak_dirty(self):
        return max((s.dirty_bytes for s in self.samples), default=0)

    @property
    def peak_writeback(self):
        return max((s.writeback_bytes for s in self.samples), default=0)

    @property
    def peak_dirty_writeback(self):
        return max((s.dirty_bytes + s.writeback_bytes for s in self.samples), default=0)

    @property
    def peak_cached(self):
        return max((s.cached_bytes for s in self.samples), default=0)

    @property
    def longest_gap(self):
        """Seconds between two samples at worst: how blind the sampler was."""
        times = [s.t for s in self.samples]
        return max((b - a for a, b in zip(times, times[1:])), default=0.0)

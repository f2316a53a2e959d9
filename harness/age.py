# SPDX-License-Identifier: LGPL-3.0-or-later
"""Bring the page cache to the state of a server that has been up for weeks: full.

On a virtual machine whose host takes freed memory back, the first touch of a page that has been
free for a while faults in the host, and costs many times what the work under test costs. Every
variant is then measured on that fault. So the cache is filled first, with clean pages that the
kernel reclaims as soon as somebody needs them: a sparse file is read, which takes no disk.

    with AgedCache(workdir) as age:
        for run in runs:
            age.refresh()
            measure(run)
"""

import os
import tempfile

from . import cleanup, kernel

_STEP = 4 << 20


class AgedCache:
    """target_free: leave about so many bytes of memory free.

    skip_cached: read only what is gone from the cache, and only until memory is as full as it was:
    a refresh takes a fraction of the time. What differs is the order in which pages would go.

    read_memory() -> (free, total) in bytes is a parameter so that a test can stand in for the
    machine.
    """

    def __init__(self, folder, target_free=2 << 30, read_memory=None, progress=None,
                 skip_cached=False):
        self.target_free = target_free
        self._memory = read_memory or _machine_memory
        self._progress = progress or (lambda bytes_read: None)
        self._skip_cached = skip_cached and kernel.cachestat_supported()
        self._fd, self.path = tempfile.mkstemp(prefix="age-", dir=folder)
        cleanup.register(self.close)
        self._size = self._memory()[1] // _STEP * _STEP
        os.ftruncate(self._fd, self._size)
        self.filled = 0

    def refresh(self):
        """Read again what was read before, and further while memory is still free.

        Returns the bytes that the file now holds in the cache at most."""
        buffer = memoryview(bytearray(_STEP))
        offset = 0
        while offset < self._size:
            if self._skip_cached and offset < self.filled and self._is_cached(offset):
                offset += _STEP
                continue
            # Reading what is gone while memory is full would push out what comes next, and so on.
            if (offset >= self.filled or self._skip_cached) \
                    and self._memory()[0] <= self.target_free:
                break
            count = os.preadv(self._fd, [buffer], offset)
            if count <= 0:
                break
            offset += count
            if offset % (1 << 30) < _STEP:
                self._progress(offset)
        self.filled = max(self.filled, offset)
        return self.filled

    def _is_cached(self, offset):
        return kernel.cachestat(self._fd, offset, _STEP).cached * kernel.PAGE_SIZE >= _STEP

    def close(self):
        cleanup.unregister(self.close)
        if self._fd is None:
            return
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        os.close(self._fd)
        self._fd = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _machine_memory():
    info = kernel.meminfo()
    return info["MemFree"], info["MemTotal"]

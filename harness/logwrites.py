# SPDX-License-Identifier: LGPL-3.0-or-later
"""A log of every write and flush that a disk got, and the disk as it was at any point of it.

The format is that of Linux's device-mapper target log-writes (Documentation/admin-guide/
device-mapper/log-writes in the kernel), which qemu's blklogwrites writes too: one sector of super
block (magic, version, number of entries, sector size), then per entry one sector of header (first
sector, number of sectors, flags, length of inline data) followed by the data, if it has any. All
numbers are little-endian.

    log = WriteLog(path)
    replay = Replay(log, image_before, folder)
    replay.image_at(n, target)             # power was lost when n entries had reached the medium
    replay.image_at(n, target, rng)        # the same on a disk with a volatile cache: of what was
                                           # written since the last flush, some is lost or torn

An entry is in the log when the disk has carried it out, and answered after that. So what a
completed FLUSH promises is all that stands before it in the log.
"""

import collections
import os
import struct

FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
_MAGIC = 0x6A736677736872
_SUPER = struct.Struct("<QQQI")
_HEADER = struct.Struct("<QQQQ")
_CHUNK = 1 << 20
_BLOCK = 4096  # what a disk writes whole or not at all

# offset and size are bytes on the disk, data is where in the log its bytes stand (None: no data)
Entry = collections.namedtuple("Entry", "offset size flags data")


class LogError(ValueError):
    """The file is not a log, or ends too early."""


class WriteLog:
    """entries: all of them, in order. read() gives the data of one."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.entries = list(self._scan())
        except BaseException:
            self.close()
            raise

    def close(self):
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _scan(self):
        head = os.pread(self._fd, _SUPER.size, 0)
        if len(head) < _SUPER.size:
            raise LogError("the log is empty")
        magic, version, count, sector = _SUPER.unpack(head)
        if magic != _MAGIC or version != 1:
            raise LogError(f"not a write log: magic {magic:#x}, version {version}")
        size = os.fstat(self._fd).st_size
        position = sector
        for number in range(count):
            header = os.pread(self._fd, _HEADER.size, position)
            if len(header) < _HEADER.size:
                raise LogError(f"the log ends at entry {number} of {count}")
            first, sectors, flags, inline = _HEADER.unpack(header)
            if flags & ~(FLUSH | FUA | DISCARD | MARK) or inline > sector:
                raise LogError(f"entry {number} at {position} is none: flags {flags:#x}")
            position += sector
            data = None if flags & DISCARD or not sectors else position
            yield Entry(first * sector, sectors * sector, flags, data)
            if data is not None:
                position += sectors * sector
                if position > size:
                    raise LogError(f"the log ends in the data of entry {number}")

    def read(self, entry, count=None, skip=0):
        """The data of an entry, or `count` bytes of it."""
        count = entry.size - skip if count is None else count
        return os.pread(self._fd, count, entry.data + skip) if entry.data is not None else b""

    def flushes_before(self, n):
        """The number of entries up to and including the last FLUSH among the first n; 0 if none."""
        while n and not self.entries[n - 1].flags & FLUSH:
            n -= 1
        return n

    def copy_to(self, entry, fd, start=0, end=None):
        """Carry out one entry, or the bytes start to end of it, on the image fd."""
        done, end = start, entry.size if end is None else end
        while done < end:
            count = min(_CHUNK, end - done)
            if entry.data is None:
                piece = bytes(count)  # a discard: this disk reads as zeros there
            else:
                piece = self.read(entry, count, done)
                if len(piece) != count:
                    raise LogError("the log was cut while it is read")
            os.pwrite(fd, piece, entry.offset + done)
            done += count


def copy_sparse(source, target):
    """Copy a file, its holes left out. A partly filled page cache of the source counts as data."""
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        position = 0
        while position < size:
            try:
                start = os.lseek(reader.fileno(), position, os.SEEK_DATA)
            except OSError:  # ENXIO: only holes from here on
                return
            position = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            while start < position:
                piece = os.pread(reader.fileno(), min(_CHUNK, position - start), start)
                if not piece:
                    return
                os.pwrite(writer.fileno(), piece, start)
                start += len(piece)


class Replay:
    """Images of the disk at points of the log, which may only be asked for in ascending order: one
    image is carried along up to the last flush, and each point is a copy of it."""

    def __init__(self, log, image_before, folder):
        self.log = log
        self._path = os.path.join(folder, "replay")
        copy_sparse(image_before, self._path)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._applied = 0

    def image_at(self, n, target, rng=None):
        """Make the image at `target` as it was after n entries. With rng, writes since the last
        FLUSH that were not FUA are each kept, lost, or kept in part. Returns how many were not
        kept."""
        safe = self.log.flushes_before(n)
        share = rng.choice((0.1, 0.5, 0.9)) if rng else 0
        if safe < self._applied:
            raise ValueError("points must ascend")
        for entry in self.log.entries[self._applied:safe]:
            self.log.copy_to(entry, self._fd)
        self._applied = safe
        copy_sparse(self._path, target)
        lost = 0
        with open(target, "r+b", buffering=0) as image:
            for entry in self.log.entries[safe:n]:
                if rng and not entry.flags & FUA and rng.random() < share:
                    lost += 1
                    if rng.random() < 0.3:
                        ends = sorted(rng.randint(0, entry.size // _BLOCK) for _ in range(2))
                        self.log.copy_to(entry, image.fileno(), *(end * _BLOCK for end in ends))
                else:
                    self.log.copy_to(entry, image.fileno())
        return lost

    def close(self):
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            os.unlink(self._path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

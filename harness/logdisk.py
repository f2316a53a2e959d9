# SPDX-License-Identifier: LGPL-3.0-or-later
"""A disk that remembers every write and flush it ever got, for tests that cut the power.

    with LogDisk(workdir, 400 << 20, "ext4") as disk:
        ... load on disk.export_dir; after each promise: number = disk.mark() ...
        disk.stop()
        with disk.recording() as recording:                 # log and marks
            recording.replay(folder).image_at(n, "image")
    with ImageDisk(workdir, "image", "ext4") as disk: ...   # the journal is replayed here

The file system stands on a loop device over a file that qemu-storage-daemon exports through FUSE,
and that passes each request through its blklogwrites filter: no device mapper is needed.

A mark is a write of a number to a block behind the file system's end. It stands in the log like any
other write: what the disk was asked for before mark() was called stands before it, so a promise
that a client held before mark() must be kept at every point of the log behind that mark.
"""

import mmap
import os
import shutil
import struct
import subprocess
import threading
import time

from . import cleanup, paths
from .disk import _MKFS, LoopDisk, _run, loop_supported
from .logwrites import Replay, WriteLog, copy_sparse

_RESERVED = 1 << 20  # behind the file system
_BLOCK = 4096
_MARK = struct.Struct("<16sQ")
_MARK_MAGIC = b"dontcache-mark\0\0"


def logdisk_problem():
    """Why there can be no LogDisk here, or None."""
    if not loop_supported():
        return "no loop devices here"
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse here"
    if paths.find_program("qemu-storage-daemon") is None:
        return "qemu-storage-daemon is not installed (qemu-system-common)"
    return None


class Recording:
    """log, the entry index of each mark, and the image from before the log's first entry."""

    def __init__(self, log_path, image_before, mark_offset):
        self.log = WriteLog(log_path)
        self._image_before = image_before
        self.marks = []  # marks[number] is the index of its entry
        for index, entry in enumerate(self.log.entries):
            if entry.offset == mark_offset and entry.data is not None:
                magic, number = _MARK.unpack(self.log.read(entry, _MARK.size))
                if magic != _MARK_MAGIC or number != len(self.marks):
                    raise ValueError(f"mark {number} follows mark {len(self.marks) - 1}")
                self.marks.append(index)

    def replay(self, folder):
        return Replay(self.log, self._image_before, folder)

    def close(self):
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class LogDisk(LoopDisk):
    """As LoopDisk, with a log. size is the file system's; the device is a little larger."""

    def __init__(self, workdir, size, fstype="xfs", mount_opts=()):
        self._daemon = None
        self._mark_fd = None
        self._mark_lock = threading.Lock()
        self._marked = -1
        # Not direct: the loop device then sends one request at a time. qemu 7.2 reads a second
        # request into the buffer of a write that it is still busy with.
        super().__init__(workdir, size, fstype, direct_io=False, mount_opts=mount_opts)
        try:
            self._mark_fd = os.open(self.device, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            self.mark()
        except BaseException:
            self.close()
            raise

    def _make_image(self, preallocate):
        super()._make_image(preallocate)
        _run(*_MKFS[self.fstype], self.image)
        self.image_before = os.path.join(self._folder, "before")
        self.log_path = os.path.join(self._folder, "log")
        for path in (self.image, self.log_path):
            with open(path, "ab") as image:
                image.truncate(self.size + _RESERVED if path == self.image else 0)
        copy_sparse(self.image, self.image_before)

    def _format(self):
        pass  # the log starts behind it

    def _attach(self, direct_io):
        self._start_daemon()
        super()._attach(direct_io)

    def _start_daemon(self):
        self._backing = os.path.join(self._folder, "device")
        output = os.path.join(self._folder, "daemon.out")
        with open(self._backing, "wb"):
            pass
        # no-flush: this machine keeps its power. Discards are carried out, as a promise of zeros.
        command = [
            paths.find_program("qemu-storage-daemon"),
            "--blockdev", _options(driver="file", node_name="image", filename=self.image,
                                   discard="unmap", cache__no_flush="on"),
            "--blockdev", _options(driver="file", node_name="log", filename=self.log_path,
                                   cache__no_flush="on"),
            "--blockdev", _options(driver="blklogwrites", node_name="disk", file="image",
                                   log="log", discard="unmap"),
            "--export", _options(type="fuse", id="export", node_name="disk",
                                 mountpoint=self._backing, writable="on"),
        ]
        setpriv = paths.find_program("setpriv")
        if setpriv and threading.current_thread() is threading.main_thread():
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with open(output, "wb") as out:
            self._daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=out, start_new_session=True)
        end = time.monotonic() + 10
        while not cleanup.is_mounted(self._backing):
            if self._daemon.poll() is not None or time.monotonic() > end:
                with open(output, encoding="utf-8", errors="replace") as said:
                    raise RuntimeError("qemu-storage-daemon did not start: " + said.read().strip())
            time.sleep(0.02)

    # -- marks

    @property
    def marked(self):
        """The number of the last mark that is on the disk."""
        return self._marked

    def mark(self):
        """Write the next mark; returns its number when it is on the disk."""
        with self._mark_lock:
            number = self._marked + 1
            with mmap.mmap(-1, _BLOCK) as block:  # aligned, as O_DIRECT wants it
                block[:_MARK.size] = _MARK.pack(_MARK_MAGIC, number)
                os.pwrite(self._mark_fd, block, self.size)
            self._marked = number
            return number

    # -- the end of the recording

    def stop(self):
        """Unmount and switch the disk off; its log is complete then."""
        with self._lock:
            self._detach()

    def recording(self):
        return Recording(self.log_path, self.image_before, self.size)

    def image_is(self, path):
        """Is the image at path, byte for byte, what the disk holds? After stop()."""
        with open(self.image, "rb") as mine, open(path, "rb") as other:
            while True:
                a, b = mine.read(1 << 20), other.read(1 << 20)
                if a != b:
                    return False
                if not a:
                    return True

    def _detach(self):
        if self._mark_fd is not None:
            os.close(self._mark_fd)
            self._mark_fd = None
        super()._detach()
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.terminate()
            try:
                self._daemon.wait(10)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()


def _options(**items):
    """'node-name=x,cache.no-flush=on': commas in a file's name are doubled."""
    return ",".join(f"{name.replace('__', '.').replace('_', '-')}={value.replace(',', ',,')}"
                    for name, value in items.items())


class ImageDisk(LoopDisk):
    """A file system that exists: the image file at `image` becomes this disk's own and goes with it.
    Mounting replays the journal."""

    def __init__(self, workdir, image, fstype):
        self._given = image
        options = ["nouuid"] if fstype == "xfs" else []
        super().__init__(workdir, os.path.getsize(image), fstype, direct_io=False, mount_opts=options)

    def _make_image(self, preallocate):
        shutil.move(self._given, self.image)

    def _format(self):
        pass

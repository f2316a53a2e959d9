# SPDX-License-Identifier: LGPL-3.0-or-later
"""A file system of its own: an image file, a loop device, XFS or ext4 on it, mounted.

    with LoopDisk(workdir, 2 << 30) as disk:
        disk.set_write_bps(50 << 20)          # a slow device, buffered writeback included
        ... disk.export_dir ...

The loop device does direct I/O, so that the image's own page cache never hides what the file
system writes. throttle_supported() says whether this machine can slow a device (see throttle.py).
"""

import os
import subprocess
import threading

from . import cleanup, paths, throttle

_MKFS = {
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
    # Nothing may be written behind a measurement's back: no lazy initialisation either.
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=1"],
}
_MOUNT = {"xfs": ["nodiscard"], "ext4": ["nodiscard", "noinit_itable"]}
_MIN_SIZE = {"xfs": 300 << 20, "ext4": 16 << 20}


def throttle_supported():
    """Can a device's writes be slowed here?"""
    return throttle.supported()


def loop_supported():
    """Are loop devices and mounts at hand (root, and a kernel that has them)?"""
    return os.geteuid() == 0 and os.path.exists("/dev/loop-control")


def _run(*command):
    program = paths.find_program(command[0])
    if program is None:
        raise RuntimeError(f"{command[0]} is not installed; run scripts/setup.sh")
    done = subprocess.run([program, *command[1:]], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed ({done.returncode}): "
                           f"{(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


class LoopDisk:
    """mountpoint, device ('/dev/loopN'), export_dir (mountpoint/export, mode 0777), image.

    preallocate: False leaves the image sparse, True reserves its blocks, 'written' also fills
    them with zeros, as on a device whose blocks were all used before (the steadiest to measure).
    """

    def __init__(self, workdir, size, fstype="xfs", preallocate=False, direct_io=True,
                 write_bps=None, mount_opts=()):
        if fstype not in _MKFS:
            raise ValueError(f"fstype {fstype!r}: xfs or ext4")
        if size < _MIN_SIZE[fstype]:
            raise ValueError(f"{fstype} wants at least {_MIN_SIZE[fstype] >> 20} MiB")
        self.fstype = fstype
        self.size = size
        self.mount_opts = [*_MOUNT[fstype], *mount_opts]
        self.device = None
        self._lock = threading.RLock()
        self._folder = os.path.realpath(os.path.join(workdir, f"disk-{os.urandom(3).hex()}"))
        self.image = os.path.join(self._folder, "image")
        self._backing = self.image  # what the loop device stands on
        self.mountpoint = os.path.join(self._folder, "mnt")
        self.export_dir = os.path.join(self.mountpoint, "export")
        cleanup.register(self.close)
        try:
            os.makedirs(self.mountpoint)
            self._make_image(preallocate)
            self._attach(direct_io)
            self._format()
            self.mount()
            os.makedirs(self.export_dir, exist_ok=True)
            os.chmod(self.export_dir, 0o777)
            self._written_before = self._device_written()
            if write_bps:
                self.set_write_bps(write_bps)
        except BaseException:
            self.close()
            raise

    def _make_image(self, preallocate):
        with open(self.image, "wb") as image:
            image.truncate(self.size)
            if preallocate:
                os.posix_fallocate(image.fileno(), 0, self.size)
        if preallocate == "written":
            _run("dd", "if=/dev/zero", f"of={self.image}", "bs=4M", f"count={self.size}",
                 "iflag=count_bytes", "oflag=direct", "conv=notrunc")

    def _format(self):
        _run(*_MKFS[self.fstype], self.device)

    def _attach(self, direct_io):
        flag = ["--direct-io=on"] if direct_io else []
        try:
            self.device = _run("losetup", "--find", "--show", *flag, self._backing)
        except RuntimeError:
            if not flag:
                raise
            # The image's file system may not do direct I/O: slower and less exact, still right.
            for device in cleanup.loop_devices_below(self._folder):
                _run("losetup", "-d", device)
            self.device = _run("losetup", "--find", "--show", self._backing)
        throttle.lift(self.device)  # the last user of this device may have been killed
        with open(f"/sys/block/{self.name}/loop/dio", encoding="ascii") as dio:
            self.direct_io = dio.read().strip() == "1"

    @property
    def name(self):
        return os.path.basename(self.device)

    # -- mounting: a crash test takes the file system away and brings it back

    def mount(self):
        _run("mount", "-t", self.fstype, "-o", ",".join(self.mount_opts), self.device,
             self.mountpoint)

    def umount(self):
        if cleanup.is_mounted(self.mountpoint):
            cleanup.unmount(self.mountpoint)

    def remount(self):
        """Off and on again: an empty page cache, and the journal replayed if there is one."""
        self.umount()
        self.mount()

    def shutdown_fs(self):
        """As after a power cut: dirty pages and unlogged changes are lost. XFS only."""
        _run("xfs_io", "-x", "-c", "shutdown", self.mountpoint)

    # -- the device's speed, and what it was asked to write

    def set_write_bps(self, bps):
        """Limit writes to bps bytes per second; None lifts the limit."""
        throttle.set_write_bps(self.device, bps)

    def _device_written(self):
        with open(f"/sys/block/{self.name}/stat", encoding="ascii") as stat:
            return int(stat.read().split()[6]) * 512

    def device_bytes_written(self):
        """What the device was asked to write since the new file system was mounted."""
        return self._device_written() - self._written_before

    # -- the end

    def close(self):
        with self._lock:
            cleanup.unregister(self.close)
            if self.device:
                throttle.lift(self.device)  # first: umount writes back what is still dirty
            self._detach()
            cleanup.remove_tree(self._folder)

    def _detach(self):
        self.umount()
        # By folder too: a signal may have come between losetup's work and its answer.
        for device in {self.device, *cleanup.loop_devices_below(self._folder)} - {None}:
            subprocess.run(["losetup", "-d", device], capture_output=True, check=False)
        self.device = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

# SPDX-License-Identifier: LGPL-3.0-or-later
"""vm.dirty_bytes, the tuning that people use today, set for a while and put back.

It belongs to the whole machine, so it must not outlive a run. Every way out that Python sees puts
it back; before it is changed, the old values are written to a file that the next start finds if
this process was killed. That file is locked while its owner lives, and forgotten after a reboot.

Only the limit is set. The background level then is half of it where it would lie above (so does
the kernel: mm/page-writeback.c, domain_dirty_limits).
"""

import contextlib
import fcntl
import json
import os

from harness import cleanup, paths


class Busy(RuntimeError):
    """Another benchmark of this machine has changed it just now."""


_SYSCTL = "/proc/sys/vm"
_NAMES = ("dirty_ratio", "dirty_bytes")  # writing one zeroes the other: the one in force goes last


def _state_path():
    return os.path.join(paths.temp_base(), "dontcache-vm-dirty.json")


def _boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def supported(folder=_SYSCTL):
    return all(os.access(os.path.join(folder, name), os.W_OK) for name in _NAMES)


def read(folder=_SYSCTL):
    values = {}
    for name in _NAMES:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            values[name] = int(file.read())
    return values


def write(values, folder=_SYSCTL):
    name = "dirty_bytes" if values["dirty_bytes"] else "dirty_ratio"
    with open(os.path.join(folder, name), "w", encoding="ascii") as file:
        file.write(str(values[name]))


def recover(folder=_SYSCTL):
    """Put back what a killed run left; whether there was anything. Call it at every start."""
    try:
        fd = os.open(_state_path(), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with open(fd, encoding="ascii") as file:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # its owner lives
        try:
            state = json.load(file)
        except ValueError:  # killed while writing it: nothing was changed yet
            state = {}
        mine = state.get("boot") == _boot_id()
        if mine:
            write(state["values"], folder)
        os.unlink(_state_path())
        return mine


@contextlib.contextmanager
def limited(limit, folder=_SYSCTL):
    """vm.dirty_bytes = limit inside, what it was outside."""
    recover(folder)
    before = read(folder)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(_state_path(), flags, 0o600)
    except FileExistsError:
        raise Busy(f"vm.dirty_bytes is in another benchmark's hands: {_state_path()}") from None

    def restore():
        cleanup.unregister(restore)
        write(before, folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_state_path())

    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, json.dumps({"boot": _boot_id(), "values": before}).encode())
        os.fsync(fd)
        cleanup.register(restore)
        write({"dirty_bytes": limit, "dirty_ratio": 0}, folder)
        yield before
    finally:
        restore()
        os.close(fd)

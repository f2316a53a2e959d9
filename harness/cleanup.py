# SPDX-License-Identifier: LGPL-3.0-or-later
"""Undo everything on every way out.

Whoever makes something that outlives the process (a mount, a loop device, a server, a folder)
registers its close() here. Normal exit, an exception, SIGINT, SIGTERM and SIGHUP all end in the
same place, newest first. What even SIGKILL left behind is found by sweep_stale() at the next
start: private folders carry the pid of their owner in their name, and are locked while it lives.
"""

import atexit
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from . import paths, throttle

_PREFIX = "dontcache-"
_closers = []
_private = {}  # folder -> what removes it
_lock = threading.RLock()


def register(close):
    with _lock:
        _closers.append(close)


def unregister(close):
    with _lock:
        if close in _closers:
            _closers.remove(close)


def run_all():
    """Close what is still open, newest first. Each closer gets its chance, whatever others do."""
    while True:
        with _lock:
            if not _closers:
                return
            close = _closers.pop()
        try:
            close()
        except BaseException as error:  # a second signal here must not leave the rest open
            print(f"cleanup: {error!r}", file=sys.stderr)


def _on_signal(number, _frame):
    # Once is enough: while we unwind, a second Ctrl-C must not interrupt the unwinding.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def install_signal_handlers():
    """Turn SIGINT, SIGTERM and SIGHUP into SystemExit, so that 'with' blocks and atexit run."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _on_signal)


def private_dir(name="run"):
    """A folder of this process alone, removed at exit."""
    safe = re.sub(r"[^A-Za-z0-9]", "", name)[:12] or "run"
    path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{safe}-", dir=paths.temp_base())
    os.chmod(path, 0o755)
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def close():
        unregister(close)
        if _private.pop(path, None):
            remove_tree(path)
            os.close(lock)

    _private[path] = close
    register(close)
    return path


def remove_private_dir(path):
    """Remove a private folder before the process ends."""
    close = _private.get(path)
    if close:
        close()


def remove_tree(path):
    """Remove a private folder. A mount still inside it is never descended into."""
    for mountpoint in mounts_below(path):
        unmount(mountpoint)
    if mounts_below(path):
        print(f"cleanup: {path} still holds a mount, left alone", file=sys.stderr)
        return
    shutil.rmtree(path, ignore_errors=True)


def mounts_below(path):
    """Mount points at or below path, deepest first."""
    path = os.path.realpath(path)
    found = []
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            where = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split(" ")[1])
            if where == path or where.startswith(path + "/"):
                found.append(where)
    return sorted(found, key=len, reverse=True)


def is_mounted(path):
    """By the table of mounts: a file system that was shut down answers no stat(2), and
    os.path.ismount() then takes it for not mounted."""
    return os.path.realpath(path) in mounts_below(path)


def unmount(mountpoint, patience=5.0):
    """umount; after `patience` seconds of "busy", detach it lazily."""
    end = time.monotonic() + patience
    while True:
        done = subprocess.run(["umount", mountpoint], capture_output=True, text=True, check=False)
        if done.returncode == 0 or not is_mounted(mountpoint):
            return
        if time.monotonic() >= end:
            break
        time.sleep(0.1)
    subprocess.run(["umount", "-l", mountpoint], capture_output=True, check=False)


def loop_devices_below(path):
    """Loop devices ('/dev/loopN') whose image lies, or lay, in the folder path."""
    found = []
    path = os.path.realpath(path) + "/"
    for entry in os.scandir("/sys/block"):
        if not entry.name.startswith("loop"):
            continue
        try:
            with open(f"{entry.path}/loop/backing_file", encoding="utf-8") as backing:
                if backing.read().strip().startswith(path):
                    found.append("/dev/" + entry.name)
        except OSError:
            pass
    return found


def sweep_stale():
    """Remove the private folders of owners that are gone, with their mounts and loop devices."""
    base = paths.temp_base()
    for name in os.listdir(base):
        match = re.fullmatch(_PREFIX + r"(\d+)-.*", name)
        path = os.path.join(base, name)
        if not match or os.path.exists(f"/proc/{match[1]}") or not _is_ours_and_unlocked(path):
            continue
        devices = loop_devices_below(path)
        for device in devices:
            throttle.lift(device)  # first: umount writes back what is still dirty
        for mountpoint in mounts_below(path):
            unmount(mountpoint, patience=1.0)
        for device in devices:
            subprocess.run(["losetup", "-d", device], capture_output=True, check=False)
        remove_tree(path)


def _is_ours_and_unlocked(path):
    """The pid in the name says little in another pid namespace; the lock holds there too."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


atexit.register(run_all)

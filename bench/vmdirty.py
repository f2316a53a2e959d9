# SPDX-License-Identifier: LGPL-3.0-or-later
"""vm.dirty_bytes for the length of a run: the tuning that people use today.

It is the whole machine's, so it must be put back whatever happens: on every way out that a process has, and, if
it was killed, by the next run, which finds what it left in a file.
"""

import contextlib
import json
import os
import tempfile

from harness import cleanup

_NAMES = ("dirty_bytes", "dirty_background_bytes", "dirty_ratio", "dirty_background_ratio")
_STATE = os.path.join(tempfile.gettempdir(), "dontcache-vm-dirty.json")


def _path(name):
    return f"/proc/sys/vm/{name}"


def supported():
    return all(os.access(_path(name), os.W_OK) for name in _NAMES)


def _read():
    values = {}
    for name in _NAMES:
        with open(_path(name), encoding="ascii") as value:
            values[name] = int(value.read())
    return values


def _write(values):
    # Of bytes and ratio the one that is not zero counts, and setting it clears the other.
    for name, value in values.items():
        if value:
            with open(_path(name), "w", encoding="ascii") as out:
                out.write(f"{value}\n")


def _restore():
    with contextlib.suppress(FileNotFoundError):
        with open(_STATE, encoding="ascii") as state:
            _write(json.load(state)["was"])
        os.unlink(_STATE)


def put_back_after_a_kill():
    """What a run that was killed has left. Returns whether there was anything."""
    try:
        with open(_STATE, encoding="ascii") as state:
            owner = json.load(state)["pid"]
    except (FileNotFoundError, ValueError, KeyError):
        return False
    if os.path.exists(f"/proc/{owner}"):
        return False
    _restore()
    return True


@contextlib.contextmanager
def limited(limit):
    """vm.dirty_bytes = limit and half of it as the background level; None changes nothing."""
    if limit is None:
        yield
        return
    if os.path.exists(_STATE):
        raise RuntimeError(f"{_STATE}: another benchmark has vm.dirty_bytes changed")
    with open(_STATE, "w", encoding="ascii") as state:
        json.dump({"pid": os.getpid(), "was": _read()}, state)
    cleanup.register(_restore)
    try:
        _write({"dirty_bytes": limit, "dirty_background_bytes": limit // 2})
        yield
    finally:
        cleanup.unregister(_restore)
        _restore()

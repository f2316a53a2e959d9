# SPDX-License-Identifier: LGPL-3.0-or-later
"""A mount namespace of our own: what is mounted here nobody else sees, and it is gone with the last
process inside, however that ended."""

import ctypes
import os

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18


def enter():
    """Only while the process has one thread. Whether it worked (it needs root)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_CLONE_NEWNS) != 0:
        return False
    if libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "making mounts private: " + os.strerror(number))
    return True

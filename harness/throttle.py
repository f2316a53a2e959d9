# SPDX-License-Identifier: LGPL-3.0-or-later
"""Slowing a block device's writes: the throttle of cgroup v1's root group.

It is the only one that catches writeback by kernel threads, which belongs to no process's group.
A limit stays with the device until it is lifted, whoever uses the device then.
"""

import os

_WRITE_BPS = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"


def supported():
    return os.access(_WRITE_BPS, os.W_OK)


def set_write_bps(device, bps):
    """Limit the writes of '/dev/...' to bps bytes per second; None or 0 lifts the limit."""
    number = os.stat(device).st_rdev
    with open(_WRITE_BPS, "w", encoding="ascii") as limits:
        limits.write(f"{os.major(number)}:{os.minor(number)} {int(bps or 0)}\n")


def lift(device):
    """Lift a limit, if there can be one at all."""
    if supported():
        try:
            set_write_bps(device, None)
        except OSError:
            pass

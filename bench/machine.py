# SPDX-License-Identifier: LGPL-3.0-or-later
"""The machine a benchmark runs on: who used its processors, what its device can do, what it is.

Writeback is done by whom it suits: the server's threads, the plugin's, or the kernel's. CPU time of
the server alone would make the variant look cheapest that leaves most to the kernel, so the
kernel's threads are counted beside it; and what neither they nor the clients used was somebody
else's, which tells how far to trust a run.
"""

import concurrent.futures
import datetime
import mmap
import os
import platform
import subprocess
import time

from harness import kernel, paths

from . import tools

_TICK = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20


# -- processors

def _stat_fields(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()


def _kernel_threads():
    """{pid: seconds} of the children of kthreadd."""
    seconds = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = _stat_fields(pid)
        except OSError:
            continue
        if fields[1] == "2":
            seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICK
    return seconds


class CpuAccount:
    """CPU seconds between start and stop, by who used them."""

    def __init__(self, server):
        self._server = server
        self._before = self._read()

    def _read(self):
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system, _, _, irq, softirq, steal = map(
                int, stat.readline().split()[1:9])
        own = os.times()
        return {
            "server": self._server.cpu_seconds(),
            "kernel": _kernel_threads(),
            "clients": own.children_user + own.children_system,
            "bench": own.user + own.system,
            "busy": (user + nice + system + irq + softirq) / _TICK,
            "steal": steal / _TICK,
        }

    def stop(self):
        """server, kernel (threads), clients, bench (sampler), foreign, steal."""
        before, after = self._before, self._read()
        used = {name: after[name] - before[name]
                for name in ("server", "clients", "bench", "steal")}
        used["kernel"] = sum(max(0.0, seconds - before["kernel"].get(pid, 0.0))
                             for pid, seconds in after["kernel"].items())
        busy = after["busy"] - before["busy"]
        used["foreign"] = max(0.0, busy - sum(
            used[name] for name in ("server", "clients", "bench", "kernel")))
        return used


# -- the device

def write_uncached(path, size, block=4 * _MIB):
    """A file of zeros on the device and not in the page cache, where the file system allows."""
    buffer = mmap.mmap(-1, block)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o666)
    except OSError:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        for offset in range(0, size, block):
            os.pwrite(fd, memoryview(buffer)[:min(block, size - offset)], offset)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class DeviceProbe:
    """What the device writes just now, without page cache or server: O_DIRECT, 1 MiB, depth 16,
    over blocks that were written before. It varies within minutes, hence before each run."""

    DEPTH = 16

    def __init__(self, folder, size=256 * _MIB):
        self.path = os.path.join(folder, "probe")
        self._size = size
        self._buffer = mmap.mmap(-1, _MIB)
        write_uncached(self.path, size)

    def mb_s(self):
        """MB/s, or None where the file system has no direct I/O."""
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            offsets = range(0, self._size, _MIB)
            with concurrent.futures.ThreadPoolExecutor(self.DEPTH) as pool:
                started = time.monotonic()
                list(pool.map(lambda offset: os.pwrite(fd, self._buffer, offset), offsets))
                return self._size / 1e6 / (time.monotonic() - started)
        finally:
            os.close(fd)

    def remove(self):
        os.unlink(self.path)


# -- what it is

def _read(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _cpu_model():
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git_revision():
    done = subprocess.run(["git", "-C", paths.ROOT, "describe", "--always", "--dirty"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def filesystem_of(folder):
    done = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() or None


def header():
    """What results.json says about the machine, before anything ran."""
    memory = kernel.meminfo()
    dirty = {name: int(_read(f"/proc/sys/vm/{name}") or 0)
             for name in ("dirty_bytes", "dirty_background_bytes", "dirty_ratio",
                          "dirty_background_ratio", "dirty_expire_centisecs",
                          "dirty_writeback_centisecs")}
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": memory["MemTotal"],
        "vm": dirty,
        "loadavg_before": list(os.getloadavg()),
        "versions": {
            "ganesha": tools.version(paths.find_program("ganesha.nfsd") or "ganesha.nfsd", "-v"),
            "project": _git_revision(),
            "fio": tools.version(paths.FIO, "--version"),
            "xfsprogs": tools.version(paths.find_program("mkfs.xfs") or "mkfs.xfs", "-V"),
        },
    }

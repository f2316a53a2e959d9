#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""How much of a slow device writers get, and how long a WRITE takes, against what is possible.

    bench/utilisation.py [--rate MB/s] [--seconds N] [--rounds N] [--limit SIZE]

In turns, on one throttled loop device: O_DIRECT, 1 MiB, 16 in flight, and sixteen NFS clients with four WRITEs
of 1 MiB in flight each through the plugin. What the device was asked to write is counted from a fifth to four
fifths of the time. The ideal latency is what is in flight divided by the device's rate.

Then two devices, one four times as fast and one at two fifths of the rate: what the fast one's writers lose when
others write to the slow one. And a stream beside scattered overwrites of a cached file in the same export.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from bench import machine, tools                         # noqa: E402
from bench.options import parse_size                     # noqa: E402
from harness import cleanup                              # noqa: E402
from harness.disk import LoopDisk, loop_supported, throttle_supported  # noqa: E402
from harness.ganesha import Export, Ganesha              # noqa: E402
from harness.kernel import Sampler                       # noqa: E402
from harness.testing import workdir                      # noqa: E402

WRITERS, DEPTH = 16, 4


def middle_rate(disk, seconds, still_running):
    """Bytes per second that the disk was asked to write, from a fifth to four fifths of the time."""
    time.sleep(seconds / 5)
    before, start = disk.device_bytes_written(), time.monotonic()
    time.sleep(seconds * 3 / 5)
    if not still_running():
        sys.exit("FAILED: the load ended early")
    return (disk.device_bytes_written() - before) / (time.monotonic() - start)


def direct(disk, seconds):
    probe = machine.DeviceProbe(disk.mountpoint)
    end = time.monotonic() + seconds

    def load():
        while time.monotonic() < end:
            probe.mb_s()
    thread = threading.Thread(target=load)
    thread.start()
    rate = middle_rate(disk, seconds, thread.is_alive)
    thread.join()
    probe.remove()
    return rate


def writers(server, path, seconds, count=WRITERS):
    return subprocess.Popen(
        [tools.nfsload(), "--port", str(server.port), "--mount-port", str(server.mnt_port), "--export",
         path, "--writers", str(count), "--block", "1M", "--depth", str(DEPTH), "--size", "2G",
         "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)


def pair(folder, seconds, limit, fast_bps, slow_bps):
    """The fast device's rate while it is alone, and while the slow one is written to; the slow one's."""
    params = {"Dirty_Bytes": limit}
    with LoopDisk(os.path.join(folder, "fast"), 5 << 30) as fast, \
            LoopDisk(os.path.join(folder, "slow"), 5 << 30) as slow:
        fast.set_write_bps(fast_bps)
        slow.set_write_bps(slow_bps)
        server = Ganesha(folder, [Export(1, fast.export_dir, "/fast", "dontcache", params),
                                  Export(2, slow.export_dir, "/slow", "dontcache", params)])
        try:
            server.start()
            alone = writers(server, "/fast", seconds, 4)
            first = middle_rate(fast, seconds, lambda: alone.poll() is None)
            alone.communicate()
            both = [writers(server, "/fast", seconds, 4), writers(server, "/slow", seconds, 4)]
            slow_before, start = slow.device_bytes_written(), time.monotonic()
            second = middle_rate(fast, seconds, lambda: both[0].poll() is None)
            slow_rate = (slow.device_bytes_written() - slow_before) / (time.monotonic() - start)
            for process in both:
                process.communicate()
            for disk in (fast, slow):
                disk.set_write_bps(None)
            server.stop()
            return first, second, slow_rate
        finally:
            server.close()


def scattered(folder, seconds, limit, bps):
    """A streaming client's rate alone, and beside one that overwrites 4 KiB in every 2 MiB of a file that lies in
    the cache in large folios; and the most that the kernel counted dirty or under writeback meanwhile."""
    with LoopDisk(folder, 6 << 30) as disk:
        server = Ganesha(folder, [Export(1, disk.export_dir, "/export", "dontcache", {"Dirty_Bytes": limit})])
        try:
            server.start()
            path = os.path.join(disk.export_dir, "scatter.0")
            machine.write_uncached(path, 512 << 20)
            os.chmod(path, 0o666)
            disk.set_write_bps(bps)
            rates, peaks = [], []
            for beside in (False, True):
                with open(path, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass
                stream = writers(server, "/export", seconds, 1)
                other = beside and subprocess.Popen(
                    [tools.nfsload(), "--port", str(server.port), "--mount-port", str(server.mnt_port),
                     "--prefix", "scatter", "--block", "4K", "--stride", "2M", "--depth", "1", "--size", "1M",
                     "--overwrite", "--no-commit", "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)
                with Sampler(disk.export_dir, 0.05) as kernel:
                    report = json.loads(stream.communicate()[0])
                if other:
                    other.communicate()
                rates.append(report["bytes"] / report["write_seconds"])
                peaks.append(kernel.peak_dirty_writeback)
            disk.set_write_bps(None)
            server.stop()
            return rates, peaks
        finally:
            server.close()


def nfs(disk, folder, seconds, limit):
    export = Export(1, disk.export_dir, "/export", "dontcache", {"Dirty_Bytes": limit})
    server = Ganesha(folder, [export])
    try:
        server.start()
        process = writers(server, "/export", seconds)
        rate = middle_rate(disk, seconds, lambda: process.poll() is None)
        report = json.loads(process.communicate()[0])
        disk.set_write_bps(None)
        server.stop()
        return rate, report["lat_us"]
    finally:
        server.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=100, help="of the device, MB/s (default 100)")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=parse_size, default=64 << 20, help="Dirty_Bytes (default 64M)")
    arguments = parser.parse_args()
    why = [name for name, there in (("loop devices", loop_supported()), ("a block throttle",
                                                                         throttle_supported())) if not there]
    if why:
        sys.exit(f"Not here: no {', no '.join(why)}.")
    cleanup.install_signal_handlers()
    bps = int(arguments.rate * 1e6)
    ideal = WRITERS * DEPTH * (1 << 20) / bps
    print(f"Device {arguments.rate:g} MB/s, Dirty_Bytes {arguments.limit >> 20} MiB; ideal latency of a WRITE "
          f"{1000 * ideal:.0f} ms")
    for number in range(1, arguments.rounds + 1):
        with workdir("bench") as folder, LoopDisk(folder, 6 << 30) as disk:
            disk.set_write_bps(bps)
            best = direct(disk, arguments.seconds)
            rate, latency = nfs(disk, folder, arguments.seconds, arguments.limit)
            print(f"round {number}: O_DIRECT {best / 1e6:.1f} MB/s; NFS {rate / 1e6:.1f} MB/s = "
                  f"{100 * rate / best:.1f} %; WRITE p50 {latency['p50'] / 1000:.0f}, p99.9 "
                  f"{latency['p999'] / 1000:.0f} ms = {latency['p999'] / 1e6 / ideal:.2f} x ideal", flush=True)
    for number in range(1, arguments.rounds + 1):
        with workdir("bench") as folder:
            for name in ("fast", "slow"):
                os.mkdir(os.path.join(folder, name))
            alone, beside, slow = pair(folder, arguments.seconds, arguments.limit, 4 * bps, bps * 2 // 5)
            print(f"round {number}: fast device {alone / 1e6:.0f} MB/s alone, {beside / 1e6:.0f} MB/s beside a "
                  f"slow one ({slow / 1e6:.0f} MB/s) = {100 * beside / alone:.1f} %", flush=True)
    for number in range(1, arguments.rounds + 1):
        with workdir("bench") as folder:
            (alone, beside), (_, peak) = scattered(folder, arguments.seconds, arguments.limit, 2 * bps)
            print(f"round {number}: a stream {alone / 1e6:.0f} MB/s alone, {beside / 1e6:.0f} MB/s beside scattered "
                  f"overwrites = {100 * beside / alone:.1f} %; the kernel counted {peak / 2**20:.1f} MiB at most",
                  flush=True)


if __name__ == "__main__":
    main()

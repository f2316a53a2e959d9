# SPDX-License-Identifier: LGPL-3.0-or-later
"""One measured run: a fresh server of one variant, one load, one record for results.json.

What is done before a run matters as much as the run. Files of the run before are truncated and
removed while no server holds them; files that a load overwrites lie on the device and not in the
page cache; the page cache is brought to the same state; the device is probed. Then the server is
started, and everything is counted from the first WRITE to the last COMMIT's reply.
"""

import os
import subprocess
import time

from harness import kernel
from harness.kernel import Sampler

from . import figures, loads, machine
from .variants import Server

_SAMPLE_SECONDS = 0.05


def _limit(variant, proof):
    """Dirty_Bytes of an export that has such a limit."""
    return proof["stats"]["limits"]["dirty_bytes"] if variant.mode == "dontcache" else None


def clear(folder, keep=()):
    """Remove the files of earlier runs. Truncated first: their blocks and pages are free when the
    next run starts, not some time later."""
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False) and entry.path not in keep:
            os.truncate(entry.path, 0)
            os.unlink(entry.path)


def lay_out(path, size, fresh=False):
    """A file to overwrite or to read: written once, or always where it must be fresh; nothing of
    it in the page cache."""
    if fresh or not os.path.exists(path) or os.path.getsize(path) != size:
        machine.write_uncached(path, size)
        os.chmod(path, 0o666)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class Folder:
    """A plain folder in the place of a LoopDisk, where there are no loop devices."""

    def __init__(self, workdir):
        self.export_dir = os.path.join(workdir, "export")
        self.mountpoint = workdir
        self.fstype = machine.filesystem_of(workdir)
        os.mkdir(self.export_dir)
        os.chmod(self.export_dir, 0o777)

    def device_bytes_written(self):
        return None


class Runner:
    """disk: LoopDisk or Folder; age: AgedCache or None to take the page cache as it is; probe:
    DeviceProbe or None; generator: nfsload or fio."""

    def __init__(self, workdir, disk, age=None, probe=None, generator="nfsload"):
        self.workdir = workdir
        self.disk = disk
        self.age = age
        self.probe = probe
        self.generator = generator
        self._seed = 0  # of each run another one, or a run could pass on the bytes of the last
        self._sampled = kernel.cachestat_supported()

    # -- before

    def _prepare(self, load):
        files = loads.files_of(load, self.disk.export_dir) if load.random else ()
        clear(self.disk.export_dir, keep=files)
        for path in files:
            lay_out(path, load.size // load.files)
        subprocess.run(["sync", "-f", self.disk.export_dir], check=False)
        if self.age:
            self.age.refresh()

    # -- the run

    def run(self, scenario, variant, number, load, verify=False):
        """The record. Raises LoadError, NotProven or GaneshaError where it would not be one."""
        self._seed += 1
        self._prepare(load)
        probed = self.probe.mb_s() if self.probe else None
        server = Server(self.workdir, variant, self.disk.export_dir)
        with server:
            device_before = self.disk.device_bytes_written()
            sampler = Sampler(self.disk.export_dir, _SAMPLE_SECONDS)
            cached_before = sampler.sample().cached_bytes if self._sampled else None
            server.reset_peak_rss()
            cpu = machine.CpuAccount(server)
            if self._sampled:
                sampler.start()
            started = time.monotonic()
            try:
                out = loads.run(self.generator, server, load, self._seed)
            finally:
                if self._sampled:
                    sampler.stop()
            used = cpu.stop()
            cached_after = sampler.sample().cached_bytes if self._sampled else None
            device_after = self.disk.device_bytes_written()
            proof = server.prove(out["bytes"])
            rss_peak = server.peak_rss_bytes()
        record = self._record(scenario, variant, number, load, out, used)
        record |= {
            "device_bytes": None if device_before is None else device_after - device_before,
            "rss_peak_bytes": rss_peak,
            "device_probe_mb_s": probed,
            "proof": proof,
            "dirty_limit_bytes": _limit(variant, proof),
            "verified_bytes": None,
            "lat_histogram_us": out["histogram_us"],
            "timeline": out["timeline"],
        }
        if self._sampled:
            record |= {
                "dirty_peak_bytes": sampler.peak_dirty,
                "writeback_peak_bytes": sampler.peak_writeback,
                "dirty_writeback_peak_bytes": sampler.peak_dirty_writeback,
                "cached_growth_bytes": cached_after - cached_before,
                "memory_timeline": [[round(s.t - started, 3), s.dirty_bytes, s.writeback_bytes,
                                     s.cached_bytes] for s in sampler.samples],
                "sampler_gap_s": sampler.longest_gap,
            }
        if verify and variant.keeps_data and self.generator == "nfsload":
            record["verified_bytes"] = loads.verify(load, self._seed, self.disk.export_dir)
        return record

    def _record(self, scenario, variant, number, load, out, used):
        gigabytes = out["bytes"] / 1e9
        return {
            "scenario": scenario,
            "variant": variant.name,
            "run": number,
            "generator": self.generator,
            "bytes": out["bytes"],
            "seconds": out["seconds"],
            "mb_s": out["bytes"] / 1e6 / out["seconds"],
            "write_mb_s": out["bytes"] / 1e6 / out["write_seconds"],
            "iops": out["writes"] / out["seconds"],
            "lat_us": figures.latencies(out["histogram_us"], out["lat_max_us"]),
            "commit_s": out["commit_s"],
            "dirty_peak_bytes": None,
            "writeback_peak_bytes": None,
            "dirty_writeback_peak_bytes": None,
            "cached_growth_bytes": None,
            "cpu_s_per_gb": used["server"] / gigabytes,
            "kernel_cpu_s_per_gb": used["kernel"] / gigabytes,
            "client_cpu_s_per_gb": used["clients"] / gigabytes,
            "bench_cpu_s": used["bench"],
            "foreign_cpu_s": used["foreign"],
            "steal_s": used["steal"],
            "per_client_mb_s": out["per_client_mb_s"],
            "jukebox": out["jukebox"],
        }

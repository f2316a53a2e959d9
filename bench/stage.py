# SPDX-License-Identifier: LGPL-3.0-or-later
"""One run of a scenario: its devices made ready, a fresh server of the variant, its streams, and
the record for results.json.

As in runner (which serves speed and quick, with one load on one export), everything that could
favour a variant is done before the server starts: files of earlier runs are gone, prepared ones lie
where they should, the page cache is aged, the device is probed, a slow one is slow.
"""

import contextlib
import os
import subprocess
import threading
import time

from harness import disk, kernel
from harness.kernel import Sampler

from . import extras, figures, machine, streams, vmdirty
from .runner import clear, lay_out
from .scenarios import stream_bytes
from .variants import NotProven, Server

_TIMELINE_STEP = 0.1
_LEAVE_PATIENCE = 5.0  # seconds after the last COMMIT that pages have to leave the cache


class Devices:
    """The loop devices that the chosen scenarios need; every name is made once. A folder for each
    export: 'export' for the first one on a device, 'export2' for the next."""

    def __init__(self, workdir, names, profile, fstype, progress):
        self._profile = profile
        self._disks, self._probes = {}, {}
        for name in names:
            size = self.image_size(name, profile)
            progress.step(f"making and writing the image of device {name}, {size >> 20} MiB")
            made = disk.LoopDisk(workdir, size, fstype=fstype, preallocate="written")
            self._disks[name] = made
            probe = profile.probe if name == "fast" else min(profile.probe, 32 << 20)
            self._probes[name] = machine.DeviceProbe(made.mountpoint, probe)
        self.direct_io = all(each.direct_io for each in self._disks.values())

    @staticmethod
    def image_size(name, profile):
        # Two streams' data and prepared files, or what a memory full of dirty pages may hold for a
        # slow device; the file system's own needs.
        if name == "fast":
            return int(2.25 * profile.data) + (4 << 30)
        return int((4.5 if name == "slow" else 2.25) * profile.slow_data) + (1 << 30)

    @classmethod
    def room_needed(cls, names, profile):
        return sum(cls.image_size(name, profile) for name in names)

    def disk(self, name):
        return self._disks[name]

    def slow_down(self, names):
        for name in names:
            if name.startswith("slow"):
                self._disks[name].set_write_bps(self._profile.slow_bps)

    def lift(self, names):
        for name in names:
            if name.startswith("slow"):
                self._disks[name].set_write_bps(None)

    def probe(self, name):
        return self._probes[name].mb_s()

    def folders(self, scenario):
        """The exported folder of each place."""
        used, folders = {}, []
        for place in scenario.places:
            used[place.device] = used.get(place.device, 0) + 1
            number = used[place.device]
            folder = os.path.join(self._disks[place.device].mountpoint,
                                  "export" if number == 1 else f"export{number}")
            if not os.path.isdir(folder):
                os.mkdir(folder)
                os.chmod(folder, 0o777)
            folders.append(folder)
        return folders


class _RssSampler:
    """The server's memory, ten times a second."""

    def __init__(self, server):
        self._server = server
        self.samples = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rss-sampler", daemon=True)

    def _run(self):
        with contextlib.suppress(OSError, KeyError):
            while not self._stop.wait(0.1):
                self.samples.append([time.monotonic(), self._server.rss_bytes()])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


class Stage:
    def __init__(self, workdir, profile, devices, age=None):
        self.workdir = workdir
        self.profile = profile
        self.devices = devices
        self.age = age
        self._seed = 0  # of each run another one, or a run could pass on the bytes of the last

    # -- before

    def _prepare(self, scenario, folders, fresh):
        """fresh: prepared files that are written at random for a time must hold zeros, so that
        what is found in them afterwards tells what was written."""
        self.devices.lift(scenario.devices)
        keep = {path for stream in scenario.streams if stream.prepared
                for path in streams.files_of(stream, folders[stream.export])}
        for folder in folders:
            clear(folder, keep)
        for stream in scenario.streams:
            if stream.prepared:
                size = self._file_size(stream, scenario)
                for path in streams.files_of(stream, folders[stream.export]):
                    lay_out(path, size, fresh and stream.timed and not stream.read)
        for name in scenario.devices:
            subprocess.run(["sync", "-f", self.devices.disk(name).mountpoint], check=False)
        if self.age:
            self.age.refresh()
        for stream in scenario.streams:
            if stream.prepared == "cache":
                for path in streams.files_of(stream, folders[stream.export]):
                    _read_all(path)
            elif stream.read and stream.judged and stream.prepared:
                for path in streams.files_of(stream, folders[stream.export]):
                    _read_directly(path)

    def _file_size(self, stream, scenario):
        size = stream_bytes(stream, scenario, self.profile)
        blocks = size // stream.block // (1 if stream.layout == "stream" else stream.writers)
        if stream.layout in ("stream", "regions"):
            blocks = size // stream.block
        return blocks * (stream.stride or stream.block)

    # -- the run

    def run(self, scenario, variant, number, verify=False):
        """The record. Raises LoadError, NotProven or GaneshaError where it would not be one."""
        self._seed += 1
        folders = self.devices.folders(scenario)
        disks = [self.devices.disk(name) for name in scenario.devices]
        self._prepare(scenario, folders, verify)
        self.devices.slow_down(scenario.devices)
        probed = {name: self.devices.probe(name) for name in scenario.devices}
        vm_before = vmdirty.read()
        limit = vmdirty.limited(self.profile.budget) if variant.vm_dirty \
            else contextlib.nullcontext()
        neighbours = [(folder, place.plain)
                      for folder, place in zip(folders[1:], scenario.places[1:])]
        with limit, Server(self.workdir, variant, folders[0], neighbours) as server:
            samplers = [Sampler(folder, scenario.sample_s) for folder in folders]
            cached_before = sum(s.sample().cached_bytes for s in samplers)
            device_before = [each.device_bytes_written() for each in disks]
            server.reset_peak_rss()
            watch = self._watch(scenario, folders)
            cpu = machine.CpuAccount(server)
            with contextlib.ExitStack() as stack:
                rss = stack.enter_context(_RssSampler(server))
                for sampler in samplers:
                    stack.enter_context(sampler)
                reports = streams.run(server, scenario, self.profile, self._seed, self.workdir)
                ended = [s.sample() for s in samplers]  # before a flusher's next turn
            for sampler, sample in zip(samplers, ended):
                sampler.samples.append(sample)
            used = cpu.stop()
            if watch:
                watch.stop(_LEAVE_PATIENCE)
            device_after = [each.device_bytes_written() for each in disks]
            _prove_limit(variant, self.profile, vm_before)
            proof = server.prove(_written(scenario, reports, export=0))
            rss_peak = server.peak_rss_bytes()
        verified = None
        self.devices.lift(scenario.devices)
        if verify and variant.keeps_data:
            verified = sum(streams.verify(s, scenario, self.profile, self._seed, reports[s.name],
                                          folders[s.export])
                           for s in scenario.streams if not s.read and _verifiable(s))
        started = min(report["start_ns"] for report in reports.values()) / 1e9  # the same clock
        run = extras.Run(scenario, reports, samplers,
                         [after - before for before, after in zip(device_before, device_after)],
                         [[round(t - started, 3), rss_bytes] for t, rss_bytes in rss.samples],
                         watch)
        record = _record(scenario, variant, number, run, used, started)
        return record | {
            "cached_growth_bytes": sum(s.cached_bytes for s in ended) - cached_before,
            "rss_peak_bytes": rss_peak,
            "device_probe_mb_s": probed[scenario.devices[0]],
            "device_probes_mb_s": probed,
            "proof": proof,
            "dirty_limit_bytes": proof["stats"]["limits"]["dirty_bytes"]
            if variant.mode == "dontcache" else None,
            "verified_bytes": verified,
            "extras": extras.compute(run),
        }

    def _watch(self, scenario, folders):
        if "residence" not in scenario.extras:
            return None
        judged = next(s for s in scenario.streams if s.judged)
        return extras.Residence(streams.files_of(judged, folders[judged.export])[0]).start()


def _prove_limit(variant, profile, before):
    """vm.dirty_bytes belongs to the machine: that it was what it should be needs a look, also for
    the variants that leave it alone."""
    wanted = {"dirty_bytes": profile.budget, "dirty_ratio": 0} if variant.vm_dirty else before
    found = vmdirty.read()
    if found != wanted:
        raise NotProven(f"{variant.name}: the kernel's limits are {found}, not {wanted}")


def _read_all(path):
    """Into the page cache as a reader does, so that the pages lie in large folios."""
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(1 << 20))
        while file.readinto(buffer):
            pass


def _read_directly(path):
    """Past the page cache: what lies below the image may keep what is read for the first time, and
    the variant that reads first would pay for it."""
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M", "iflag=direct", "status=none"],
                   check=False)


def _verifiable(stream):
    """All but what wraps around in a file that several write. What nobody COMMITted counts, too: a
    read past the page cache makes the file system write it first."""
    return not (stream.timed and stream.layout != "distinct")


def _written(scenario, reports, export=None):
    return sum(report["bytes"] for name, report in reports.items()
               if not scenario.stream(name).read
               and (export is None or scenario.stream(name).export == export))


def _record(scenario, variant, number, run, used, started):
    reports, samplers = run.reports, run.samplers
    judged = [reports[s.name] for s in scenario.streams if s.judged]
    histogram = figures.merged(r["histogram_us"] for r in judged)
    amount = sum(r["bytes"] for r in judged)
    begin = min(r["start_ns"] for r in judged) / 1e9
    seconds = max(r["start_ns"] / 1e9 + r["seconds"] for r in judged) - begin
    write_seconds = max(r["start_ns"] / 1e9 + r["write_seconds"] for r in judged) - begin
    gigabytes = sum(r["bytes"] for r in reports.values()) / 1e9  # CPU is of all that went on
    read = run.reports.get("readers")
    step = _TIMELINE_STEP if seconds < 60 else 1.0
    record = {
        "scenario": scenario.name,
        "variant": variant.name,
        "run": number,
        "generator": "nfsload",
        "bytes": amount,
        "seconds": seconds,
        "mb_s": amount / 1e6 / seconds,
        "write_mb_s": amount / 1e6 / write_seconds,
        "iops": sum(count for _, count in histogram) / seconds,
        "lat_us": figures.latencies(histogram, max(r["lat_us"]["max"] for r in judged)),
        "commit_s": max(r["commit_s"] for r in judged),
        "dirty_peak_bytes": samplers[0].peak_dirty,
        "writeback_peak_bytes": samplers[0].peak_writeback,
        "dirty_writeback_peak_bytes": samplers[0].peak_dirty_writeback,
        "device_bytes": sum(run.device_bytes),
        "cpu_s_per_gb": used["server"] / gigabytes,
        "kernel_cpu_s_per_gb": used["kernel"] / gigabytes,
        "client_cpu_s_per_gb": used["clients"] / gigabytes,
        "bench_cpu_s": used["bench"],
        "foreign_cpu_s": used["foreign"],
        "steal_s": used["steal"],
        "readers_mb_s": sum(w["mb_s"] for w in read["writers"]) if read else None,
        "per_client_mb_s": [w["mb_s"] for r in judged for w in r["writers"]],
        "jukebox": sum(r["jukebox"] for r in reports.values()),
        "lat_histogram_us": histogram,
        "sampler_gap_s": max(s.longest_gap for s in samplers),
        "rss_timeline": thinned(run.rss, 600),
        "exports": [
            {"dirty_peak_bytes": s.peak_dirty, "writeback_peak_bytes": s.peak_writeback,
             "dirty_writeback_peak_bytes": s.peak_dirty_writeback,
             "timeline": thinned([[round(x.t - started, 3), x.dirty_bytes, x.writeback_bytes,
                                   x.cached_bytes] for x in s.samples], 1200)}
            for s in samplers],
        "streams": {
            name: {"mb_s": r["mb_s"], "bytes": r["bytes"], "seconds": r["seconds"],
                   "commit_s": r["commit_s"], "lat_us": r["lat_us"],
                   "start_s": r["start_ns"] / 1e9 - started,
                   "per_client_mb_s": [w["mb_s"] for w in r["writers"]],
                   "mb_s_timeline": figures.sums_over_time(
                       [(r["start_ns"] / 1e9 - started, r["timeline"])], step)}
            for name, r in reports.items()},
    }
    return record


def thinned(rows, most):
    """At most so many rows, evenly taken: a ten-minute run needs no sample of every 50 ms in a
    picture. Peaks are taken before this."""
    step = max(1, -(-len(rows) // most))
    return rows[::step]


def supported(devices):
    """Why these devices cannot be made here, or None."""
    if not disk.loop_supported():
        return "this needs root and loop devices"
    if not kernel.cachestat_supported():
        return "this needs cachestat(2): Linux 6.5"
    if any(name.startswith("slow") for name in devices) and not disk.throttle_supported():
        return "a slow device needs the block throttle of cgroup v1"
    return None

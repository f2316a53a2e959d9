# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the clients do: a load, and the generators that can produce it.

A load is described once and runs on either generator:

nfsload  ours: COMMITs at the end of each writer as a client does at close(), verifies, and costs
         the machine a third of what fio costs; the default
fio      the generator that others will use. Its own clock stops before its files are closed, and
         it is close() that COMMITs; so its time is taken from outside, less what a run of a few
         blocks takes. It loses the last requests of each job, and sometimes crashes at its end

Both return the same dictionary, see run().
"""

import json
import os
import subprocess
import time
from dataclasses import dataclass, replace

from . import tools

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class LoadError(RuntimeError):
    """The clients met an error: a measurement that must not be counted."""


@dataclass(frozen=True)
class Load:
    """writers connections with depth WRITEs of block bytes in flight each, size bytes in all."""

    name: str
    title: str
    writers: int
    block: int
    depth: int
    size: int = 4 * GIB
    layout: str = "distinct"  # see nfsload --help
    random: bool = False  # overwrites in random order a file that was laid out before

    def sized(self, size):
        """The same load with about so much data: whole blocks, the same for each writer."""
        unit = self.block * self.writers
        return replace(self, size=max(unit, size // unit * unit))

    @property
    def files(self):
        return self.writers if self.layout == "distinct" else 1


def files_of(load, folder):
    return [os.path.join(folder, f"load.{number}") for number in range(load.files)]


def _call(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadError(f"{os.path.basename(command[0])}: "
                        f"{(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def _nfsload_options(load, seed):
    options = ["--writers", load.writers, "--layout", load.layout, "--block", load.block,
               "--depth", load.depth, "--size", load.size, "--seed", seed]
    if load.random:
        options += ["--random", "--overwrite"]
    return options


def _nfsload(server, load, seed, *more):
    command = [tools.nfsload(), "--port", server.port, "--mount-port", server.mnt_port,
               "--export", "/export", *_nfsload_options(load, seed), *more]
    return json.loads(_call([str(word) for word in command]))


def verify(load, seed, folder):
    """Reads back from the exported folder, past the page cache, what run() wrote; the bytes."""
    command = [tools.nfsload(), *_nfsload_options(load, seed), "--verify-only",
               "--verify-dir", folder]
    return json.loads(_call([str(word) for word in command]))["verified"]


def _run_nfsload(server, load, seed):
    out = _nfsload(server, load, seed)
    return {
        "bytes": out["bytes"],
        "seconds": out["seconds"],
        "write_seconds": out["write_seconds"],
        "commit_s": out["commit_s"],
        "histogram_us": out["histogram_us"],
        "lat_max_us": out["lat_us"]["max"],
        "writes": sum(count for _, count in out["histogram_us"]),
        "per_client_mb_s": [writer["mb_s"] for writer in out["writers"]],
        "timeline": out["timeline"],
        "jukebox": out["jukebox"],
    }


# -- fio

def fio_command(server, load, seed):
    """The command line, for whoever wants to repeat a run by hand."""
    if load.layout == "stream":
        raise LoadError("fio has no load of this form; use nfsload")
    command = [tools.fio(), "--name=load", "--ioengine=nfs",
               f"--nfs_url={server.url('/export')}",
               f"--rw={'randwrite' if load.random else 'write'}", f"--bs={load.block}",
               f"--iodepth={load.depth}", f"--numjobs={load.writers}",
               f"--size={load.size // load.writers}", f"--randseed={seed}",
               "--output-format=json+"]
    if load.layout == "distinct":
        command.append("--filename_format=load.$jobnum")
    else:
        command.append("--filename=load.0")
    if load.layout == "regions":
        command.append(f"--offset_increment={load.size // load.writers}")
    return command


def _call_fio(command):
    """(the JSON report's jobs, seconds from its start to its end)"""
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.monotonic() - started
    complaints = [line for line in (done.stderr + done.stdout[:done.stdout.find("{")]).splitlines()
                  if line.strip() and "code:-14" not in line]  # one for each request it loses
    if done.returncode != 0 or complaints:
        raise LoadError(f"fio ended with code {done.returncode}: " + "; ".join(complaints[:5]))
    jobs = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
    if any(job["error"] or not job["write"]["io_bytes"] for job in jobs):
        raise LoadError("fio: a job ended with an error or wrote nothing")
    return [job["write"] for job in jobs], wall


def _measure_fio_overhead(server, writers):
    few = Load("", "", writers, block=4 * KIB, depth=1, size=4 * KIB * 16 * writers)
    command = [word.replace("=load.", "=calibrate.") for word in fio_command(server, few, 1)]
    jobs, wall = _call_fio(command)
    return wall - max(job["runtime"] for job in jobs) / 1000


_fio_overhead = {}  # writers -> seconds of fio that are neither writing nor COMMIT


def _run_fio(server, load, seed):
    if load.writers not in _fio_overhead:
        _fio_overhead[load.writers] = _measure_fio_overhead(server, load.writers)
    overhead = _fio_overhead[load.writers]
    jobs, wall = _call_fio(fio_command(server, load, seed))
    histogram = {}
    for job in jobs:
        for nanoseconds, count in job["clat_ns"].get("bins", {}).items():
            us = int(nanoseconds) // 1000
            histogram[us] = histogram.get(us, 0) + count
    write_seconds = max(job["runtime"] for job in jobs) / 1000
    seconds = max(write_seconds, wall - overhead)
    return {
        "bytes": sum(job["io_bytes"] for job in jobs),
        "seconds": seconds,
        "write_seconds": write_seconds,
        "commit_s": seconds - write_seconds,
        "histogram_us": sorted(histogram.items()),
        "lat_max_us": max(job["clat_ns"]["max"] for job in jobs) / 1000,
        "writes": sum(job["total_ios"] for job in jobs),
        "per_client_mb_s": [job["bw_bytes"] / 1e6 for job in jobs],
        "timeline": None,
        "jukebox": None,
    }


GENERATORS = {"nfsload": _run_nfsload, "fio": _run_fio}


def run(generator, server, load, seed):
    """Bytes written, seconds with and without the final COMMITs, the longest COMMIT, the
    histogram of WRITE latencies, the rate of each client."""
    return GENERATORS[generator](server, load, seed)

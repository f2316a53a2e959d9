# SPDX-License-Identifier: LGPL-3.0-or-later
"""Running the streams of a scenario: processes of nfsload that start, wait for each other and end.

Each writes its report to a file, because a pipe that nobody reads would stop it. A stream that
runs "until" another one ends is told so by SIGTERM, finishes what is in flight, and reports as any
other. Whatever goes wrong, none of them outlives the call.
"""

import json
import os
import subprocess
import time

from . import tools
from .loads import LoadError
from .scenarios import stream_bytes
from .variants import pseudo

_POLL = 0.005
_FOREVER = 86400
_PATIENCE = 900  # seconds for one stream: a slow device that has to take everything at the end


def options(stream, scenario, profile, seed):
    """What describes the data: the same for the run and for its verification."""
    words = ["--prefix", stream.name, "--writers", stream.writers, "--layout", stream.layout,
             "--block", stream.block, "--depth", stream.depth,
             "--size", stream_bytes(stream, scenario, profile), "--seed", seed]
    if stream.random:
        words.append("--random")
    if stream.stride:
        words += ["--stride", stream.stride]
    return [str(word) for word in words]


def _run_options(stream, profile):
    words = []
    if stream.until:
        words += ["--seconds", _FOREVER]
    elif stream.whole_run:
        words += ["--seconds", profile.steady]
    elif stream.seconds:
        words += ["--seconds", profile.seconds * stream.seconds]
    if stream.prepared:
        words.append("--overwrite")
    if stream.read:
        words.append("--read")
    if stream.stable != "unstable":
        words += ["--stable", stream.stable]
    if stream.commit_each:
        words.append("--commit-each")
    if not stream.commit:
        words.append("--no-commit")
    if stream.sources:
        words += ["--source", ",".join(f"127.0.{1 + n // 250}.{1 + n % 250}"
                                       for n in range(stream.sources))]
    return [str(word) for word in words]


def files_of(stream, folder):
    return [os.path.join(folder, f"{stream.name}.{number}") for number in range(stream.files)]


class _Running:
    def __init__(self, stream, command, folder):
        self.stream = stream
        self._out = os.path.join(folder, f"stream-{stream.name}.json")
        self._err = os.path.join(folder, f"stream-{stream.name}.err")
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err)
        self.started = time.monotonic()

    def report(self):
        with open(self._err, encoding="utf-8", errors="replace") as err:
            said = err.read().strip()
        if self.process.returncode != 0:
            raise LoadError(f"{self.stream.name}: nfsload ended with code "
                            f"{self.process.returncode}: {said[-1000:]}")
        with open(self._out, encoding="utf-8") as out:
            return json.load(out)


def run(server, scenario, profile, seed, folder):
    """{stream's name: its report}. Raises LoadError where one failed."""
    running, reports = {}, {}
    begin = time.monotonic()
    waiting = list(scenario.streams)

    def due(stream):
        if stream.after:
            return stream.after in reports
        return not stream.delayed or time.monotonic() - begin >= profile.delay

    def start(stream):
        running[stream.name] = _Running(stream, [
            tools.nfsload(), "--port", str(server.port), "--mount-port", str(server.mnt_port),
            "--export", pseudo(stream.export + 1), *options(stream, scenario, profile, seed),
            *_run_options(stream, profile)], folder)

    try:
        while waiting or running:
            for stream in [each for each in waiting if due(each)]:
                waiting.remove(stream)
                start(stream)
            for name, each in list(running.items()):
                if each.process.poll() is not None:
                    reports[name] = running.pop(name).report()
                elif each.stream.until in reports:
                    each.process.terminate()
                    if time.monotonic() - each.started > _PATIENCE:
                        raise LoadError(f"{name}: did not end")
            if not server.running:
                raise LoadError("the server ended under its clients")
            time.sleep(_POLL)
    finally:
        for each in running.values():
            each.process.kill()
        for each in running.values():
            each.process.wait()
    return reports


def verify(stream, scenario, profile, seed, report, folder):
    """Reads back from the exported folder, past the page cache; the bytes that were compared. Of a
    timed stream: every block that it says it wrote must be there, and all else be zeros."""
    command = [tools.nfsload(), *options(stream, scenario, profile, seed), "--verify-only",
               "--verify-dir", folder, *(["--verify-sparse"] if stream.timed else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadError(f"{stream.name}: {(done.stderr or done.stdout).strip()[-1000:]}")
    seen = json.loads(done.stdout)["verified"]
    if stream.timed and stream.layout == "distinct":
        wanted = sum(writer["blocks"] for writer in report["writers"]) * stream.block
        if seen != wanted:
            raise LoadError(f"{stream.name}: {seen} bytes are there of {wanted} acknowledged")
    return seen

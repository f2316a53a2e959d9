# SPDX-License-Identifier: LGPL-3.0-or-later
"""What a scenario is about, beyond speed: functions by the names that the table of scenarios uses.

Each takes what a run left (see Run) and returns {column: value}; the report shows them as columns.
Residence is the odd one out: it has to look while the run goes on.
"""

import os
import threading
import time
from dataclasses import dataclass

from harness import kernel

from . import figures

MIB = 1 << 20


@dataclass
class Run:
    scenario: object
    reports: dict  # stream -> nfsload's report
    samplers: list  # one for each export
    device_bytes: list  # one for each device, None where unknown
    rss: list  # [[seconds, bytes], ...]
    residence: object = None

    def rate(self, name):
        return self.reports[name]["mb_s"] if name in self.reports else None


def readers(run):
    report = run.reports["readers"]
    return {"readers MB/s": sum(w["mb_s"] for w in report["writers"]) / len(report["writers"]),
            "readers p99.9 ms": report["lat_us"]["p999"] / 1000}


def neighbour(run):
    """The stream that is not judged."""
    other = next(s for s in run.scenario.streams if not s.judged)
    return {f"{other.name} MB/s": run.rate(other.name),
            f"{other.name} p99.9 ms": run.reports[other.name]["lat_us"]["p999"] / 1000}


def beside(run):
    alone, with_slow = run.rate("alone"), run.rate("fast")
    return {"alone MB/s": alone, "kept": with_slow / alone,
            "slow MB/s, no COMMIT": run.rate("slow")}


def inflation(run):
    written = sum(report["bytes"] for report in run.reports.values())
    return {"counted dirty / written": run.samplers[0].peak_dirty_writeback / written}


def amplification(run):
    written = sum(r["bytes"] for name, r in run.reports.items()
                  if not run.scenario.stream(name).read)
    device = run.device_bytes[0]
    return {"device / client bytes": device / written if device is not None else None}


def fairness(run):
    rates = [w["mb_s"] for w in run.reports["modest"]["writers"]]
    greedy = run.rate("greedy")
    mean = sum(rates) / len(rates)
    together = while_all_write(run.reports["modest"], run.reports["greedy"])
    return {"Jain, modest": figures.jain(rates), "Jain, all": figures.jain([*rates, greedy]),
            "greedy / modest": greedy / mean if mean else None,
            "while all write": together,
            "least / mean": min(rates) / mean if mean else None,
            "greedy MB/s": greedy}


def while_all_write(modest, greedy):
    """The greedy one's rate over a modest one's, from a quarter to three quarters of the time in
    which the modest ones write: without what it put into an empty budget before they came, and
    without what it had to itself while they waited for their COMMITs."""
    end = modest["write_seconds"]
    mine = figures.between(modest["timeline"], end / 4, end * 3 / 4) / len(modest["writers"])
    # It starts first; by a tenth of a second, which is what a sample is.
    other = figures.between(greedy["timeline"], end / 4, end * 3 / 4)
    return other / mine if mine else None


def steadiness(run):
    seconds = figures.per_second(next(iter(run.reports.values()))["timeline"])
    grown = figures.growth(value for _, value in run.rss)
    return {"variation of MB/s": figures.variation(seconds[1:-1]),
            "least second MB/s": min(seconds[1:-1], default=None),
            "RSS growth MB": None if grown is None else grown / 1e6}


def residence(run):
    seen = run.residence
    return {"left p50 ms": seen.percentile(50), "left p99.9 ms": seen.percentile(99.9),
            "stayed": seen.stayed_share()}


class Residence:
    """When each megabyte of a file came into the page cache and when the last page of it was gone.

    Between two looks pass some milliseconds; that is how exact it is. A megabyte that is there
    when the watch ends is counted as one that stayed, and its time as the time until then: a lower
    bound, which the share of stayed ones tells."""

    INTERVAL = 0.004

    def __init__(self, path):
        self._path = path
        self._came, self._left = {}, {}
        self._first = 0  # all before it are gone
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="residence", daemon=True)
        self._ended = None
        self.error = None

    def _look(self, fd, now):
        size = os.fstat(fd).st_size
        while self._first in self._left:
            self._first += 1
        for chunk in range(self._first, (size + MIB - 1) // MIB):
            if chunk in self._left:
                continue
            cached = kernel.cachestat(fd, chunk * MIB, MIB).cached
            if cached and chunk not in self._came:
                self._came[chunk] = now
            elif not cached and chunk in self._came:
                self._left[chunk] = now
            elif not cached and chunk < size // MIB:
                self._came[chunk] = self._left[chunk] = now  # came and went between two looks

    def _run(self):
        fd = None
        try:
            while not self._stop.is_set():
                try:
                    fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC) if fd is None else fd
                    self._look(fd, time.monotonic())
                except FileNotFoundError:
                    pass
                self._stop.wait(self.INTERVAL)
        except BaseException as error:
            self.error = error
        finally:
            if fd is not None:
                os.close(fd)

    def start(self):
        self._thread.start()
        return self

    def stop(self, patience):
        """Goes on watching for so long, or until all has left."""
        end = time.monotonic() + patience
        while time.monotonic() < end and len(self._left) < len(self._came) and not self.error:
            time.sleep(0.02)
        self._stop.set()
        self._thread.join()
        self._ended = time.monotonic()
        if self.error:
            raise self.error

    def times_ms(self):
        return [(self._left.get(chunk, self._ended) - came) * 1000
                for chunk, came in self._came.items()]

    def percentile(self, percent):
        return figures.of_values(self.times_ms(), percent)

    def stayed_share(self):
        return 1 - len(self._left) / len(self._came) if self._came else None


def compute(run):
    out = {}
    for name in run.scenario.extras:
        out |= globals()[name](run)
    return out

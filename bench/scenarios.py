# SPDX-License-Identifier: LGPL-3.0-or-later
"""The scenarios of bench/run, declared once: --list, the runs and the report follow from this table.

A scenario says what its clients do and why that is worth a row. Its sizes are relative to the budget: less
than four times Dirty_Bytes would fit it and show nothing of it. `device` is where it means something by
itself; --device runs it elsewhere.
"""

from dataclasses import dataclass

from .loads import GIB, KIB, MIB, Load


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    source: str  # where it comes from
    why: str
    load: Load
    device: str = "fast"
    quick_size: int = GIB  # with --quick

    def loaded(self, quick):
        return self.load.sized(self.quick_size if quick else self.load.size)

    def paragraph(self):
        load = self.load
        what = (f"{load.writers} writer{'s' if load.writers > 1 else ''}, WRITEs of {load.block >> 10} KiB, "
                f"{load.depth} in flight each, {load.size / 1e9:.1f} GB ({self.quick_size / 1e9:.1f} with --quick), "
                f"{'in random order over a file laid out before' if load.random else _LAYOUTS[load.layout]}; "
                f"COMMIT at the end, counted. Device: {self.device}.")
        return f"{self.title} ({self.source}). {what} {self.why}"


_LAYOUTS = {
    "distinct": "each its own file",
    "stream": "one file, the next block to whichever connection is free",
    "regions": "one file, a part each",
    "same": "one file, all of it by each",
}


def _load(name, title, writers, block, depth, size=4 * GIB, **more):
    return Load(name, title, writers=writers, block=block, depth=depth, size=size, **more)


SCENARIOS = (
    Scenario("seq-write", "16 writers, 1 MiB", "nfsd-io-bench seq-write, distinct files",
             "Many streams at once: what nfsd's flusher gained most from.",
             _load("seq-write", "16 writers, 1 MiB", 16, MIB, 4)),
    Scenario("seq-write-one-file", "16 writers, one file", "nfsd-io-bench seq-write as it stands: one file",
             "One stream over many connections; the inode's lock is what limits it.",
             _load("seq-write-one-file", "16 writers, one file", 16, MIB, 4, layout="stream")),
    Scenario("one-writer", "1 writer, 1 MiB", "dontcache-bench seq-write",
             "The simplest copy of a large file.",
             _load("one-writer", "1 writer, 1 MiB", 1, MIB, 16)),
    Scenario("multi-write-4", "4 writers, 1 MiB", "nfsd-io-bench multi-writer",
             "Four processes, four files.",
             _load("multi-write-4", "4 writers, 1 MiB", 4, MIB, 16)),
    Scenario("small-write", "16 writers, 64 KiB", "nfsd-io-bench, smaller",
             "Sixteen times as many requests for the same bytes: what the path itself costs.",
             _load("small-write", "16 writers, 64 KiB", 16, 64 * KIB, 4)),
    Scenario("writers-32", "32 writers, 64 KiB", "dontcache-bench 32 writers",
             "The seeds' own stress of inline submission: 1548 -> 3499 MB/s there.",
             _load("writers-32", "32 writers, 64 KiB", 32, 64 * KIB, 1)),
    Scenario("rand-write", "random, 64 KiB", "nfsd-io-bench rand-write",
             "Overwrites in random order: no window is written whole.",
             _load("rand-write", "random, 64 KiB", 16, 64 * KIB, 4, random=True)),
    Scenario("commit", "COMMIT after a stream, slow disk", "seeds/001: COMMIT is never measured there",
             "What is dirty at the end is what the client waits for.",
             _load("commit", "COMMIT after a stream", 1, MIB, 16, size=2 * GIB), device="slow",
             quick_size=GIB),
    Scenario("slow-16", "16 writers, slow disk", "facts: inline bounds nothing on a slow device",
             "More than the disk can take: memory, tails and fairness under throttle.",
             _load("slow-16", "16 writers, slow disk", 16, MIB, 4, size=2 * GIB), device="slow",
             quick_size=GIB),
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}

# Named by the issue tracker and by the seeds, and not here yet: said in every report.
MISSING = ("seq-read", "rand-read", "noisy neighbour", "mixed mode", "competing writers of two exports",
           "two devices, the second later", "slow beside fast device", "durable 4 KiB overwrites",
           "scattered overwrites of a cached file", "many clients, one greedy",
           "time until pages leave the cache", "ten minutes of steady state")

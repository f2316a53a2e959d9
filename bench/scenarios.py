# SPDX-License-Identifier: LGPL-3.0-or-later
"""Every scenario, declared once: what its clients do, on what, and why anybody should ask.

A scenario is a set of streams, each one process of the load generator, and of exports that they
use, all of one server. Sizes are multiples of the profile's data, which is at least four times
the budget; so the same table serves a quarter of an hour and half a day.

The variants that a scenario leaves out stand with the reason beside them, and the report says so.
"""

from dataclasses import dataclass, field

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Profile:
    """How much of everything. slow_bps: what a device called slow is throttled to."""

    name: str
    data: int  # of a stream on a fast device
    slow_data: int
    budget: int  # Dirty_Bytes of the plugin, and vm.dirty_bytes of `stock-vm`
    seconds: float  # of timed streams
    delay: float  # until a second writer starts
    steady: float  # seconds
    runs: int
    slow_bps: int = 100_000_000
    probe: int = 256 * MIB


FULL = Profile("full", 4 * GIB, 2 * GIB, 192 * MIB, 20, 10, 600, 3)
QUICK = Profile("quick", 512 * MIB, 256 * MIB, 64 * MIB, 2.5, 1.5, 6, 1, probe=64 * MIB)


@dataclass(frozen=True)
class Stream:
    """What one group of clients does.

    writers connections with depth requests of block bytes in flight each.
    size      of all together, a multiple of the profile's data; or `bytes`; or `seconds`, a
              multiple of the profile's
    until     runs as long as that other stream does;  after: begins when that one ended
    delayed   begins when the profile's delay has passed
    prepared  'device': its files lie on the device; 'cache': also in the page cache
    judged    its rate and latencies are the record's; the others stand beside it
    """

    name: str = "clients"
    writers: int = 1
    block: int = MIB
    depth: int = 16
    size: float = 1.0
    bytes: int = 0
    seconds: float = 0.0
    until: str = None
    after: str = None
    delayed: bool = False
    layout: str = "distinct"
    read: bool = False
    random: bool = False
    stable: str = "unstable"
    commit_each: bool = False
    commit: bool = True
    stride: int = 0
    prepared: str = None
    export: int = 0
    sources: int = 0
    judged: bool = True
    whole_run: bool = False  # the profile's `steady` seconds

    @property
    def timed(self):
        return bool(self.seconds or self.until or self.whole_run)

    @property
    def files(self):
        return self.writers if self.layout == "distinct" else 1


@dataclass(frozen=True)
class Place:
    """An export: on which device, and whether the variant's mode or a plain one."""

    device: str = "fast"
    plain: bool = False


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    why: str
    streams: tuple
    places: tuple = (Place(),)
    without: dict = field(default_factory=dict)  # variant -> why it has no part in this
    extras: tuple = ()  # names of functions in bench/extras.py
    sample_s: float = 0.05
    quick: bool = True
    once: bool = False  # in the first round alone: it is long
    speed: bool = True  # False: what it is about is in the extras, and MB/s says little
    seed: str = ""  # where the question comes from

    @property
    def devices(self):
        return tuple(dict.fromkeys(place.device for place in self.places))

    def stream(self, name):
        return next(stream for stream in self.streams if stream.name == name)


_NO_DATA = {"discard": "keeps no data, so there is nothing to look at"}
_NO_WRITES = {"discard": "differs from stock in its writes only",
              "inline": "differs from stock in its writes only"}
_SLOW = (Place("slow"),)



def _readers(**more):
    return Stream("readers", writers=3, block=4 * KIB, depth=1, bytes=3 * 512 * MIB, read=True,
                  random=True, until="writer", prepared="device", judged=False, **more)


SCENARIOS = (
    Scenario("seq-write", "1 writer, 1 MiB",
             "nfsd-io-bench's sequential write: one client streams, the case in which a plain "
             "server fills memory with dirty pages and pays for it at the COMMIT.",
             (Stream(),), seed="001"),
    Scenario("multi-4", "4 writers, 1 MiB",
             "nfsd-io-bench's multi-writer with a file for each: the form in which the original "
             "cannot overwrite its own pages in the cache.",
             (Stream(writers=4),), seed="001"),
    Scenario("multi-4-one-file", "4 writers, one file",
             "The same as the original ran it: every client writes the same file from end to end, "
             "so that most writes hit pages that are in the cache already.",
             (Stream(writers=4, layout="same", size=4.0),), seed="001"),
    Scenario("multi-16", "16 writers, 1 MiB",
             "16 clients with a file each: many workers submit at once.",
             (Stream(writers=16, depth=4),), seed="001"),
    Scenario("multi-16-one-file", "16 writers, one file",
             "nfsd-io-bench with numjobs=16 and one --filename: 16 clients, the same offsets.",
             (Stream(writers=16, depth=4, layout="same", size=8.0),), seed="001"),
    Scenario("small-write", "16 writers, 64 KiB",
             "Sixteen times as many requests for the same bytes: what the path itself costs.",
             (Stream(writers=16, block=64 * KIB, depth=4),), seed="001"),
    Scenario("rand-write", "random 64 KiB",
             "nfsd-io-bench's random write, 16 jobs with a file each: overwrites in random order "
             "of files that lie on the device and not in the cache.",
             (Stream(writers=16, block=64 * KIB, depth=4, random=True, prepared="device"),),
             seed="001"),
    Scenario("rand-write-one-file", "random 64 KiB, one file",
             "The same, all jobs in one file, a part each: the inode's lock is everybody's.",
             (Stream(writers=16, block=64 * KIB, depth=4, random=True, prepared="device",
                     layout="regions"),), seed="001"),
    Scenario("noisy", "writer and 3 random readers",
             "Noisy neighbour: a streaming writer, and three readers of 4 KiB in 512 MiB each, who "
             "read for the writer's whole life (the original's stopped early).",
             (Stream("writer"), _readers()), extras=("readers",), seed="001"),
    Scenario("mixed", "writer, readers on a plain export",
             "The mixed mode: the writer through an export of the variant, the readers through a "
             "plain one of the same server and file system.",
             (Stream("writer"), _readers(export=1)), (Place(), Place(plain=True)),
             extras=("readers",), seed="001"),
    Scenario("commit-slow", "COMMIT after streaming, slow device",
             "A client streams to a slow device and COMMITs: how long its close() takes is the "
             "dirty data that was allowed to pile up, divided by the device's speed.",
             (Stream(),), _SLOW, seed="001"),
    Scenario("slow-16", "16 writers, slow device",
             "More than the device can take, from many: memory, tails and fairness while everybody "
             "is held back. RWF_DONTCACHE written inline bounds nothing here.",
             (Stream(writers=16, depth=4),), _SLOW),
    Scenario("competing", "two writers, one of them plain",
             "dontcache-bench's competing writers: one through an export of the variant, one "
             "through a plain export beside it. Does one pay for the other? With `buffered` and "
             "`stock` this is plain beside plain.",
             (Stream("own", judged=True),
              Stream("plain", export=1, judged=False)),
             (Place(), Place(plain=True)), extras=("neighbour",), seed="001"),
    Scenario("slow-beside-fast", "fast device beside a slow one",
             "A writer on a fast device, first alone and then while another export of the same "
             "server fills a slow device. One flusher or one limit for both would bring the fast "
             "one down to the slow one's speed.",
             (Stream("alone", judged=False),
              Stream("fast", after="alone"),
              Stream("slow", writers=4, depth=4, size=4.0, export=1, after="alone",
                     until="fast", commit=False, judged=False)),
             (Place(), Place("slow")), extras=("beside",), seed="003"),
    Scenario("scattered", "scattered 4 KiB overwrites, cached file",
             "seeds/000 as it is today: 4 KiB written every 2 MiB of a file that readers have in "
             "the cache as large folios. The kernel counts whole folios dirty: what it counts, "
             "divided by what was written.",
             (Stream(block=4 * KIB, depth=1, bytes=128 * 4 * KIB, stride=2 * MIB, prepared="cache",
                     commit=False),),
             without=_NO_DATA, extras=("inflation",), sample_s=0.005, speed=False, seed="000"),
    Scenario("scattered-neighbour", "streaming beside scattered overwrites",
             "What those overwrites do to somebody else: they go on, in a cached file, while "
             "another client streams through the same export.",
             (Stream("writer"),
              Stream("scatter", block=4 * KIB, depth=1, bytes=128 * 4 * KIB, stride=2 * MIB,
                     prepared="cache", until="writer", commit=False, judged=False)),
             without=_NO_DATA, seed="000"),
    Scenario("durable-commit", "4 KiB, each WRITE with a COMMIT",
             "test_randwrite.fio: 8 jobs overwrite 4 KiB at random places, each made durable by a "
             "COMMIT. MB/s, and how many bytes the device was made to write for one of a client's.",
             (Stream(writers=8, block=4 * KIB, depth=1, seconds=1, bytes=GIB, random=True,
                     prepared="device", commit_each=True),), extras=("amplification",),
             seed="000"),
    Scenario("durable-filesync", "4 KiB, FILE_SYNC",
             "The same with FILE_SYNC writes, as a client sends them that opened with O_SYNC.",
             (Stream(writers=8, block=4 * KIB, depth=1, seconds=1, bytes=GIB, random=True,
                     prepared="device", stable="file"),), extras=("amplification",), seed="000"),
    Scenario("two-devices", "second device joins later",
             "seeds/003: a writer on one device; a second one starts on another device a while "
             "later. The mail's two pictures are dirty and writeback over time: does the first "
             "device's dirty data rush to writeback when the second begins?",
             (Stream("first", size=2.0),
              Stream("second", export=1, delayed=True, judged=False)),
             (Place("slow"), Place("slow2")), extras=("neighbour",), seed="003"),
    Scenario("writers-32", "32 writers, 64 KiB, depth 1",
             "dontcache-bench's 32 writers: small writes of many, where submission in the writer's "
             "context costs most.",
             (Stream(writers=32, block=64 * KIB, depth=1),), seed="001"),
    Scenario("many-64", "64 clients, one greedy, slow device",
             "63 modest clients, each of its own address, two WRITEs of 64 KiB in flight each, have a file "
             "to write and to COMMIT; one with 64 MiB in flight writes as long as they do, on a "
             "device that cannot keep up. Who gets what, COMMIT counted: Jain's index of the "
             "modest ones, their p99.9, the greedy one's multiple (where nothing limits it, it "
             "overwrites in the cache what was never written out).",
             (Stream("modest", writers=63, block=64 * KIB, depth=2, sources=63),
              Stream("greedy", depth=64, until="modest", judged=False)),
             _SLOW, extras=("fairness",)),
    Scenario("many-256", "256 clients, one greedy, slow device",
             "The same with 256 connections from as many addresses.",
             (Stream("modest", writers=255, block=64 * KIB, depth=2, sources=255),
              Stream("greedy", depth=64, until="modest", judged=False)),
             _SLOW, extras=("fairness",), quick=False),
    Scenario("seq-read", "1 reader, 1 MiB",
             "Sequential read of a file that is not in the cache: whether the mode costs readers "
             "anything.",
             (Stream(depth=4, read=True, prepared="device"),), without=_NO_WRITES, seed="001"),
    Scenario("rand-read", "random reads of 4 KiB",
             "16 jobs of random 4 KiB reads.",
             (Stream(writers=16, block=4 * KIB, depth=1, read=True, random=True, seconds=1,
                     prepared="device"),), without=_NO_WRITES, seed="001"),
    Scenario("seq-read-one-file", "16 readers, one file",
             "nfsd-io-bench's read with numjobs=16 and one --filename.",
             (Stream(writers=16, depth=1, read=True, layout="same", prepared="device"),),
             without=_NO_WRITES, quick=False, seed="001"),
    Scenario("rand-read-one-file", "random reads of 4 KiB, one file",
             "16 jobs of random 4 KiB reads in one file.",
             (Stream(writers=16, block=4 * KIB, depth=1, read=True, random=True, seconds=1,
                     layout="regions", prepared="device"),),
             without=_NO_WRITES, quick=False, seed="001"),
    Scenario("leave-cache", "from a write until its pages left the cache",
             "The review's open question: how long a page stays in the cache after its WRITE, "
             "watched a megabyte at a time every few milliseconds. On a slow device, where it "
             "matters; pages still there at the end count as having stayed.",
             (Stream(depth=4),), _SLOW, without=_NO_DATA, extras=("residence",), speed=False,
             seed="001"),
    Scenario("steady", "steady state",
             "Four writers for a long time: MB/s second by second (no sawtooth), the server's "
             "memory (no growth).",
             (Stream(writers=4, whole_run=True),), extras=("steadiness",), once=True, seed="001"),
)


def by_name(names, profile):
    """The scenarios of those names, in the table's order; all that fit the profile without any.
    KeyError names what there is not."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    for name in names:
        known[name]  # raises
    if names:
        return [scenario for scenario in SCENARIOS if scenario.name in names]
    return [scenario for scenario in SCENARIOS if scenario.quick or profile.name != "quick"]


def stream_bytes(stream, scenario, profile):
    """Bytes that a stream writes, or for a timed one the size of its files together."""
    if stream.bytes:
        wanted = stream.bytes
    else:
        slow = scenario.places[stream.export].device.startswith("slow")
        wanted = int((profile.slow_data if slow else profile.data) * stream.size)
    unit = stream.block * stream.writers
    return max(unit, wanted // unit * unit)


def parameters(scenario, profile):
    """A line that says what runs, for --list and the report."""
    parts = []
    for stream in scenario.streams:
        place = scenario.places[stream.export]
        size = stream_bytes(stream, scenario, profile)
        unit = f"{stream.block >> 20} MiB" if stream.block >= MIB else f"{stream.block >> 10} KiB"
        what = [f"{stream.name}: {stream.writers} x {'random ' if stream.random else ''}"
                f"{'read' if stream.read else 'write'} {unit}, depth {stream.depth}",
                f"files: {stream.layout}, {place.device}{', plain' if place.plain else ''}"]
        if stream.until:
            what.append(f"as long as {stream.until}")
        elif stream.whole_run:
            what.append(f"{profile.steady:g} s")
        elif stream.seconds:
            what.append(f"{profile.seconds * stream.seconds:g} s")
        else:
            what.append(f"{size / 1e6:.0f} MB")
        if stream.stride:
            what.append(f"one every {stream.stride >> 20} MiB")
        if stream.delayed:
            what.append(f"from {profile.delay:g} s on")
        if stream.after:
            what.append(f"after {stream.after}")
        if stream.stable != "unstable" or stream.commit_each:
            what.append("COMMIT after each" if stream.commit_each else f"stable: {stream.stable}")
        parts.append(", ".join(what))
    return "; ".join(parts)

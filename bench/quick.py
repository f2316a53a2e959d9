#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""A minute's look at the plugin at work: the same short loads on an export that is plain
(IO_Mode buffered) and on one with IO_Mode dontcache, one table.

It takes the machine as it is, in particular its page cache, and so proves nothing: figures of one
machine in one minute. bench/speed.py is the proof.
"""

import argparse
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bench import loads, report, variants  # noqa: E402
from bench.loads import KIB, MIB, Load  # noqa: E402
from bench.options import parse_params, parse_size  # noqa: E402
from bench.progress import Progress  # noqa: E402
from bench.runner import Folder, Runner  # noqa: E402
from bench.tools import ToolError  # noqa: E402
from bench.variants import NotProven  # noqa: E402
from harness import cleanup, disk, paths  # noqa: E402
from harness.ganesha import GaneshaError  # noqa: E402
from harness.params import problems  # noqa: E402

LOADS = (
    Load("w4_1m", "4 writers x 1 MiB", writers=4, block=MIB, depth=16),
    Load("w16_1m", "16 writers x 1 MiB", writers=16, block=MIB, depth=4),
    Load("rand_64k", "random 64 KiB", writers=16, block=64 * KIB, depth=4, random=True),
)
_NOTES = """
MB/s counts the final COMMITs. dirty+wb: peak of the export's files, by cachestat; cache: what is
left of them in the page cache at the end; CPU: the server's. Taken with the page cache in whatever
state this machine's is: where much memory is free, as after a boot, that flatters dontcache. The
proof, with the cache aged and a ceiling beside it, is bench/speed.py."""
_SLACK = 512 * MIB  # for the file system's own needs, beyond the data


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?",
                        help="where to put the image, or the files where there are no loop devices "
                             f"(default: {paths.temp_base()})")
    parser.add_argument("--size", type=parse_size, default=2 << 30, metavar="BYTES",
                        help="data of each run, K, M and G accepted (default 2G)")
    parser.add_argument("--runs", type=int, default=3, metavar="N",
                        help="runs of each load in each mode; the table shows medians (default 3)")
    parser.add_argument("--modes", default="buffered,dontcache", metavar="MODE,...",
                        help="IO_Modes, or stock for no plugin (default buffered,dontcache)")
    parser.add_argument("--params", nargs="*", default=[], metavar="KEY=VALUE",
                        help="export parameters of dontcache, such as Dirty_Bytes=256M")
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.params = parse_params(parser, arguments.params)
    for name in arguments.modes.split(","):
        if name.strip() not in ("stock", "buffered", "dontcache"):
            parser.error(f"--modes: {name.strip()!r} is not one of stock, buffered, dontcache")
    for problem in problems(arguments.params):
        parser.error(f"--params: {problem}")
    if arguments.folder and not os.path.isdir(arguments.folder):
        parser.error(f"{arguments.folder} is not a folder")
    if arguments.runs < 1:
        parser.error("--runs: at least 1")
    return arguments


def open_disk(workdir, size, progress):
    """An XFS image of our own, or a plain folder; and what to say about it."""
    if not disk.loop_supported():
        return Folder(workdir), "a temporary folder: an image needs root and loop devices"
    progress.step("making an XFS image")
    try:
        return (disk.LoopDisk(workdir, size, preallocate="written"),
                "an XFS image on a loop device with direct I/O")
    except (RuntimeError, OSError) as error:
        return Folder(workdir), f"a temporary folder: no loop device to be had ({error})"


def measure(runner, names, arguments, progress):
    records = []
    for run in range(1, arguments.runs + 1):
        for load in LOADS:
            load = load.sized(arguments.size)
            for name in names:
                variant = variants.get(name, arguments.params)
                progress.begin(f"{load.title}, {name}")
                record = runner.run(load.name, variant, run, load)
                records.append(record)
                progress.end(f"{load.title}, {name}: {record['mb_s']:.0f} MB/s")
    return records


def main():
    arguments = parse_arguments()
    if arguments.check_arguments:
        return
    names = [name.strip() for name in arguments.modes.split(",")]
    if any(variants.get(name).is_plugin for name in names) and not variants.plugin_built():
        sys.exit("The plugin is not built: ./quickstart does that first.")
    cleanup.install_signal_handlers()
    cleanup.sweep_stale()
    if arguments.folder:
        os.environ["DONTCACHE_TMPDIR"] = os.path.realpath(arguments.folder)
    workdir = cleanup.private_dir("quick")
    image = arguments.size + _SLACK
    free = shutil.disk_usage(workdir).free
    if free < image + _SLACK:
        sys.exit(f"{os.path.dirname(workdir)} has {free >> 20} MiB free, {(image + _SLACK) >> 20} "
                 "are needed: name another folder, or a smaller --size.")
    progress = Progress(len(LOADS) * len(names) * arguments.runs)
    try:
        export, where = open_disk(workdir, image, progress)
        records = measure(Runner(workdir, export), names, arguments, progress)
    finally:
        progress.close()
    print(f"\n{arguments.size / 1e9:.1f} GB a run through NFSv3 on 127.0.0.1; the export is on "
          f"{where}.\n")
    print(report.short_table(records, {load.name: load.title for load in LOADS}))
    print(_NOTES)


if __name__ == "__main__":
    try:
        main()
    except (GaneshaError, loads.LoadError, NotProven, ToolError) as failure:
        sys.exit(f"\nFAILED: {failure}")

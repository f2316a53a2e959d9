#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""The proof of speed: stock Ganesha, the inline form of the same idea, and the plugin, beside each
other and below a measured ceiling.

    bench/speed.py --out DIR          writes results.json, report.md and speed.png to DIR

What makes it one: the device's blocks are all written before; the page cache is full of clean
pages, as on a server that has been up for weeks, and is brought back to that before every run;
variants take turns within each round, so that the device's drift meets all of them; the final
COMMIT of every file counts in the time; every run proves that its variant was on; what was written
is read back and compared, past the page cache, in the first round of each variant and load.
"""

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bench import loads, machine, report, variants  # noqa: E402
from bench.loads import KIB, MIB, Load  # noqa: E402
from bench.options import parse_params, parse_size  # noqa: E402
from bench.progress import Progress  # noqa: E402
from bench.runner import Runner  # noqa: E402
from bench.tools import ToolError  # noqa: E402
from harness import age, cleanup, disk, kernel  # noqa: E402
from harness.ganesha import GaneshaError  # noqa: E402

LOADS = (
    Load("w1_1m", "1 writer, 1 MiB", writers=1, block=MIB, depth=16),
    Load("w4_1m", "4 writers, 1 MiB", writers=4, block=MIB, depth=16),
    Load("w16_1m", "16 writers, 1 MiB", writers=16, block=MIB, depth=4),
    Load("w16_64k", "16 writers, 64 KiB", writers=16, block=64 * KIB, depth=4),
    Load("rand_64k", "random, 64 KiB", writers=16, block=64 * KIB, depth=4, random=True),
    Load("one_file", "16 writers, one file", writers=16, block=MIB, depth=4, layout="stream"),
)
_DEFAULT_LOADS = "w1_1m,w4_1m,w16_1m,w16_64k,rand_64k"
_DEFAULT_VARIANTS = "discard,stock,inline,buffered,dontcache"
_TIMES_BUDGET = 4  # less data than this would fit the budget and show nothing of it


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Loads: " + "; ".join(f"{load.name}: {load.title}" for load in LOADS) + ".")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default 3")
    parser.add_argument("--loads", default=_DEFAULT_LOADS, metavar="LOAD,...",
                        help=f"default {_DEFAULT_LOADS}")
    parser.add_argument("--variants", default=_DEFAULT_VARIANTS, metavar="V,...",
                        help=f"default {_DEFAULT_VARIANTS}; also other IO_Modes of the plugin")
    parser.add_argument("--size", type=parse_size, default=4 << 30, metavar="BYTES",
                        help="data of each run (default 4G)")
    parser.add_argument("--fs", choices=("xfs", "ext4"), default="xfs")
    parser.add_argument("--dir", metavar="DIR", help="where to put the image")
    parser.add_argument("--out", metavar="DIR", help="where to put the results (default: none)")
    parser.add_argument("--params", nargs="*", default=[], metavar="KEY=VALUE",
                        help="export parameters of dontcache, such as Dirty_Bytes=256M")
    parser.add_argument("--generator", choices=sorted(loads.GENERATORS), default="nfsload")
    parser.add_argument("--free", type=parse_size, default=1 << 30, metavar="BYTES",
                        help="memory that ageing leaves free (default 1G)")
    parser.add_argument("--no-age", action="store_true",
                        help="take the page cache as it is: for trying things out")
    arguments = parser.parse_args()
    arguments.params = parse_params(parser, arguments.params)
    known = {load.name: load for load in LOADS}
    try:
        arguments.loads = [known[name].sized(arguments.size) for name in arguments.loads.split(",")]
        arguments.variants = [variants.get(name, arguments.params)
                              for name in arguments.variants.split(",")]
    except KeyError as error:
        parser.error(f"--loads: no load {error}")
    except ValueError as error:
        parser.error(f"--variants: {error}")
    check_sizes(parser, arguments)
    return arguments


def check_sizes(parser, arguments):
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1")
    budget = arguments.params.get("Dirty_Bytes")
    try:
        if budget and arguments.size < _TIMES_BUDGET * parse_size(budget):
            parser.error(f"--size: at least {_TIMES_BUDGET} x Dirty_Bytes")
    except argparse.ArgumentTypeError as error:
        parser.error(f"--params: Dirty_Bytes: {error}")
    if any(v.is_plugin for v in arguments.variants) and not variants.plugin_built():
        parser.error("the plugin is not built (scripts/build.sh release); "
                     "--variants discard,stock,inline runs without it")


def image_size(arguments):
    return arguments.size + arguments.size // 4 + (1 << 30)


def describe(arguments):
    """The header of results.json."""
    head = machine.header()
    return head | {
        "title": "Speed of the variants on a fast device",
        "fs": arguments.fs,
        "device": "a preallocated loop image with direct I/O, all blocks written before",
        "page_cache": "as it was" if arguments.no_age else
                      f"aged before each run, {arguments.free >> 20} MiB left free",
        "generator": arguments.generator,
        "params": arguments.params,
        "rounds": arguments.rounds,
        "loads": {load.name: asdict(load) for load in arguments.loads},
        "variants": {variant.name: variant.title for variant in arguments.variants},
    }


def run_once(runner, load, variant, run):
    try:
        return runner.run(load.name, variant, run, load, verify=run == 1)
    except loads.LoadError:
        if runner.generator != "fio":
            raise
    # fio's nfs engine crashes at the end of some runs; that says nothing about the server.
    return runner.run(load.name, variant, run, load)


def measure(runner, arguments, result, progress, save):
    for run in range(1, arguments.rounds + 1):
        for load in arguments.loads:
            for variant in arguments.variants:
                what = f"round {run}, {load.title}, {variant.name}"
                progress.begin(what)
                try:
                    record = run_once(runner, load, variant, run)
                except (GaneshaError, loads.LoadError, variants.NotProven) as error:
                    # One variant's failure is a result, too: it is named, and the others go on.
                    result["failures"].append(f"{what}: {error}")
                    progress.end(f"{what}: FAILED: {report.brief(error)}")
                    continue
                result["records"].append(record)
                progress.end(f"{what}: {record['mb_s']:.0f} MB/s, "
                             f"p99.9 {record['lat_us']['p999'] / 1000:.0f} ms, "
                             f"COMMIT {record['commit_s']:.2f} s")
        save()  # a long run that is interrupted leaves its finished rounds


def write_out(result, folder):
    if folder is None:
        return
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "results.json"), "w", encoding="utf-8") as out:
        json.dump(result, out)
    if not result["records"]:
        return
    picture = "speed.png" if report.bars(result, os.path.join(folder, "speed.png")) else None
    with open(os.path.join(folder, "report.md"), "w", encoding="utf-8") as out:
        out.write(report.markdown(result, picture=picture))


def main():
    arguments = parse_arguments()
    cleanup.install_signal_handlers()
    cleanup.sweep_stale()
    if not disk.loop_supported():
        sys.exit("This needs root and loop devices.")
    if arguments.dir:
        os.environ["DONTCACHE_TMPDIR"] = os.path.realpath(arguments.dir)
    workdir = cleanup.private_dir("speed")
    need, free = image_size(arguments), shutil.disk_usage(workdir).free
    if free < need + (1 << 30):
        sys.exit(f"{os.path.dirname(workdir)} has {free >> 20} MiB free, {need >> 20} are needed.")
    result = {"header": describe(arguments), "records": [], "failures": []}
    progress = Progress(arguments.rounds * len(arguments.loads) * len(arguments.variants))
    try:
        progress.step(f"making and writing an image of {need >> 20} MiB")
        image = disk.LoopDisk(workdir, need, fstype=arguments.fs, preallocate="written")
        aged = None
        if not arguments.no_age:
            progress.step("ageing the page cache")
            aged = age.AgedCache(workdir, target_free=arguments.free)
            aged.refresh()
        probe = machine.DeviceProbe(image.mountpoint)
        result["header"]["device_mb_s"] = probe.mb_s()
        result["header"]["direct_io"] = image.direct_io
        runner = Runner(workdir, image, aged, probe, arguments.generator)
        measure(runner, arguments, result, progress, lambda: write_out(result, arguments.out))
    finally:
        progress.close()
    result["header"]["loadavg_after"] = list(os.getloadavg())
    result["header"]["memory_free_after"] = kernel.meminfo()["MemFree"]
    write_out(result, arguments.out)
    print(report.markdown(result))
    if result["failures"]:
        sys.exit(f"{len(result['failures'])} runs failed")


if __name__ == "__main__":
    try:
        main()
    except ToolError as failure:
        sys.exit(f"FAILED: {failure}")

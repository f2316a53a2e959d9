# SPDX-License-Identifier: LGPL-3.0-or-later
"""The programs that the benchmarks measure with: the load generator, the preloads, fio.

The CMake build puts ours into build/release/bench. Where that is missing or older than its source,
they are compiled here, so that a benchmark never runs with yesterday's generator.
"""

import glob
import os
import subprocess

from harness import cleanup, paths

_BENCH = os.path.join(paths.ROOT, "bench")
_built = {}


class ToolError(RuntimeError):
    """A program that a benchmark needs is not there and could not be made."""


def _up_to_date(target, sources):
    return os.path.exists(target) and all(
        os.path.getmtime(source) <= os.path.getmtime(target) for source in sources)


def _get(name, sources, headers, flags):
    if name not in _built:
        target = os.path.join(paths.build_dir("release"), "bench", name)
        if not _up_to_date(target, sources + headers):
            target = os.path.join(cleanup.private_dir("tools"), name)
            command = ["cc", "-std=gnu17", "-O2", "-D_GNU_SOURCE", *flags, "-o", target, *sources]
            done = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ToolError(f"cannot build {name}:\n{done.stderr}")
        _built[name] = target
    return _built[name]


def nfsload():
    folder = os.path.join(_BENCH, "load")
    return _get("nfsload", sorted(glob.glob(f"{folder}/*.c")), glob.glob(f"{folder}/*.h"), [])


def preload(name):
    folder = os.path.join(_BENCH, "preload")
    return _get(f"{name}.so", [f"{folder}/{name}.c"], glob.glob(f"{folder}/*.h"),
                ["-shared", "-fPIC"])


def fio():
    if not os.access(paths.FIO, os.X_OK):
        raise ToolError("fio with its nfs engine is not built: run scripts/setup.sh")
    return paths.FIO


def version(*command):
    """First line that a program prints about itself, or None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0].strip() if lines else None

#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Build every way, run the tests through ctest, count, and say so in one last line.

Called by ./check once everything is installed. Counting reads ctest's JUnit files, so that it
holds for whatever tests CMakeLists.txt declares; only the labels below are known here.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from harness import cleanup  # noqa: E402

LOGS = os.path.join(ROOT, "build", "logs")
# In this order. The first group needs no quiet machine and runs beside itself; the second
# watches memory and time, one test after another.
PARALLEL = ("unit", "model", "sim")
SERIAL = ("integration", "crash", "mutants")
SANITIZED = ("unit", "model", "sim")
SOURCE_DIRS = ("fsal", "src", "include", "tests", "bench", "harness")
TEST_TIMEOUT_S = 300


def say(text):
    print(f"==> {text}", flush=True)


class Tally:
    """Everything that was checked: builds, formatting, tests."""

    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []
        self.partly_skipped = []
        self.tests_run = 0

    def check(self, name, good):
        (self.passed if good else self.failed).append(name)
        return good

    def add_junit(self, preset, path):
        """Count one ctest run. A run that left no file failed as a whole."""
        try:
            cases = list(ElementTree.parse(path).getroot().iter("testcase"))
        except (OSError, ElementTree.ParseError) as error:
            self.failed.append(f"ctest in build/{preset}: no result file ({error})")
            return
        for case in cases:
            name = f"{case.get('name')} [{preset}]"
            output = case.findtext("system-out") or ""
            reasons = re.findall(r"^\s*SKIP: (.*)$", output, re.MULTILINE)
            status = case.get("status")
            if status == "run":
                self.tests_run += 1
                self.passed.append(name)
                self.partly_skipped += [(name, reason) for reason in reasons]
            elif status == "fail":
                self.tests_run += 1
                self.failed.append(name)
            elif case.find("skipped") is not None and "SKIP_" in (
                    case.find("skipped").get("message") or ""):  # ..RETURN_CODE, ..REGULAR_EXPRESSION
                self.skipped.append((name, "; ".join(reasons) or "no reason given"))
            elif status == "disabled":
                self.skipped.append((name, "disabled in CMakeLists.txt"))
            else:  # a program that was not built, a fixture that failed
                self.failed.append(f"{name}: not run")

    def report(self, started):
        print()
        for title, rows in (("Skipped", self.skipped),
                            ("Passed, but in part skipped", self.partly_skipped)):
            if rows:
                print(f"{title}:")
                for name, reason in rows:
                    print(f"  {name}: {reason}")
        if self.failed:
            print("Failed:")
            for name in self.failed:
                print(f"  {name}")
        if not self.tests_run:
            print("No test ran.")
        print(f"{time.monotonic() - started:.0f} s; details in build/logs/")
        print(f"{len(self.passed)} passed, {len(self.failed)} failed, "
              f"{len(self.skipped)} skipped", flush=True)
        return 0 if self.tests_run and not self.failed else 1


def build(tally, preset):
    command = [os.path.join(ROOT, "scripts", "build.sh"), preset]
    return tally.check(f"build {preset}", subprocess.run(command, check=False).returncode == 0)


def source_files():
    for top in SOURCE_DIRS:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def check_format(tally):
    files = list(source_files())
    say(f"Formatting of {len(files)} files (clang-format)")
    done = subprocess.run(["clang-format", "--dry-run", "--Werror", *files], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    if not tally.check("clang-format", done.returncode == 0):
        wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", done.stderr, re.MULTILINE)))
        print(done.stderr if not wrong else
              f"    to do: clang-format -i {' '.join(wrong)}", flush=True)


def ctest(tally, preset, name, *selection, jobs=1):
    """One run of ctest. Its own lines are the progress; the rest is in the JUnit file."""
    folder = os.path.join(ROOT, "build", preset)
    log = os.path.join(LOGS, f"ctest-{preset}-{name}.log")
    junit = os.path.join(LOGS, f"ctest-{preset}-{name}.xml")
    if os.path.exists(junit):
        os.unlink(junit)
    command = ["ctest", "--test-dir", folder, *selection, "-j", str(jobs),
               "--timeout", str(TEST_TIMEOUT_S), "--output-on-failure", "--no-tests=ignore",
               "--output-junit", junit, "--output-log", log,
               "--test-output-size-passed", "262144", "--test-output-size-failed", "1048576"]
    if preset == "tsan" and shutil.which("setarch"):
        # The runtime of gcc 12 refuses the address layouts of kernels with much randomisation.
        command = ["setarch", "--addr-no-randomize", *command]
    # A group of its own: if we are told to stop, so are the tests, and they clean up.
    process = subprocess.Popen(command, cwd=ROOT, process_group=0)
    try:
        process.wait()
    except BaseException:
        stop_group(process)
        raise
    tally.add_junit(preset, junit)


def stop_group(process, patience=20.0):
    """SIGTERM to a process and all it started; SIGKILL for what is left after a while."""
    end = time.monotonic() + patience
    number = signal.SIGTERM
    try:
        while True:
            os.killpg(process.pid, number)
            number = 0  # only ask whether somebody is left
            process.poll()
            if time.monotonic() > end:
                os.killpg(process.pid, signal.SIGKILL)
                return
            time.sleep(0.1)
    except ProcessLookupError:
        pass


def regex(labels):
    return "^(" + "|".join(map(re.escape, labels)) + ")$"


def known_labels():
    done = subprocess.run(["ctest", "--test-dir", os.path.join(ROOT, "build", "release"),
                           "--print-labels"], capture_output=True, text=True, check=False)
    return sorted(set(re.findall(r"^  (\S+)$", done.stdout, re.MULTILINE)))


def run_tests(tally, labels, built):
    cpus = os.cpu_count() or 1
    chosen = labels or [*PARALLEL, *SERIAL]
    parallel = [label for label in PARALLEL if label in chosen]
    if parallel:
        say(f"Tests in build/release: {' '.join(parallel)}")
        ctest(tally, "release", "parallel", "-L", regex(parallel), jobs=cpus)
    for preset in ("asan", "tsan"):
        sanitized = [label for label in SANITIZED if label in chosen]
        if sanitized and preset in built:
            say(f"Tests in build/{preset}: {' '.join(sanitized)}")
            ctest(tally, preset, "sanitized", "-L", regex(sanitized), jobs=cpus)
    # Last, so that a mistake of the engine shows before minutes of servers and disks. Without
    # labels given: whatever else there is, also under labels not known here.
    rest = [label for label in labels if label not in PARALLEL]
    if rest or not labels:
        say(f"Tests in build/release: {' '.join(rest) or ' '.join(SERIAL)} (one at a time)")
        chosen_rest = ["-L", regex(rest)] if rest else []
        ctest(tally, "release", "serial", *chosen_rest, "-LE", regex(PARALLEL))


def main(labels):
    started = time.monotonic()
    tally = Tally()
    os.makedirs(LOGS, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    cleanup.sweep_stale()

    presets = ["release", "asan"]
    if not labels or set(labels) & set(SANITIZED):
        presets.append("tsan")
    if not labels:
        check_format(tally)
        presets.append("clang")
    built = {preset for preset in presets if build(tally, preset)}
    if "release" in built:
        unknown = set(labels) - set(known_labels())
        if unknown:
            print(f"no test has the label {', '.join(sorted(unknown))}; "
                  f"there are: {' '.join(known_labels())}", file=sys.stderr)
            tally.failed += [f"label {label}: unknown" for label in sorted(unknown)]
        run_tests(tally, labels, built)
    # A test that ran into ctest's timeout was killed with no chance to clean up.
    cleanup.sweep_stale()
    return tally.report(started)


if __name__ == "__main__":
    if shutil.which("cmake") is None:
        sys.exit("cmake is not installed; run ./check, which installs it")
    sys.exit(main(sys.argv[1:]))

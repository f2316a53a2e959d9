# SPDX-License-Identifier: LGPL-3.0-or-later
"""The frame of a test file.

    def test_read_back(): ...
    def test_budget():
        requires(throttle_supported(), "no block throttle here")
        ...
    if __name__ == "__main__":
        main(globals())

Exit code 0: passed. 1: failed. 77: skipped, each reason on a line "SKIP: ...". Arguments of the
test file choose tests by parts of their names; -l lists them.
"""

import contextlib
import os
import sys
import time
import traceback

from . import cleanup

PASS, FAIL, SKIP = 0, 1, 77


class Skip(SystemExit):
    """Raised by requires(). Outside main() it ends the process with code 77."""

    def __init__(self, reason):
        super().__init__(SKIP)
        self.reason = reason


def requires(condition, reason):
    """Go on only where the machine has what the test needs; otherwise a skip with its reason."""
    if not condition:
        print(f"SKIP: {reason}", flush=True)
        raise Skip(reason)


def requires_root():
    requires(os.geteuid() == 0, "needs root (mounts, loop devices, file handles)")


@contextlib.contextmanager
def workdir(name="test"):
    """A private folder, removed afterwards, also after signals and exceptions."""
    cleanup.install_signal_handlers()
    path = cleanup.private_dir(name)
    try:
        yield path
    finally:
        cleanup.remove_private_dir(path)


def wait_until(condition, timeout=10.0, interval=0.02, what=None):
    """Wait until condition() is true and return its value; AssertionError after the timeout."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not within {timeout} s: {what or condition}")
        time.sleep(interval)


def main(scope, argv=None):
    """Run the test_* functions of a test file in the order they stand in, report, and exit."""
    argv = sys.argv[1:] if argv is None else argv
    tests = [(name, test) for name, test in scope.items()
             if name.startswith("test_") and callable(test)]
    if "-l" in argv:
        print("\n".join(name for name, _ in tests))
        sys.exit(PASS)
    chosen = [(name, test) for name, test in tests
              if not argv or any(part in name for part in argv)]
    if not chosen:
        print("no such test" if argv else "no tests in this file", file=sys.stderr)
        sys.exit(FAIL)

    cleanup.install_signal_handlers()
    cleanup.sweep_stale()
    passed, failed, skipped = [], [], []
    for name, test in chosen:
        print(f"--- {name}", flush=True)
        started = time.monotonic()
        try:
            test()
            passed.append(name)
            outcome = "ok"
        except Skip:
            skipped.append(name)
            outcome = "skipped"
        except Exception:
            failed.append(name)
            outcome = "FAILED"
            traceback.print_exc(file=sys.stdout)
        print(f"    {name}: {outcome} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped"
          + (": " + ", ".join(failed) if failed else ""), flush=True)
    sys.exit(FAIL if failed else PASS if passed else SKIP)

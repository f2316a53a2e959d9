# SPDX-License-Identifier: LGPL-3.0-or-later
"""One progress line on a terminal, one line for each finished run elsewhere; on standard error, so
that a table can be piped."""

import sys
import time


class Progress:
    def __init__(self, total, out=sys.stderr):
        self._total = total
        self._done = 0
        self._out = out
        self._started = None
        self._live = out.isatty()

    def _line(self, text, end):
        if self._live:
            self._out.write("\r\033[K")
        self._out.write(text + end)
        self._out.flush()

    def step(self, text):
        """Something that takes a while begins; not one of the counted runs."""
        self._line(text + " ...", "" if self._live else "\n")

    def begin(self, text):
        if self._started is None:
            self._started = time.monotonic()
        if self._live:
            self._line(f"[{self._done + 1}/{self._total}] {text} ...{self._left()}", "")

    def end(self, text):
        self._done += 1
        left = "" if self._live else self._left()  # where begin() says nothing
        self._line(f"[{self._done}/{self._total}] {text}{left}", "\n")

    def _left(self):
        if not self._done or self._done == self._total:
            return ""
        each = (time.monotonic() - self._started) / self._done
        left = each * (self._total - self._done)
        return f" (about {left:.0f} s left)" if left < 300 else f" (about {left / 60:.0f} min left)"

    def close(self):
        if self._live:
            self._line("", "")

# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the server is, and the proof that it is that.

discard  the ceiling: stock, but the data of each WRITE is thrown away once it is received
stock    the distribution's FSAL_VFS, as people run it today
stock-vm stock with vm.dirty_bytes set to the budget, the tuning that people use today
inline   stock with every write made an RWF_DONTCACHE one: the writing thread submits the I/O
others   our plugin with that IO_Mode

A table once went by before somebody saw that the thing under test had never been on. So each run
proves its variant: the libraries that the server has mapped, the mark that a preload leaves when an
FSAL calls it, the plugin's own counters.
"""

import os
import re
from dataclasses import dataclass, field

from harness import paths
from harness.ganesha import Export, Ganesha

from . import tools


DEFAULT_BUDGET = "192M"


class NotProven(RuntimeError):
    """The server ran, but not as the variant that was to be measured."""


@dataclass(frozen=True)
class Variant:
    name: str
    title: str
    mode: str = "stock"
    preload: str = None
    keeps_data: bool = True
    params: dict = field(default_factory=dict)
    vm_dirty_bytes: int = None

    @property
    def is_plugin(self):
        return self.mode != "stock"


def _budget(params):
    """Dirty_Bytes as the plugin would have it."""
    text = str((params or {}).get("Dirty_Bytes", DEFAULT_BUDGET)).strip('"')
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper())
    return int(text[:-1]) << shift if shift else int(text)


def get(name, params=None):
    """The variant of that name; params are export parameters, for `dontcache` alone."""
    known = {
        "discard": Variant("discard", "ceiling: data discarded", preload="discard",
                           keeps_data=False),
        "stock": Variant("stock", "stock FSAL_VFS"),
        "stock-vm": Variant("stock-vm", "stock, vm.dirty_bytes = the budget",
                            vm_dirty_bytes=_budget(params)),
        "inline": Variant("inline", "stock, RWF_DONTCACHE inline", preload="inline"),
    }
    if name in known:
        return known[name]
    if not re.fullmatch(r"[a-z]+", name):
        raise ValueError(f"no variant {name!r}")
    return Variant(name, f"plugin, IO_Mode {name}", mode=name,
                   params=dict(params or {}) if name == "dontcache" else {})


def plugin_built():
    return os.path.exists(os.path.join(paths.plugin_dir(), "libfsaldontcache.so"))


class Server(Ganesha):
    """A server with one export, /export, of the variant."""

    def __init__(self, workdir, variant, export_dir):
        self.variant = variant
        self._mark = os.path.join(workdir, f"mark-{os.urandom(3).hex()}")
        super().__init__(
            workdir,
            [Export(1, export_dir, "/export", variant.mode, variant.params)],
            # Stock means stock: not even the folder that our plugin lies in.
            plugin_dir=None if variant.is_plugin else paths.system_plugin_dir(),
            preload=[tools.preload(variant.preload)] if variant.preload else [],
            env={"BENCH_PRELOAD_MARK": self._mark} if variant.preload else {},
        )

    def prove(self, written):
        """After a run of `written` bytes: NotProven unless the variant was on. What showed it."""
        with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="replace") as maps:
            mapped = "libfsaldontcache" in maps.read()
        if mapped != self.variant.is_plugin:
            raise NotProven(f"{self.variant.name}: the plugin is {'' if mapped else 'not '}loaded")
        if self.variant.preload:
            return self._prove_preload()
        if self.variant.is_plugin:
            return self._prove_plugin(written)
        return "plugin not mapped, nothing preloaded"

    def _prove_preload(self):
        try:
            with open(self._mark, encoding="utf-8") as mark:
                text = mark.read()
        except FileNotFoundError:
            text = ""
        if not re.search(rf"^{self.variant.preload} .*libfsalvfs", text, re.MULTILINE):
            raise NotProven(f"{self.variant.name}: FSAL_VFS never called the preload ({text!r})")
        return f"preload called by {os.path.basename(text.split()[1])}"

    def _prove_plugin(self, written):
        stats = self.export_stats(1)
        if stats["mode"] != self.variant.mode:
            raise NotProven(f"the export's mode is {stats['mode']}, not {self.variant.mode}")
        if self.variant.mode == "dontcache":
            seen = stats["client_bytes_total"]
            cleaned = sum(value for name, value in stats.items()
                          if re.fullmatch(r"written_\w+_bytes_total", name))
            if seen < written:
                raise NotProven(f"the plugin saw {seen} of {written} bytes")
            if not cleaned:
                raise NotProven("the plugin's flusher wrote nothing back")
        return {"mode": stats["mode"], "stats": stats}

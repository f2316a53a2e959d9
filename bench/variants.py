# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the server is, and the proof that it is that.

discard  the ceiling: stock, but the data of each WRITE is thrown away once it is received
stock    the distribution's FSAL_VFS, as people run it today
stock-vm stock, with vm.dirty_bytes of the whole machine set to the budget while it is measured
inline   stock with every write made an RWF_DONTCACHE one: the writing thread submits the I/O; it
         stands for IO_Mode kernel where the plugin has none
others   our plugin with that IO_Mode

A table once went by before somebody saw that the thing under test had never been on. So each run
proves its variant: the libraries that the server has mapped, the mark that a preload leaves when an
FSAL calls it, the plugin's own counters.
"""

import os
import re
from dataclasses import dataclass, field

from harness import paths
from harness.params import problems
from harness.ganesha import Export, Ganesha

from . import tools, vmdirty


class NotProven(RuntimeError):
    """The server ran, but not as the variant that was to be measured."""


@dataclass(frozen=True)
class Variant:
    name: str
    title: str
    mode: str = "stock"
    preload: str = None
    keeps_data: bool = True
    vm_dirty: bool = False
    params: dict = field(default_factory=dict)

    @property
    def is_plugin(self):
        return self.mode != "stock"


def get(name, params=None):
    """The variant of that name; params are export parameters, for `dontcache` alone."""
    known = {
        "discard": Variant("discard", "ceiling: data discarded", preload="discard",
                           keeps_data=False),
        "stock": Variant("stock", "stock FSAL_VFS"),
        "stock-vm": Variant("stock-vm", "stock, vm.dirty_bytes = budget", vm_dirty=True),
        "inline": Variant("inline", "stock, RWF_DONTCACHE inline", preload="inline"),
    }
    if name in known:
        return known[name]
    if not re.fullmatch(r"[a-z]+", name):
        raise ValueError(f"no variant {name!r}")
    return Variant(name, f"plugin, IO_Mode {name}", mode=name,
                   params=dict(params or {}) if name == "dontcache" else {})


def unavailable(variant):
    """Why this build has no such variant, or None. A mode that is asked for is shown either way."""
    if variant.vm_dirty and not vmdirty.supported():
        return "vm.dirty_bytes cannot be set here"
    if variant.is_plugin and problems({"IO_Mode": variant.mode}):
        return f"this build has no IO_Mode {variant.mode}"
    return None


def plugin_built():
    return os.path.exists(os.path.join(paths.plugin_dir(), "libfsaldontcache.so"))


def pseudo(number):
    """The path by which clients know export number 1, 2, ..."""
    return "/export" if number == 1 else f"/export{number}"


class Server(Ganesha):
    """A server whose export 1, /export, is of the variant. neighbours: [(folder, plain), ...] of
    exports 2, 3, ...; a plain one writes as FSAL_VFS does, whatever the variant."""

    def __init__(self, workdir, variant, export_dir, neighbours=()):
        self.variant = variant
        self._mark = os.path.join(workdir, f"mark-{os.urandom(3).hex()}")
        env = {}
        if variant.preload:
            env["BENCH_PRELOAD_MARK"] = self._mark
            plain = [folder for folder, is_plain in neighbours if is_plain]
            if plain:
                env["BENCH_PRELOAD_SPARE"] = os.path.realpath(plain[0]) + "/"
        exports = [Export(1, export_dir, pseudo(1), variant.mode, variant.params)]
        for number, (folder, is_plain) in enumerate(neighbours, 2):
            plain_mode = "buffered" if variant.is_plugin else "stock"
            exports.append(Export(number, folder, pseudo(number),
                                  plain_mode if is_plain else variant.mode,
                                  {} if is_plain else variant.params))
        super().__init__(
            workdir, exports,
            # Stock means stock: not even the folder that our plugin lies in.
            plugin_dir=None if variant.is_plugin else paths.system_plugin_dir(),
            preload=[tools.preload(variant.preload)] if variant.preload else [],
            env=env,
        )

    def prove(self, written):
        """After a run of `written` bytes through export 1: NotProven unless the variant was on.
        Returns what showed it."""
        with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="replace") as maps:
            mapped = "libfsaldontcache" in maps.read()
        if mapped != self.variant.is_plugin:
            raise NotProven(f"{self.variant.name}: the plugin is {'' if mapped else 'not '}loaded")
        if self.variant.preload:
            return self._prove_preload() if written else "nothing written"
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
            seen = stats["client_bytes_total"]  # of UNSTABLE writes and stable ones
            cleaned = sum(value for name, value in stats.items()
                          if re.fullmatch(r"written_\w+_bytes_total", name))
            if seen < written:
                raise NotProven(f"the plugin saw {seen} of {written} bytes")
            if not cleaned and written > stats["limits"]["dirty_bytes"]:
                raise NotProven("the plugin's flusher wrote nothing back")
        return {"mode": stats["mode"], "stats": stats}

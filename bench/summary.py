# SPDX-License-Identifier: LGPL-3.0-or-later
"""report.md of bench/run: a table and a picture for each scenario, its own question answered in
columns of its own, what is not available named, and the figures of the seeds beside ours.

Medians, with the least and the greatest in brackets; ratios are formed within a round (report.py).
"""

from . import report
from .report import median, of, ordered, spread

# What the kernel's series measured (seeds/001; facts about its later versions), and which pair here
# asks the same: (what, there before, there after, scenario, ours, base, value, unit).
_MB_S = "mb_s"
SEED_FIGURES = (
    ("nfsd, 1 writer, dontcache after / before", 3028.3, 3723.1, "seq-write", "dontcache",
     "inline", _MB_S),
    ("nfsd, 1 writer, p99.9", 759169.0, 175112.2, "seq-write", "dontcache", "inline", "p999"),
    ("nfsd, 1 writer, dontcache / buffered", 4653.4, 3723.1, "seq-write", "dontcache", "stock",
     _MB_S),
    ("local, 1 writer, p50", 3031.0, 10551.3, "seq-write", "dontcache", "inline", "p50"),
    ("local, 1 writer, p99.9", 85459.0, 23199.7, "seq-write", "dontcache", "inline", "p999"),
    ("nfsd, random write, after / before", 590.0, 1561.0, "rand-write", "dontcache", "inline",
     _MB_S),
    ("nfsd, 4 writers, after / before", 1894.9, 9442.6, "multi-4-one-file", "dontcache", "inline",
     _MB_S),
    ("nfsd, 4 writers, dontcache / buffered", 9422.9, 9442.6, "multi-4-one-file", "dontcache",
     "stock", _MB_S),
    ("local, 4 writers, after / before", 1281.1, 1629.4, "multi-4", "dontcache", "inline", _MB_S),
    ("nfsd, noisy: writer", 1854.5, 4063.6, "noisy", "dontcache", "inline", _MB_S),
    ("nfsd, noisy: readers", 131.2, 101.6, "noisy", "dontcache", "inline", "readers_mb_s"),
    ("local, mixed: writer", 1297.6, 1471.1, "mixed", "dontcache", "inline", _MB_S),
    ("local, mixed: readers", 855.0, 462.4, "mixed", "dontcache", "inline", "readers_mb_s"),
    ("local, 32 writers, after / before", 1548, 3499, "writers-32", "dontcache", "inline", _MB_S),
    ("local, competing: the plain one", 868, 433, "competing", "dontcache", "inline", "plain"),
)


def _value(record, what):
    if what in ("p50", "p999"):
        return record["lat_us"][what]
    if what == "plain":
        return record["extras"].get("plain MB/s")
    return record[what]


def _number(value):
    """Three digits that mean something."""
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def _extra(group, name):
    values = [r["extras"].get(name) for r in group if r["extras"].get(name) is not None]
    if not values:
        return "-"
    text, low, high = _number(median(values)), _number(min(values)), _number(max(values))
    return text if low == high else f"{text} ({low}..{high})"


def _row(cells):
    return "| " + " | ".join(cells) + " |"


def scenario_lines(result, name, pictures=(), base="stock", ceiling="discard"):
    head, records = result["header"], result["records"]
    about = head["scenarios"][name]
    mine = [r for r in records if r["scenario"] == name]
    extras = ordered(key for r in mine for key in r["extras"])
    lines = [f"### {name}: {about['title']}", "", about["why"], "", about["parameters"] + ".", ""]
    for picture in pictures:
        lines += [f"![{about['title']}]({picture})", ""]
    header = ["variant", *(title for title, _ in report.COLUMNS), f"x {base}", f"of {ceiling}",
              *extras]
    lines += [_row(header), "|" + "---|" * len(header)]
    for variant in head["variants"]:
        group = of(records, name, variant)
        if not group:
            reason = (about["without"].get(variant) or head["unavailable"].get(variant)
                      or _failure(result, name, variant))
            lines.append(_row([variant, f"not here: {reason}", *[""] * (len(header) - 2)]))
            continue
        shares = [100 * share for share in report.ratios(records, name, variant, ceiling)]
        lines.append(_row([
            variant, *(column(group) for _, column in report.COLUMNS),
            spread(report.ratios(records, name, variant, base), 2),
            spread(shares) + " %" if shares else "-", *(_extra(group, key) for key in extras)]))
    return [*lines, "", *report.budgets(records, name)]


def _failure(result, scenario, variant):
    for failure in result["failures"]:
        if f", {scenario}, {variant}: " in failure:
            return "FAILED: " + report.brief(failure.partition(f", {variant}: ")[2])
    return "not run"


def seed_lines(result):
    """The ratio there beside the ratio here."""
    rows = []
    for what, before, after, scenario, ours, base, value in SEED_FIGURES:
        here = report.ratios(result["records"], scenario, ours, base,
                             lambda r, value=value: _value(r, value))
        if here:
            rows.append(_row([what, f"{before:g} -> {after:g}", f"{after / before:.2f}",
                              spread(here, 2), f"{scenario}: {ours} / {base}"]))
    if not rows:
        return []
    return ["## The figures of the kernel's series, there and here", "",
            "There: NFS by the kernel's server, or local files, on other machines; here: this "
            "plugin against the inline form of the same idea, or against stock. The same question, "
            "not the same experiment.", "",
            _row(["what", "there", "ratio there", "ratio here", "of"]), "|" + "---|" * 5, *rows,
            ""]


def losses(result, ours="dontcache"):
    """Where another variant that keeps data was faster in every round that both ran. Ratios of
    single rounds differ by some per cent anyway: the reader sees how much it is."""
    lines, records = [], result["records"]
    for name, about in result["header"]["scenarios"].items():
        if not about["speed"]:
            continue
        for other in result["header"]["variants"]:
            if other in (ours, "discard"):
                continue
            against = report.ratios(records, name, ours, other)
            if against and max(against) < 1:
                lines.append(f"- {name}: {spread(against, 2)} x {other}")
    return ["## Where it loses", "",
            *(lines or [f"Nowhere was another variant faster than {ours} in every round."]), ""]


_DISTURBED = 0.5  # CPUs that others used meanwhile


def disturbed(records):
    """The runs that others disturbed, named: not left out, but not to be built on either."""
    named = [f"{r['scenario']}/{r['variant']}/{r['run']}" for r in records
             if (r["foreign_cpu_s"] + r["steal_s"]) / r["seconds"] > _DISTURBED]
    if not named:
        return []
    return [f"{len(named)} of {len(records)} runs had others on more than {_DISTURBED:g} CPUs: "
            + ", ".join(named) + ".", ""]


def introduction(result):
    head, profile = result["header"], result["header"]["profile"]
    probes = ", ".join(f"{name} {_number(mb_s)} MB/s"
                       for name, mb_s in head.get("device_mb_s", {}).items())
    lines = [
        f"{head['date']}, Linux {head['kernel']}, {head['cpu']} x {head['cpus']}, "
        f"{head['memory_bytes'] / 1e9:.0f} GB of memory, load "
        f"{head['loadavg_before'][0]:.1f} before. {head['versions']['ganesha']}; this project at "
        f"{head['versions']['project']}. `{head['command']}`.", "",
        f"File system {head['fs']} on {head['device']}. Devices before the first run, O_DIRECT, "
        f"1 MiB, depth 16, not throttled: {probes}. Page cache: {head['page_cache']}. Budget "
        f"{profile['budget'] / 1e6:.0f} MB (Dirty_Bytes, and vm.dirty_bytes of `stock-vm`); data "
        f"{profile['data'] / 1e6:.0f} MB a stream, {profile['slow_data'] / 1e6:.0f} on a slow "
        "device.", "",
        f"Profile {profile['name']}, {head['rounds']} rounds: medians, with the least and the "
        "greatest in brackets. The final COMMIT of every file counts in the time. Ratios are "
        "formed within each round. Dirty and writeback are export 1's files as the kernel counts "
        "them.", "",
        *(f"- **{name}**: {title}"
          + (f" (not available: {head['unavailable'][name]})" if name in head["unavailable"]
             else "") for name, title in head["variants"].items()), ""]
    return lines


def markdown(result, pictures=None):
    head, records = result["header"], result["records"]
    pictures = pictures or {}
    lines = [f"# {head['title']}", "", *introduction(result)]
    if "overview" in pictures:
        lines += [f"![Every scenario]({pictures['overview']})", ""]
    for name in head["scenarios"]:
        lines += scenario_lines(result, name, [pictures[key] for key in (name, f"{name}-devices")
                                               if key in pictures])
    if records:
        lines += seed_lines(result) + losses(result)
        lines += report.disturbance(records) + disturbed(records) + report.proofs(records)
    lines += [f"**Failed**: {report.brief(failure)}\n" for failure in result["failures"]]
    return "\n".join(lines) + "\n"

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Tables and pictures from records: medians, the spread beside them, ratios paired by round.

A device's speed drifts within minutes. Variants of one round ran next to each other, so a ratio is
formed within each round and the median of those is shown, not the ratio of two medians.
"""

import statistics
import sys

# No colours are needed to tell the bars apart: greys and hatches.
LOOKS = {
    "discard": ("#ffffff", ".."),
    "stock": ("#b0b0b0", ""),
    "stock-vm": ("#ffffff", "\\\\"),
    "inline": ("#ffffff", "//"),
    "buffered": ("#d8d8d8", "xx"),
    "dontcache": ("#303030", ""),
}
OTHER_LOOK = ("#808080", "--")


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def of(records, scenario, variant):
    return [r for r in records if r["scenario"] == scenario and r["variant"] == variant]


def ordered(values):
    return list(dict.fromkeys(values))


def ratios(records, scenario, variant, base, value=lambda record: record["mb_s"]):
    """value of variant / value of base, for each round in which both ran."""
    bases = {r["run"]: value(r) for r in of(records, scenario, base)}
    return [value(r) / bases[r["run"]] for r in of(records, scenario, variant)
            if bases.get(r["run"])]


def number(value, digits=0, scale=1.0, unknown="-"):
    return unknown if value is None else f"{value / scale:.{digits}f}"


def spread(values, digits=0, scale=1.0):
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    text = number(median(values), digits, scale)
    low, high = number(min(values), digits, scale), number(max(values), digits, scale)
    return text if low == high else f"{text} ({low}..{high})"


def latency(record, name):
    return record["lat_us"][name] / 1000  # ms


def text_table(header, rows):
    """Columns aligned: the first ones of text to the left, numbers to the right."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(row):
        return "  ".join(str(cell).ljust(width) if i < 2 else str(cell).rjust(width)
                         for i, (cell, width) in enumerate(zip(row, widths))).rstrip()

    out, last = [line(header), "  ".join("-" * width for width in widths)], None
    for row in rows:
        if last is not None and row[0] != last:
            out.append("")
        out.append(line([row[0] if row[0] != last else "", *row[1:]]))
        last = row[0]
    return "\n".join(out)


def short_table(records, titles):
    """What quick prints: a line for each load and variant, medians."""
    header = ["load", "IO_Mode", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "dirty+wb MB", "cache MB",
              "COMMIT s", "CPU s/GB"]
    rows = []
    for scenario in ordered(r["scenario"] for r in records):
        for variant in ordered(r["variant"] for r in records):
            group = of(records, scenario, variant)
            if not group:
                continue
            rows.append([
                titles[scenario], variant,
                number(median(r["mb_s"] for r in group)),
                *(number(median(latency(r, p) for r in group), 1) for p in ("p50", "p99", "p999")),
                number(median(r["dirty_writeback_peak_bytes"] for r in group), 0, 1e6),
                number(median(r["cached_growth_bytes"] for r in group), 0, 1e6),
                number(median(r["commit_s"] for r in group), 2),
                number(median(r["cpu_s_per_gb"] for r in group), 2),
            ])
    return text_table(header, rows)


# -- report.md

COLUMNS = (
    ("MB/s", lambda g: spread([r["mb_s"] for r in g])),
    ("p50 ms", lambda g: spread([latency(r, "p50") for r in g], 1)),
    ("p99 ms", lambda g: spread([latency(r, "p99") for r in g], 1)),
    ("p99.9 ms", lambda g: spread([latency(r, "p999") for r in g], 1)),
    ("max ms", lambda g: spread([latency(r, "max") for r in g], 0)),
    ("COMMIT s", lambda g: spread([r["commit_s"] for r in g], 2)),
    ("dirty+wb MB", lambda g: spread([r["dirty_writeback_peak_bytes"] for r in g], 0, 1e6)),
    ("cached MB", lambda g: spread([r["cached_growth_bytes"] for r in g], 0, 1e6)),
    ("CPU s/GB", lambda g: spread([r["cpu_s_per_gb"] for r in g], 2)),
    ("+ kernel", lambda g: spread([r["kernel_cpu_s_per_gb"] for r in g], 2)),
)


def _markdown_row(cells):
    return "| " + " | ".join(cells) + " |"


def _scenario_markdown(records, scenario, load, base, ceiling):
    lines = [f"### {load['title']}", "",
             f"{load['writers']} writers, {load['block'] >> 10} KiB, depth {load['depth']}, "
             f"{load['size'] / 1e9:.2f} GB, files: {load['layout']}"
             f"{', random overwrites' if load['random'] else ''}", ""]
    header = ["variant", *(name for name, _ in COLUMNS), f"x {base}", f"of {ceiling}"]
    lines += [_markdown_row(header), "|" + "---|" * len(header)]
    for variant in ordered(r["variant"] for r in records):
        group = of(records, scenario, variant)
        if group:
            to_base = ratios(records, scenario, variant, base)
            to_ceiling = [100 * share for share in ratios(records, scenario, variant, ceiling)]
            lines.append(_markdown_row([
                variant, *(column(group) for _, column in COLUMNS), spread(to_base, 2),
                "-" if not to_ceiling else spread(to_ceiling) + " %"]))
    return [*lines, "", *budgets(records, scenario)]


def budgets(records, scenario):
    """Whether a hard limit was kept in every run, for the variants that have one."""
    lines = []
    for variant in ordered(r["variant"] for r in records):
        group = [r for r in of(records, scenario, variant)
                 if r["dirty_limit_bytes"] and r["dirty_writeback_peak_bytes"] is not None]
        if not group:
            continue
        limit = group[0]["dirty_limit_bytes"]
        peak = max(r["dirty_writeback_peak_bytes"] for r in group)
        lines += [f"Budget of {variant}: {limit / 1e6:.0f} MB, highest sample {peak / 1e6:.0f} MB: "
                  f"{'kept' if peak <= limit else '**broken**'}.", ""]
    return lines


def brief(error):
    """Of a failure with a log behind it: what it says, and what the plugin said about it."""
    first, *rest = str(error).strip().splitlines() or ["?"]
    said = [line.partition(":CRIT :")[2] for line in rest if ":CRIT :dontcache:" in line]
    return "; ".join([first.rstrip(":"), *said])


def markdown(result, base="stock", ceiling="discard", picture=None):
    """report.md: the header, a table per scenario, what disturbed, what proved."""
    head, records = result["header"], result["records"]
    probes = [r["device_probe_mb_s"] for r in records]
    params = ", ".join(f"{name} = {value}" for name, value in head["params"].items()) or "defaults"
    lines = [
        f"# {head['title']}", "",
        f"{head['date']}, Linux {head['kernel']}, {head['cpu']} x {head['cpus']}, "
        f"{head['memory_bytes'] / 1e9:.0f} GB of memory. {head['versions']['ganesha']}; "
        f"this project at {head['versions']['project']}.", "",
        f"File system {head['fs']} on {head['device']}. The device with O_DIRECT, 1 MiB, depth 16, "
        f"just before each run: {spread(probes)} MB/s. Page cache: {head['page_cache']}. "
        f"Load generator: {head['generator']}. Parameters of dontcache: {params}.", "",
        "Medians of the rounds, with the least and the greatest in brackets. The final COMMIT of "
        f"every file counts in the time. \"x {base}\" and \"of {ceiling}\" are formed within each "
        f"round; {ceiling} is the same server with the data of each WRITE thrown away. \"CPU s/GB\""
        " is the server's processes, \"+ kernel\" what the kernel's own threads used beside them. "
        "Dirty and writeback are the export's files as the kernel counts them (cachestat), every "
        "50 ms; cached is what is left of them in the page cache after the last COMMIT.", "",
    ]
    if picture:
        lines += [f"![MB/s and p99.9 of each load]({picture})", ""]
    for scenario in ordered(r["scenario"] for r in records):
        lines += _scenario_markdown(records, scenario, head["loads"][scenario], base, ceiling)
    if records:
        lines += disturbance(records) + proofs(records)
    lines += [f"**Failed**: {brief(failure)}\n" for failure in result.get("failures", [])]
    return "\n".join(lines) + "\n"


def disturbance(records):
    shares = [(r["foreign_cpu_s"] + r["steal_s"]) / r["seconds"] for r in records]
    return ["## How undisturbed it was", "",
            "Processors used by others (foreign processes and the hypervisor's steal) during a run:"
            f" {spread(shares, 2)} CPUs. The sampler used "
            f"{spread([r['bench_cpu_s'] / r['seconds'] for r in records], 2)} CPUs, the clients "
            f"{spread([r['client_cpu_s_per_gb'] for r in records], 2)} CPU s/GB.", ""]


def proofs(records):
    lines = ["## What was on", ""]
    for variant in ordered(r["variant"] for r in records):
        group = [r for r in records if r["variant"] == variant]
        proof = group[0]["proof"]
        if isinstance(proof, dict):
            proof = f"the plugin's own counters, mode {proof['mode']}"
        verified = sum(r["verified_bytes"] or 0 for r in group)
        lines.append(f"- {variant}: {proof}; {verified / 1e9:.2f} GB read back and compared")
    return [*lines, ""]


# -- plots

def bars(result, path):
    """MB/s and p99.9 of each scenario and variant: median as a bar, each run as a dot.

    Returns whether there is a picture: records are worth having without matplotlib, too."""
    try:
        import matplotlib  # not needed by quick, and slow to load
    except ImportError as error:
        print(f"no plot: {error}; Debian's package is python3-matplotlib, for /usr/bin/python3",
              file=sys.stderr)
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = result["records"]
    scenarios = ordered(r["scenario"] for r in records)
    variants = ordered(r["variant"] for r in records)
    panels = (("MB/s, final COMMIT counted", lambda r: r["mb_s"]),
              ("p99.9 of a WRITE, ms", lambda r: latency(r, "p999")))
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(max(6, 1.8 * len(scenarios)), 7))
    width = 0.84 / len(variants)
    for axis, (title, value) in zip(axes, panels):
        for i, variant in enumerate(variants):
            face, hatch = LOOKS.get(variant, OTHER_LOOK)
            at, heights = [], []
            for k, scenario in enumerate(scenarios):
                values = [value(r) for r in of(records, scenario, variant)]
                if values:
                    at.append(k + (i - (len(variants) - 1) / 2) * width)
                    heights.append(median(values))
                    axis.plot([at[-1]] * len(values), values, linestyle="none", marker="o",
                              markersize=3, markerfacecolor="white", markeredgecolor="black",
                              markeredgewidth=0.7, zorder=3)
            axis.bar(at, heights, width * 0.92, label=variant, color=face, hatch=hatch,
                     edgecolor="black", linewidth=0.8)
        axis.set_xticks(range(len(scenarios)))
        axis.set_xticklabels([result["header"]["loads"][s]["title"].replace(", ", ",\n")
                              for s in scenarios], fontsize=9)
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", linewidth=0.4)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(ncol=len(variants), loc="lower center", bbox_to_anchor=(0.5, 1.02),
                   frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Pictures of bench/run: one for each scenario, with four panels, and one of all; where several
devices take part, also one of dirty and writeback apart, for each device.

  bars             MB/s of each variant: the median, each run a dot, the spread a line
  over time        MB/s
  memory           dirty + writeback of each export over time, the budget drawn in
  latency          1 - cumulated share of requests, both axes logarithmic: the tail is what differs

Where one run is drawn, it is the one nearest to the median. Variants are told apart by greys,
hatches, dashes and marks, never by colour alone.
"""

import os
import sys

from .report import LOOKS, OTHER_LOOK, median, of, ordered

_LINES = {  # variant -> (grey, dashes, width)
    "discard": ("0.6", (0, (1, 1)), 1.0),
    "stock": ("0.45", "solid", 1.2),
    "stock-vm": ("0.45", (0, (5, 1, 1, 1)), 1.2),
    "inline": ("0.2", (0, (4, 2)), 1.2),
    "buffered": ("0.6", (0, (2, 2)), 1.0),
    "dontcache": ("0.0", "solid", 2.0),
}
_OTHER_LINE = ("0.3", (0, (1, 3)), 1.2)


def _pyplot():
    try:
        import matplotlib  # slow to load, and records are worth having without it
    except ImportError as error:
        print(f"no plots: {error}; Debian's package is python3-matplotlib, for /usr/bin/python3",
              file=sys.stderr)
        return None
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False, "svg.fonttype": "none",
                                "svg.hashsalt": "bench", "hatch.linewidth": 0.6})
    from matplotlib import pyplot
    return pyplot


def _line(variant):
    grey, dashes, width = _LINES.get(variant, _OTHER_LINE)
    return {"color": grey, "linestyle": dashes, "linewidth": width}


def tail(histogram):
    """[(ms, share of requests that took longer)]: what a latency plot draws."""
    total = sum(count for _, count in histogram)
    points, seen = [], 0
    for value, count in histogram:
        seen += count
        points.append((max(value, 1) / 1000, max(0.0, 1 - seen / total)))
    return points


def _bars(axis, records, scenario, variants, value, title):
    for i, variant in enumerate(variants):
        values = [value(r) for r in of(records, scenario, variant)]
        values = [v for v in values if v is not None]
        if not values:
            continue
        face, hatch = LOOKS.get(variant, OTHER_LOOK)
        middle = median(values)
        axis.bar(i, middle, 0.75, color=face, hatch=hatch, edgecolor="black", linewidth=0.8)
        axis.errorbar([i], [middle], [[middle - min(values)], [max(values) - middle]],
                      color="black", capsize=4, linewidth=1)
        axis.plot([i] * len(values), values, linestyle="none", marker="o", markersize=3,
                  markerfacecolor="white", markeredgecolor="black", zorder=3)
    axis.set_xticks(range(len(variants)))
    axis.set_xticklabels(variants, rotation=20)
    axis.set_ylabel(title)
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", linewidth=0.3)
    axis.set_axisbelow(True)


def typical(records, scenario, variant):
    """The run whose rate is nearest to the median: not the prettiest one, nor the first."""
    group = of(records, scenario, variant)
    middle = median(r["mb_s"] for r in group)
    return min(group, key=lambda r: abs(r["mb_s"] - middle))


def _over_time(axis, records, scenario, variants):
    for variant in variants:
        record = typical(records, scenario, variant)
        for name, stream in record["streams"].items():
            points = stream["mb_s_timeline"]
            if len(record["streams"]) > 1 and variant not in ("stock", "dontcache"):
                continue  # several streams of six variants: nobody could read that
            marker = ("", "o", "s", "^")[list(record["streams"]).index(name) % 4]
            axis.plot([t for t, _ in points], [rate for _, rate in points],
                      label=variant if len(record["streams"]) == 1 else f"{variant}, {name}",
                      marker=marker, markersize=3, markevery=max(1, len(points) // 8),
                      **_line(variant))
    axis.set_xlabel("seconds")
    axis.set_ylabel("MB/s")
    axis.set_ylim(bottom=0)
    axis.grid(linewidth=0.3)
    axis.legend(frameon=False, fontsize=7)


def _memory(axis, records, scenario, variants, budget):
    for variant in variants:
        record = typical(records, scenario, variant)
        if variant == "discard":
            continue
        for number, export in enumerate(record["exports"]):
            if number and variant not in ("stock", "dontcache"):
                continue
            points = export["timeline"]
            label = variant + (f", export {number + 1}" if number else "")
            axis.plot([p[0] for p in points], [(p[1] + p[2]) / 1e6 for p in points], label=label,
                      marker="s" if number else "", markersize=3,
                      markevery=max(1, len(points) // 8), **_line(variant))
    axis.axhline(budget / 1e6, color="black", linewidth=0.8, linestyle=(0, (6, 3)))
    axis.annotate("budget", (1, budget / 1e6), xycoords=("axes fraction", "data"), ha="right",
                  va="bottom", fontsize=7)
    axis.set_xlabel("seconds")
    axis.set_ylabel("dirty + writeback, MB")
    axis.set_ylim(bottom=0)
    axis.grid(linewidth=0.3)
    axis.legend(frameon=False, fontsize=7)


def _latency(axis, records, scenario, variants):
    for variant in variants:
        histogram = typical(records, scenario, variant)["lat_histogram_us"]
        points = [(ms, share) for ms, share in tail(histogram) if share > 0]
        axis.plot([ms for ms, _ in points], [share for _, share in points], label=variant,
                  **_line(variant))
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("ms")
    axis.set_ylabel("share of requests slower")
    axis.grid(linewidth=0.3)


def draw_scenario(result, scenario, path):
    """False where there is nothing to draw or nothing to draw with."""
    pyplot = _pyplot()
    records = [r for r in result["records"] if r["scenario"] == scenario]
    if pyplot is None or not records:
        return False
    variants = [v for v in result["header"]["variants"] if of(records, scenario, v)]
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6.4))
    _bars(axes[0][0], records, scenario, variants, lambda r: r["mb_s"],
          "MB/s, final COMMIT counted")
    _over_time(axes[0][1], records, scenario, variants)
    _memory(axes[1][0], records, scenario, variants, result["header"]["profile"]["budget"])
    _latency(axes[1][1], records, scenario, variants)
    figure.suptitle(f"{scenario}: {result['header']['scenarios'][scenario]['title']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None, dpi=80)
    pyplot.close(figure)
    return True


def draw_devices(result, scenario, path):
    """Dirty and writeback apart, a row for each variant and a column for each export: the pictures
    of the mail that asked what a second device does to the first one's dirty pages."""
    pyplot = _pyplot()
    records = [r for r in result["records"] if r["scenario"] == scenario]
    variants = [v for v in result["header"]["variants"] if v != "discard"
                and of(records, scenario, v)]
    if pyplot is None or not variants:
        return False
    columns = max(len(r["exports"]) for r in records)
    budget = result["header"]["profile"]["budget"] / 1e6
    figure, axes = pyplot.subplots(len(variants), columns, sharex=True, sharey=True, squeeze=False,
                                   figsize=(5 * columns, 0.6 + 1.5 * len(variants)))
    for row, variant in zip(axes, variants):
        exports = typical(records, scenario, variant)["exports"]
        for number, (axis, export) in enumerate(zip(row, exports)):
            times = [p[0] for p in export["timeline"]]
            dirty = [p[1] / 1e6 for p in export["timeline"]]
            both = [(p[1] + p[2]) / 1e6 for p in export["timeline"]]
            axis.fill_between(times, dirty, color="0.75", label="dirty", linewidth=0)
            axis.fill_between(times, dirty, both, facecolor="white", edgecolor="0.3",
                              hatch="////", label="writeback", linewidth=0.4)
            axis.plot(times, both, color="black", linewidth=0.8)
            axis.axhline(budget, color="black", linewidth=0.8, linestyle=(0, (6, 3)))
            axis.set_title(f"{variant}, export {number + 1}", fontsize=8, loc="left", pad=2)
            axis.grid(linewidth=0.3)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].legend(frameon=False, fontsize=7, loc="upper right")
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    figure.supylabel("MB; dashes: the budget", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None, dpi=80)
    pyplot.close(figure)
    return True


def draw_overview(result, path):
    """MB/s of every scenario as a multiple of stock, formed within each round."""
    from .report import ratios

    pyplot = _pyplot()
    records = result["records"]
    about = result["header"]["scenarios"]
    scenarios = [s for s in ordered(r["scenario"] for r in records)
                 if of(records, s, "stock") and about[s]["speed"]]
    variants = [v for v in result["header"]["variants"]
                if v != "stock" and any(r["variant"] == v for r in records)]
    if pyplot is None or not scenarios or not variants:
        return False
    figure, axis = pyplot.subplots(figsize=(9, 1.2 + 0.42 * len(scenarios)))
    height = 0.84 / len(variants)
    labelled = set()
    for i, variant in enumerate(variants):
        face, hatch = LOOKS.get(variant, OTHER_LOOK)
        for k, scenario in enumerate(scenarios):
            values = ratios(records, scenario, variant, "stock")
            if not values:
                continue
            at = k + (i - (len(variants) - 1) / 2) * height
            axis.barh(at, median(values) - 1, height * 0.9, left=1, color=face, hatch=hatch,
                      linewidth=0.6, edgecolor="black",
                      label=None if variant in labelled else variant)
            labelled.add(variant)
            axis.plot([min(values), max(values)], [at, at], color="0.5", linewidth=1.2)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_ylim(-0.6, len(scenarios) - 0.4)
    axis.set_yticks(range(len(scenarios)))
    axis.set_yticklabels(scenarios)
    axis.invert_yaxis()
    axis.set_xlabel("MB/s, as a multiple of stock: to the right of 1 is faster")
    axis.grid(axis="x", linewidth=0.3)
    axis.set_axisbelow(True)
    axis.legend(ncol=len(variants), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None, dpi=110)
    pyplot.close(figure)
    return True


def draw_all(result, folder, kind="svg"):
    """{scenario, SCENARIO-devices or 'overview': file} of what was drawn."""
    os.makedirs(folder, exist_ok=True)
    drawn = {}
    if draw_overview(result, os.path.join(folder, "overview.png")):
        drawn["overview"] = "overview.png"
    for scenario in ordered(r["scenario"] for r in result["records"]):
        if draw_scenario(result, scenario, os.path.join(folder, f"{scenario}.{kind}")):
            drawn[scenario] = f"{scenario}.{kind}"
        if len(result["header"]["scenarios"][scenario]["devices"]) > 1:
            name = f"{scenario}-devices"
            if draw_devices(result, scenario, os.path.join(folder, f"{name}.{kind}")):
                drawn[name] = f"{name}.{kind}"
    return drawn

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Pictures of single runs: throughput over time, dirty and writeback over time with the budget drawn in, and
the distribution of latencies. Told apart by line style, so that they can be printed.

From each variant the run with the median throughput is drawn, not the prettiest.
"""

import os
import statistics

from . import report

_STYLES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))


def typical(records, scenario, variant):
    """The record whose throughput is nearest to the median; None if there is none."""
    group = report.of(records, scenario, variant)
    if not group:
        return None
    middle = statistics.median(r["mb_s"] for r in group)
    return min(group, key=lambda r: abs(r["mb_s"] - middle))


def tail(histogram):
    """[(microseconds, share of all above)], from [[microseconds, count], ...]."""
    total = sum(count for _, count in histogram)
    points, left = [], total
    for value, count in histogram:
        left -= count
        points.append((value, left / total))
    return points


def rates(timeline, width=0.5):
    """[(second, MB/s)] from the generator's [[second, bytes], ...], in steps of `width` seconds."""
    steps = {}
    for second, count in timeline or ():
        steps[int(second / width)] = steps.get(int(second / width), 0) + count
    return [(step * width, steps.get(step, 0) / width / 1e6) for step in range(max(steps, default=-1) + 1)]


def _pyplot():
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot


def _finish(pyplot, figure, path):
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(path + suffix, dpi=110)
    pyplot.close(figure)


def of_scenario(result, scenario, folder):
    """Writes SCENARIO.png and .svg: three panels. Returns the file's name, or None."""
    records = result["records"]
    variants = report.ordered(r["variant"] for r in report.ordered_records(records, scenario))
    drawn = [(v, typical(records, scenario, v)) for v in variants]
    drawn = [(v, r) for v, r in drawn if r]
    if not drawn:
        return None
    pyplot = _pyplot()
    figure, (speed, memory, latency) = pyplot.subplots(3, 1, figsize=(7, 9))
    limit = None
    for i, (variant, record) in enumerate(drawn):
        style = _STYLES[i % len(_STYLES)]
        points = rates(record["timeline"])
        speed.plot([x for x, _ in points], [y for _, y in points], linestyle=style, color="black", label=variant)
        if record.get("memory_timeline"):
            memory.plot([row[0] for row in record["memory_timeline"]],
                        [(row[1] + row[2]) / 1e6 for row in record["memory_timeline"]],
                        linestyle=style, color="black", label=variant)
        limit = record["dirty_limit_bytes"] or limit
        points = [(x / 1000, y) for x, y in tail(record["lat_histogram_us"]) if y > 0]
        latency.plot([x for x, _ in points], [y for _, y in points], linestyle=style, color="black", label=variant)
    if limit:
        memory.axhline(limit / 1e6, color="grey", linewidth=1)
        memory.annotate("Dirty_Bytes", (0, limit / 1e6), fontsize=8, va="bottom", color="grey")
    speed.set_ylabel("MB/s")
    speed.set_xlabel("s")
    memory.set_ylabel("dirty + writeback, MB")
    memory.set_xlabel("s")
    memory.set_yscale("symlog", linthresh=10)
    latency.set_xscale("log")
    latency.set_yscale("log")
    latency.set_xlabel("latency of a WRITE, ms")
    latency.set_ylabel("share above")
    for axis in (speed, memory, latency):
        axis.grid(linewidth=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    speed.set_ylim(bottom=0)
    speed.legend(ncol=len(drawn), loc="lower center", bbox_to_anchor=(0.5, 1.02), frameon=False, fontsize=9)
    _finish(pyplot, figure, os.path.join(folder, scenario))
    return scenario + ".png"

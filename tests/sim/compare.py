#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Compares pacing laws in the simulator: a table, and with --draw FILE.png what is dirty over time.

    tests/sim/compare.py [--draw docs/img/pacing-laws.png] [SCENARIO...]

A scenario is a name in scenarios/, or a file. The table shows the first devices, exports and clients of each.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SIM = os.path.join(ROOT, "build", "release", "tests", "sim", "sim")
LAWS = ("linear", "cubic", "delay", "none")
SCENARIOS = ("one-device", "fair", "come-and-go", "slowdown", "kinds", "retune")
DRAWN = (("slowdown", 3, 10, "16 writers; at 5 s the device loses nine tenths of its speed"),
         ("retune", 8, 24, "Dirty_Bytes 256M, from 10 s to 20 s 16M"))


def run(scenario, law, trace=None):
    path = os.path.join(HERE, "scenarios", f"{scenario}.sim")
    command = [SIM, "--law", law, path if os.path.exists(path) else scenario]
    if trace:
        command[1:1] = ["--trace", trace]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return json.loads(done.stdout)


def table(scenarios):
    print("| scenario | law | device busy | off its set point | variation in 100 ms | p50 ms | p99.9 ms "
          "| longest gap ms |")
    print("|---|---|---|---|---|---|---|---|")
    for scenario in scenarios:
        for law in LAWS:
            result = run(scenario, law)
            device = next(iter(result["devices"].values()))
            export = next(iter(result["exports"].values()))
            clients = next(iter(result["clients"].values()))
            off = "(none: at the limit)" if law == "none" else f"{100 * export['off_setpoint']:.1f} %"
            print(f"| {scenario} | {law} | {100 * device['utilisation']:.1f} % | {off} | "
                  f"{clients['variation']:.3f} | {clients['p50_ms']:.1f} | {clients['p999_ms']:.1f} | "
                  f"{clients['gap_ms']:.1f} |")


def averaged(rows, step):
    """[(seconds, MB dirty and under writeback)], means over `step`."""
    bins = {}
    for row in rows:
        both = (float(row["dirty"]) + float(row["writeback"])) / 1e6
        bins.setdefault(int((float(row["seconds"]) - 1) / step), []).append(both)
    return [((i + 0.5) * step, sum(v) / len(v)) for i, v in sorted(bins.items())]


def draw(path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(DRAWN), figsize=(11, 3.6))
    styles = {"linear": ("-", "black", 1.6), "cubic": ("--", "0.35", 1.2), "delay": ("-.", "0.5", 1.2),
              "none": (":", "0.2", 1.2)}
    for axis, (scenario, start, end, title) in zip(axes, DRAWN):
        for law in LAWS:
            with tempfile.NamedTemporaryFile(suffix=".csv") as trace:
                run(scenario, law, trace.name)
                with open(trace.name, encoding="utf-8") as file:
                    rows = [r for r in csv.DictReader(file) if start <= float(r["seconds"]) - 1 <= end]
            style, colour, width = styles[law]
            points = averaged(rows, 0.1)
            axis.plot([p[0] for p in points], [p[1] for p in points], style, color=colour,
                      linewidth=width, label=law)
        axis.step([float(r["seconds"]) - 1 for r in rows], [float(r["limit"]) / 1e6 for r in rows],
                  color="black", linewidth=0.6)
        axis.text(start, float(rows[0]["limit"]) / 1e6, "Dirty_Bytes", va="bottom", fontsize=8)
        axis.set_ylim(0, 1.12 * float(rows[0]["limit"]) / 1e6)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("seconds")
        axis.set_ylabel("dirty + writeback, MB")
        axis.grid(linewidth=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--draw", metavar="FILE.png")
    arguments = parser.parse_args()
    if not os.path.exists(SIM):
        sys.exit("The simulator is not built: scripts/build.sh release")
    table(arguments.scenarios)
    if arguments.draw:
        draw(arguments.draw)


if __name__ == "__main__":
    main()

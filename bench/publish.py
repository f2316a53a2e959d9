# SPDX-License-Identifier: LGPL-3.0-or-later
"""docs/results.md and README's block, from a run: generated, never edited.

README's block lies between two comments; the rest of the file is left alone. Pictures go to
docs/img as PNG: a fifth of the size of SVG, which counts in a repository.
"""

import os

from harness import paths

from . import plots, report, summary

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
# What README shows; the rest is in docs/results.md.
_README_SCENARIOS = {  # name -> its own columns beside speed
    "seq-write": (), "multi-4": (), "multi-16": (), "rand-write": (), "small-write": (),
    "noisy": ("readers MB/s",),
    "commit-slow": (),
    "competing": ("plain MB/s",),
    "slow-beside-fast": ("kept",),
    "many-64": ("Jain, modest", "while all write"),
    "durable-commit": (),
    "scattered": ("counted dirty / written",),
}
_README_VARIANTS = ("stock", "stock-vm", "inline", "dontcache")


def block_replaced(text, block):
    """text with what lies between the marks replaced; ValueError where they are not there once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"wanted once each, in this order: {BEGIN} and {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block.strip()}\n{END}{rest.split(END)[1]}"


def _cell(records, scenario, variant, value, digits=0):
    values = [value(r) for r in report.of(records, scenario, variant)]
    return report.number(report.median(values), digits)


def _readme_rows(about, extras):
    """[(title, value of a record, digits, ratio to stock shown)]"""
    rows = []
    if about["speed"]:
        rows = [("MB/s", lambda r: r["mb_s"], 0, True),
                ("p99.9, ms", lambda r: r["lat_us"]["p999"] / 1000, 0, False),
                ("COMMIT, s", lambda r: r["commit_s"], 2, False),
                ("peak dirty + writeback, MB", lambda r: r["dirty_writeback_peak_bytes"] / 1e6, 0,
                 False)]
    return rows + [(name, lambda r, name=name: r["extras"].get(name), 2, False) for name in extras]


def readme_block(result, picture=None):
    head, records = result["header"], result["records"]
    variants = [name for name in _README_VARIANTS if any(r["variant"] == name for r in records)]
    lines = [f"![Every scenario]({picture})", ""] if picture else []
    lines += ["| scenario | | " + " | ".join(variants) + " | dontcache x stock |",
              "|" + "---|" * (len(variants) + 3)]
    for scenario, extras in _README_SCENARIOS.items():
        if scenario not in head["scenarios"] or not any(r["scenario"] == scenario
                                                        for r in records):
            continue
        rows = _readme_rows(head["scenarios"][scenario], extras)
        for i, (title, value, digits, compared) in enumerate(rows):
            ratio = report.ratios(records, scenario, "dontcache", "stock") if compared else []
            lines.append("| " + " | ".join([
                head["scenarios"][scenario]["title"] if i == 0 else "", title,
                *(_cell(records, scenario, name, value, digits) for name in variants),
                report.spread(ratio, 2) if ratio else ""]) + " |")
    lines += ["", *(f"*{name}*: {head['variants'][name]}." for name in variants), "",
              f"`{head['command']}` on {head['date'][:10]}: Linux {head['kernel']}, {head['cpus']} "
              f"CPUs, {head['memory_bytes'] / 1e9:.0f} GB, {head['fs']}, page cache "
              f"{head['page_cache']}, {head['rounds']} rounds; medians, and in brackets the least "
              "and the greatest ratio of a round. A ratio whose bracket holds 1 means no "
              "difference. All of it, losses too: [docs/results.md](docs/results.md)."]
    return "\n".join(lines)


def publish(result, root=paths.ROOT):
    images = os.path.join(root, "docs", "img")
    pictures = plots.draw_all(result, images, "png")
    with open(os.path.join(root, "docs", "results.md"), "w", encoding="utf-8") as out:
        out.write(summary.markdown(result, {n: f"img/{file}" for n, file in pictures.items()}))
    overview = pictures.get("overview")
    block = readme_block(result, overview and f"docs/img/{overview}")
    path = os.path.join(root, "README.md")
    with open(path, encoding="utf-8") as readme:
        text = block_replaced(readme.read(), block)
    with open(path, "w", encoding="utf-8") as readme:
        readme.write(text)

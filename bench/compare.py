# SPDX-License-Identifier: LGPL-3.0-or-later
"""Do two runs say the same? Each ratio to stock of one has its spread, the other its own: they agree
where these overlap."""

from . import report


def _spread(records, scenario, variant):
    ratios = []
    for record in report.of(records, scenario, variant):
        base = [r for r in report.of(records, scenario, "stock") if r["run"] == record["run"]]
        if base and base[0]["mb_s"]:
            ratios.append(record["mb_s"] / base[0]["mb_s"])
    return sorted(ratios)


def ratios(one, two):
    """[(scenario, variant, spread of one, spread of two, whether they overlap)]"""
    rows = []
    pairs = dict.fromkeys((r["scenario"], r["variant"]) for r in one["records"])
    for scenario, variant in pairs:
        if variant == "stock":
            continue
        a = _spread(one["records"], scenario, variant)
        b = _spread(two["records"], scenario, variant)
        if a and b:
            rows.append((scenario, variant, [a[0], a[-1]], [b[0], b[-1]],
                         a[0] <= b[-1] and b[0] <= a[-1]))
    return rows


def text(one, two):
    rows = ratios(one, two)
    lines = ["| scenario | variant | x stock, one | x stock, two | |", "|---|---|---|---|---|"]
    for scenario, variant, a, b, same in rows:
        lines.append(f"| {scenario} | {variant} | {a[0]:.2f}..{a[1]:.2f} | {b[0]:.2f}..{b[1]:.2f} | "
                     f"{'' if same else 'apart'} |")
    if any(a[0] == a[1] or b[0] == b[1] for _, _, a, b, _ in rows):
        lines += ["", "With one round a spread is a point: \"apart\" then says nothing."]
    agree = sum(same for *_, same in rows)
    return "\n".join([*lines, "", f"{agree} of {len(rows)} ratios agree."])

# SPDX-License-Identifier: LGPL-3.0-or-later
"""Arithmetic on what was measured, and nothing else: no file, no clock, no machine.

Percentiles are taken of histograms, because histograms of several clients add up and percentiles
do not. Fairness is Jain's index. What the benchmark claims rests on these few lines, so they are
apart, where a test can reach them without root.
"""

import statistics


def merged(histograms):
    """One histogram, [[value, count], ...] sorted, of several."""
    total = {}
    for histogram in histograms:
        for value, count in histogram:
            total[value] = total.get(value, 0) + count
    return [[value, total[value]] for value in sorted(total)]


def percentile(histogram, percent):
    """Of a sorted histogram; the value that so many percent do not exceed, 0 of nothing."""
    rank = max(1, round(sum(count for _, count in histogram) * percent / 100))
    for value, count in histogram:
        rank -= count
        if rank <= 0:
            return value
    return 0


def latencies(histogram, greatest):
    """lat_us of a record. A bucket is named by its upper end, which may lie above what was seen."""
    names = {"p50": 50, "p99": 99, "p999": 99.9}
    return {name: min(percentile(histogram, percent), greatest)
            for name, percent in names.items()} | {"max": greatest}


def of_values(values, percent):
    """The same of plain values; None of none."""
    values = sorted(values)
    return percentile([[value, 1] for value in values], percent) if values else None


def jain(rates):
    """Jain's index: 1 where all get the same, 1/n where one gets all; None without anybody."""
    rates = list(rates)
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else None


def variation(values):
    """Standard deviation / mean: 0 is a straight line. None of fewer than two values."""
    values = list(values)
    mean = statistics.fmean(values) if values else 0
    return statistics.pstdev(values) / mean if len(values) > 1 and mean else None


def per_second(timeline, step_s=1.0):
    """MB/s in whole steps, of nfsload's timeline {"ms", "mb"}; the broken step at the end is
    dropped."""
    each = max(1, round(step_s * 1000 / timeline["ms"]))
    amounts = timeline["mb"]
    return [sum(amounts[i:i + each]) / (each * timeline["ms"] / 1000)
            for i in range(0, len(amounts) - each + 1, each)]


def between(timeline, start_s, end_s):
    """MB in the whole steps that lie between two moments."""
    step = timeline["ms"] / 1000
    return sum(amount for i, amount in enumerate(timeline["mb"])
               if i * step >= start_s and (i + 1) * step <= end_s)


def sums_over_time(series, step_s):
    """Sum of several streams, each (seconds after the run's start, timeline): [[t, MB/s], ...]."""
    bins = {}
    for start, timeline in series:
        width = timeline["ms"] / 1000
        for i, amount in enumerate(timeline["mb"]):
            index = int((start + (i + 0.5) * width) / step_s)
            bins[index] = bins.get(index, 0.0) + amount
    if not bins:
        return []
    return [[round(i * step_s, 3), bins.get(i, 0.0) / step_s] for i in range(max(bins) + 1)]


def growth(samples):
    """Mean of the last quarter less mean of the first: what grows, not what swings."""
    samples = list(samples)
    quarter = len(samples) // 4
    if not quarter:
        return None
    return statistics.fmean(samples[-quarter:]) - statistics.fmean(samples[:quarter])

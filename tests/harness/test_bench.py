# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the benchmark computes and writes, without measuring anything: percentiles, fairness, the
table of scenarios, the shape of results.json, the pages made of it, and vm.dirty_bytes put back.

A wrong formula here would be a wrong claim in README. No root is needed.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [ROOT]

from bench import (compare, extras, figures, plots, publish, report, scenarios, stage,  # noqa: E402
                   streams, summary, variants, vmdirty)
from harness import paths  # noqa: E402
from harness.kernel import Sample  # noqa: E402
from harness.testing import main, requires, workdir  # noqa: E402

# What the specification of results.json names.
WANTED = ("scenario", "variant", "run", "mb_s", "iops", "lat_us", "commit_s", "dirty_peak_bytes",
          "writeback_peak_bytes", "cached_growth_bytes", "device_bytes", "cpu_s_per_gb",
          "rss_peak_bytes", "readers_mb_s", "per_client_mb_s")


def test_percentiles_of_histograms():
    histogram = [[10, 900], [20, 90], [30, 9], [99, 1]]
    assert figures.percentile(histogram, 50) == 10
    assert figures.percentile(histogram, 99) == 20
    assert figures.percentile(histogram, 99.9) == 30
    assert figures.percentile(histogram, 100) == 99
    assert figures.percentile([], 50) == 0
    assert figures.percentile([[7, 1]], 99.9) == 7
    # A bucket is named by its upper end: no percentile may pass what was really seen.
    assert figures.latencies(histogram, 25)["p999"] == 25
    assert figures.of_values([3, 1, 2], 50) == 2 and figures.of_values([], 50) is None


def test_histograms_add_up_where_percentiles_do_not():
    fast, slow = [[1, 99], [2, 1]], [[2, 1], [100, 99]]
    both = figures.merged([fast, slow])
    assert both == [[1, 99], [2, 2], [100, 99]]
    assert figures.percentile(both, 50) == 2
    assert figures.merged([]) == []


def test_jain_and_variation():
    assert figures.jain([5, 5, 5, 5]) == 1
    assert figures.jain([1, 0, 0, 0]) == 0.25
    assert figures.jain([0, 0]) is None and figures.jain([]) is None
    assert figures.variation([4, 4, 4]) == 0
    assert abs(figures.variation([2, 4]) - 1 / 3) < 1e-9
    assert figures.variation([1]) is None and figures.variation([]) is None


def test_fairness_while_all_write():
    # The modest two write for two seconds; the greedy one fills an empty budget first and has the
    # device to itself at the end: neither counts.
    modest = {"write_seconds": 2.0, "writers": [{}, {}],
              "timeline": {"ms": 100, "mb": [4.0] * 20}}
    greedy = {"timeline": {"ms": 100, "mb": [50.0] + [3.0] * 19 + [9.0] * 10}}
    assert abs(extras.while_all_write(modest, greedy) - 1.5) < 1e-9


def test_agreement_of_two_runs():
    def result(*values):
        records = [{"scenario": "s", "variant": v, "run": i, "mb_s": x, "lat_us": {"p999": 1000}}
                   for i, (a, b) in enumerate(values, 1) for v, x in (("stock", a), ("dontcache", b))]
        return {"records": records}
    one, two, far = result((1, 2), (1, 3)), result((1, 2.9), (1, 4)), result((1, 5), (1, 6))
    rows = compare.ratios(one, two)
    assert rows == [("s", "dontcache", [2, 3], [2.9, 4], True)]
    assert compare.ratios(one, far)[0][4] is False


def test_rates_over_time():
    timeline = {"ms": 100, "mb": [10.0] * 25}
    assert figures.per_second(timeline) == [100.0, 100.0], "the broken second is dropped"
    late = figures.sums_over_time([(0.0, timeline), (1.0, timeline)], 1.0)
    assert [round(rate) for _, rate in late] == [100, 200, 150, 50]
    assert sum(rate for _, rate in late) == 500, "no byte is lost or counted twice"
    assert figures.growth([1] * 10 + [3] * 10) == 2 and figures.growth([1]) is None
    assert stage.thinned(list(range(1000)), 100) == list(range(0, 1000, 10))


def test_table_of_scenarios_is_sound():
    names = [each.name for each in scenarios.SCENARIOS]
    assert len(set(names)) == len(names)
    for profile in (scenarios.FULL, scenarios.QUICK):
        assert min(profile.data, profile.slow_data) >= 4 * profile.budget
        for each in scenarios.SCENARIOS:
            assert each.why and scenarios.parameters(each, profile)
            known = {stream.name for stream in each.streams}
            assert len(known) == len(each.streams), f"{each.name}: files would collide"
            assert any(stream.judged for stream in each.streams), each.name
            assert set(each.without) <= {"discard", "stock", "stock-vm", "inline"}, each.name
            for extra in each.extras:
                assert callable(getattr(extras, extra)), (each.name, extra)
            for stream in each.streams:
                assert {stream.until, stream.after} - {None} <= known - {stream.name}, each.name
                assert stream.export < len(each.places)
                size = scenarios.stream_bytes(stream, each, profile)
                assert size and size % (stream.block * stream.writers) == 0
    assert scenarios.by_name(["noisy", "multi-4"], scenarios.FULL)[0].name == "multi-4"
    assert "many-256" not in [s.name for s in scenarios.by_name([], scenarios.QUICK)]
    with contextlib.suppress(KeyError):
        scenarios.by_name(["nonsense"], scenarios.FULL)
        raise AssertionError("an unknown scenario is accepted")


def test_generator_knows_every_option_of_the_table():
    program = os.path.join(paths.build_dir("release"), "bench", "nfsload")
    requires(os.path.exists(program), "nfsload is not built")
    usage = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    for each in scenarios.SCENARIOS:
        for stream in each.streams:
            words = [*streams.options(stream, each, scenarios.QUICK, 1),
                     *streams._run_options(stream, scenarios.QUICK)]
            for word in words:
                assert not word.startswith("--") or f"{word} " in usage, (each.name, word)


def made_up_report(rate, writers=1):
    return {"bytes": 1000, "seconds": 2.0, "write_seconds": 1.5, "mb_s": rate, "start_ns": 10 ** 9,
            "commit_s": 0.5, "jukebox": 0, "lat_us": {"p999": 40, "max": 50},
            "histogram_us": [[10, 9], [40, 1]], "timeline": {"ms": 100, "mb": [0.1] * 20},
            "writers": [{"mb_s": rate / writers, "bytes": 1000 // writers, "blocks": 1}] * writers}


class MadeUpSampler:
    peak_dirty, peak_writeback, peak_dirty_writeback, longest_gap = 10, 20, 25, 0.05
    samples = [Sample(1.0 + i / 20, 1000 * i, 500, 0) for i in range(20)]


def made_up_result(rates=((100, 150), (200, 250))):
    """Two rounds of `noisy`, as Stage would record them, for stock and dontcache."""
    scenario = next(s for s in scenarios.SCENARIOS if s.name == "noisy")
    records = []
    for number, pair in enumerate(rates, 1):
        for name, rate in zip(("stock", "dontcache"), pair):
            reports = {"writer": made_up_report(rate), "readers": made_up_report(9, 3)}
            run = extras.Run(scenario, reports, [MadeUpSampler()], [1100], [])
            used = {"server": 1, "kernel": 1, "clients": 1, "bench": 1, "foreign": 1, "steal": 0}
            record = stage._record(scenario, variants.get(name), number, run, used, 1.0)
            records.append(record | {
                "mb_s": rate, "cached_growth_bytes": 0, "rss_peak_bytes": 1, "proof": "made up",
                "device_probe_mb_s": 1, "verified_bytes": None, "extras": extras.compute(run),
                "dirty_limit_bytes": 30 if name == "dontcache" else None})
    header = {"title": "t", "date": "2000-01-01T00:00:00", "kernel": "6", "cpu": "c", "cpus": 2,
              "memory_bytes": 1e9, "loadavg_before": [0, 0, 0], "command": "bench/run",
              "versions": {"ganesha": "g", "project": "p"}, "fs": "xfs", "device": "d",
              "page_cache": "aged", "rounds": 2, "params": {},
              "profile": {"name": "quick", "budget": 30, "data": 1, "slow_data": 1},
              "scenarios": {"noisy": {"title": scenario.title, "why": scenario.why, "seed": "001",
                                      "without": {}, "devices": ["fast"], "speed": True,
                                      "parameters": "p"}},
              "variants": {"stock": "s", "dontcache": "d", "direct": "x"},
              "unavailable": {"direct": "this build has no IO_Mode direct"}}
    return {"header": header, "records": records, "failures": []}


def test_records_hold_what_was_promised():
    record = made_up_result()["records"][0]
    assert all(name in record for name in WANTED), set(WANTED) - set(record)
    assert set(record["lat_us"]) == {"p50", "p99", "p999", "max"}
    assert record["readers_mb_s"] == 9 and record["commit_s"] == 0.5
    assert record["lat_us"]["max"] == 50 and record["bytes"] == 1000, "readers are not judged"
    json.dumps(record)


def test_report_names_all_variants_and_pairs_rounds():
    result = made_up_result()
    text = summary.markdown(result)
    assert "| direct | not here: this build has no IO_Mode direct |" in text
    assert report.ratios(result["records"], "noisy", "dontcache", "stock") == [1.5, 1.25]
    assert "1.38 (1.25..1.50)" in text and "kept" in text
    assert "readers MB/s" in text
    slower = made_up_result(((100, 90), (100, 80)))
    assert "- noisy: 0.85 (0.80..0.90) x stock" in summary.markdown(slower)
    slower["failures"].append("round 1, noisy, direct: no such thing")
    slower["header"]["unavailable"] = {}
    assert "FAILED: no such thing" in summary.markdown(slower)


def test_readme_block_is_replaced_and_nothing_else():
    text = f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n"
    once = publish.block_replaced(text, "new")
    assert once == f"before\n{publish.BEGIN}\nnew\n{publish.END}\nafter\n"
    assert publish.block_replaced(once, "new") == once
    for broken in ("", publish.END + publish.BEGIN, text + text):
        with contextlib.suppress(ValueError):
            publish.block_replaced(broken, "new")
            raise AssertionError(broken)
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
        publish.block_replaced(readme.read(), "")
    block = publish.readme_block(made_up_result(), "p.png")
    assert "| 150 | 200 | 1.38 (1.25..1.50) |" in block, block


def test_pictures_are_drawn_of_all_that_ran():
    requires(importlib.util.find_spec("matplotlib"), "no matplotlib")
    result = made_up_result()
    result["header"]["scenarios"]["noisy"]["devices"] = ["fast", "slow"]
    with workdir("plots") as folder:
        drawn = plots.draw_all(result, folder)
        assert set(drawn) == {"overview", "noisy", "noisy-devices"}, drawn
        assert all(os.path.getsize(os.path.join(folder, name)) for name in drawn.values())
    assert plots.tail([[1000, 3], [2000, 1]]) == [(1.0, 0.25), (2.0, 0.0)]


@contextlib.contextmanager
def made_up_sysctl(ratio, limit):
    with workdir("vm") as folder:
        former = os.environ.get("DONTCACHE_TMPDIR")
        os.environ["DONTCACHE_TMPDIR"] = folder
        try:
            for name, value in (("dirty_bytes", limit), ("dirty_ratio", ratio)):
                with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                    file.write(f"{value}\n")
            yield folder
        finally:
            os.environ.pop("DONTCACHE_TMPDIR")
            if former is not None:
                os.environ["DONTCACHE_TMPDIR"] = former


def value_of(folder, name):
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return int(file.read())


def test_dirty_limit_is_put_back():
    with made_up_sysctl(20, 0) as folder:
        with contextlib.suppress(ZeroDivisionError), vmdirty.limited(12345, folder):
            assert value_of(folder, "dirty_bytes") == 12345
            # The kernel zeroes the other one: what is put back must be the one that was in force.
            with open(os.path.join(folder, "dirty_ratio"), "w", encoding="ascii") as file:
                file.write("0")
            1 / 0
        assert value_of(folder, "dirty_ratio") == 20
        assert not vmdirty.recover(folder), "a state file stayed"
    with made_up_sysctl(0, 777) as folder:
        with vmdirty.limited(12345, folder):
            pass
        assert value_of(folder, "dirty_bytes") == 777


def test_dirty_limit_of_a_killed_run_is_found():
    program = ("import os, sys, signal; sys.path.insert(0, sys.argv[1])\n"
               "from bench import vmdirty\n"
               "with vmdirty.limited(12345, sys.argv[2]):\n"
               "    open(sys.argv[2] + '/dirty_ratio', 'w').write('0')\n"
               "    os.kill(os.getpid(), signal.SIGKILL)\n")
    with made_up_sysctl(20, 0) as folder:
        done = subprocess.run([sys.executable, "-c", program, ROOT, folder], check=False)
        assert done.returncode == -9 and value_of(folder, "dirty_bytes") == 12345
        assert vmdirty.recover(folder) and value_of(folder, "dirty_ratio") == 20
        assert not vmdirty.recover(folder)


if __name__ == "__main__":
    main(globals())

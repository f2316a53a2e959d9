# SPDX-License-Identifier: LGPL-3.0-or-later
"""The benchmarks.

quick     what ./quickstart runs: a minute, on the machine as it is
speed     the proof: the page cache aged, variants interleaved, against a measured ceiling
run       every scenario of the documents that this project comes from, with pictures

tools     the programs that are measured with, found or built
loads     what the clients do
variants  what the server is, and the proof that it is that
machine   who used the processors, what the device can do, what this machine is
runner    one measured run of quick and speed: the record that results.json keeps
scenarios what run measures, declared once
streams   the clients of a scenario: processes that wait for each other
stage     one measured run of a scenario
extras    what a scenario is about, beyond speed
figures   percentiles, fairness, rates over time: arithmetic alone
vmdirty   vm.dirty_bytes for a while, and back
namespace mounts that nobody else sees
progress  the line that says how far it is
options   command-line values that several of them take
report    tables, report.md and plot of quick and speed
summary   report.md of run
plots     pictures of run
publish   docs/results.md and README's block
"""

# SPDX-License-Identifier: LGPL-3.0-or-later
"""The benchmarks.

quick     what ./quickstart runs: a minute, on the machine as it is
speed     the proof: the page cache aged, variants interleaved, against a measured ceiling

tools     the programs that are measured with, found or built
loads     what the clients do
variants  what the server is, and the proof that it is that
machine   who used the processors, what the device can do, what this machine is
runner    one measured run: the record that results.json keeps
progress  the line that says how far it is
options   command-line values that several of them take
report    tables, report.md, plots
"""

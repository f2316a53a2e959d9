# SPDX-License-Identifier: LGPL-3.0-or-later
"""Command-line values that several benchmarks take: sizes, and export parameters."""

import argparse
import re

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_size(text):
    """'4G' in bytes; an argparse type."""
    match = re.fullmatch(r"(\d+)([kmgt]?)(?:i?b)?", text.strip().lower())
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 512M or 4G")
    return int(match[1]) << _UNITS[match[2]]


def parse_params(parser, words):
    """['Dirty_Bytes=256M', ...] as a dictionary."""
    params = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"\w+", name) or not value:
            parser.error(f"--params: '{word}' is not Key=Value")
        params[name] = value
    return params

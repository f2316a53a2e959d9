# SPDX-License-Identifier: LGPL-3.0-or-later
"""Says what is wrong with a set of export parameters before a server is started for it.

The answer is the plugin's own: dontcache-params asks the same table.
"""

import os
import subprocess

from . import paths

_TOOL = os.path.join(paths.ROOT, "build", "release", "src", "dontcache-params")


def problems(params):
    """Messages about params ({name: value}) that would make the plugin refuse them; [] if fine."""
    if not os.path.exists(_TOOL):
        return []
    done = subprocess.run([_TOOL, "check", *(f"{name}={value}" for name, value in params.items())],
                          capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    return [line.removeprefix("error: ") for line in done.stdout.splitlines()
            if line.startswith("error: ")]

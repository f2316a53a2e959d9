# SPDX-License-Identifier: LGPL-3.0-or-later
"""Where things are: all found from this file's own place in the tree, or from the environment."""

import glob
import os
import shutil

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build")
HARNESS_BUILD = os.path.join(BUILD, "harness")
FIO = os.path.join(BUILD, "deps", "fio", "fio")


def build_dir(preset):
    """The build folder of a CMake preset: release, asan, tsan, clang, ..."""
    return os.path.join(BUILD, preset)


def plugin_dir(preset="release"):
    """The folder that a server under test loads its FSALs from."""
    return os.environ.get("DONTCACHE_PLUGIN_DIR") or os.path.join(build_dir(preset), "plugins")


def system_plugin_dir():
    """The folder of the distribution's own FSALs (libfsalvfs.so), or None."""
    for found in sorted(glob.glob("/usr/lib/*/ganesha/libfsalvfs.so") +
                        glob.glob("/usr/lib*/ganesha/libfsalvfs.so")):
        return os.path.dirname(found)
    return None


def find_program(name):
    """A program by name, also in the sbin folders that a plain user's PATH leaves out."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
    return shutil.which(name, path=path)


def temp_base():
    """Where private folders are made: on a disk with room for images, with a short name."""
    return os.environ.get("DONTCACHE_TMPDIR") or "/var/tmp"

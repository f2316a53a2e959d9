#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""A second opinion on the wire: what libnfs writes (its own nfs-cp, and a pipelined program) reads back
equal, through libnfs and on the local file system. NFSv3 only: Debian 12's libnfs cannot write over v4."""

import os
import shutil
import subprocess

from support import *                                   # noqa: F403
from nfsraw.pattern import Pattern, md5_file
from harness.testing import main

TIGHT = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M'}


def program(name):
    """One of tests/clients/*.c: as the build made it, else compiled here."""
    built = os.path.join(paths.build_dir('release'), 'tests', 'clients', name)
    if os.access(built, os.X_OK):
        return built
    requires(shutil.which('cc') and os.path.exists('/usr/include/nfsc/libnfs.h'), 'libnfs-dev or cc is not installed')
    target = os.path.join(paths.BUILD, 'clients', name)
    source = os.path.join(ROOT, 'tests', 'clients', name + '.c')
    if not os.path.exists(target) or os.path.getmtime(target) < os.path.getmtime(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        part = '%s.%d' % (target, os.getpid())
        subprocess.run(['cc', '-std=c17', '-D_GNU_SOURCE', '-O2', '-o', part, source, '-lnfs'], check=True)
        os.replace(part, target)
    return target


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, '%s: code %d\n%s%s' % (' '.join(command), done.returncode, done.stdout, done.stderr)


def file_url(server, name):
    base, query = server.url(PSEUDO).split('?')
    return '%s/%s?%s' % (base, name, query)


def test_pipelined_program():
    with served(TIGHT) as bed:
        for size, chunk, depth in ((40 * MiB + 17, MiB, 16), (3 * MiB + 1, 4095, 64), (1, MiB, 1)):
            url = file_url(bed.server, 'r%d' % size)
            call(program('nfs_roundtrip'), url, str(size), str(chunk), str(depth))
        bed.settle()


def test_nfs_cp():
    requires(shutil.which('nfs-cp'), 'libnfs-utils is not installed')
    size = 20 * MiB + 333
    pattern = Pattern(1)
    with served(TIGHT) as bed, workdir('cp') as folder:
        here, back = os.path.join(folder, 'here'), os.path.join(folder, 'back')
        with open(here, 'wb') as f:
            for piece in pattern.pieces(size):
                f.write(piece)
        call('nfs-cp', here, file_url(bed.server, 'copied'))
        call('nfs-cp', file_url(bed.server, 'copied'), back)
        equal(md5_file(back), pattern.md5(size), 'md5 of what came back')
        check_file(bed, 'copied', pattern, size)
        bed.settle()


if __name__ == '__main__':
    main(globals())

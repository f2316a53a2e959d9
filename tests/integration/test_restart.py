#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""A new server has a new verifier, so that clients send again what they had not committed; in NFSv4 even when
it starts within the same second (NFSv3's is the epoch the server was started with: -E)."""

from support import *                                   # noqa: F403
from harness.testing import main


@each_version(globals())
def check_new_verifier(version):
    if version != '3':
        requires_plugin()               # stock's has a resolution of a second, and starts take less
    seen = []
    with served(start=False) as bed:
        for start in range(4):
            if version == '3':
                bed.server.epoch = 1700000000 + start
            bed.server.start()
            with bed.connect(version) as client, client.open('f', create=True) as f:
                write = f.write(0, b'data').verifier
                equal(f.commit().verifier, write, 'verifier of COMMIT')
                equal(f.write(4, b'more', nfsraw.FILE_SYNC).verifier, write, 'verifier of a FILE_SYNC write')
            seen.append(write)
            bed.server.kill()
    equal(len(set(seen)), len(seen), 'different verifiers (%s)' % ' '.join(v.hex() for v in seen))


if __name__ == '__main__':
    main(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""R5: a write is recorded after it happened. Recorded before, a COMMIT by somebody else in between would cover it,
the writer's own COMMIT would find nothing to do, and a power cut would take what it promised.

The write is made slow (an injected delay before the sub-FSAL's write), the other COMMIT comes in the middle."""

from support import *                                   # noqa: F403
from nfsraw.pattern import Pattern
from harness.testing import main

LAZY = {'Dirty_Bytes': '64M', 'Dirty_Background_Bytes': '32M', 'Dirty_Expire_Centisecs': 6000,
        'Fault_Injection': 'on'}


@each_version(globals())
def check_commit_in_the_middle_of_a_write(version):
    requires_fault_injection()
    requires(paths.find_program('xfs_io'), 'xfs_io (xfsprogs) is not installed')
    pattern = Pattern(5)
    with served(LAZY) as bed:
        f = bed.connect(version, source='127.0.0.2').open('f', create=True)
        other = bed.connect(version, source='127.0.0.3').open('f')
        f.write(0, bytes(MiB))
        f.commit()
        bed.fault('write:delay=700:range=0-1M')
        call = f.write_async(0, pattern.view(0, MiB))
        while f.client.conn.unsent_bytes:
            f.client.conn.pump(0.05)
        time.sleep(0.3)
        other.write(2 * MiB, b'something to commit')
        equal(other.commit().status_name, 'OK', 'COMMIT of the other')
        assert not call.done, 'the write was not slow enough'
        f.client.wait(call)
        equal(call.reply.status_name, 'OK', 'the slow write')
        equal(f.commit().verifier, call.reply.verifier, 'verifier of its COMMIT')
        bed.disk.shutdown_fs()
        bed.server.kill()
        bed.kill_clients()
        bed.disk.remount()
        with open(bed.local('f'), 'rb') as local:
            assert local.read(MiB) == pattern.view(0, MiB), 'committed, and gone after a power cut'


if __name__ == '__main__':
    main(globals())

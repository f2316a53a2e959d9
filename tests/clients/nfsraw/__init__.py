# SPDX-License-Identifier: LGPL-3.0-or-later
"""Raw NFS clients for tests: NFSv3, NFSv4.0 and NFSv4.1 over ONC RPC and TCP.

A kernel client hides what these tests are about: it retries, merges, caches and orders. This one
sends exactly what a test says, keeps as many requests outstanding as it says, takes replies in any
order, and shows of each reply the status, the stable_how, the verifier and the latency.

    client = nfsraw.connect('4.1', port=..., mnt_port=..., export='/export', uid=1000)
    f = client.open('dir/name', create=True)
    call = f.write_async(0, b'...', stable=nfsraw.UNSTABLE)     # a Call; client.drain() waits for all
    f.commit().verifier == call.reply.verifier

The three versions share one interface (base.py), so that a test is written once. One object is used
by one thread; many clients can be driven from one thread (load.run).
"""

from .base import (DATA_SYNC, FILE_SYNC, READ, STABLE_NAMES, UNSTABLE, WRITE, Attr, Call, Client,
                   File, NfsError, Reply)
from .rpc import ConnectionLost, RpcError, Timeout, pump_many
from .status import Status, status_name
from .v3 import Client3
from .v4 import Client40, Client41

VERSIONS = ('3', '4.0', '4.1')


def connect(version, **kw):
    """A connected client. version: '3', '4.0' or '4.1'; keywords: see base.Client."""
    return {'3': Client3, '4.0': Client40, '4.1': Client41}[version](**kw)


__all__ = ['DATA_SYNC', 'FILE_SYNC', 'READ', 'STABLE_NAMES', 'UNSTABLE', 'WRITE', 'Attr', 'Call',
           'Client', 'Client3', 'Client40', 'Client41', 'ConnectionLost', 'File', 'NfsError', 'Reply',
           'RpcError', 'Status', 'Timeout', 'VERSIONS', 'connect', 'pump_many', 'status_name']

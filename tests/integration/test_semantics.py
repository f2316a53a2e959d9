#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the file system and the sub-FSAL promise stays promised, also for a write that was parked and done by
another thread: the writer's credentials, set-uid clearing, permissions, share reservations, sizes that other
clients see."""

import os
import stat

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.testing import main

USER = {'uid': 1000, 'gid': 1000}
TIGHT = {'Dirty_Bytes': '8M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '1G', 'Dirty_Expire_Centisecs': 50}


@contextlib.contextmanager
def pressed(version='3', write_bps=20 * MiB):
    """A bed whose budget is used up by somebody else, so that any write there is parked. Without the
    plugin (or a throttle) a plain bed: the semantics are the same."""
    if MODE in ('stock', 'buffered') or not throttle_supported():
        with served(TIGHT) as bed:
            yield bed, lambda: None
        return
    with served(TIGHT, write_bps=write_bps) as bed:
        f = bed.connect('3', source='127.0.0.9').open('pressure', create=True)
        stream = Stream(f, sequential(Pattern(1), 60 * MiB), depth=48)
        stream.fill(time.monotonic())
        while f.client.conn.unsent_bytes:
            f.client.conn.pump(0.1)
        wait_until(lambda: bed.parked() > 8, 10, what='parked writes')

        def release():
            bed.disk.set_write_bps(None)
            run([stream])
            no_errors([stream])
            bed.settle()
        yield bed, release


@each_version(globals())
def check_setuid_cleared(version):
    """A write by somebody without privilege takes the set-uid bit away, parked or not."""
    with pressed(version) as (bed, release):
        path = bed.local('tool')
        with open(path, 'wb') as f:
            f.write(b'#!/bin/false\n')
            f.flush()
            os.fsync(f.fileno())            # or the audit finds it: nobody counts what local processes write
        os.chmod(path, 0o4777)
        client = bed.connect(version, source='127.0.0.2', **USER)
        with client.open('tool', access=nfsraw.WRITE) as f:
            f.write(0, b'x' * MiB)
            equal(oct(stat.S_IMODE(os.stat(path).st_mode)), oct(0o777), 'mode after a write by uid 1000')
            equal(oct(f.getattr().mode & 0o7777), oct(0o777), 'mode as NFS sees it')
        # Root's own write keeps it: it is the credentials that count, not just the write.
        os.chmod(path, 0o4777)
        with bed.connect(version).open('tool', access=nfsraw.WRITE) as f:
            f.write(0, b'y' * MiB)
        equal(oct(stat.S_IMODE(os.stat(path).st_mode)), oct(0o4777), 'mode after a write by root')
        release()


@each_version(globals())
def check_owner_of_new_files(version):
    with pressed(version) as (bed, release):
        client = bed.connect(version, source='127.0.0.2', **USER)
        with client.open('mine', create=True, mode=0o600) as f:
            f.write(0, b'z' * MiB)
            f.commit()
        found = os.stat(bed.local('mine'))
        equal((found.st_uid, found.st_gid, found.st_size), (1000, 1000, MiB), 'owner, group, size')
        release()


@each_version(globals())
def check_no_permission(version):
    """uid 1000 may not write root's 0600 file: refused at OPEN (v4) or WRITE (v3), nothing changed."""
    with pressed(version) as (bed, release):
        path = bed.local('secret')
        with open(path, 'wb') as f:
            f.write(b'secret')
        os.chmod(path, 0o600)
        client = bed.connect(version, source='127.0.0.2', **USER)
        try:
            f = client.open('secret', access=nfsraw.WRITE)
            status = f.write(0, b'changed', check=False).status_name
        except nfsraw.NfsError as error:
            status = nfsraw.status_name(error.status)
        equal(status, 'ACCES', 'writing it')
        equal(bed.connect(version, source='127.0.0.2', **USER).access('secret', 0x0d) & 0x0d, 0, 'ACCESS to it')
        with open(path, 'rb') as f:
            equal(f.read(), b'secret', 'the file')
        release()


@each_version(globals(), ('4.0', '4.1'))
def check_share_deny(version):
    """An OPEN that denies writing keeps other writers out, and its own writer in."""
    with pressed(version) as (bed, release):
        holder = bed.connect(version, source='127.0.0.2')
        with holder.open('f', create=True, deny=nfsraw.WRITE) as f:
            other = bed.connect(version, source='127.0.0.3')
            try:
                other.open('f', access=nfsraw.WRITE)
                status = 'OK'
            except nfsraw.NfsError as error:
                status = nfsraw.status_name(error.status)
            equal(status, 'SHARE_DENIED', 'OPEN for writing by another client')
            with bed.connect('3', source='127.0.0.4').open('f') as v3:
                # Version 3 has no word for it; what stock answers is ACCES, after it waited in vain.
                status = v3.write(0, b'from version 3', check=False).status_name
                assert status in ('ACCES', 'DELAY'), 'WRITE over NFSv3 beside a share deny: ' + status
            f.write(0, b'm' * MiB)
            f.commit()
            equal(f.read(0, 10).data, b'm' * 10, 'the holder\'s data')
        with other.open('f', access=nfsraw.WRITE) as f:
            f.write(0, b'now it may')
        release()


@each_version(globals(), ('4.0', '4.1'))
def check_read_only_open_may_not_write(version):
    with pressed(version) as (bed, release):
        client = bed.connect(version, source='127.0.0.2')
        client.open('f', create=True).close()
        with client.open('f', access=nfsraw.READ) as f:
            equal(f.write(0, b'x', check=False).status_name, 'OPENMODE', 'WRITE on an OPEN for reading')
        release()


@each_version(globals())
def check_size_seen_by_others(version):
    """Whoever asks after the reply sees the size that includes the write, whatever it had cached before."""
    with pressed(version) as (bed, release):
        writer = bed.connect(version, source='127.0.0.2')
        other = bed.connect('3', source='127.0.0.3')
        with writer.open('f', create=True) as f:
            watched = other.lookup('f')
            data = Pattern(4).view(0, 300 * 1024)
            end = 0
            for i in range(24):
                size = other.getattr_fh(watched).size
                equal(size, end, 'size before write %d' % i)
                call = f.write_async(end, data)
                while not call.done:
                    # Asking while it is parked must neither hang nor leave an old size behind.
                    other.getattr_fh(watched)
                    writer.conn.pump(0.002)
                equal(call.reply.status_name, 'OK', 'write %d' % i)
                end += len(data)
                equal(other.getattr_fh(watched).size, end, 'size after the reply to write %d' % i)
                if version == '3':
                    assert call.reply.attr is None or call.reply.attr.size == end, 'the reply itself says size %d' % (
                        call.reply.attr.size)
        release()


@each_version(globals())
def check_read_sees_parked_write(version):
    """A reader that asks after the reply gets the data, from another client."""
    with pressed(version) as (bed, release):
        f = bed.connect(version, source='127.0.0.2').open('f', create=True)
        reader = bed.connect('3', source='127.0.0.3').open('f')
        for i in range(8):
            data = bytes([65 + i]) * 200000
            f.write(0, data)
            equal(reader.read(0, 200000).data, data, 'data after write %d' % i)
        f.close()
        release()


if __name__ == '__main__':
    main(globals())

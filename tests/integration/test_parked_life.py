#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""What may happen to a write while it is parked: its client is killed, its file is removed, truncated or
renamed over, its export goes away. Each is harmless: every reply that can come does come, the server lives,
the counters return to zero."""

import os

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.testing import main

# One connection may park a sixteenth of Parked_Bytes before it is held back; here 48 writes are to be parked.
TIGHT = {'Dirty_Bytes': '8M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '1G', 'Dirty_Expire_Centisecs': 100}
SLOW = 24 * MiB
MANY = 32


@contextlib.contextmanager
def parked(version, **kw):
    """(bed, stream): 48 writes of 1 MiB sent, at least MANY of them parked."""
    requires_plugin()
    requires_slow_device()
    with served(TIGHT, write_bps=SLOW, **kw) as bed:
        f = bed.connect(version, source='127.0.0.2').open('f', create=True)
        stream = Stream(f, sequential(Pattern(1), 48 * MiB), depth=48)
        stream.fill(time.monotonic())
        while f.client.conn.unsent_bytes:
            f.client.conn.pump(0.1)
        wait_until(lambda: bed.parked() >= MANY, 10, what='%d parked writes' % MANY)
        yield bed, stream


def alive(bed, version='3', name='alive'):
    with bed.connect(version, source='127.0.0.5') as client, client.open(name, create=True) as f:
        f.write(0, b'still here')
        f.commit()
        equal(f.read(0, 100).data, b'still here', 'data of another client')
    assert bed.server.running, 'the server died'


@each_version(globals())
def check_client_killed(version):
    with parked(version) as (bed, stream):
        stream.client.kill()
        alive(bed, version)
        bed.settle(20)
        alive(bed, version)
        # The same file by the next client: nothing of the dead one's is left over it.
        with bed.connect('3') as client, client.open('f') as f:
            f.write(0, b'new owner')
            f.commit()
            equal(f.read(0, 9).data, b'new owner', 'data')


@each_version(globals())
def check_file_removed(version):
    with parked(version) as (bed, stream):
        other = bed.connect(version, source='127.0.0.3')
        equal(other.remove('f').status_name, 'OK', 'REMOVE')
        alive(bed, version)
        run([stream], 30)
        assert not stream.lost, stream.lost
        print('    acked %s, errors %r' % (mb(stream.acked), stream.errors), flush=True)
        allowed = {'STALE'} if version == '3' else set()
        assert set(stream.errors) <= allowed, 'replies to the parked writes: %r' % stream.errors
        stream.file.close(check=False)
        bed.settle()
        alive(bed, version)
        assert not os.path.exists(bed.local('f'))


@each_version(globals())
def check_file_renamed_over(version):
    with parked(version) as (bed, stream):
        other = bed.connect(version, source='127.0.0.3')
        with other.open('g', create=True) as g:
            g.write(0, b'the new f', nfsraw.FILE_SYNC)
        other.rename('g', 'f')
        run([stream], 30)
        assert not stream.lost and set(stream.errors) <= {'STALE'}, (stream.lost, stream.errors)
        stream.file.close(check=False)
        bed.settle()
        with open(bed.local('f'), 'rb') as f:
            equal(f.read(), b'the new f', 'the file renamed over the one being written')
        alive(bed, version)


@each_version(globals())
def check_file_truncated(version):
    """A parked write is done after the truncate, and is whole; in between are zeros or its data."""
    with parked(version) as (bed, stream):
        with bed.connect(version, source='127.0.0.3').open('f') as f:
            f.truncate(1000)
        run([stream], 30)
        no_errors([stream])
        stream.file.commit()
        pattern = Pattern(1)
        size = os.stat(bed.local('f')).st_size
        assert size in range(1000, 48 * MiB + 1), 'size %d' % size
        with open(bed.local('f'), 'rb') as local:
            equal(local.read(1000), bytes(pattern.view(0, 1000)), 'the part that was kept')
            local.seek(0)
            for i in range(48):
                piece = local.read(MiB)
                want = bytes(pattern.view(i * MiB, MiB))[:len(piece)]
                cut = 1000 if i == 0 else 0
                assert piece == want or piece == want[:cut] + bytes(len(piece) - cut), \
                    'MiB %d is neither the data nor zeros' % i
        bed.settle()


@each_version(globals())
def check_export_removed(version):
    """The export leaves the configuration (SIGHUP) while writes are parked: they end, one way or the other,
    within bounded time; the other export serves on; it can come back."""
    requires_plugin()
    requires_slow_device()

    def both(disk):
        other = os.path.join(disk.mountpoint, 'other')
        os.makedirs(other, exist_ok=True)
        return [Export(EXPORT_ID, disk.export_dir, PSEUDO, 'dontcache', TIGHT), Export(2, other, '/other', 'dontcache')]
    with served(exports=both, write_bps=SLOW) as bed:
        f = bed.connect(version, source='127.0.0.2').open('f', create=True)
        stream = Stream(f, sequential(Pattern(1), 48 * MiB), depth=48)
        stream.fill(time.monotonic())
        while f.client.conn.unsent_bytes:
            f.client.conn.pump(0.1)
        wait_until(lambda: bed.parked() >= MANY, 10, what='parked writes')
        bed.server.rewrite_conf(both(bed.disk)[1:])
        bed.server.hup()
        start = time.monotonic()
        run([stream], 15)
        print('    replies after %.2f s: acked %s, errors %r, lost %s' % (
            time.monotonic() - start, mb(stream.acked), stream.errors, stream.lost), flush=True)
        wait_until(lambda: all(e['id'] != EXPORT_ID for e in bed.server.stats()['exports']), 10,
                   what='the export gone from the statistics')
        with bed.connect(version, export='/other', source='127.0.0.3') as client, client.open('g', create=True) as g:
            g.write(0, b'fine')
            g.commit()
        bed.server.rewrite_conf(both(bed.disk))
        bed.server.hup()

        def back():
            try:
                alive(bed, version)
                return True
            except (nfsraw.NfsError, nfsraw.RpcError):
                return False
        wait_until(back, 10, interval=0.2, what='the export served again')
        bed.settle()


if __name__ == '__main__':
    main(globals())

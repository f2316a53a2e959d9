#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""SIGTERM with 64 writes parked on a slow device: a clean exit (code 0) within 5 seconds, nothing committed
lost, and a fresh server serves the file. Once with the release build, once with the plugin built with
AddressSanitizer, whose log must stay empty."""

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential, write_and_commit
from nfsraw.pattern import Pattern
from harness.testing import main

EXIT_WITHIN = 5.0
MANY = 64
COMMITTED = 24 * MiB + 77


def stop_while_parked(version, exit_within=EXIT_WITHIN, **server):
    requires_plugin()
    requires_slow_device()
    params = {'Dirty_Bytes': '8M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '256M'}
    with served(params, **server) as bed:
        pattern = Pattern(7)
        keeper = bed.connect(version)
        f = keeper.open('committed', create=True)
        stream, reply = write_and_commit(f, pattern, COMMITTED)
        no_errors([stream])
        # 64 MiB at this speed would take 16 s: waiting for the device is no way out.
        bed.disk.set_write_bps(4 * MiB)
        writers = []
        for i in range(8):
            g = bed.connect(version, source='127.0.0.%d' % (2 + i)).open('g%d' % i, create=True)
            writers.append(Stream(g, sequential(Pattern(i), 12 * MiB, MiB), depth=12))
        seen = []
        end = time.monotonic() + 10

        def enough():
            seen.append(bed.parked())
            return seen[-1] >= MANY or time.monotonic() > end
        run(writers, 20, until=enough, drain=False)
        assert seen[-1] >= MANY, 'only %d writes parked' % max(seen)
        start = time.monotonic()
        code = bed.server.stop(timeout=60)
        took = time.monotonic() - start
        print('    %d writes parked, exit code %s after %.2f s' % (seen[-1], code, took), flush=True)
        found = sanitizer_findings(bed.server)
        assert not found, server_output(bed.server)[-12000:]
        equal(code, 0, 'exit code')
        assert took <= exit_within, 'the exit took %.2f s' % took
        for s in writers:
            for _ in range(20):
                s.client.conn.pump(0.05)
            assert s.client.conn.lost, 'the connection outlived the server'
        bed.close_clients()
        bed.disk.set_write_bps(None)
        bed.server.start()
        check_file(bed, 'committed', pattern, COMMITTED, version)
        with bed.connect(version) as again, again.open('committed') as f:
            assert f.commit().verifier != reply.verifier or version == '3', 'the new server has the old verifier'


@each_version(globals())
def check_sigterm_while_parked(version):
    stop_while_parked(version)


@each_version(globals())
def check_sigterm_under_address_sanitizer(version):
    requires_plugin()
    stop_while_parked(version, **under_asan())


@each_version(globals())
def check_sigterm_while_dirty(version):
    """Acknowledged, uncommitted, nothing parked: also a clean exit in bounded time."""
    requires_slow_device()
    with served({'Dirty_Bytes': '64M', 'Dirty_Background_Bytes': '32M'}, write_bps=4 * MiB) as bed:
        f = bed.connect(version).open('f', create=True)
        stream = Stream(f, sequential(Pattern(1), 48 * MiB), depth=8)
        run([stream])
        start = time.monotonic()
        code = bed.server.stop(timeout=60)
        took = time.monotonic() - start
        equal(code, 0, 'exit code')
        assert took <= EXIT_WITHIN, 'the exit took %.2f s' % took


if __name__ == '__main__':
    main(globals())

# SPDX-License-Identifier: LGPL-3.0-or-later
"""What the integration tests share: a served export on a device of its own, clients for it, and a
sampler of the plugin's counters.

    with served({'Dirty_Bytes': '64M'}, write_bps=50 << 20) as bed:
        client = bed.connect('4.1', source='127.0.0.2')
        ...
        bed.settle()                 # the counters of the export are back at zero

DONTCACHE_TEST_MODE=stock (or buffered) in the environment runs a test against that mode instead:
this shows whether a failure is ours. Tests of what only the plugin can do then skip.
DONTCACHE_TEST_ASAN=1 runs it with the plugin of build/asan/plugins (or DONTCACHE_ASAN_PLUGIN_DIR); any finding
of the sanitizer is a failure.
DONTCACHE_TEST_FULL=1 uses the sizes of the specification where the default is a smaller one.
"""

import contextlib
import os
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
for _folder in (ROOT, os.path.join(ROOT, 'tests', 'clients')):
    if _folder not in sys.path:
        sys.path.insert(0, _folder)

import nfsraw                                                           # noqa: E402
from harness import paths                                               # noqa: E402
from harness.disk import LoopDisk, loop_supported, throttle_supported   # noqa: E402
from harness.ganesha import Export, Ganesha, asan_preload                             # noqa: E402
from harness.testing import requires, requires_root, wait_until, workdir  # noqa: E402

MiB = 1 << 20
GiB = 1 << 30
EXPORT_ID = 1
PSEUDO = '/export'
MODE = os.environ.get('DONTCACHE_TEST_MODE', 'dontcache')
ASAN = os.environ.get('DONTCACHE_TEST_ASAN') == '1'
FULL = os.environ.get('DONTCACHE_TEST_FULL') == '1'


def requires_plugin():
    requires(MODE not in ('stock', 'buffered'), 'about the dontcache mode; DONTCACHE_TEST_MODE=%s' % MODE)


def requires_fault_injection():
    """The parameter is in no table, so that nobody meets it by chance: look into the plugin itself."""
    requires_plugin()
    with open(os.path.join(paths.plugin_dir(), 'libfsaldontcache.so'), 'rb') as plugin:
        requires(b'Fault_Injection' in plugin.read(), 'this build of the plugin injects no faults')


def requires_slow_device():
    requires_root()
    requires(loop_supported(), 'no loop devices here')
    requires(throttle_supported(), 'no block throttle (cgroup v1 blkio) here')


class Bed:
    """disk, server, export_dir; connect() makes a client, closed with the bed."""

    def __init__(self, disk, server, mode):
        self.disk, self.server, self.mode = disk, server, mode
        self._clients = []

    @property
    def export_dir(self):
        return self.disk.export_dir

    def local(self, name):
        return os.path.join(self.disk.export_dir, name)

    def address(self):
        """What nfsraw.connect() needs to find the export."""
        return {'port': self.server.port, 'mnt_port': self.server.mnt_port, 'export': PSEUDO}

    def connect(self, version='3', **kw):
        client = nfsraw.connect(version, **{**self.address(), **kw})
        self._clients.append(client)
        return client

    def close_clients(self):
        for client in self._clients:
            with contextlib.suppress(Exception):
                client.close()
        self._clients.clear()

    def kill_clients(self):
        """Drop the connections at once: nothing is waited for."""
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.kill()
        self._clients.clear()

    @property
    def has_stats(self):
        return self.mode not in ('stock',)

    def stats(self):
        return self.server.export_stats(EXPORT_ID)

    def parked(self):
        return self.stats()['parked']

    def check_audit(self):
        """R3: no page was ever found dirty that nobody counts (Audit = true is in every test's export)."""
        if self.mode == 'dontcache' and self.server.running:
            for export in self.server.stats()['exports']:
                found = export.get('audit_unclaimed_bytes_total', 0)
                assert not found, 'export %d: %d bytes dirty and counted by nobody\n%s' % (
                    export['id'], found, server_output(self.server)[-3000:])

    def fault(self, spec, export=EXPORT_ID):
        """Let the export's device fail as spec says ('sync:EIO:count=1', 'any:delay=200', 'off'). The export
        block must have Fault_Injection."""
        answer = self.server.control('fault %d %s' % (export, spec))
        assert 'error' not in answer, 'fault %s: %s' % (spec, answer)

    def settle(self, timeout=15):
        """Wait until nothing is dirty, under writeback, reserved or parked as the plugin counts."""
        if not self.has_stats:
            return
        names = ('dirty', 'writeback', 'reserved', 'parked', 'parked_bytes')

        def busy():
            stats = self.stats()
            return {n: stats[n] for n in names if stats[n]}
        deadline = time.monotonic() + timeout
        while True:
            left = busy()
            if not left:
                return
            if time.monotonic() > deadline:
                raise AssertionError('counters not back at zero after %g s: %s' % (timeout, left))
            time.sleep(0.05)


def under_asan():
    """Keywords for a server with the AddressSanitizer build of the plugin; skips where there is none."""
    folder = os.environ.get('DONTCACHE_ASAN_PLUGIN_DIR') or os.path.join(paths.build_dir('asan'), 'plugins')
    requires(os.path.isfile(os.path.join(folder, 'libfsaldontcache.so')),
             'no plugin built with AddressSanitizer in build/asan/plugins')
    preload, env = asan_preload()
    return {'plugin_dir': folder, 'preload': preload, 'env': env}


def server_output(server):
    """The log of all starts, and what went to stderr (the sanitizer's reports do)."""
    with open(server.out_path, encoding='utf-8', errors='replace') as out:
        return server.log_text(all_starts=True) + out.read()


def sanitizer_findings(server):
    return [line for line in server_output(server).splitlines()
            if 'ERROR: AddressSanitizer' in line or 'runtime error:' in line]


@contextlib.contextmanager
def served(params=None, size=2 * GiB, fstype='xfs', mode=None, write_bps=None, start=True, exports=None,
           disk_dir=None, **server):
    """A Bed: one export in `mode` with the plugin's parameters `params` on a loop device.

    exports: a function (disk) -> list of Export, instead of the one; further keywords go to Ganesha.
    The throttle is lifted before the server is stopped, so that ending a test takes no longer."""
    requires_root()
    requires(loop_supported(), 'no loop devices here')
    mode = mode or MODE
    with workdir('integ') as folder, LoopDisk(disk_dir or folder, size, fstype=fstype) as disk:
        if exports:
            blocks = exports(disk)
        else:
            blocks = [Export(EXPORT_ID, disk.export_dir, PSEUDO, mode, {} if mode == 'stock' else {'Audit': True, **(params or {})})]
        if write_bps:
            disk.set_write_bps(write_bps)
        if ASAN and mode != 'stock' and 'plugin_dir' not in server:
            server.update(under_asan())
        ganesha = Ganesha(folder, blocks, **server)
        bed = Bed(disk, ganesha, mode)
        try:
            if start:
                ganesha.start()
            yield bed
            bed.close_clients()
            bed.check_audit()
            if write_bps:
                disk.set_write_bps(None)
            if ganesha.running:
                code = ganesha.stop()
                assert code == 0, 'the server ended with code %s\n%s' % (code, server_output(ganesha)[-6000:])
            found = sanitizer_findings(ganesha)
            assert not found, server_output(ganesha)[-12000:]
        except BaseException:
            died = not ganesha.running and ganesha.pid and ganesha.exit_code is None
            if died or ganesha.exit_code not in (None, 0, -9) or sanitizer_findings(ganesha):
                print('the server died or complained; its last words:\n%s' % server_output(ganesha)[-8000:])
            raise
        finally:
            # After a failure nobody asks for a clean end any more: drop everything, fast device first.
            bed.kill_clients()
            if write_bps:
                disk.set_write_bps(None)
            ganesha.close()


class StatsSampler:
    """The plugin's counters of the export, each `interval` seconds, from a thread.

    samples: list of (time.monotonic(), stats). peak(fields...) is the largest sum of the fields."""

    def __init__(self, bed, interval=0.02):
        self.bed, self.interval = bed, interval
        self.samples = []
        self.error = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            while not self._stop.wait(self.interval):
                self.samples.append((time.monotonic(), self.bed.stats()))
        except Exception as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        self._stop.set()
        self._thread.join()
        if self.error and kind is None:
            raise self.error

    def peak(self, *fields):
        return max((sum(stats[f] for f in fields) for _, stats in self.samples), default=0)

    def intervals(self, condition):
        """[(start, end)]: stretches in which every sample meets condition(stats)."""
        found, start, last = [], None, None
        for t, stats in self.samples:
            if condition(stats):
                start = t if start is None else start
                last = t
            elif start is not None:
                found.append((start, last))
                start = None
        if start is not None:
            found.append((start, last))
        return found


def each_version(scope, versions=nfsraw.VERSIONS):
    """Decorator: def check_x(version) becomes test_x_v3, test_x_v40 and test_x_v41 in the test file."""
    def decorate(function):
        for version in versions:
            name = function.__name__.replace('check_', 'test_') + '_v' + version.replace('.', '')

            def test(version=version):
                function(version)
            test.__name__ = name
            test.__doc__ = function.__doc__
            scope[name] = test
        return function
    return decorate


def mb(n):
    return '%.1f MiB' % (n / MiB)


def equal(got, want, what):
    assert got == want, '%s: %r, expected %r' % (what, got, want)


def only(values, what):
    """The one element of a set that must have exactly one."""
    assert len(values) == 1, '%s: %r, expected exactly one value' % (what, values)
    return next(iter(values))


def no_errors(streams):
    for s in streams:
        assert not s.errors and not s.lost, '%s: errors %r, lost %r' % (s.file.path, s.errors, s.lost)


def check_file(bed, name, pattern, size, version='3', through_nfs=True):
    """The file holds the pattern: asked of the local file system, and of the server by a new client."""
    from nfsraw.pattern import first_difference, md5_file, md5_of
    path = bed.local(name)
    equal(os.stat(path).st_size, size, name + ': size')
    want = pattern.md5(size)
    if md5_file(path) != want:
        raise AssertionError('%s differs on the local file system, first at offset %s'
                             % (name, first_difference(path, pattern, size)))
    if through_nfs:
        with bed.connect(version) as reader:
            with reader.open(name, access=nfsraw.READ) as f:
                equal(md5_of(f.pieces(size)), want, name + ': md5 through NFS ' + version)


__all__ = [name for name in dir() if not name.startswith('_')] + ['nfsraw']

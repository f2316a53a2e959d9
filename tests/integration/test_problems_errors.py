#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Problems that people have had with servers like this one, re-enacted by their number in docs/problems.md: those
about errors and verifiers (1 to 7), and a device that hangs or is slow because it is made to (18).

The device's errors are injected by the plugin's own fault backend (`fault` on the control socket), where a real
one cannot be had; the full disk is real, and so is the one that is full only when the data is written back."""

import os

from support import *                                   # noqa: F403
from nfsraw.load import Stream, run, sequential
from nfsraw.pattern import Pattern
from harness.testing import main
from test_disk_full import fill_up, small_ram_disk

# Nothing is written back before somebody asks for it, or at once and all of it.
LAZY = {'Dirty_Bytes': '256M', 'Dirty_Background_Bytes': '128M', 'Dirty_Expire_Centisecs': 6000}
EAGER = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Dirty_Expire_Centisecs': 10}
FAULTY = {'Fault_Injection': 'on'}
VERSIONS = nfsraw.VERSIONS


@contextlib.contextmanager
def faulty(params, **kw):
    requires_fault_injection()
    with served({**params, **FAULTY}, **kw) as bed:
        yield bed
        with contextlib.suppress(OSError):
            bed.fault('off')


def answer(reply, verifiers):
    """What a client learns from a COMMIT: 'OK' only if it may forget its data."""
    if not reply.ok:
        return reply.status_name
    return 'OK' if {reply.verifier} == set(verifiers) else 'new verifier'


def told(f, verifiers):
    return answer(f.commit(check=False), verifiers)


# -- 1

def test_problem_01_a_failed_fsync_is_not_answered_ok():
    """EIO once, by the fdatasync of a COMMIT: the COMMIT fails. Nothing of it sticks once it was told."""
    with faulty(LAZY) as bed:
        for version in VERSIONS:
            with bed.connect(version).open('v' + version, create=True) as f:
                verifiers = {f.write(i * MiB, Pattern(1).view(i * MiB, MiB)).verifier for i in range(4)}
                bed.fault('sync:EIO:count=1')
                got = told(f, verifiers)
                assert got in ('IO', 'new verifier'), 'NFS %s: COMMIT after a failed fdatasync: %s' % (version, got)
                # The client sends all of it again.
                old, verifiers = verifiers, {f.write(i * MiB, Pattern(1).view(i * MiB, MiB)).verifier for i in range(4)}
                equal(told(f, verifiers), 'OK', 'NFS %s: COMMIT after sending again' % version)
                # NFSv3's is Ganesha's and cannot change; with NFSv4 it does, for whoever has data in other files.
                assert version == '3' or not old & verifiers, 'NFS %s: the verifier survived an error' % version
            check_file(bed, 'v' + version, Pattern(1), 4 * MiB, version)


def test_problem_01_a_failed_fsync_of_a_stable_write():
    with faulty(LAZY) as bed:
        for version in VERSIONS:
            with bed.connect(version).open('v' + version, create=True) as f:
                for stable in (nfsraw.FILE_SYNC, nfsraw.DATA_SYNC):
                    bed.fault('sync:EIO:count=1')
                    reply = f.write(0, b'x' * 8192, stable, check=False)
                    equal(reply.status_name, 'IO', 'NFS %s: a %s write whose sync failed' % (
                        version, nfsraw.STABLE_NAMES[stable]))
                    equal(f.write(0, b'x' * 8192, stable, check=False).status_name, 'OK', 'the same again')


# -- 2

def everybody(bed, version, spec, name):
    """Two clients with uncommitted data in one file, a third that has committed its own, and an error."""
    files = [bed.connect(version, source='127.0.0.%d' % (2 + i)).open(name, create=True) for i in range(3)]
    files[2].write(200 * MiB, b'mine is safe')
    files[2].commit()
    verifiers = []
    for i, f in enumerate(files[:2]):
        stream = Stream(f, sequential(Pattern(i), 12 * MiB, start=i * 16 * MiB), depth=8)
        run([stream], 30)
        no_errors([stream])
        verifiers.append(stream.verifiers)
    bed.fault(spec)
    answers = [told(f, v) for f, v in zip(files, verifiers)]
    bed.fault('off')
    print('    NFS %s, %s: %s' % (version, spec, answers), flush=True)
    assert 'OK' not in answers, 'a client was told that lost data is safe: %s' % answers
    # Each was told once, and a resend is enough.
    for i, f in enumerate(files[:2]):
        stream = Stream(f, sequential(Pattern(i), 12 * MiB, start=i * 16 * MiB), depth=8)
        run([stream], 30)
        no_errors([stream])
        equal(told(f, stream.verifiers), 'OK', 'COMMIT after a resend')
    for f in files:
        f.close()


def test_problem_02_every_client_is_told_of_a_writeback_error():
    with faulty(LAZY) as bed:
        for version in VERSIONS:
            everybody(bed, version, 'writeback:ENOSPC:count=1', 'wb' + version)
            everybody(bed, version, 'writeback:EIO:range=0-1M', 'range' + version)


def test_problem_02_every_client_is_told_of_a_sync_error():
    with faulty(LAZY) as bed:
        for version in VERSIONS:
            everybody(bed, version, 'sync:EIO:count=1', 'sync' + version)


def test_problem_02_one_client_with_two_connections():
    """A client with several connections (nconnect) writes through one and commits through another, which it has
    used before for the same. It is one client: the error of background writeback is its own."""
    with faulty(EAGER) as bed:
        for version in ('3', '4.1'):
            one, two = [bed.connect(version, source='127.0.0.2').open('v' + version, create=True) for _ in range(2)]
            for f in (one, two):
                f.write(0, b'before')
            for f in (one, two):
                equal(f.commit().status_name, 'OK', 'COMMIT before the error')
            before = bed.stats()['errors_total']
            bed.fault('writeback:EIO:count=1')
            write = one.write(0, Pattern(2).view(0, MiB))
            wait_until(lambda: bed.stats()['errors_total'] > before, 10, what='the error of background writeback')
            got = told(two, {write.verifier})
            assert got != 'OK', 'NFS %s: COMMIT through the other connection: %s' % (version, got)


def test_problem_02_every_client_is_told_of_a_real_one():
    """The same without injection: a sparse image on a tmpfs that is too small for it."""
    requires_root()
    requires(loop_supported(), 'no loop devices here')
    requires_plugin()
    for version in ('3', '4.1'):
        with small_ram_disk(96 * MiB) as ram, served(LAZY, size=GiB, disk_dir=ram) as bed:
            files, verifiers = [], []
            for i in range(2):
                f = bed.connect(version, source='127.0.0.%d' % (2 + i)).open('f', create=True)
                stream = Stream(f, sequential(Pattern(1), 60 * MiB, start=i * 60 * MiB), depth=8)
                run([stream], 20)
                no_errors([stream])
                files.append(f)
                verifiers.append(stream.verifiers)
            answers = [told(f, v) for f, v in zip(files, verifiers)]
            print('    NFS %s: %s' % (version, answers), flush=True)
            assert 'OK' not in answers, 'a client was told that lost data is safe: %s' % answers
            bed.kill_clients()


# -- 3

def own_descriptors(bed, name):
    """How many descriptors the server has open for the file."""
    want, folder = os.stat(bed.local(name)), '/proc/%d/fd' % bed.server.pid
    found = 0
    for entry in os.listdir(folder):
        try:
            st = os.stat(os.path.join(folder, entry))
        except OSError:
            continue
        found += (st.st_dev, st.st_ino) == (want.st_dev, want.st_ino)
    return found


def test_problem_03_an_error_outlives_the_descriptor():
    """Background writeback fails, nobody asks; the descriptor is closed, the file's clients are gone from the
    server's cache. Then the writer asks, and is told; by a new connection too."""
    with faulty(EAGER, blocks={'MDCACHE': {'LRU_Run_Interval': 1, 'FD_LWMark_Percent': 0, 'FD_HWMark_Percent': 1,
                                           'Entries_HWMark': 1}}) as bed:
        files = {}
        for version in VERSIONS:
            f = bed.connect(version).open('v' + version, create=True)
            before = bed.stats()['errors_total']
            bed.fault('writeback:EIO:count=1')
            verifiers = {f.write(0, Pattern(3).view(0, MiB)).verifier}
            wait_until(lambda: bed.stats()['errors_total'] > before, 10, what='the error of background writeback')
            bed.fault('off')
            f.close()
            files[version] = verifiers
        others = bed.connect('3', source='127.0.0.7')
        for i in range(64):                     # the cache of objects is one entry small
            others.open('other%d' % i, create=True)
        names = ['v' + version for version in VERSIONS]
        wait_until(lambda: sum(own_descriptors(bed, n) for n in names) == 0, 20, 0.2, 'all descriptors closed')
        for version, verifiers in files.items():
            got = told(bed.connect(version).open('v' + version), verifiers)
            assert got in ('IO', 'new verifier'), 'NFS %s: COMMIT after the descriptor was closed: %s' % (version, got)


# -- 4

def copy_like_a_client(f, data, rounds=8, piece=256 * 1024):
    """WRITE, COMMIT, and all of it again as long as the COMMIT does not confirm it. Returns the rounds it took."""
    for n in range(1, rounds + 1):
        replies = [f.write(offset, data[offset:offset + piece], check=False) for offset in range(0, len(data), piece)]
        commit = f.commit(check=False)
        if commit.ok and all(r.ok and r.verifier == commit.verifier for r in replies):
            return n
    raise AssertionError('still sending again after %d rounds: WRITE %s, COMMIT %s' % (
        rounds, {r.verifier for r in replies}, commit.verifier))


def test_problem_04_one_resend_converges():
    size = 12 * MiB                         # so much that a COMMIT has the flusher write it first
    data = b''.join(bytes(Pattern(4).view(i * MiB, MiB)) for i in range(12))
    with faulty(LAZY) as bed:
        for version in VERSIONS:
            with bed.connect(version).open('v' + version, create=True) as f:
                equal(copy_like_a_client(f, data), 1, 'NFS %s: rounds without an error' % version)
                for spec in ('sync:EIO:count=1', 'writeback:EIO:count=1'):
                    before = bed.stats()['errors_total']
                    bed.fault(spec)
                    equal(copy_like_a_client(f, data), 2, 'NFS %s, %s: rounds' % (version, spec))
                    bed.fault('off')
                    equal(bed.stats()['errors_total'], before + 1, 'errors')
            check_file(bed, 'v' + version, Pattern(4), size, version)


def test_problem_04_verifiers_agree_without_errors():
    """The plain case needs no injection: one round, for every version, whoever else writes."""
    data = bytes(Pattern(4).view(0, MiB))
    with served(EAGER) as bed:
        for version in VERSIONS:
            with bed.connect(version).open('v' + version, create=True) as f:
                for _ in range(3):
                    equal(copy_like_a_client(f, data), 1, 'NFS %s: rounds' % version)


# -- 5

def test_problem_05_one_verifier_in_every_reply():
    """UNSTABLE, DATA_SYNC, FILE_SYNC and COMMIT, parked or not, of every file and client: one non-zero verifier."""
    with served({'Dirty_Bytes': '4M', 'Dirty_Background_Bytes': '1M', 'Parked_Bytes': '256M'}) as bed:
        for version in VERSIONS:
            seen = set()
            for i in range(2):
                f = bed.connect(version, source='127.0.0.%d' % (2 + i)).open('v%s-%d' % (version, i), create=True)
                stream = Stream(f, sequential(Pattern(i), 24 * MiB, 300001), depth=32)
                run([stream])
                no_errors([stream])
                seen |= stream.verifiers
                for stable in (nfsraw.UNSTABLE, nfsraw.DATA_SYNC, nfsraw.FILE_SYNC):
                    reply = f.write(0, b'x' * 5000, stable)
                    assert reply.committed >= stable, 'asked for %s, got %s' % (stable, reply.committed)
                    seen.add(reply.verifier)
                seen |= {f.commit().verifier, f.commit(4096, 4096).verifier}
                f.close()
            assert bytes(8) not in seen, 'NFS %s: a verifier of zeros' % version
            equal(len(seen), 1, 'NFS %s: verifiers %s' % (version, [v.hex() for v in seen]))


# -- 6 and 7

def test_problem_06_a_full_disk_is_told():
    """A copy that does not fit: NOSPC at a WRITE or at the COMMIT, or the file is whole. Never a short file that
    everybody was told is there."""
    with served(EAGER, size=400 * MiB) as bed:
        filler = fill_up(bed, 24 * MiB)
        for version in VERSIONS:
            client = bed.connect(version)
            f = client.open('copy', create=True)
            stream = Stream(f, sequential(Pattern(6), 64 * MiB, 256 * 1024), depth=16)
            run([stream], 20)
            commit = f.commit(check=False)
            print('    NFS %s: %s acked, errors %s, COMMIT %s' % (version, mb(stream.acked), stream.errors,
                                                                  commit.status_name), flush=True)
            assert set(stream.errors) <= {'NOSPC'} and commit.status_name in ('OK', 'NOSPC')
            assert stream.errors or not commit.ok, 'a file of %s is said to be there whole' % mb(
                os.stat(bed.local('copy')).st_size)
            f.close()
            client.remove('copy')
        os.unlink(filler)
        bed.settle()


def test_problem_07_two_free_seven_written():
    """2 MB free, 7 MB written with eight WRITEs in flight: every reply comes promptly, NOSPC among them, DELAY not."""
    with served(EAGER, size=400 * MiB) as bed:
        fill_up(bed, 2 * MiB)
        for version in VERSIONS:
            client = bed.connect(version)
            f = client.open('f', create=True)
            stream = Stream(f, sequential(Pattern(7), 7 * 10**6, 128 * 1024), depth=8)
            start = time.monotonic()
            run([stream], 20)
            commit = f.commit(check=False)
            took = time.monotonic() - start
            print('    NFS %s: %.2f s, errors %s, COMMIT %s' % (version, took, stream.errors, commit.status_name),
                  flush=True)
            equal(stream.delayed, 0, 'NFS %s: DELAY replies' % version)
            equal(set(stream.errors) | ({commit.status_name} - {'OK'}), {'NOSPC'}, 'NFS %s: errors' % version)
            assert took < 5, 'NFS %s: it took %.1f s' % (version, took)
            f.close()
            client.remove('f')
        bed.settle()


# -- 18

def blocked_beside(bed, version, spec, pseudo, blocked):
    """While export 1's device obeys `spec` and its writers are stuck, export 2 goes on."""
    bed.fault(spec)
    stuck = []
    for i in range(4):
        client = bed.connect(version, export=PSEUDO, source='127.0.0.%d' % (20 + i))
        f = client.open('s%s-%d' % (version, i), create=True)
        stuck.append(Stream(f, sequential(Pattern(i), 32 * MiB), depth=16))
    run(stuck, 20, until=lambda: bed.stats()['parked'] >= 8, drain=False)
    commits = [s.file.commit_async() for s in stuck]
    f = bed.connect(version, export=pseudo, source='127.0.0.9').open('f' + version, create=True)
    rounds, end = [], time.monotonic() + 2
    while time.monotonic() < end:
        start = time.monotonic()
        offset = len(rounds) % 64 * MiB
        f.write(offset, Pattern(9).view(offset, MiB))
        f.commit()
        f.write(offset, b'stable', nfsraw.FILE_SYNC)
        rounds.append(time.monotonic() - start)
        run(stuck, until=lambda: True, drain=False)
    parked, done = bed.stats()['parked'], sum(c.done for c in commits)
    print('    NFS %s, %s: %d rounds, worst %.0f ms; %d writes parked, %d of 4 COMMITs answered' % (
        version, spec, len(rounds), 1000 * max(rounds), parked, done), flush=True)
    assert len(rounds) >= 10 and max(rounds) < 1.5, 'the other export: %d rounds, worst %.2f s' % (
        len(rounds), max(rounds))
    if blocked:
        assert parked > 0, 'nothing is stuck: no pressure'
        equal(done, 0, 'COMMITs answered by a device that hangs')
    # The device comes back: everybody is answered, and nobody was told a lie.
    bed.fault('off')
    run(stuck, 60)
    no_errors(stuck)
    for call, s in zip(commits, stuck):
        s.client.wait(call)
        equal(call.reply.status_name, 'OK', 'a COMMIT that hung')
        s.file.commit()
        check_file(bed, s.file.path, Pattern(stuck.index(s)), 32 * MiB, through_nfs=False)


@each_version(globals(), ('3', '4.1'))
def check_problem_18_a_dead_disk_blocks_only_its_own_writers(version):
    """The device of one export hangs altogether: that of another, on another disk, does not notice."""
    requires_fault_injection()
    requires(loop_supported(), 'no loop devices here')
    params = {'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '4M', 'Parked_Bytes': '64M'}
    with workdir('other') as folder, LoopDisk(folder, GiB) as healthy:
        def exports(disk):
            return [Export(EXPORT_ID, disk.export_dir, PSEUDO, 'dontcache', {'Audit': True, **params, **FAULTY}),
                    Export(2, healthy.export_dir, '/healthy', 'dontcache', {'Audit': True, **params})]
        with served(exports=exports, workers=16) as bed:
            for spec in ('writeback|sync:hang', 'writeback|sync:delay=400'):
                blocked_beside(bed, version, spec, '/healthy', spec.endswith('hang'))
                bed.close_clients()
            bed.settle()
            # The other disk goes first: nobody may have it open then.
            equal(bed.server.stop(20), 0, 'exit code')


if __name__ == '__main__':
    main(globals())

# SPDX-License-Identifier: LGPL-3.0-or-later
"""The harness itself, against the distribution's own server and plain FSAL_VFS.

A test bed that fails silently makes every test on it worthless: what is checked here is that it
measures, that it refuses, and that it leaves nothing behind.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [ROOT, os.path.join(ROOT, "scripts")]

import run_checks  # noqa: E402
from harness import age, cleanup, ganesha, kernel, paths  # noqa: E402
from harness.disk import LoopDisk, loop_supported, throttle_supported  # noqa: E402
from harness.ganesha import Export, Ganesha, GaneshaError  # noqa: E402
from harness.testing import main, requires, requires_root, wait_until, workdir  # noqa: E402

MiB = 1 << 20


def stock_server(folder, **options):
    os.makedirs(os.path.join(folder, "export"), exist_ok=True)
    return Ganesha(folder, [Export(1, os.path.join(folder, "export"), "/exp")],
                   plugin_dir=paths.system_plugin_dir(), **options)


def expect_error(part, call):
    try:
        call()
    except GaneshaError as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"no error; wanted one with {part!r}")


def test_export_block_nests_our_fsal_over_vfs():
    block = Export(7, "/a b", "/exp", "dontcache", {"Dirty_Bytes": "64M", "Drop_Behind": True},
                   {"Squash": "Root_Squash"}).block()
    assert 'Path = "/a b";' in block and "Squash = Root_Squash;" in block
    outer, inner = block.index("Name = DONTCACHE;"), block.index("FSAL { Name = VFS; }")
    assert outer < block.index("IO_Mode = dontcache;") < inner
    assert outer < block.index("Drop_Behind = true;") < inner


def test_sampler_sees_dirty_pages_new_files_and_removed_ones():
    kernel.requires_cachestat()
    with workdir("sampler") as folder:
        # Not on tmpfs, whose pages are never dirty.
        requires(kernel_counts_dirty(folder), "the temporary folder's file system has no writeback")
        with kernel.Sampler(folder) as sampler:
            os.mkdir(os.path.join(folder, "below"))
            path = os.path.join(folder, "below", "file")
            with open(path, "wb") as file:
                file.write(b"x" * (8 * MiB))
                file.flush()
                wait_until(lambda: sampler.samples[-1].cached_bytes >= 8 * MiB, 5)
                assert sampler.peak_dirty_writeback > 0
                os.unlink(path)
                wait_until(lambda: sampler.samples[-1].cached_bytes == 0, 5)
        count = len(sampler.samples)
        time.sleep(0.05)
        assert len(sampler.samples) == count, "sampling goes on after stop()"
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")]
        assert path not in held


def kernel_counts_dirty(folder):
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"x" * 65536)
        file.flush()
        stat = kernel.cachestat(file.fileno())
        return stat.dirty + stat.writeback > 0


def test_aging_stops_at_the_target_and_reads_again():
    free = [100 * MiB]
    with workdir("age") as folder:
        progress = []

        def memory():
            free[0] -= 8 * MiB
            return free[0], 200 * MiB

        with age.AgedCache(folder, target_free=40 * MiB, read_memory=memory,
                           progress=progress.append) as aged:
            filled = aged.refresh()
            assert 0 < filled < 100 * MiB, filled
            assert aged.refresh() == filled, "a second refresh fills more although memory is full"
        assert os.listdir(folder) == []


def test_server_starts_answers_restarts_and_stops():
    requires_root()
    with workdir("server") as folder, stock_server(folder, workers=4) as server:
        assert "RPC_Ioq_ThrdMax = 4;" in open(server.conf_path, encoding="utf-8").read()
        assert server.rss_bytes() > MiB and server.peak_rss_bytes() > MiB
        listed = subprocess.run(["nfs-ls", server.url("/exp")], capture_output=True, check=False)
        assert listed.returncode == 0, listed.stderr
        port, pid = server.port, server.pid
        assert server.stop() == 0 and not os.path.exists(f"/proc/{pid}")
        server.start()
        assert server.port == port, "clients would not find it again"
        server.kill()
        assert server.exit_code == -signal.SIGKILL


def test_server_takes_other_ports_when_one_is_taken():
    requires_root()
    real, calls = ganesha._free_ports, []
    with workdir("clash") as folder, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        def clashing(count):
            ports = real(count)
            if not calls:
                ports[0] = taken.getsockname()[1]
            calls.append(ports)
            return ports

        ganesha._free_ports = clashing
        try:
            with stock_server(folder) as server:
                assert len(calls) == 2 and server.port == calls[1][0]
        finally:
            ganesha._free_ports = real


def test_server_refuses_what_it_cannot_serve():
    requires_root()
    with workdir("refuse") as folder:
        absent = Ganesha(folder, [Export(1, os.path.join(folder, "absent"), "/exp")],
                         plugin_dir=paths.system_plugin_dir())
        expect_error("EXPORT", absent.start)
        assert not absent.running
        misspelt = stock_server(folder, core_params={"Bogus_Item": 1})
        expect_error("Bogus_Item", misspelt.start)
        busy = stock_server(folder)
        with busy, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            probe.listen()
            number = probe.getsockname()[1]
            expect_error("in use", stock_server(folder, ports={"NFS_Port": number}).start)


def test_disk_slows_down_loses_and_remounts():
    requires_root()
    requires(loop_supported(), "no loop devices here")
    with workdir("disk") as folder:
        with LoopDisk(folder, 320 * MiB) as disk:
            device = disk.device
            path = os.path.join(disk.export_dir, "kept")
            if throttle_supported():
                disk.set_write_bps(16 * MiB)
            started = time.monotonic()
            with open(path, "wb") as file:
                file.write(b"x" * (16 * MiB))
                os.fsync(file.fileno())
            if throttle_supported():
                assert time.monotonic() - started > 0.6, "the throttle does nothing"
                disk.set_write_bps(None)
            assert disk.device_bytes_written() >= 16 * MiB
            with open(os.path.join(disk.export_dir, "lost"), "wb") as file:
                file.write(b"x" * MiB)
            disk.shutdown_fs()
            disk.remount()
            assert os.path.getsize(path) == 16 * MiB
            lost = os.path.join(disk.export_dir, "lost")
            assert not os.path.exists(lost) or os.path.getsize(lost) == 0
        assert device not in cleanup.loop_devices_below(folder)
        assert cleanup.mounts_below(folder) == []


def test_nothing_is_left_behind():
    """By a process that is told to end, and by one that is killed and swept up after."""
    requires_root()
    requires(loop_supported(), "no loop devices here")
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from harness import cleanup; from harness.disk import LoopDisk\n"
        "from harness.ganesha import Export, Ganesha; from harness import paths\n"
        "cleanup.install_signal_handlers(); folder = cleanup.private_dir('left')\n"
        "disk = LoopDisk(folder, 320 << 20)\n"
        "server = Ganesha(folder, [Export(1, disk.export_dir, '/exp')],\n"
        "                 plugin_dir=paths.system_plugin_dir()).start()\n"
        "print(folder, disk.device, server.pid, flush=True); time.sleep(60)\n")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, "-c", program, ROOT], stdout=subprocess.PIPE,
                                   text=True)
        folder, device, server = process.stdout.readline().split()
        process.send_signal(number)
        process.wait(20)
        process.stdout.close()
        wait_until(lambda pid=server: not alive(pid), 5, what="the server ends with its owner")
        if number == signal.SIGKILL:
            assert cleanup.mounts_below(folder), "nothing to sweep: this proves nothing"
            cleanup.sweep_stale()
        assert not os.path.exists(folder), (number, os.listdir(folder))
        assert cleanup.mounts_below(folder) == [], number
        assert device not in cleanup.loop_devices_below(folder), number


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_asan_preload_reaches_the_server():
    requires_root()
    with workdir("asan") as folder:
        preload, env = ganesha.asan_preload()
        with stock_server(folder, preload=preload, env=env) as server:
            with open(f"/proc/{server.pid}/maps", encoding="utf-8") as maps:
                assert "libasan" in maps.read()


def test_check_counts_every_outcome():
    junit = """<testsuite>
      <testcase name="good" status="run"><system-out>fine</system-out></testcase>
      <testcase name="half" status="run"><system-out>SKIP: no loop</system-out></testcase>
      <testcase name="bad" status="fail"><failure message=""/></testcase>
      <testcase name="left" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
        <system-out>--- a\nSKIP: no tap device</system-out></testcase>
      <testcase name="gone" status="notrun"><skipped message="Unable to find executable"/></testcase>
    </testsuite>"""
    with workdir("junit") as folder:
        path = os.path.join(folder, "junit.xml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(junit)
        tally = run_checks.Tally()
        tally.add_junit("release", path)
        assert tally.passed == ["good [release]", "half [release]"]
        assert tally.partly_skipped == [("half [release]", "no loop")]
        assert tally.failed == ["bad [release]", "gone [release]: not run"]
        assert tally.skipped == [("left [release]", "no tap device")]
        tally.add_junit("asan", os.path.join(folder, "absent.xml"))
        assert len(tally.failed) == 3, "a run without results must not pass"


if __name__ == "__main__":
    main(globals())

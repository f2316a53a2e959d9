#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Serve a folder through DONTCACHE until Ctrl-C.

Starts a private NFS-Ganesha on the loopback interface with DIR as its export, prints commands
that a client can paste, and then one line each second: what is dirty, under writeback and parked,
and how fast clients and the flusher write. The folder itself is left as it is.
"""

import argparse
import ctypes
import errno
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from harness import cleanup, paths  # noqa: E402
from harness.params import problems  # noqa: E402
from harness.ganesha import Export, Ganesha, GaneshaError  # noqa: E402

EXPORT_ID = 1
_AT_FDCWD = -100
_MAX_HANDLE = 128


def _number_in(low, high):
    def parse(text):
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text}: {low} to {high}")
        return value
    return parse


def _assignment(text):
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: wanted is NAME=VALUE")
    return name.strip(), value.strip()


def parse_arguments(argv):
    parser = argparse.ArgumentParser(prog="quickstart serve", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", help="the folder to serve, on a local disk")
    parser.add_argument("--pseudo", default="/export", metavar="/NAME",
                        help="the name that clients mount (default %(default)s)")
    parser.add_argument("--mode", default="dontcache", metavar="IO_MODE",
                        help="IO_Mode of the export (default %(default)s), or 'stock': plain "
                             "FSAL_VFS without the plugin")
    parser.add_argument("--set", dest="params", action="append", type=_assignment, default=[],
                        metavar="NAME=VALUE",
                        help="a parameter of the export, for instance Dirty_Bytes=512M; may be "
                             "given several times")
    parser.add_argument("--port", type=_number_in(1, 65535), help="NFS port (default: a free one)")
    parser.add_argument("--mount-port", type=_number_in(1, 65535),
                        help="MOUNT port of NFSv3 (default: a free one)")
    parser.add_argument("--squash", action="store_true",
                        help="map the client's root to nobody (default: root stays root)")
    parser.add_argument("--seconds", type=_number_in(1, 10**7), metavar="N",
                        help="end after N seconds instead of at Ctrl-C")
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if not arguments.pseudo.startswith("/") or arguments.pseudo == "/":
        parser.error("--pseudo is an absolute path below /, for instance /export")
    return arguments


# -- will it work? Said before a server is started, in the user's terms

def file_handle_problem(path):
    """None if the file system of path gives out file handles; else why an NFS server cannot."""
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int),
                    ("data", ctypes.c_char * _MAX_HANDLE)]

    libc = ctypes.CDLL(None, use_errno=True)
    handle, mount_id = Handle(bytes=_MAX_HANDLE), ctypes.c_int()
    if libc.name_to_handle_at(_AT_FDCWD, os.fsencode(path), ctypes.byref(handle),
                              ctypes.byref(mount_id), 0) == 0:
        return None
    if ctypes.get_errno() == errno.EOPNOTSUPP:
        return ("its file system has no file handles, which an NFS server needs to find a file "
                "again. XFS, ext4 and btrfs have them; overlayfs (the root of most containers), "
                "FUSE and network mounts often do not")
    return os.strerror(ctypes.get_errno())


def filesystem_type(path):
    best, kind = "", "unknown"
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            _, where, fstype = line.split(" ")[:3]
            where = where.replace("\\040", " ")
            if (path + "/").startswith(where.rstrip("/") + "/") and len(where) >= len(best):
                best, kind = where, fstype
    return kind


def folder_problem(path):
    if not os.path.exists(path):
        return f"there is no {path}; 'mkdir -p {path}' makes it"
    if not os.path.isdir(path):
        return f"{path} is not a folder; give the folder that holds it"
    if path == "/":
        return "the root folder itself is not served; give a folder below it"
    kind = filesystem_type(path)
    if kind in ("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2"):
        return f"{path} is on {kind}, which is no file system for data"
    problem = file_handle_problem(path)
    return f"{path} (on {kind}): {problem}" if problem else None


# -- what is printed

def client_commands(server, arguments):
    port, mount_port, pseudo = server.port, server.mnt_port, arguments.pseudo
    fio = os.path.relpath(paths.FIO) if os.path.exists(paths.FIO) else "fio"
    url = server.url(pseudo)
    return f"""\
Clients on this machine (as root, from another shell):
  mount -t nfs -o vers=3,proto=tcp,mountproto=tcp,port={port},mountport={mount_port},nolock \
127.0.0.1:{pseudo} /mnt
  mount -t nfs -o vers=4.1,proto=tcp,port={port} 127.0.0.1:{pseudo} /mnt
without a mount, through libnfs:
  nfs-ls '{url}'
  nfs-cp /etc/hostname '{server.url(pseudo + "/hostname")}'
  {fio} --name=try --ioengine=nfs --nfs_url='{url}' --rw=write --bs=1M --size=1G --iodepth=1
(fio's nfs engine gives up the requests still in flight when it ends: with a larger --iodepth the file
may come out short, on any server that lets writes wait.)
"""


def size(count):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= 10 * factor or (unit == "MiB" and count >= factor):
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


class LiveLine:
    """One line each second: on a terminal always the same one, elsewhere one after another."""

    def __init__(self, server):
        self._server = server
        self._last = None
        self._terminal = sys.stdout.isatty()

    def show(self):
        now, stats = time.monotonic(), self._server.export_stats(EXPORT_ID)
        counters = {**stats, **stats.get("counters", {})}
        client = counters.get("client_bytes_total", 0)
        device = sum(value for name, value in counters.items()
                     if name.startswith("written_") and name.endswith("_bytes_total"))
        if self._last is None:
            rates = (0.0, 0.0)
        else:
            seconds = now - self._last[0]
            rates = ((client - self._last[1]) / seconds, (device - self._last[2]) / seconds)
        self._last = (now, client, device)
        if "dirty" not in stats:
            self.write(f"serving, IO_Mode {stats['mode']}: nothing is counted in it")
            return
        self.write(f"dirty {size(stats['dirty'])}, writeback {size(stats['writeback'])}, "
                   f"parked {stats['parked']} ({size(stats['parked_bytes'])}); "
                   f"clients write {rates[0] / 1e6:.1f} MB/s, flusher {rates[1] / 1e6:.1f} MB/s")

    def write(self, text):
        if self._terminal:
            sys.stdout.write("\r\033[K" + time.strftime("%H:%M:%S ") + text)
        else:
            sys.stdout.write(time.strftime("%H:%M:%S ") + text + "\n")
        sys.stdout.flush()

    def finish(self):
        if self._terminal:
            sys.stdout.write("\n")


def follow(server, arguments):
    """Print the live line until the time is up, Ctrl-C, or the server's death."""
    line, end = LiveLine(server), time.monotonic() + (arguments.seconds or float("inf"))
    due = time.monotonic()
    try:
        while time.monotonic() < end:
            if not server.running:
                raise GaneshaError("the server ended by itself; the end of its log:\n"
                                   + "\n".join(server.log_text().splitlines()[-15:]))
            if arguments.mode == "stock":
                line.write("serving (plain FSAL_VFS: no counters)")
            else:
                try:
                    line.show()
                except OSError as error:
                    line.write(f"no counters: {error}")
            due += 1.0
            time.sleep(max(0.0, min(due, end) - time.monotonic()))
    finally:
        line.finish()


def fail(text):
    print(f"FAILED: {text}", file=sys.stderr)
    return 1


def main(argv):
    arguments = parse_arguments(argv)
    folder = os.path.realpath(arguments.dir)
    problem = folder_problem(folder)
    if problem:
        return fail(problem)
    if os.geteuid() != 0:
        return fail("serving needs root: files are opened by handle, and written as the client's "
                    "user")
    wrong = problems(dict(arguments.params))
    if wrong:
        return fail("--set: " + "; ".join(wrong))
    if arguments.check_arguments:
        return 0

    cleanup.install_signal_handlers()
    cleanup.sweep_stale()
    extra = {"Squash": "Root_Squash"} if arguments.squash else {}
    export = Export(EXPORT_ID, folder, arguments.pseudo, arguments.mode, dict(arguments.params),
                    extra)
    ports = {name: port for name, port in (("NFS_Port", arguments.port),
                                           ("MNT_Port", arguments.mount_port)) if port}
    try:
        server = Ganesha(cleanup.private_dir("serve"), [export], ports=ports)
        server.start()
    except GaneshaError as error:
        return fail(f"the server did not start.\n{error}")
    print(f"==> Serving {folder} ({filesystem_type(folder)}) as {arguments.pseudo}, "
          f"IO_Mode {arguments.mode}, NFSv3 and NFSv4, on 127.0.0.1 port {server.port} "
          f"(MOUNT {server.mnt_port})\n    log {server.log_path}\n")
    print(client_commands(server, arguments))
    print("Ctrl-C ends it.", flush=True)
    try:
        follow(server, arguments)
    except SystemExit:
        pass  # Ctrl-C or SIGTERM: the way this is meant to end
    except GaneshaError as error:
        return fail(str(error))
    finally:
        if server.running:
            print("==> Stopping; what is dirty is written back first", flush=True)
        try:
            code = server.stop(timeout=60)
        finally:
            server.close()
    if code != 0:
        return fail(f"the server ended with code {code}")
    print("==> Stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

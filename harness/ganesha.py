# SPDX-License-Identifier: LGPL-3.0-or-later
"""A private NFS-Ganesha on the loopback interface: the distribution's own server, our plugin.

    exports = [Export(1, disk.export_dir, "/exp", "dontcache", {"Dirty_Bytes": "256M"})]
    with Ganesha(workdir, exports) as server:
        subprocess.run(["nfs-ls", server.url("/exp")])
        server.export_stats(1)["dirty"]

Ports are chosen free; the portmapper and the system's D-Bus are neither needed nor touched; all
state lies in workdir; the server dies with the process that started it.
"""

import contextlib
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field

from . import cleanup, paths

_INITIALIZED = "NFS SERVER INITIALIZED"
_PORT_NAMES = ("NFS_Port", "MNT_Port", "NLM_Port", "Rquota_Port")
_START_ATTEMPTS = 5


class GaneshaError(RuntimeError):
    """The server did not do what it should; the message ends with the tail of its log."""


@dataclass
class Export:
    """One export. mode 'stock' is plain FSAL_VFS; any other is an IO_Mode of our plugin.

    params go into our FSAL block, extra into the EXPORT block (and override what stands there).
    """

    id: int
    path: str
    pseudo: str
    mode: str = "stock"
    params: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)

    def fsal_block(self, indent="    "):
        if self.mode == "stock":
            return f"{indent}FSAL {{ Name = VFS; }}\n"
        inner = _items({"Name": "DONTCACHE", "IO_Mode": self.mode, **self.params}, indent + "    ")
        return f"{indent}FSAL {{\n{inner}{indent}    FSAL {{ Name = VFS; }}\n{indent}}}\n"

    def block(self):
        items = {
            "Export_Id": self.id,
            "Path": self.path,
            "Pseudo": self.pseudo,
            "Access_Type": "RW",
            "Squash": "No_Root_Squash",
            "SecType": "sys, none",
            "Protocols": "3, 4",
            "Transports": "TCP",
            "PrivilegedPort": False,
            **self.extra,
        }
        return f"EXPORT {{\n{_items(items)}{self.fsal_block()}}}\n"


def _value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(_value(each) for each in value)
    text = str(value)
    if re.fullmatch(r"[0-9]+[A-Za-z]+", text):
        return '"' + text + '"'  # Ganesha's parser takes an unquoted 64M for a syntax error
    return text if re.fullmatch(r"[A-Za-z0-9_.,* +-]+", text) else '"' + text + '"'


def _items(items, indent="    "):
    return "".join(f"{indent}{name} = {_value(value)};\n" for name, value in items.items())


# -- preloaded libraries

def preload_library(name):
    """Path of harness/preload/NAME.c as a shared library; built at first use."""
    source = os.path.join(paths.ROOT, "harness", "preload", name + ".c")
    target = os.path.join(paths.HARNESS_BUILD, name + ".so")
    os.makedirs(paths.HARNESS_BUILD, exist_ok=True)
    with open(os.path.join(paths.HARNESS_BUILD, ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several tests may want it at once
        if not os.path.exists(target) or os.path.getmtime(target) < os.path.getmtime(source):
            part = f"{target}.{os.getpid()}"
            done = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", part, source,
                                   "-ldl"], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise GaneshaError(f"cannot build {source}:\n{done.stderr}")
            os.replace(part, target)
    return target


def asan_preload(options=""):
    """(preload, env) for a server whose plugin was built with gcc's AddressSanitizer.

    The order matters: nodeepbind and nobind stand before the sanitizer's own library. Leaks are
    not looked for: the server itself leaves memory behind at its end.
    """
    done = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True,
                          check=True)
    library = os.path.realpath(done.stdout.strip())
    if not os.path.isabs(done.stdout.strip()):
        raise GaneshaError("gcc has no libasan: install libgcc-12-dev")
    preload = [preload_library("nodeepbind"), preload_library("norpcbind"),
               preload_library("nobind"), library]
    flags = ":".join(filter(None, ("verify_asan_link_order=0", "detect_leaks=0",
                                   "abort_on_error=0", "exitcode=99", options)))
    return preload, {"ASAN_OPTIONS": flags, "UBSAN_OPTIONS": "print_stacktrace=1"}


# -- ports

def _port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def _free_ports(count):
    """Ports below the range that the kernel hands out to outgoing connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            top = int(file.read().split()[0])
    except (OSError, ValueError):
        top = 32768
    low = 20000 if top > 24000 else 1024
    chosen = []
    for _ in range(1000):
        port = random.randrange(low, top)
        if port not in chosen and _port_is_free(port):
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise GaneshaError("no free ports")


def _port_answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False


class Ganesha:
    """See the head of this file. The process runs in the foreground in a session of its own.

    workers       RPC_Ioq_ThrdMax: at most so many threads serve requests
    plugin_dir    folder of FSALs; default $DONTCACHE_PLUGIN_DIR or build/release/plugins
    preload, env  additional LD_PRELOAD libraries and environment, see asan_preload()
    core_params   additional NFS_CORE_PARAM items; dontcache_params: of the DONTCACHE block
    blocks        further blocks, {"MDCACHE": {"FD_Limit_Percent": 50}}
    log           default log level; epoch: the start verifier (ganesha.nfsd -E)
    wrapper       command put before the server's, which must exec it (valgrind does)
    program       what is started, if not ganesha.nfsd; it must exec that (config/dontcache-ganesha)
    strict        a start with a refused block or an unknown parameter in the configuration is an
                  error; Ganesha itself would come up without that export
    ports         {"NFS_Port": n, ...}: these instead of free ones
    """

    def __init__(self, workdir, exports, workers=None, plugin_dir=None, preload=(), env=None,
                 core_params=None, log="EVENT", epoch=None, dontcache_params=None, wrapper=(),
                 program=None, strict=True, ports=None, blocks=None):
        self.workdir = os.path.realpath(os.path.join(workdir, f"ganesha-{os.urandom(3).hex()}"))
        self.exports = list(exports)
        self.workers = workers
        self.epoch = epoch
        self.log_level = log
        self.core_params = dict(core_params or {})
        self.dontcache_params = dict(dontcache_params or {})
        self.plugin_dir = os.path.realpath(plugin_dir) if plugin_dir else self._find_plugins()
        self._preload = list(preload)
        self._env = dict(env or {})
        self._wrapper = list(wrapper)
        self._program = program
        self._blocks = dict(blocks or {})
        self._strict = strict
        self._fixed_ports = dict(ports or {})
        self._process = None
        self._killed = False
        self._last_cpu = 0.0
        self._last_peak = 0
        self._log_start = 0
        self._ports = None
        self._socket_dir = None
        self.exit_code = None
        os.makedirs(os.path.join(self.workdir, "recovery"))
        self.conf_path = os.path.join(self.workdir, "ganesha.conf")
        self.log_path = os.path.join(self.workdir, "ganesha.log")
        self.out_path = os.path.join(self.workdir, "ganesha.out")
        self._pid_path = os.path.join(self.workdir, "ganesha.pid")
        self.control_socket = os.path.join(self.workdir, "ctl")
        if len(self.control_socket) >= 100:  # sun_path ends at 108
            self._socket_dir = tempfile.mkdtemp(prefix="dontcache-ctl-", dir="/tmp")
            self.control_socket = os.path.join(self._socket_dir, "ctl")
        cleanup.register(self.close)

    def _find_plugins(self):
        folder = paths.plugin_dir()
        if os.path.isdir(folder):
            return os.path.realpath(folder)
        stock = paths.system_plugin_dir()
        if stock is None:
            raise GaneshaError("libfsalvfs.so not found: install nfs-ganesha-vfs")
        if any(export.mode != "stock" for export in self.exports):
            raise GaneshaError(f"no plugin folder {folder}: build the release preset first "
                               "(cmake --preset release && cmake --build --preset release)")
        return stock

    # -- configuration

    @property
    def port(self):
        return self._ports[0]

    @property
    def mnt_port(self):
        return self._ports[1]

    def config(self):
        core = {
            "Protocols": "3, 4",
            **dict(zip(_PORT_NAMES, self._ports)),
            "Bind_addr": "127.0.0.1",
            "Enable_NLM": False,  # would need rpc.statd and a portmapper
            "Enable_RQUOTA": False,
            "Enable_UDP": False,
            "mount_path_pseudo": True,  # v3 and v4 clients use the same path
            "Plugins_Dir": self.plugin_dir,
        }
        if self.workers is not None:
            core["RPC_Ioq_ThrdMax"] = self.workers
        core.update(self.core_params)
        nfsv4 = {
            "Graceless": True,
            "Grace_Period": 0,
            "Lease_Lifetime": 20,
            "Minor_Versions": "0, 1, 2",
            "Only_Numeric_Owners": True,  # no idmapd
            "RecoveryBackend": "fs",
            "RecoveryRoot": os.path.join(self.workdir, "recovery"),
            "Delegations": False,
        }
        # INIT always speaks: start() waits for its last line.
        log = (f"LOG {{\n    Default_Log_Level = {self.log_level};\n"
               f"    Components {{ ALL = {self.log_level}; "
               f"{'' if self._log_is_verbose() else 'INIT = EVENT; '}}}\n}}\n")
        parts = [f"NFS_CORE_PARAM {{\n{_items(core)}}}\n", f"NFSV4 {{\n{_items(nfsv4)}}}\n", log]
        if any(export.mode != "stock" for export in self.exports):
            own = {"Control_Socket": self.control_socket, **self.dontcache_params}
            parts.append(f"DONTCACHE {{\n{_items(own)}}}\n")
        parts += [f"{name} {{\n{_items(items)}}}\n" for name, items in self._blocks.items()]
        parts += [export.block() for export in self.exports]
        return "".join(parts)

    def _log_is_verbose(self):
        return self.log_level.upper() in ("EVENT", "INFO", "DEBUG", "MID_DEBUG", "FULL_DEBUG")

    def _write_conf(self):
        part = self.conf_path + ".new"
        with open(part, "w", encoding="utf-8") as conf:
            conf.write(self.config())
        os.replace(part, self.conf_path)

    def rewrite_conf(self, exports):
        """New exports into the file of the running server; hup() makes it read them."""
        self.exports = list(exports)
        self._write_conf()

    # -- start

    def start(self, timeout=20):
        """Returns when the server answers. After stop() or kill() it starts again, on the same
        ports while they are free, so that clients find it again."""
        if self.running:
            raise GaneshaError("already running")
        for name, port in self._fixed_ports.items():
            if not _port_is_free(port):
                raise GaneshaError(f"{name} {port} is in use")
        if self._ports and not all(map(_port_is_free, self._ports)):
            self._ports = None
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._ports = self._ports or self._choose_ports()
            self._write_conf()
            self._spawn()
            try:
                self._wait_ready(timeout)
                return self
            except GaneshaError:
                clash = "Cannot bind" in self.log_text()
                self._reap()
                if not clash or attempt == _START_ATTEMPTS:
                    raise
                self._ports = None
            except BaseException:
                self._reap()
                raise
        return self

    def _choose_ports(self):
        free = _free_ports(len(_PORT_NAMES))
        return [self._fixed_ports.get(name, port) for name, port in zip(_PORT_NAMES, free)]

    def _spawn(self):
        server = self._program or paths.find_program("ganesha.nfsd")
        if server is None:
            raise GaneshaError("ganesha.nfsd is not installed: apt-get install nfs-ganesha")
        preload = list(dict.fromkeys([*self._preload, preload_library("norpcbind")]))
        command = []
        # PDEATHSIG follows the thread that starts the process: only the main one lives on.
        setpriv = paths.find_program("setpriv")
        if setpriv and threading.current_thread() is threading.main_thread():
            command += [setpriv, "--pdeathsig", "KILL"]
        # By env(1), so that the preloads reach nothing but the server.
        command += ["env", "LD_PRELOAD=" + ":".join(preload),
                    *(f"{name}={value}" for name, value in self._env.items())]
        command += [*self._wrapper, server, "-F", "-f", self.conf_path, "-L", self.log_path,
                    "-p", self._pid_path]
        if self.epoch is not None:
            command += ["-E", str(self.epoch)]
        environment = dict(os.environ)
        # No bus: several servers would quarrel over one name there.
        environment["DBUS_SYSTEM_BUS_ADDRESS"] = f"unix:path={self.workdir}/no-bus"
        for leftover in (self._pid_path, self.control_socket):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leftover)
        self._log_start = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
        self._killed = False
        self.exit_code = None
        with open(self.out_path, "ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                             stderr=out, cwd=self.workdir, env=environment,
                                             start_new_session=True)

    def _wait_ready(self, timeout):
        end = time.monotonic() + timeout
        while True:
            if not self.running:
                raise self._error(f"ganesha.nfsd ended at start (code {self._process.returncode})")
            if _INITIALIZED in self.log_text() and _port_answers(self.port) \
                    and _port_answers(self.mnt_port):
                self._check_conf_accepted()
                return
            if time.monotonic() >= end:
                raise self._error(f"ganesha.nfsd not ready after {timeout} s")
            time.sleep(0.03)

    def _check_conf_accepted(self):
        if self._strict:
            refused = [line.partition("config_errs_to_log :CONFIG ")[2]
                       for line in self.log_text().splitlines()
                       if re.search(r"Errors processing block|Unknown (parameter|token)", line)]
            if refused:
                raise self._error("the configuration was not taken as a whole:\n"
                                  + "\n".join(refused))

    def _error(self, text):
        tail = "\n".join(self.log_text().splitlines()[-40:])
        try:
            with open(self.out_path, encoding="utf-8", errors="replace") as out:
                tail += "\n" + "".join(out.readlines()[-15:])
        except OSError:
            pass
        return GaneshaError(f"{text}\nlog {self.log_path}:\n{tail}")

    # -- end

    @property
    def running(self):
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self):
        return self._process.pid if self._process else None

    def _remember(self):
        try:
            self._last_cpu = self._read_cpu()
            self._last_peak = self._read_status("VmHWM")
        except (OSError, KeyError):
            pass

    def stop(self, timeout=10):
        """SIGTERM; returns the exit code. A server that does not end is killed, and that is an
        error."""
        if self._process is None:
            return self.exit_code
        if self.running:
            self._remember()
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                stacks = self._stacks()
                self._reap()
                raise self._error(f"ganesha.nfsd did not end within {timeout} s of SIGTERM\n"
                                  f"{stacks}") from None
        self.exit_code = self._process.returncode
        return self.exit_code

    def _stacks(self):
        """Where the threads of a server that hangs are, as the kernel sees them."""
        lines = []
        try:
            for task in sorted(os.listdir(f"/proc/{self.pid}/task"), key=int):
                with open(f"/proc/{self.pid}/task/{task}/comm", encoding="utf-8") as comm, \
                        open(f"/proc/{self.pid}/task/{task}/wchan", encoding="utf-8") as wchan:
                    lines.append(f"thread {task} {comm.read().strip()}: {wchan.read().strip()}")
        except OSError:
            pass
        return "\n".join(lines)

    def kill(self):
        """SIGKILL, as a crash."""
        self._remember()
        self._killed = True
        self._reap()

    def _reap(self):
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self.exit_code = self._process.returncode

    def hup(self):
        self._process.send_signal(signal.SIGHUP)

    def close(self):
        """End the server whatever state it is in; its log stays until workdir goes."""
        cleanup.unregister(self.close)
        try:
            if self.running:
                self._process.send_signal(signal.SIGTERM)
                try:
                    self._process.wait(3)
                except subprocess.TimeoutExpired:
                    pass
        finally:
            self._reap()
            if self._socket_dir:
                shutil.rmtree(self._socket_dir, ignore_errors=True)

    def __enter__(self):
        if not self.running:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, kind, *_):
        """Leaving without an exception also demands that the server ended well."""
        try:
            if kind is None and self._process is not None and not self._killed:
                code = self.stop()
                if code != 0:
                    self._keep_logs()
                    raise self._error(f"ganesha.nfsd ended with code {code}")
            elif kind is not None and issubclass(kind, Exception):
                self._keep_logs()
        finally:
            self.close()

    def _keep_logs(self):
        """After a failure: configuration, log and output survive the private folder."""
        folder = os.path.join(paths.BUILD, "logs", "failed",
                              time.strftime("%Y%m%d-%H%M%S-") + str(self.pid))
        os.makedirs(folder, exist_ok=True)
        for path in (self.conf_path, self.log_path, self.out_path):
            with contextlib.suppress(OSError):
                shutil.copy(path, folder)
        print(f"    server's log and configuration kept in {os.path.relpath(folder, paths.ROOT)}",
              flush=True)

    # -- looking at it

    def log_text(self, all_starts=False):
        """What was logged since the last start, or since the first."""
        try:
            with open(self.log_path, "rb") as log:
                log.seek(0 if all_starts else self._log_start)
                return log.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _read_cpu(self):
        with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read_status(self, name):
        with open(f"/proc/{self.pid}/status", encoding="utf-8", errors="replace") as status:
            for line in status:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
        raise KeyError(name)

    def cpu_seconds(self):
        """User and system time of the server so far; of its whole life once it has ended."""
        return self._read_cpu() if self.running else self._last_cpu

    def rss_bytes(self):
        return self._read_status("VmRSS")

    def peak_rss_bytes(self):
        return self._read_status("VmHWM") if self.running else self._last_peak

    def reset_peak_rss(self):
        """Let the peak start again from what is resident now."""
        with open(f"/proc/{self.pid}/clear_refs", "w", encoding="ascii") as clear:
            clear.write("5")

    def control(self, command, timeout=5.0):
        """Send one line to the plugin's control socket, return the whole answer as text."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout)
            client.connect(self.control_socket)
            client.sendall(command.encode() + b"\n")
            answer = bytearray()
            while True:
                piece = client.recv(65536)
                if not piece:
                    return answer.decode("utf-8")
                answer += piece

    def stats(self):
        """The plugin's counters: {"exports": [...], "devices": [...]}."""
        return json.loads(self.control("stats"))

    def export_stats(self, export_id):
        for export in self.stats()["exports"]:
            if export["id"] == export_id:
                return export
        raise KeyError(f"export {export_id} is not in the plugin's statistics")

    def url(self, pseudo, **options):
        """A libnfs URL (NFSv3), for nfs-ls, fio's nfs engine and the like."""
        query = {"version": 3, "nfsport": self.port, "mountport": self.mnt_port, **options}
        return f"nfs://127.0.0.1{pseudo}?" + "&".join(f"{k}={v}" for k, v in query.items())

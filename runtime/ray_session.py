"""The connection to Ray that all launchers of a process share. Ray is imported here only, and late.

A session that the user has started is used and left alone; one that we start has a temporary folder of its own and goes
with its last launcher.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from typing import Any

from pibroch.runtime.errors import InputError, MissingError, WorkerError

OBJECT_STORE = 200 << 20  # bytes of shared memory; Ray spills what exceeds it to its temporary folder
FREE_DISK = 200 << 20  # bytes that Ray's logs and sockets need at least
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""How a gRPC connection opens (RFC 9113, 3.4): the preface and an empty SETTINGS frame, which the server's equals."""
CONNECT = 5.0  # seconds in which the head of a cluster must accept a connection


class Session:
    """The connection to Ray that all launchers of this process share."""

    def __init__(self) -> None:
        self._users = 0
        self._ours = False
        self._folder = ""
        self._registered = False

    def enter(self, address: str | None) -> Any:
        """The module `ray`, connected. Raises MissingError, InputError or WorkerError, in bounded time."""
        ray = import_ray()
        if not ray.is_initialized():
            self._users, self._ours = 0, True
            try:
                self._print(False)
                self._join(ray, address) if address else self._begin(ray)
            except BaseException:
                self._end(ray)
                raise
        elif address not in (None, "auto", (now := ray.get_runtime_context().gcs_address)):
            raise InputError(
                f"Ray is connected to {now} already, not to address={address!r}: call ray.shutdown() first"
            )
        elif not self._users:
            self._ours = False
        self._users += 1
        return ray

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0 and self._ours:
            self._end(import_ray())

    def logs(self) -> str:
        """The folder of Ray's logs on this machine, or ""."""
        try:
            private: Any = importlib.import_module("ray._private.worker")
            return str(private._global_node.get_logs_dir_path())
        except Exception:  # a private name of Ray's: logs are a help, not a need
            return ""

    def _print(self, enabled: bool) -> None:
        """Whether Ray's driver prints what its raylet says of dead workers: it would go to stdout, among results."""
        with contextlib.suppress(ImportError):
            private: Any = importlib.import_module("ray._private.worker")
            private._worker_logs_enabled = enabled

    def _begin(self, ray: Any) -> None:
        if not self._registered:
            self._registered = True
            atexit.register(self.at_exit)  # later than Ray's own handler, which therefore runs after this one
        self._folder = tempfile.mkdtemp(prefix="pibroch-ray-", dir=_short_folder())
        free = shutil.disk_usage(self._folder).free
        if free < FREE_DISK:
            raise MissingError(
                f"Ray needs {FREE_DISK >> 20} MB in {os.path.dirname(self._folder)} and {free >> 20} MB are free: "
                "free some, set TMPDIR, or use --launcher local"
            )
        try:
            _init(
                ray,
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=OBJECT_STORE,
                _temp_dir=self._folder,
                _system_config={"prestart_worker_first_driver": False},
            )
        except Exception as error:
            raise WorkerError(f"Ray did not start ({_first_line(error)}); --launcher local does without it") from error

    def _join(self, ray: Any, address: str) -> None:
        if "://" in address:
            raise InputError(
                f"address={address!r}: give host:port of the cluster's head; ray:// clients do not serve here"
            )
        if address != "auto":
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                raise InputError(f"address={address!r} must be host:port of the cluster's head, or auto")
            _probe(address, host.strip("[]"), int(port))
        try:
            _init(ray, address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise WorkerError(f"cannot join the Ray cluster at {address} ({_first_line(error)})") from error

    def _end(self, ray: Any) -> None:
        self._ours = False
        with contextlib.suppress(Exception):
            ray.shutdown()
        self._print(True)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def at_exit(self) -> None:
        if self._users and self._ours:
            self._users = 0
            self._end(sys.modules["ray"])


SESSION = Session()


def _probe(address: str, host: str, port: int) -> None:
    """Raise WorkerError where no head of a cluster answers at an address: Ray itself would try for many minutes."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return
            connection.sendall(HELLO)
            first = connection.recv(9)
    except OSError as error:
        raise WorkerError(f"no Ray cluster answers at {address} ({error})") from error
    if first[3:4] != HELLO[-6:-5]:
        raise WorkerError(f"what answers at {address} is no head of a Ray cluster (its port is 6379 by default)")


def _init(ray: Any, **options: Any) -> None:
    """`ray.init`, which takes SIGTERM for itself (and then aborts at one): a handler of the program's own stays."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def import_ray() -> Any:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingError("ray is not installed: pip install ray, or use --launcher local") from error
    return ray


def _short_folder() -> str:
    """Ray puts sockets into its folder, and a socket's path has at most 107 characters."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= 20 else "/tmp"


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__

"""Run the real command line, do something to it while it runs, and look at all that it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MARK = "PIBROCH_TEST_RUN"  # in the environment of a run and of all that descends from it
LONG = 200.0  # seconds; never reached
GONE = 30.0  # seconds that processes which have been told to end may take on a busy machine
WORKER_NAMES = ("pibroch.runtime.process", "ray::Actor")  # in the command line of local and of Ray workers


@dataclass
class Run:
    """What a command said, and what was there after it."""

    code: int
    out: str
    err: str
    left: list[str] = field(default_factory=list)  # command lines of processes that outlived it

    @property
    def messages(self) -> list[str]:
        """Lines of stderr that are not progress."""
        return [line for line in self.err.splitlines() if line.strip() and not line.startswith("· ")]

    @property
    def last(self) -> dict[str, Any]:
        """The last line of stdout."""
        data = json.loads(self.out.splitlines()[-1])
        assert isinstance(data, dict)
        return data


Act = Callable[[int], object]  # gets the driver's process id


def run_command(
    args: list[str], *, cwd: Path, at: str = "", act: Act | None = None, file_size: int | None = None,
    out: str | None = None, env: dict[str, str] | None = None,
) -> Run:  # fmt: skip
    """`python -m pibroch ARGS` in a session of its own. When a line of progress has `at`, `act` is called.

    `file_size` limits the files that it may write, in bytes; `out` names a file to be its stdout.
    """
    mark = uuid.uuid4().hex
    limit = None if file_size is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    target = open(out, "wb") if out else subprocess.PIPE  # noqa: SIM115 - closed below
    driver = subprocess.Popen(
        [sys.executable, "-m", "pibroch", *args], cwd=cwd, env={**os.environ, **(env or {}), MARK: mark},
        stdout=target, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=limit,
    )  # fmt: skip
    lines: list[str] = []
    seen: set[Process] = set()

    def read() -> None:
        assert driver.stderr is not None
        for line in driver.stderr:
            lines.append(line)
            if at and at in line:
                seen.update(descendants(driver.pid))
                assert act is not None
                act(driver.pid)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        said = driver.stdout.read() if driver.stdout else ""
        driver.wait(LONG)
        reader.join(LONG)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        for stream in (driver.stdout, driver.stderr, target):
            if stream and not isinstance(stream, int):
                stream.close()
    left = [found for found in seen | marked(mark) if not gone(found)]
    for found in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGKILL)
    return Run(driver.returncode, said, "".join(lines), sorted(f"{found.pid} {found.name}" for found in left))


class Process(NamedTuple):
    """A process; its birth tells it from a later one with the same id, its name may change."""

    pid: int
    born: str
    name: str


def workers(driver: int) -> list[Process]:
    """A driver's workers, local or Ray's, in the order of their start."""
    return sorted(found for found in descendants(driver) if any(name in found.name for name in WORKER_NAMES))


def signal_worker(number: signal.Signals) -> Act:
    """Send a signal to the last worker."""
    return lambda driver: os.kill(workers(driver)[-1].pid, number)


def signal_driver(number: signal.Signals) -> Act:
    """Send a signal to the driver's process group, as a terminal does."""
    return lambda driver: os.killpg(driver, number)


def descendants(pid: int) -> set[Process]:
    """All processes under a process."""
    parents = {child: parent for child, parent in ((p, parent_of(p)) for p in processes()) if parent}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {process(child) for child in found - {pid}}


def marked(mark: str) -> set[Process]:
    """The processes whose environment has the mark of a run."""
    found = set()
    for pid in processes():
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(process(pid))
    return found


def gone(found: Process) -> bool:
    """Whether a process has ended, or ends within `GONE` seconds."""
    try:
        handle = os.pidfd_open(found.pid)
    except ProcessLookupError:
        return True
    fields = _stat(found.pid)
    if not fields or fields[0] in "ZX" or fields[19] != found.born:
        os.close(handle)
        return True
    try:
        ready, _, _ = select.select([handle], [], [], GONE)
    finally:
        os.close(handle)
    return bool(ready)


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def parent_of(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def process(pid: int) -> Process:
    fields = _stat(pid)
    return Process(pid, fields[19] if fields else "", command_line(pid))


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []

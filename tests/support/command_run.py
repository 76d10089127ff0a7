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
from typing import Any

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
    process = subprocess.Popen(
        [sys.executable, "-m", "pibroch", *args], cwd=cwd, env={**os.environ, **(env or {}), MARK: mark},
        stdout=target, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=limit,
    )  # fmt: skip
    lines: list[str] = []
    seen: dict[int, str] = {}

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if at and at in line:
                seen.update(descendants(process.pid))
                assert act is not None
                act(process.pid)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        said = process.stdout.read() if process.stdout else ""
        process.wait(LONG)
        reader.join(LONG)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdout, process.stderr, target):
            if stream and not isinstance(stream, int):
                stream.close()
    left = {pid: name for pid, name in {**seen, **marked(mark)}.items() if not gone(pid, name)}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Run(process.returncode, said, "".join(lines), sorted(left.values()))


def workers(driver: int) -> list[int]:
    """Process ids of a driver's workers, local or Ray's, in the order of their start."""
    return sorted(pid for pid, name in descendants(driver).items() if any(w in name for w in WORKER_NAMES))


def signal_worker(number: signal.Signals) -> Act:
    """Send a signal to the last worker."""
    return lambda driver: os.kill(workers(driver)[-1], number)


def signal_driver(number: signal.Signals) -> Act:
    """Send a signal to the driver's process group, as a terminal does."""
    return lambda driver: os.killpg(driver, number)


def descendants(pid: int) -> dict[int, str]:
    """Command lines of all processes under a process, by id."""
    parents = {child: parent for child, parent in ((p, parent_of(p)) for p in processes()) if parent}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: command_line(child) for child in found - {pid}}


def marked(mark: str) -> dict[int, str]:
    """The processes whose environment has the mark of a run."""
    found = {}
    for pid in processes():
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found[pid] = command_line(pid)
    return found


def gone(pid: int, name: str) -> bool:
    """Whether a process has ended, or ends soon. An id that another process has by now is gone, too."""
    if command_line(pid) != name or state_of(pid) in ("", "Z", "X"):
        return True
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
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


def state_of(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


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



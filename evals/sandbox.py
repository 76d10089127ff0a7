"""Runs one function of untrusted Python in a fresh, locked-up process and returns its plain JSON value.

The child (`evals/sandbox_child.py`) has no environment, no site packages, no network, no threads or processes, reads
only the standard library and writes only a temporary folder that is removed afterwards. The parent owns the clock and
the output limit, and kills the child's process group as a whole. Nothing that the child says is believed: its value
is data to be judged outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pibroch
from pibroch.runtime.errors import MissingError, PibrochError

_ROOT = str(Path(pibroch.__file__).resolve().parent.parent)
DEADLINE_S = 10.0
MEMORY_BYTES = 512 << 20
OUTPUT_BYTES = 4 << 20


class SandboxError(PibrochError):
    """The candidate failed: one line that says how. The same on every machine, so that it can be feedback."""

    exit_code = 1


def run_sandboxed(
    source: str,
    *,
    call: str = "main",
    args: list[Any] | None = None,
    deadline_s: float = DEADLINE_S,
    memory_bytes: int = MEMORY_BYTES,
    output_bytes: int = OUTPUT_BYTES,
) -> Any:
    """Execute `source` and return what `call(*args)` returned, as plain JSON.

    Raises `SandboxError` where the candidate raises, returns no JSON, ends early, or passes a limit, and `MissingError`
    where this machine cannot lock a process up.
    """
    require_sandbox()
    return _run(source, call, args or [], deadline_s, memory_bytes, output_bytes)


@cache
def _why_unavailable() -> str | None:
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has neither Landlock nor seccomp"
    probe = (
        "def main():\n    try:\n        open('/proc/self/status')\n    except PermissionError:\n"
        "        return 'locked'\n"
    )
    try:
        if _run(probe, "main", [], 30.0, MEMORY_BYTES, OUTPUT_BYTES) == "locked":
            return None
        return "a probe could read a file outside"
    except (MissingError, SandboxError) as error:
        return str(error)


def require_sandbox() -> None:
    """Raises `MissingError` where generated code cannot be run safely."""
    reason = _why_unavailable()
    if reason:
        raise MissingError(
            f"generated code runs only in a sandbox, and this machine has none ({reason}): use a Linux kernel of 5.13 "
            "or later with Landlock and seccomp, on x86_64 or aarch64"
        )


def _run(source: str, call: str, args: list[Any], deadline_s: float, memory: int, output: int) -> Any:
    limits = {
        "RLIMIT_AS": memory, "RLIMIT_CPU": int(deadline_s) + 2, "RLIMIT_FSIZE": output, "RLIMIT_NOFILE": 32,
        "RLIMIT_CORE": 0,
    }  # fmt: skip
    job = {"source": source, "call": call, "args": args, "limits": limits}
    with tempfile.TemporaryDirectory(prefix="pibroch-sandbox-") as folder:
        text, fault, code = ask_child(
            "pibroch.evals.sandbox_child", job, flags=("-I", "-S", "-B"), folder=folder, deadline_s=deadline_s,
            output_bytes=output,
        )  # fmt: skip
    if fault:
        raise SandboxError(fault)
    return _value(text, code, call)


def ask_child(
    module: str, job: Any, *, flags: tuple[str, ...], folder: str, deadline_s: float, output_bytes: int,
    env: Mapping[str, str] | None = None,
) -> tuple[bytes, str | None, int]:  # fmt: skip
    """Run `main()` of one of our modules that locks itself up: in a process group of its own, in `folder`, with `job`
    as JSON on its standard input. What it wrote until it closed its output, which limit it passed, and its exit code;
    no process of the group is left."""
    boot = f"import sys; sys.path.append(sys.argv[1]); from {module} import main; main()"
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(job).encode())
        given.seek(0)
        child = subprocess.Popen(
            [sys.executable, *flags, "-c", boot, _ROOT], stdin=given, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=dict(env or {}), cwd=folder, start_new_session=True,
        )  # fmt: skip
    assert child.stdout is not None
    try:
        text, fault = _read(child.stdout.fileno(), deadline_s, output_bytes)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        child.stdout.close()
    return text, fault, code


def _read(fd: int, deadline_s: float, output: int) -> tuple[bytes, str | None]:
    """What comes until the other end is closed, and which limit was passed."""
    os.set_blocking(fd, False)
    ends, size = time.monotonic() + deadline_s, 0
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            left = ends - time.monotonic()
            if left <= 0:
                return b"", f"the code did not end within {deadline_s:g} s"
            if not selector.select(left):
                continue
            part = os.read(fd, 1 << 16)
            if not part:
                return b"".join(parts), None
            size += len(part)
            if size > output:
                return b"", f"the code wrote more than {output} bytes"
            parts.append(part)


def _value(text: bytes, code: int, call: str) -> Any:
    if not text:
        if code < 0 and -code in (signal.SIGXCPU, signal.SIGKILL):
            raise SandboxError("the code used too much processor time or memory and was killed")
        how = f"was ended by signal {-code}" if code < 0 else "left the process"
        raise SandboxError(f"the code {how} before {call}() returned")
    try:
        data = json.loads(text)
        assert isinstance(data, dict)
    except (ValueError, AssertionError, RecursionError) as error:
        raise SandboxError("the code's output is not one JSON object") from error
    if "refused" in data:
        raise MissingError(str(data["refused"]))
    if "error" in data:
        raise SandboxError(f"the code failed: {data['error']}")
    if set(data) != {"value"}:
        raise SandboxError("the code's output is not one JSON object with a value")
    return data["value"]

"""Answers a mailbox with a command: one process per request, the request on its standard input."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pibroch.agents.lm.mailbox import LEASE_S, claimed, file_reply, mailbox_list
from pibroch.runtime.errors import InputError

TRIES = 3


def mailbox_serve(
    folder: Path,
    exec_cmd: str,
    *,
    once: bool = False,
    timeout_s: float = LEASE_S / 2,
    poll_s: float = 0.5,
    stop: threading.Event | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Answer open requests with the standard output of `exec_cmd` (a shell command) until `stop`; returns how many.

    The command gets the request's text on standard input and its path in PIBROCH_REQUEST. It is killed with its whole
    process group after `timeout_s`. A request is tried three times, then left for others. `once` ends when none is
    open. Raises `InputError` where `folder` is no mailbox.
    """
    tries: dict[str, int] = {}
    answered = 0
    stop = stop or threading.Event()
    while not stop.is_set():
        rows = [e for e in mailbox_list(folder) if e.status == "open" and tries.get(e.id, 0) < TRIES]
        if not rows:
            if once:
                break
            stop.wait(poll_s)
            continue
        entry = rows[0]
        tries[entry.id] = tries.get(entry.id, 0) + 1
        who = Path(exec_cmd.split()[0]).name if exec_cmd.split() else "command"
        try:
            with claimed(folder, entry.id, who=f"{who} (pid {os.getpid()})", lease_s=timeout_s + 60):
                text = _ask(exec_cmd, entry.path, timeout_s)
                file_reply(folder, entry.id, text, who=who)
        except InputError as error:
            say(str(error))
            continue
        answered += 1
        say(f"answered {entry.id}")
    return answered


def _ask(command: str, request: Path, timeout_s: float) -> str:
    child = subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        errors="replace", start_new_session=True, env={**os.environ, "PIBROCH_REQUEST": str(request)},
    )  # fmt: skip
    started = time.monotonic()
    try:
        text, _ = child.communicate(request.read_text(encoding="utf-8"), timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        seconds = time.monotonic() - started
        raise InputError(f"{command!r} did not answer {request.name} within {seconds:.0f} s and was killed") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
    if child.returncode:
        raise InputError(f"{command!r} failed on {request.name} with exit status {child.returncode}")
    return text

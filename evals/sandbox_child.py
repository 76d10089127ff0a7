"""The inside of the sandbox: locks its own process up, runs one function of untrusted source, prints one JSON object.

Started by `evals/sandbox.py` (`python -I -S -B`), never imported by others. It reads `{"source", "call", "args",
"limits"}` from standard input and writes `{"value": ...}` or `{"error": "..."}` to standard output. Whatever it
says is only data for the parent: nothing here is trusted after the source has started.

It may read the standard library and write only the work folder; see `evals/lockup.py`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pibroch.evals.lockup import lock_up


def main() -> None:
    """Read the job, lock up, run, answer."""
    sys.path.remove(sys.argv.pop())
    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        lock_up(job["limits"], write=True, new_code=True)
    except OSError as error:
        answer(out, {"refused": f"the sandbox cannot be set up: {error}"})
        os._exit(0)
    answer(out, run(job))
    os._exit(0)


def answer(out: int, data: dict[str, Any]) -> None:
    """Write one JSON object and nothing else."""
    text = json.dumps(data, allow_nan=False).encode()
    while text:
        text = text[os.write(out, text) :]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The value of the call, or what went wrong, in one line that is the same on every machine."""
    scope: dict[str, Any] = {"__name__": "candidate"}
    try:
        exec(compile(job["source"], "candidate", "exec"), scope)
        function = scope.get(job["call"])
        if not callable(function):
            return {"error": f"it defines no function {job['call']}()"}
        value = function(*job["args"])
    except MemoryError:
        return {"error": "it needs more memory than allowed"}
    except BaseException as error:
        return {"error": f"{where(error)}{type(error).__name__}: {str(error)[:500]}"}
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        return {"error": f"{job['call']}() returned something that is not plain JSON: {str(error)[:200]}"}
    return {"value": value}


def where(error: BaseException) -> str:
    """The line of the candidate that raised."""
    line, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == "candidate":
            line = at.tb_lineno
        at = at.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    return f"line {line}: " if line else ""

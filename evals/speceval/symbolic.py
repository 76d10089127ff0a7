"""CrossHair on a candidate: symbolic arguments and calls instead of drawn ones. It can refute, and never accepts.

It runs where the candidate runs, locked up. What it finds is only a proposal: the run is made again in a session of its
own and judged outside, like any other, and then shortened.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pibroch.evals.sandbox import require_sandbox
from pibroch.evals.speceval.search import QUICK, Search
from pibroch.evals.speceval.session import SessionEnded
from pibroch.evals.speceval.shrink import shrink
from pibroch.evals.speceval.statements import need
from pibroch.evals.speceval.symbolic_child import warm_up
from pibroch.evals.speceval.symbolic_program import program, read_run
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.runtime.errors import MissingError
from pibroch.specs.evaluate import ClauseError
from pibroch.specs.model import Spec

ITERATIONS = 150  # paths that show nothing new, per unit
SECONDS = 12  # per unit; a guard
START_S = 60
MEMORY_BYTES = 2 << 30
OUTPUT_BYTES = 1 << 20
_ROOT = str(Path(__file__).resolve().parents[3])
_BOOT = "import sys; sys.path.append(sys.argv[1]); from pibroch.evals.speceval.symbolic_child import main; main()"


def judge(source: str, spec: Spec, budget: int = ITERATIONS, *, phase: int = 1) -> StageReport:
    """Look for a run that breaks a clause; `budget` in CrossHair's iterations. What could not be looked at is told in
    the evidence. Raises `MissingError` without CrossHair or a sandbox."""
    report, started = StageReport("symbolic"), time.monotonic()
    need("crosshair")
    wrapper = program(spec, phase=phase)
    if wrapper is None:
        report.evidence["skipped"] = "its clauses speak of what other modules or a library give"
        return report
    functions = [f"check_{i}" for i in range(len(spec.units))]
    answer = _run(source, wrapper, functions, spec.front.imports, budget)
    found = answer.get("found")
    if not isinstance(found, dict):
        report.evidence["skipped"] = str(answer.get("failed", "it gave no answer"))[:200]
        return report
    search = Search(source, spec, phase=phase, budget=QUICK)
    try:
        for name, unit in zip(functions, spec.units, strict=True):
            texts = [t for t in found.get(name, []) if isinstance(t, str) and "when calling" in t]
            runs = [r for r in (read_run(spec, unit, t, phase=phase) for t in texts) if r is not None]
            report.evidence[unit.name] = "a run" if runs else "no run that can be made" if texts else "nothing found"
            for run in runs:
                failed = search.judge(run)
                if failed is None:
                    report.evidence[unit.name] = "a run that breaks nothing outside"
                    continue
                shortest, failure = shrink(search, run, failed[1][0])
                calls = shortest.written(spec)
                report.verdicts[failure.clause] = "refuted"
                report.findings.append(
                    Finding("symbolic", failure.clause, failure.message, failure.line, calls, failure.values,
                            failure.code_lines)
                )  # fmt: skip
    except (SessionEnded, ClauseError) as ended:
        report.evidence["ended"] = str(ended)
    finally:
        search.drop()
    report.seconds = time.monotonic() - started
    return report


def _run(source: str, wrapper: str, functions: list[str], imports: list[str], iterations: int) -> dict[str, Any]:
    """The child's answer, believed in nothing."""
    require_sandbox()
    limits = {"RLIMIT_AS": MEMORY_BYTES, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 64, "RLIMIT_CORE": 0}
    job = {"source": source, "functions": functions, "imports": imports, "iterations": iterations, "seconds": SECONDS,
           "limits": limits}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="pibroch-symbolic-") as folder:
        (Path(folder) / "wrapper.py").write_text(wrapper, encoding="utf-8")
        (Path(folder) / "warm_up.py").write_text(warm_up(), encoding="utf-8")
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(job).encode())
            given.seek(0)
            child = subprocess.Popen(
                [sys.executable, "-s", "-P", "-B", "-c", _BOOT, _ROOT], stdin=given, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env={"PYTHONHASHSEED": "0"}, cwd=folder, start_new_session=True,
            )  # fmt: skip
        assert child.stdout is not None
        try:
            text = _read(child.stdout.fileno(), time.monotonic() + START_S + 2 * SECONDS * len(functions))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()
    try:
        data = json.loads(text)
        assert isinstance(data, dict)
    except (ValueError, AssertionError, RecursionError):
        return {"failed": "it gave no answer"}
    if "refused" in data:
        raise MissingError(str(data["refused"]))
    return data


def _read(fd: int, ends: float) -> bytes:
    """What is written until the end of the output or of the time; nothing where it is too much."""
    text = b""
    while len(text) <= OUTPUT_BYTES and (left := ends - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            part = os.read(fd, 1 << 16)
            if not part:
                return text
            text += part
    return b""

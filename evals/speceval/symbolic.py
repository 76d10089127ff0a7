"""CrossHair on a candidate: symbolic arguments and calls instead of drawn ones. It can refute, and never accepts.

It runs where the candidate runs, locked up. What it finds is only a proposal: the run is made again in a session of its
own and judged outside, like any other, and then shortened.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from pibroch.evals.sandbox import ask_child, require_sandbox
from pibroch.evals.speceval.search import QUICK, Search
from pibroch.evals.speceval.session import SessionEnded
from pibroch.evals.speceval.shrink import shrink
from pibroch.evals.speceval.statements import need
from pibroch.evals.speceval.symbolic_child import warm_up
from pibroch.evals.speceval.symbolic_program import program, read_run
from pibroch.evals.speceval.verdict import StageReport
from pibroch.runtime.errors import MissingError
from pibroch.specs.evaluate import ClauseError
from pibroch.specs.model import Spec

ITERATIONS = 150  # paths that show nothing new, per unit
SECONDS = 12  # per unit; a guard
START_S = 60
MEMORY_BYTES = 2 << 30
OUTPUT_BYTES = 1 << 20


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
                report.verdicts[failure.clause] = "refuted"
                report.findings.append(failure.finding("symbolic", shortest.written(spec)))
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
        text, _, _ = ask_child(
            "pibroch.evals.speceval.symbolic_child", job, flags=("-s", "-P", "-B"), folder=folder,
            deadline_s=START_S + 2 * SECONDS * len(functions), output_bytes=OUTPUT_BYTES, env={"PYTHONHASHSEED": "0"},
        )  # fmt: skip
    try:
        data = json.loads(text)
        assert isinstance(data, dict)
    except (ValueError, AssertionError, RecursionError):
        return {"failed": "it gave no answer"}
    if "refused" in data:
        raise MissingError(str(data["refused"]))
    return data

"""`pibroch bench scale`: how long lowering, verifying and simulating take for large plans, and in how much memory.

Each case runs in a process of its own, so that its peak memory is its own. Nothing is executed on devices. All three
are single-threaded, so limits and growth are judged by processor time, which other work on the machine stretches less
than the time on the wall; both are reported.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pibroch
from pibroch.runtime.costs import UnitCosts
from pibroch.runtime.errors import WorkerError
from pibroch.runtime.families import build
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.simulate import simulate
from pibroch.runtime.verify import verify

GROWTH = 2.0
"""Seconds per task of a family's largest case over those of its smallest: near-linear below this."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule by its numbers; `seconds` (of processor time) and `gigabytes` (1e9 bytes) limit the whole and its peak
    memory."""

    family: str
    stages: int
    microbatches: int
    replicas: int = 1
    seconds: float | None = None
    gigabytes: float | None = None


CASES: tuple[Case, ...] = tuple(
    case
    for family in ("1f1b", "zb-h1")
    for case in (
        Case(family, 8, 64),
        Case(family, 8, 64, 8, seconds=2.0),
        Case(family, 32, 256),
        Case(family, 64, 512, seconds=60.0, gigabytes=4.0),
    )
)
QUICK = tuple(case for case in CASES if case.stages == 8)


def run(
    cases: Sequence[Case] | None = None, *, quick: bool = False, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Time all cases (or the small ones). Returns `ok`, `rows` and `growth`, the ratio per family (see `GROWTH`)."""
    rows = scale_table(cases if cases is not None else QUICK if quick else CASES, progress=progress)
    growth = {}
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = sorted((row for row in rows if row["family"] == family), key=lambda row: row["tasks"])
        growth[family] = mine[-1]["us_per_task"] / mine[0]["us_per_task"]
    ok = all(row["ok"] for row in rows) and all(ratio <= GROWTH for ratio in growth.values())
    return {"ok": ok, "rows": rows, "growth": growth}


def scale_table(cases: Sequence[Case], *, progress: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """One row per case: processor seconds of each step, tasks, and peak memory in bytes.

    Raises `WorkerError` where a case dies, for want of memory or after ten minutes.
    """
    rows = []
    for case in cases:
        rows.append(_in_own_process(case))
        progress(_line(rows[-1]))
    return rows


def _in_own_process(case: Case) -> dict[str, Any]:
    code = f"import json; from {__name__} import Case, measure; print(json.dumps(measure(Case(**{asdict(case)!r}))))"
    home = str(Path(pibroch.__file__).parents[1])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    try:
        child = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
            timeout=600, check=True,
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or error
        raise WorkerError(f"bench scale: {case} did not finish: {str(said).strip().splitlines()[-1]}") from error
    row: dict[str, Any] = json.loads(child.stdout)
    return row


def measure(case: Case) -> dict[str, Any]:
    """The row of one case, measured in this process. `total_s` is lowering, verifying and simulating, in processor time
    as each of them; `wall_s` is the same on the wall."""
    schedule = build(case.family, devices=case.stages, microbatches=case.microbatches, replicas=case.replicas)
    model = uniform_model(case.stages)
    wall, clock = time.perf_counter(), [time.process_time()]
    plan = lower(schedule, model)
    clock.append(time.process_time())
    violations = verify(plan, model=model)
    clock.append(time.process_time())
    makespan = simulate(plan, UnitCosts()).makespan
    clock.append(time.process_time())
    # The high-water mark of this process: kilobytes on Linux, bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    total, wall = clock[3] - clock[0], time.perf_counter() - wall
    within = (case.seconds is None or total <= case.seconds) and (
        case.gigabytes is None or peak <= case.gigabytes * 1e9
    )
    return {
        "family": case.family,
        "stages": case.stages,
        "microbatches": case.microbatches,
        "replicas": case.replicas,
        "devices": plan.devices,
        "tasks": len(plan.tasks),
        "lower_s": clock[1] - clock[0],
        "verify_s": clock[2] - clock[1],
        "simulate_s": clock[3] - clock[2],
        "total_s": total,
        "wall_s": wall,
        "us_per_task": total / len(plan.tasks) * 1e6,
        "peak_bytes": peak,
        "makespan": makespan,
        "violations": len(violations),
        "limit_s": case.seconds,
        "limit_bytes": case.gigabytes * 1e9 if case.gigabytes else None,
        "ok": within and not violations,
    }


def report(result: dict[str, Any]) -> str:
    """One line per case, then the growth per family."""
    lines = [_line(row) for row in result["rows"]]
    for family, ratio in result["growth"].items():
        lines.append(f"{family}: the largest case takes {ratio:.2f} times as long per task as the smallest")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    limits = [f"limit {row['limit_s']:g} s"] if row["limit_s"] else []
    limits += [f"limit {row['limit_bytes'] / 1e9:g} GB"] if row["limit_bytes"] else []
    return (
        f"{'ok  ' if row['ok'] else 'FAIL'} {row['family']:6} {row['stages']} stages x {row['microbatches']} mb x "
        f"{row['replicas']}: {row['tasks']} tasks, lower {row['lower_s']:.2f} s, verify {row['verify_s']:.2f} s, "
        f"simulate {row['simulate_s']:.2f} s, total {row['total_s']:.2f} s ({row['wall_s']:.2f} s on the wall), "
        f"peak {row['peak_bytes'] / 1e9:.2f} GB{' (' + ', '.join(limits) + ')' if limits else ''}"
    )

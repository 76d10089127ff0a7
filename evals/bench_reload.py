"""`pibroch bench reload`: how soon another schedule of the same model runs on warm workers.

A case is a schedule loaded into running workers. Its time is from the call of `load` to the first task of its first
step: `load`, plus what the first step takes longer than a later one. "Known groups" have been used before in this pool;
a "new topology" makes its communicators first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from pibroch.evals.models import load_workload
from pibroch.evals.timing import measurement_lock
from pibroch.runtime.directives import Schedule
from pibroch.runtime.families import build
from pibroch.runtime.trainer import Trainer

KNOWN_S, NEW_S = 0.3, 1.5
RANKS = 4


def cases() -> list[tuple[str, Schedule, bool]]:
    """(name, schedule, whether its groups are new to the pool), in the order in which they are loaded."""
    pipeline = [
        (f"{family}, {RANKS} stages", build(family, devices=RANKS, microbatches=8), False)
        for family in ("gpipe", "zb-h1", "1f1b")
    ]
    half = RANKS // 2
    return [
        *pipeline,
        (f"{half} stages x 2 replicas", build("1f1b", devices=half, replicas=2, microbatches=4), True),
        (f"{RANKS} replicas", build("gpipe", devices=1, replicas=RANKS, microbatches=2), True),
        (f"{half} stages x 2 replicas again", build("zb-h1", devices=half, replicas=2, microbatches=4), False),
        (f"{RANKS} stages again", build("1f1b", devices=RANKS, microbatches=4), False),
    ]


def run(
    *,
    workload: str = "gpt-tiny",
    launcher: str = "ray",
    seed: int = 0,
    deadline: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Start cold, then load every case in turn. Returns `cold_s`, `cases` and `ok`."""
    model = load_workload(workload)
    rows: list[dict[str, Any]] = []
    with measurement_lock():
        start = time.perf_counter()
        first = build("1f1b", devices=RANKS, microbatches=8)
        with Trainer(model, first, launcher=launcher, seed=seed, deadline=deadline) as trainer:
            trainer.prepare()
            trainer.step(model.batch(trainer.batch_size, seed))
            cold = time.perf_counter() - start
            progress(f"cold start with its first step: {cold:.2f} s")
            for name, schedule, new in cases():
                start = time.perf_counter()
                trainer.load(schedule)
                loaded = time.perf_counter() - start
                batch = model.batch(trainer.batch_size, seed)
                start = time.perf_counter()
                trainer.step(batch)
                first_step = time.perf_counter() - start
                later = []
                for _ in range(3):
                    start = time.perf_counter()
                    trainer.step(batch)
                    later.append(time.perf_counter() - start)
                seconds = loaded + max(0.0, first_step - statistics.median(later))
                bound = NEW_S if new else KNOWN_S
                rows.append(
                    {
                        "case": name,
                        "new_topology": new,
                        "load_s": loaded,
                        "first_step_s": first_step,
                        "step_s": statistics.median(later),
                        "seconds": seconds,
                        "bound": bound,
                        "passed": seconds < bound,
                    }
                )
                progress(_line(rows[-1]))
    return {
        "bench": "reload",
        "workload": workload,
        "launcher": launcher,
        "cold_s": cold,
        "cases": rows,
        "ok": all(row["passed"] for row in rows),
    }


def report(result: dict[str, Any]) -> str:
    """One line per case."""
    where = f"{result['workload']} on {RANKS} warm workers ({result['launcher']})"
    lines = [f"{where}; cold start {result['cold_s']:.2f} s"]
    lines += [_line(row) for row in result["cases"]]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    kind = "new topology" if row["new_topology"] else "known groups"
    verdict = "pass" if row["passed"] else "FAIL"
    return f"{verdict} {row['case']} ({kind}): runs after {row['seconds']:.3f} s, must be < {row['bound']} s"

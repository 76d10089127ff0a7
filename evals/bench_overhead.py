"""`pibroch bench overhead`: what an evaluation takes beyond the steps themselves, against a cold start.

The overhead of an evaluation is its time less that spent in steps (judged ones among them): lowering, verifying,
simulating, loading, the judge's reference and the sampling of foreign CPU time. A cold start is new workers up to the
end of their first step. An evaluation in a size of microbatch that was not seen before would capture the model as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from pibroch.evals.bench_false_wins import disguise
from pibroch.evals.ladder import Ladder
from pibroch.evals.ladder_workers import Where, Workers
from pibroch.evals.setting import open_setting
from pibroch.evals.task import find_task
from pibroch.evals.timing import clock, measurement_lock
from pibroch.runtime.errors import WorkerError
from pibroch.runtime.families import build

MOST_S = 0.5
TIMES = 10  # at least that many overheads fit into a cold start


def run(
    *,
    task: str = "gpt-tiny-2",
    evaluations: int = 12,
    launcher: str = "local",
    keep_noisy: bool | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Evaluate other schedules of the task in turn on warm workers. Returns a row for each, and `ok`."""
    setting = open_setting(find_task(task))
    devices, most = setting.task.devices, max(setting.choices(1))
    incumbent = build("1f1b", devices=devices, microbatches=most)
    plan = setting.lower(incumbent)
    with measurement_lock():
        begin = clock()
        with Workers(setting, incumbent, where=Where(launcher)) as workers:
            workers.load(incumbent, plan).step(workers.batch())
            cold = clock() - begin
    progress(f"cold start with its first step: {cold:.2f} s")
    rows: list[dict[str, Any]] = []
    with Ladder(setting, launcher=launcher, keep_noisy=keep_noisy) as ladder:
        ladder.evaluate(disguise(incumbent, evaluations), incumbent)  # starts the workers, measures costs
        for n in range(evaluations):
            found = ladder.evaluate(disguise(build("1f1b", devices=devices, microbatches=most), n), incumbent)
            if found.verdict in ("invalid", "unequal"):
                raise WorkerError(f"a candidate could not be measured: {found.verdict}: {found.reason}")
            rows.append(
                {"verdict": found.verdict, "pairs": found.pairs, "total_s": found.total_s, "steps_s": found.steps_s,
                 "overhead_s": found.total_s - found.steps_s}
            )  # fmt: skip
            progress(_line(rows[-1]))
    overhead = statistics.median(row["overhead_s"] for row in rows)
    return {
        "task": task,
        "launcher": launcher,
        "emulated": setting.profile is not None,
        "cold_s": cold,
        "overhead_s": overhead,
        "overhead_max_s": max(row["overhead_s"] for row in rows),
        "rows": rows,
        "ok": overhead <= MOST_S and TIMES * overhead <= cold,
    }


def report(result: dict[str, Any]) -> str:
    """The figures in a few lines."""
    kind = "emulated, " if result["emulated"] else ""
    lines = [f"{kind}{result['task']} ({result['launcher']}); cold start {result['cold_s']:.2f} s"]
    lines += [_line(row) for row in result["rows"]]
    lines.append(
        f"{'pass' if result['ok'] else 'FAIL'} overhead {result['overhead_s']:.3f} s in the median, "
        f"{result['overhead_max_s']:.3f} s at most: must be <= {MOST_S} s and {TIMES} times below the cold start"
    )
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['verdict']} after {row['pairs']} pairs: {row['total_s']:.2f} s, steps {row['steps_s']:.2f} s, "
        f"overhead {row['overhead_s']:.3f} s"
    )

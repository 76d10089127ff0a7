"""`pibroch bench false-wins`: is a gain claimed where there is none, and found where there is one?

Disguises: every candidate of a run is the incumbent under another name of its transfer stream: another plan hash, the
same work. No run may accept one; of 50, one may. Power: real work is added to the incumbent (layers recomputed: the
least that makes the gain which is asked for), and one candidate of each run lacks it while the others are disguises:
90% of the runs must find it. The ladder is that of `pibroch evolve`; a run is its candidates, in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from pibroch.evals.evaluation import Evaluation
from pibroch.evals.ladder import Ladder
from pibroch.evals.ladder_workers import Where, Workers
from pibroch.evals.setting import Setting, open_setting
from pibroch.evals.task import find_task
from pibroch.evals.timing import Paired, measurement_lock
from pibroch.runtime.directives import Place, Recompute, Schedule
from pibroch.runtime.errors import WorkerError
from pibroch.runtime.families import build

TASK = "gpt-tiny-2"
GAIN = 0.05
MOST_ACCEPTED = 1  # of all runs with disguises
LEAST_FOUND = 0.9  # of the runs with a gain
CALIBRATION_PAIRS = 200  # a step of 20 ms differs from the next by a tenth and more


def run(
    *,
    runs: int = 50,
    candidates: int = 10,
    launcher: str = "local",
    seed: int = 0,
    calibration_pairs: int = CALIBRATION_PAIRS,
    keep_noisy: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Both halves on the smallest task. Returns a row per run, and `ok`."""
    # Without the memory bound: added work is allowed to need more.
    setting = open_setting(find_task(TASK).model_copy(update={"memory_limit": None}))
    plain = build("1f1b", devices=2, microbatches=4)
    slow, gain = with_work(setting, plain, launcher=launcher, pairs=calibration_pairs, keep_noisy=keep_noisy)
    progress(f"work added to the incumbent: without it a step is {gain.ratio - 1:+.1%} faster")
    rng, rows = random.Random(seed), list[dict[str, Any]]()
    with Ladder(setting, launcher=launcher, candidates=candidates, keep_noisy=keep_noisy) as ladder:
        for n in range(runs):
            rows.append(_one(ladder, "disguises", n, plain, [disguise(plain, i) for i in range(candidates)]))
            progress(_line(rows[-1]))
        for n in range(runs):
            offered = [disguise(slow, i) for i in range(candidates - 1)]
            offered.insert(rng.randrange(candidates), plain)
            rows.append(_one(ladder, "gain", n, slow, offered))
            progress(_line(rows[-1]))
    return summary(rows, gain)


def disguise(schedule: Schedule, number: int) -> Schedule:
    """The same work under another name of the transfer stream: its plan has another hash."""
    name = f"lane-{number}"
    return Schedule(
        directives=[d.model_copy(update={"stream": name}) if isinstance(d, Place) else d for d in schedule.directives]
    )


def with_work(
    setting: Setting, schedule: Schedule, *, launcher: str, pairs: int, keep_noisy: bool
) -> tuple[Schedule, Paired]:
    """The schedule with as few layers recomputed as make their absence a gain of `GAIN`, and that gain, measured again
    once it was chosen."""
    found: list[tuple[float, Schedule]] = []
    with measurement_lock(), Workers(setting, schedule, where=Where(launcher)) as workers:
        base = workers.load(schedule, setting.lower(schedule))
        for slow in _variants(schedule, len(setting.model(1, setting.choices(1)[0]).layers)):
            side = workers.load(slow, setting.lower(slow), beside=base)
            gain = workers.paired(side, base, pairs=pairs, keep_noisy=keep_noisy)
            found.append((gain.ratio, slow))
        _, slow = min(found, key=lambda row: (row[0] < 1 + GAIN, abs(row[0] - 1 - GAIN)))
        side = workers.load(slow, setting.lower(slow), beside=base)
        return slow, workers.paired(side, base, pairs=2 * pairs, keep_noisy=keep_noisy)


def summary(rows: list[dict[str, Any]], gain: Paired) -> dict[str, Any]:
    """What the runs come to."""
    disguises, gains = ([r for r in rows if r["half"] == half] for half in ("disguises", "gain"))
    accepted, found = sum(r["false"] > 0 for r in disguises), sum(r["found"] for r in gains)
    wrong = sum(r["false"] > 0 for r in gains)
    return {
        "task": TASK,
        "gain": gain.to_json(),
        "runs": len(disguises),
        "runs_that_accepted_a_disguise": accepted,
        "runs_that_found_the_gain": found,
        "runs_with_a_gain_that_accepted_a_disguise": wrong,
        "pairs_of_disguises": sum(r["pairs"] for r in disguises),
        "pairs_of_gains": sum(r["pairs"] for r in gains),
        "rows": rows,
        "ok": accepted <= MOST_ACCEPTED and found >= LEAST_FOUND * len(gains),
    }


def report(result: dict[str, Any]) -> str:
    """The figures in a few lines."""
    n, gain = result["runs"], result["gain"]
    low, high = gain["interval"]
    wrong, pairs = result["runs_with_a_gain_that_accepted_a_disguise"], result["pairs_of_gains"]
    return "\n".join(
        [
            f"{result['task']}, {n} runs of each kind",
            f"disguises: {result['runs_that_accepted_a_disguise']} runs accepted one (at most {MOST_ACCEPTED}); "
            f"{result['pairs_of_disguises']} pairs",
            f"a gain of {gain['ratio'] - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%}): "
            f"{result['runs_that_found_the_gain']} of {n} runs found it (at least {LEAST_FOUND:.0%}), "
            f"{wrong} accepted a disguise; {pairs} pairs",
            "pass" if result["ok"] else "FAIL",
        ]
    )


def _one(ladder: Ladder, half: str, number: int, incumbent: Schedule, offered: list[Schedule]) -> dict[str, Any]:
    """One run; it ends with what it accepts."""
    seen: list[Evaluation] = []
    false = found = 0
    for schedule in offered:
        evaluation = ladder.evaluate(schedule, incumbent)
        if evaluation.verdict in ("invalid", "unequal"):
            raise WorkerError(f"a candidate could not be measured: {evaluation.verdict}: {evaluation.reason}")
        seen.append(evaluation)
        if evaluation.accepted:
            same = any(isinstance(d, Place) and d.stream for d in schedule.directives)
            false, found = int(same), int(not same)
            break
    return {
        "half": half,
        "run": number,
        "evaluations": len(seen),
        "pairs": sum(e.pairs for e in seen),
        "false": false,
        "found": found,
        "seconds": sum(e.total_s for e in seen),
    }


def _variants(schedule: Schedule, layers: int) -> Iterator[Schedule]:
    """The schedule with one layer recomputed, and with the first and the last."""
    for chosen in [*combinations(range(layers), 1), (0, layers - 1)]:
        work = [Recompute(filter={"LAYER": layer}) for layer in chosen]
        yield Schedule(directives=[*schedule.directives, *work])


def _line(row: dict[str, Any]) -> str:
    found = "accepted a disguise" if row["false"] else "found the gain" if row["found"] else "accepted nothing"
    return f"{row['half']}, run {row['run']}: {found}, {row['evaluations']} evaluations, {row['pairs']} pairs"

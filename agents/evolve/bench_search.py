"""`pibroch bench evolve`: does evolution find more than a grid of the classic families, and sooner than random search?

On each task, from the same start and through the same ladder, with the same number of evaluations:

    grid       the classic families with their parameters (`grid.py`)
    random     hill climbing by random edits, from the same set (`random_search.py`)
    evolution  without a model and with an empty playbook

Figures are speeds over the start's: `planner` is the deterministic writer's choice, `parameters` the grid's best,
`evolution` and `random` the medians over the seeds; `structure` is evolution's over the grid's best. `sooner` is how
many evaluations random search took for its median result over how many evolution took to reach as much; what lacks less
than the gain that counts (1%) is as much for both. Each row says whether its figures are simulated, calibrated (in the
simulator with costs measured on the task's own workers, the same for all searches), emulated or measured.

The speed that a search with measured scores has seen is a product of accepted pairs, too high by the choice of the
lucky ones. So with `confirm` every schedule that was ever the best of such a search is paired with the grid's best once
more, on fresh workers, and the searches are compared by these ratios instead.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from pibroch.agents.evolve.budget import Budget
from pibroch.agents.evolve.grid import grid
from pibroch.agents.evolve.journal import read_journal
from pibroch.agents.evolve.random_search import random_search
from pibroch.agents.evolve.rundir import RunDir
from pibroch.agents.evolve.session import Launch, Session, evolve
from pibroch.agents.evolve.start import starting_schedule
from pibroch.agents.intent import read_intent
from pibroch.agents.planner import plan_schedule
from pibroch.evals.headroom import headroom, lower_bound
from pibroch.evals.ladder import Ladder
from pibroch.evals.setting import Setting, open_setting
from pibroch.evals.task import Task
from pibroch.evals.timing import Paired
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError

WORTH = 0.08  # headroom of the best family from which on a task counts
CURVE_PAIRS = 40  # of what was a search's best on the way, with measured scores


@dataclass(frozen=True, slots=True)
class Search:
    """`curve[n]` is the speed over the start's that n + 1 evaluations had found, `bests[n]` the schedule."""

    curve: tuple[float, ...]
    bests: tuple[Schedule, ...]
    start: Schedule

    @property
    def gain(self) -> float:
        return self.curve[-1] if self.curve else 1.0

    @property
    def best(self) -> Schedule:
        return self.bests[-1] if self.bests else self.start


class Climb:
    """A search's view of the ladder: candidates one after the other, the faster one stays."""

    def __init__(self, ladder: Ladder, start: Schedule) -> None:
        self.ladder, self.start, self.best, self.gain = ladder, start, start, 1.0
        self.curve: list[float] = []
        self.bests: list[Schedule] = []

    def step(self, schedule: Schedule) -> float | None:
        """Evaluate; the time relative to the start's where it became the best, else None."""
        found = self.ladder.evaluate(schedule, self.best)
        if found.accepted:
            assert found.ratio is not None
            self.best, self.gain = schedule, self.gain * found.ratio
        self.curve.append(self.gain)
        self.bests.append(self.best)
        return 1 / self.gain if found.accepted else None

    def done(self) -> Search:
        return Search(tuple(self.curve), tuple(self.bests), self.start)


def run(
    tasks: Sequence[Task],
    *,
    evaluations: int = 40,
    seeds: int = 5,
    launch: Launch = Launch(scores="simulated"),  # noqa: B008, frozen
    confirm: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """One row per task. `confirm` runs each seed's best against the grid's best, emulated or measured, at the end; with
    measured scores also what was the best before, and random search's."""
    rows = [
        _task(task, evaluations=evaluations, seeds=seeds, launch=launch, confirm=confirm, progress=progress)
        for task in tasks
    ]
    counted = [row for row in rows if row["headroom"] >= WORTH]
    return {
        "scores": launch.scores,
        "evaluations": evaluations,
        "seeds": seeds,
        "rows": rows,
        "counted": len(counted),
        "at_least_5_percent": sum(row["structure"] >= 1.05 for row in counted),
    }


def _task(
    task: Task, *, evaluations: int, seeds: int, launch: Launch, confirm: bool, progress: Callable[[str], None]
) -> dict[str, Any]:
    setting = open_setting(task)
    start = starting_schedule(setting)
    with open_ladder(setting, launch, evaluations) as ladder:
        known = ladder.prepare(start)  # where costs are measured, the bound and the planner take them too
        before = setting.simulate(setting.lower(start)).makespan
        climb = Climb(ladder, start)
        for schedule in grid(setting, budget=evaluations):
            climb.step(schedule)
        families = climb.done()
        at_random = [_random(ladder, setting, start, evaluations, seed) for seed in range(seeds)]
        counts = 1 + ladder.min_gain
    progress(f"{task.name}: grid {families.gain:.3f}, random {statistics.median(s.gain for s in at_random):.3f}")
    found = [_evolution(task, start, evaluations, seed, launch, known) for seed in range(seeds)]
    target, soon, late = race([s.curve for s in found], [s.curve for s in at_random], counts=counts)
    bound = lower_bound(setting)
    row: dict[str, Any] = {
        "task": task.name, "use": task.use, "kind": _kind(task, launch),
        "headroom": headroom(bound, before / families.gain), "planner": planner_gain(setting, before),
        "parameters": families.gain, "random": target, "evolution": statistics.median(s.gain for s in found),
        "evolution_by_seed": [s.gain for s in found], "random_by_seed": [s.gain for s in at_random],
        "random_reached": late, "evolution_reached": soon,
        "left": headroom(bound, before / max(s.gain for s in found)),
    }  # fmt: skip
    row["structure"] = row["evolution"] / row["parameters"]
    row["sooner"] = late / soon
    progress(_line(row))
    if confirm:
        with open_ladder(setting, Launch("measured", launch.launcher, launch.address, launch.device), seeds) as ladder:
            ladder.recall(known)
            row |= _confirmed(ladder, families.best, found, at_random if launch.scores == "measured" else [])
        progress(f"{task.name} ({task.kind}): " + ", ".join(f"{ratio:.3f}" for ratio, *_ in row["confirmed"]))
    return row


def _kind(task: Task, launch: Launch) -> str:
    """What the row's figures are. A profile's costs are what they are: to measure them would change nothing."""
    if launch.scores == "measured":
        return task.kind
    return "simulated" if task.emulate else launch.scores


def _confirmed(
    ladder: Ladder, against: Schedule, found: Sequence[Search], at_random: Sequence[Search]
) -> dict[str, Any]:
    """Each of evolution's bests against the grid's best; where random search's are given, both curves again in these
    terms, and from them how much sooner evolution had as much."""
    known: dict[str, Paired] = {}

    def paired(schedule: Schedule, pairs: int | None = None) -> Paired:
        key = ladder.setting.name(ladder.setting.lower(schedule))
        if key not in known:
            known[key] = ladder.confirm(schedule, against, pairs=pairs)
        return known[key]

    rows = [paired(s.best) for s in found]
    row: dict[str, Any] = {
        "confirmed": [[p.ratio, p.lower, p.upper, p.pairs] for p in rows],
        "confirmed_kind": ladder.setting.task.kind,
    }
    if at_random:
        ours, theirs = (
            [lasting([paired(b, CURVE_PAIRS).ratio for b in s.bests or (s.start,)]) for s in some]
            for some in (found, at_random)
        )
        _, soon, late = race(ours, theirs, counts=1 + ladder.min_gain)
        row |= {
            "confirmed_curves": ours, "confirmed_random": theirs, "confirmed_random_reached": late,
            "confirmed_evolution_reached": soon, "confirmed_sooner": late / soon,
        }  # fmt: skip
    return row


def open_ladder(setting: Setting, launch: Launch, candidates: int) -> Ladder:
    """The ladder that all searches share."""
    return Ladder(
        setting, scores=launch.scores, launcher=launch.launcher, address=launch.address, device=launch.device,
        deadline=launch.deadline, candidates=candidates,
    )  # fmt: skip


def lasting(ratios: Sequence[float]) -> list[float]:
    """What a search had for good: no more than what it had later, as a lucky ratio on the way is no gain."""
    return list(accumulate(reversed(ratios), min))[::-1]


def race(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], *, counts: float
) -> tuple[float, float, float]:
    """Their median result, and the evaluations that we, and those of them that got so far, took until it was there to
    within a factor of `counts`: medians."""
    ends = [curve[-1] if curve else 1.0 for curve in theirs]
    target = statistics.median(ends)
    as_far = [curve for curve, end in zip(theirs, ends, strict=True) if end >= target]
    soon, late = (statistics.median(reached(curve, target / counts) for curve in some) for some in (ours, as_far))
    return target, soon, late


def reached(curve: Sequence[float], target: float) -> int:
    """Evaluations until the curve is at `target`; one more than all where it never is."""
    return next((n for n, gain in enumerate(curve, 1) if gain >= target - 1e-9), len(curve) + 1)


def planner_gain(setting: Setting, before: float) -> float | None:
    """Speed of the planner's best legal choice over the start's, in the simulator."""
    devices, found = setting.task.devices, list[float]()
    for replicas in (k for k in range(1, devices + 1) if devices % k == 0):
        for m in setting.choices(replicas):
            sentence = f"{devices // replicas} pipeline devices, {replicas} replicas, {m} microbatches"
            try:
                planned = plan_schedule(
                    read_intent(sentence), setting.model(replicas, m), costs=setting.costs(replicas, m),
                    memory_limit=setting.task.memory_limit,
                )  # fmt: skip
                found.append(setting.simulate(setting.lower(planned.schedule)).makespan)
            except InputError:
                continue
    return before / min(found) if found else None


def _random(ladder: Ladder, setting: Setting, start: Schedule, evaluations: int, seed: int) -> Search:
    climb = Climb(ladder, start)
    scored = False

    def score(schedule: Schedule) -> float | None:
        nonlocal scored
        if not scored:  # the start itself is what is known, and costs nothing
            scored = True
            return 1.0
        return climb.step(schedule)

    random_search(setting, start, budget=evaluations, seed=seed, score=score)
    return climb.done()


def _evolution(
    task: Task, start: Schedule, evaluations: int, seed: int, launch: Launch, known: Mapping[str, Any]
) -> Search:
    if launch.scores == "calibrated":
        launch = replace(launch, scores="simulated")  # with the known costs the same, without a confirmation of its own
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        evolve(path, Session(task=task, start=start, seed=seed, budget=Budget(evaluations), launch=launch, known=known))
        gain, best, curve, bests = 1.0, start, list[float](), list[Schedule]()
        for record in read_journal(RunDir(path).journal):
            if record["kind"] == "evaluation" and record["evaluation"]:
                if record["result"]["verdict"] == "faster":
                    gain *= record["result"]["ratio"]
                    best = RunDir(path).load(record["schedule"])
                curve.append(gain)
                bests.append(best)
    return Search(tuple(curve), tuple(bests), start)


def report(result: dict[str, Any]) -> str:
    """A table, and how many tasks with headroom gained at least 5%."""
    heads = "task                 kind       headroom  planner  parameters  random  evolution  structure  sooner"
    lines = [heads, *(_line(row) for row in result["rows"])]
    lines.append(
        f"{result['at_least_5_percent']} of {result['counted']} tasks with at least {WORTH:.0%} headroom gain 5% or "
        f"more over the best family of {result['evaluations']} evaluations (medians of {result['seeds']} seeds)"
    )
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    planner = "-" if row["planner"] is None else f"{row['planner']:.3f}"
    return (
        f"{row['task']:<20} {row['kind']:<10} {row['headroom']:>8.1%}  {planner:>7}  {row['parameters']:>10.3f}  "
        f"{row['random']:>6.3f}  {row['evolution']:>9.3f}  {row['structure']:>9.3f}  {row['sooner']:>6.2f}"
    )

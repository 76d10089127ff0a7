"""The evaluation ladder: what one candidate schedule is worth against the incumbent, on the cheapest rung that tells.

    verify      lowered on the task's sizes; all rules but the memory bound; another plan than the incumbent's
    simulate    a step in the simulator; the memory bound; slower than the incumbent by more than the simulator errs
    short       on warm workers: equal to the single process over two optimizer steps, before anything is timed; then
                two pairs of steps, for what is slower by far
    paired      candidate and incumbent in alternation, until a sequential test has decided; what is faster must be
                below the roofline, and still equal after it was timed

A candidate ends at the first rung that decides, with the reason. Which rungs there are is a matter of the scores:

    measured    all of them
    calibrated  the first two; the costs of the simulator are measured on the task's own workers, or a profile's
    simulated   the first two; costs are assumed, or a profile's, and nothing runs

Costs of a measured task are measured when the workers start (assumed where its layers are too few for the devices, or
fixed by annotations: they cannot be stages of their own then); the spread of pairs, which sets how many there may be,
with the first incumbent against itself. `Ladder.known()` holds both, so that a resumed run does not measure them again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

from pibroch.evals import ladder_paired
from pibroch.evals.evaluation import Evaluation, Verdict
from pibroch.evals.finding import Finding
from pibroch.evals.ladder_workers import Where, Workers
from pibroch.evals.layer_costs import LayerCosts, unmeasurable
from pibroch.evals.sequential import SequentialTest, gain_for, pairs_for, share
from pibroch.evals.setting import Setting, open_setting
from pibroch.evals.task import Task
from pibroch.evals.timing import LockHeld, Paired, clock, measurement_lock
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError, WorkerError
from pibroch.runtime.plan import Plan
from pibroch.runtime.simulate import Simulation
from pibroch.runtime.trace import Trace

Scores = Literal["measured", "calibrated", "simulated"]
ALPHA = 0.005  # for the whole run: the chance of one false "faster" among all candidates
GOAL = 0.05  # a gain that the pairs must be enough for
FEW_PAIRS, MOST_PAIRS = 16, 180  # there may always be so few, where they tell a smaller gain; there are never more
TOLERANCE = {"emulated": 0.03, "measured": 0.1}  # by which a simulated ratio may differ from a measured one
CONFIRM_PAIRS = {"emulated": 6, "measured": 20}  # at least
CONFIRM_ERROR = 0.015  # half of the interval that a confirmation should end with


class Ladder:
    """Evaluates candidates of one task, at most `candidates` with the promised error.

    `launcher`, `address`, `device` and `deadline` are those of `Trainer`. `keep_noisy` also counts pairs during which
    other processes used the CPUs; by default under emulation, where tasks wait anyway, and on a running cluster, whose
    processes do not descend from this one. `known` is what another ladder of the task has measured.
    """

    def __init__(
        self, task: Task | Setting, *, scores: Scores = "measured", launcher: str = "local", address: str | None = None,
        device: str = "auto", deadline: float = 60.0, seed: int = 0, candidates: int = 40, min_gain: float = 0.01,
        keep_noisy: bool | None = None, known: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.setting = open_setting(task) if isinstance(task, Task) else task
        self.scores: Scores = scores
        self.min_gain = min_gain
        self.alpha = share(ALPHA, candidates)
        self._where = Where(launcher, address, device, deadline, seed)
        self._kind = self.setting.task.kind
        self._keep_noisy = keep_noisy if keep_noisy is not None else self._kind == "emulated" or address is not None
        self._workers: Workers | None = None
        self.traced: Trace | None = None  # the step that the last findings are from, where workers ran it
        self._simulated: dict[str, Simulation] = {}
        self._spread: float | None = None
        self.recall(known or {})

    def prepare(self, incumbent: Schedule) -> dict[str, Any]:
        """Measure of the task itself what has not been measured, where the scores need it; returns `known()`.

        Raises `WorkerError` where workers cannot be started, and `InputError` on an incumbent that does not fit.
        """
        plan = self.setting.lower(incumbent)
        if self.scores == "measured":
            self._open(incumbent, plan)
        elif self.scores == "calibrated" and self._kind == "measured" and self.setting.measured is None:
            if (why := self._unmeasurable()) is not None:
                raise InputError(
                    f"task {self.setting.task.name}: the costs of its layers cannot be measured: {why}: use --scores "
                    "measured, or simulated with assumed costs"
                )
            self._open(incumbent, plan)
            self.close()
        return self.known()

    def recall(self, known: Mapping[str, Any]) -> None:
        """Take what another ladder of the task has measured."""
        self._spread = known.get("spread")
        if known.get("costs") is not None:
            self.setting.measured = LayerCosts.from_json(known["costs"])
            self._simulated.clear()

    def known(self) -> dict[str, Any]:
        """What has been measured of the task itself, as plain data."""
        costs = self.setting.measured
        return {"costs": costs.to_json() if costs else None, "spread": self._spread}

    def evaluate(self, schedule: Schedule, incumbent: Schedule) -> Evaluation:
        """One candidate against the incumbent, which is legal. A fault of the candidate is a verdict, not an error.

        Raises `WorkerError` where workers cannot be started, and `InputError` on an incumbent that does not fit.
        """
        begin, spent = clock(), self._workers.spent if self._workers else 0.0
        self.prepare(incumbent)
        against = self.setting.lower(incumbent)
        workers = self._workers if self.scores == "measured" else None
        found = self._evaluate(schedule, incumbent, against, workers)
        steps = workers.spent - spent if workers else 0.0
        return found.model_copy(update={"total_s": clock() - begin, "steps_s": steps})

    def confirm(self, schedule: Schedule, incumbent: Schedule, *, pairs: int | None = None) -> Paired:
        """The two against each other on fresh workers; with simulated scores their simulated steps, as one pair.

        Raises `WorkerError` where the candidate is not equal to the single process after it was timed.
        """
        plans = [self.setting.lower(s) for s in (incumbent, schedule)]
        if self.scores == "simulated":
            baseline, candidate = (self._simulate(plan).makespan for plan in plans)
            ratio = baseline / candidate
            return Paired(ratio, ratio, ratio, 1.0, (baseline,), (candidate,), 0)
        self.close()
        with measurement_lock(), Workers(self.setting, incumbent, where=self._where) as workers:
            base = workers.load(incumbent, plans[0])
            side = workers.load(schedule, plans[1], beside=base)
            many = pairs or pairs_to_confirm(CONFIRM_PAIRS[self._kind], self._spread)
            result = workers.paired(base, side, pairs=many, keep_noisy=self._keep_noisy)
            if not (audit := workers.audit(side)).ok:
                raise WorkerError(f"the schedule to confirm is not equal to the single process: {audit.worst}")
        return result

    def findings(self, schedule: Schedule) -> list[Finding]:
        """Why a step of this schedule takes as long as it does, the worst cause first: from a measured step where
        workers run, else from a simulated one."""
        from pibroch.evals.feedback.simulated import step_findings

        plan = self.setting.lower(schedule)
        self.traced = None
        if self.scores == "measured":  # a resumed run may not have started its workers yet
            self.traced = self._trace(self._open(schedule, plan), schedule, plan)
        return step_findings(self.setting, schedule, plan, self._simulate(plan), self.traced)

    def close(self) -> None:
        """Stop the workers, where there are any. Safe to call twice; a later evaluation starts new ones."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, incumbent: Schedule, plan: Plan) -> Workers:
        """Warm workers; costs and spread are measured where they are not known."""
        if self._workers is None:
            self._workers = Workers(self.setting, incumbent, where=self._where)
            with measurement_lock():
                if self._kind == "measured" and self.setting.measured is None and self._unmeasurable() is None:
                    self.setting.measured = self._workers.measure_costs()
                    self._simulated.clear()
                if self._spread is None:
                    self._spread = ladder_paired.spread(self._workers, incumbent, plan, emulated=self._emulated)
        return self._workers

    def _unmeasurable(self) -> str | None:
        task = self.setting.task
        return unmeasurable(self.setting.model(1, task.samples), devices=task.devices)

    @property
    def _emulated(self) -> bool:
        return self._kind == "emulated"

    def _evaluate(self, schedule: Schedule, incumbent: Schedule, against: Plan, workers: Workers | None) -> Evaluation:
        try:
            plan = self.setting.lower(schedule)
            if self.setting.name(plan) == self.setting.name(against):
                return Evaluation(
                    plan=self.setting.name(plan), rung="verify", verdict="same", reason="its plan is the incumbent's",
                    emulated=self._emulated,
                )  # fmt: skip
            simulation = self._simulate(plan)
        except InputError as error:
            return Evaluation(rung="verify", verdict="invalid", reason=str(error), emulated=self._emulated)
        ratio = self._simulate(against).makespan / simulation.makespan
        known = Evaluation(
            plan=self.setting.name(plan), rung="simulate", verdict="undecided", reason="", simulated=True,
            emulated=self._emulated, simulated_s=simulation.makespan, peak_bytes=max(simulation.peak_bytes),
        )  # fmt: skip
        violations = self.setting.check(plan, simulation)
        if violations:
            first, more = violations[0], len(violations) - 1
            reason = f"{first.rule} {first.where}: {first.message}" + (f" (and {more} more)" if more else "")
            rung = "simulate" if first.rule == "V7" else "verify"
            return known.model_copy(update={"verdict": "invalid", "reason": reason, "rung": rung})
        known = known.model_copy(update={"ratio": ratio, "lower": ratio, "upper": ratio})
        if workers is None:
            return ended(known, *self._simulated_verdict(ratio))
        if ratio < 1 - TOLERANCE[self._kind]:
            return ended(known, "slower", f"{ratio - 1:+.1%} in the simulator, which errs by less")
        try:
            with measurement_lock():
                return self._measure(known, schedule, plan, incumbent, against, workers)
        except InputError as error:
            return ended(known, "invalid", str(error))
        except LockHeld:  # says nothing of the candidate
            raise
        except WorkerError as error:
            self.close()  # the next evaluation starts new workers
            return ended(known, "invalid", f"its workers failed: {error}")

    def _measure(
        self, known: Evaluation, schedule: Schedule, plan: Plan, incumbent: Schedule, against: Plan, workers: Workers
    ) -> Evaluation:
        assert self._spread is not None
        base = workers.load(incumbent, against)
        side = workers.load(schedule, plan, beside=base)
        base.restart()
        known = known.model_copy(update={"rung": "short", "ratio": None, "lower": None, "upper": None})
        judged = workers.judge(side)
        if not judged.ok:
            return ended(known, "unequal", f"other numbers than the single process: {judged.worst}")
        enough = pairs_for(self._spread, alpha=self.alpha, gain=GOAL, most=MOST_PAIRS)
        most = max(enough, pairs_for(self._spread, alpha=self.alpha, gain=self.min_gain, most=FEW_PAIRS))
        goal = max(self.min_gain, gain_for(most, self._spread, alpha=self.alpha))
        test = SequentialTest(alpha=self.alpha, min_gain=self.min_gain, goal=goal, max_pairs=most)
        found = ladder_paired.run(
            workers, base, side, test, most=most, keep_noisy=self._keep_noisy, emulated=self._emulated
        )
        known = known.model_copy(update=found.facts(workers.setting))
        if found.verdict != "faster":
            return ended(known, found.verdict, found.reason)
        costs = self.setting.costs(plan.replicas, plan.microbatches)
        if reason := ladder_paired.above_the_roofline(found, plan, costs, emulated=self._emulated):
            return ended(known, "invalid", reason)
        audit = workers.audit(side)
        if not audit.ok:
            return ended(known, "unequal", f"other numbers than the single process once it was timed: {audit.worst}")
        return ended(known, "faster", found.reason)

    def _trace(self, workers: Workers, schedule: Schedule, plan: Plan) -> Trace:
        with measurement_lock():
            return workers.load(schedule, plan).trace()

    def _simulated_verdict(self, ratio: float) -> tuple[Verdict, str]:
        gain = f"{ratio - 1:+.2%} in the simulator"
        if ratio >= 1 + self.min_gain:
            return "faster", gain
        # What differs in the seventh digit is the same time.
        if ratio >= 1 - 1e-6:
            return "undecided", f"{gain}: less than the {self.min_gain:.2%} that count"
        return "slower", gain

    def _simulate(self, plan: Plan) -> Simulation:
        key = self.setting.name(plan)
        if key not in self._simulated:
            self._simulated[key] = self.setting.simulate(plan)
        return self._simulated[key]


def pairs_to_confirm(least: int, spread: float | None) -> int:
    """So many that the interval of 95% is about +- `CONFIRM_ERROR`, where the spread of log-ratios is known."""
    wanted = math.ceil((2 * spread / CONFIRM_ERROR) ** 2) if spread else least
    return min(max(wanted, least), MOST_PAIRS)


def ended(known: Evaluation, verdict: Verdict, reason: str) -> Evaluation:
    """The evaluation with its verdict."""
    return known.model_copy(update={"verdict": verdict, "reason": reason})

"""The evaluation ladder: what one candidate schedule is worth against the incumbent, on the cheapest rung that tells.

    verify      lowered on the task's sizes; all rules but the memory bound
    simulate    a step in the simulator; the memory bound; slower than the incumbent by more than the simulator errs
    short       on warm workers: equal to the single process over two optimizer steps, before anything is timed
    paired      candidate and incumbent in alternation, until a sequential test has decided

A candidate ends at the first rung that decides, with the reason. With simulated scores the second one decides all.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Literal, Self

from pibroch.evals.evaluation import Evaluation, Verdict
from pibroch.evals.finding import Finding
from pibroch.evals.setting import Setting, open_setting
from pibroch.evals.task import Task
from pibroch.evals.timing import Paired
from pibroch.runtime.costs import Costs
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.plan import Plan
from pibroch.runtime.simulate import Simulation
from pibroch.runtime.trace import Trace, events_of

Scores = Literal["measured", "simulated"]


class Ladder:
    """Evaluates candidates of one task."""

    def __init__(self, task: Task | Setting, *, scores: Scores = "measured", min_gain: float = 0.01) -> None:
        self.setting = open_setting(task) if isinstance(task, Task) else task
        self.scores: Scores = scores
        self.min_gain = min_gain
        self._simulated: dict[str, Simulation] = {}

    def evaluate(self, schedule: Schedule, incumbent: Schedule) -> Evaluation:
        """One candidate against the incumbent, which is legal. Never raises for what the candidate is."""
        begin = time.perf_counter()
        found = self._evaluate(schedule, incumbent)
        return found.model_copy(update={"total_s": time.perf_counter() - begin})

    def confirm(self, schedule: Schedule, incumbent: Schedule) -> Paired:
        """The two against each other once more. With simulated scores: their simulated steps, without an interval."""
        baseline, candidate = (self._simulate(self.setting.lower(s)).makespan for s in (incumbent, schedule))
        ratio = baseline / candidate
        return Paired(ratio, ratio, ratio, 1.0, (baseline,), (candidate,), 0)

    def findings(self, schedule: Schedule) -> list[Finding]:
        """Why a step of this schedule takes as long as it does, the worst cause first."""
        from pibroch.evals.feedback import diagnose

        plan = self.setting.lower(schedule)
        simulation = self._simulate(plan)
        trace = Trace(plan, events_of(plan, simulation))
        return diagnose(
            schedule, trace, costs=self.costs(plan), model=self.setting.model(plan.replicas, plan.microbatches),
            memory_limit=self.setting.task.memory_limit, peak_bytes=simulation.peak_bytes,
        )  # fmt: skip

    def costs(self, plan: Plan) -> Costs:
        """What the simulator takes for this plan."""
        return self.setting.costs(plan.replicas, plan.microbatches)

    def close(self) -> None:
        """Stop the workers, where there are any. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _evaluate(self, schedule: Schedule, incumbent: Schedule) -> Evaluation:
        setting, emulated = self.setting, self.setting.profile is not None
        try:
            plan = setting.lower(schedule)
            simulation = self._simulate(plan)
        except InputError as error:
            return Evaluation(rung="verify", verdict="invalid", reason=str(error), emulated=emulated)
        violations = setting.check(plan, simulation)
        if violations:
            first, more = violations[0], len(violations) - 1
            reason = f"{first.rule} {first.where}: {first.message}" + (f" (and {more} more)" if more else "")
            rung: Literal["simulate", "verify"] = "simulate" if first.rule == "V7" else "verify"
            return Evaluation(
                plan=plan.hash(), rung=rung, verdict="invalid", reason=reason, emulated=emulated,
                peak_bytes=max(simulation.peak_bytes),
            )  # fmt: skip
        against = setting.lower(incumbent)
        # Rounded: what differs in the seventh digit is the same time.
        ratio = round(self._simulate(against).makespan / simulation.makespan, 6)
        known = Evaluation(
            plan=plan.hash(), rung="simulate", verdict="undecided", reason="", simulated=True, emulated=emulated,
            simulated_s=simulation.makespan, peak_bytes=max(simulation.peak_bytes), ratio=ratio, lower=ratio,
            upper=ratio,
        )  # fmt: skip
        if known.plan == against.hash():
            return known.model_copy(update={"verdict": "same", "reason": "its plan is the incumbent's"})
        return _ended(known, *self._simulated_verdict(ratio))

    def _simulated_verdict(self, ratio: float) -> tuple[Verdict, str]:
        gain = f"{ratio - 1:+.2%} in the simulator"
        if ratio >= 1 + self.min_gain:
            return "faster", gain
        if ratio >= 1:
            return "undecided", f"{gain}: less than the {self.min_gain:.2%} that count"
        return "slower", gain

    def _simulate(self, plan: Plan) -> Simulation:
        key = plan.hash()
        if key not in self._simulated:
            self._simulated[key] = self.setting.simulate(plan)
        return self._simulated[key]


def _ended(known: Evaluation, verdict: Verdict, reason: str) -> Evaluation:
    return known.model_copy(update={"verdict": verdict, "reason": reason})

"""One step under diagnosis, and what it would have been otherwise: a finding's cost is a difference of two runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pibroch.evals.feedback.healthy import Healthy
from pibroch.evals.feedback.kinds import MEANINGS, MIN_SHARE
from pibroch.evals.feedback.observed import Fixed, Observed, fixed
from pibroch.evals.finding import Finding
from pibroch.runtime.costs import Costs
from pibroch.runtime.directives import AnyDirective, Order, Place, Recompute, Replicate, Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.simulate import Simulation, simulate


@dataclass(frozen=True)
class Alternative:
    """Another schedule of the same work, with its plan and its run on healthy costs."""

    schedule: Schedule
    plan: Plan
    simulation: Simulation

    @property
    def makespan(self) -> float:
        return self.simulation.makespan


@dataclass
class Case:
    """`base` is the schedule's run on a healthy machine, `fixed` its costs task by task, `free` the same run's seconds
    with communication that takes no time. `replay` has the measured durations, `replayed` is how long they make it.
    `slow` has the factors of slow devices, `cures` what takes the faults found away."""

    schedule: Schedule
    model: ModelSpec
    plan: Plan
    observed: Observed
    healthy: Healthy
    base: Simulation
    fixed: Fixed
    free: float
    replay: Fixed
    replayed: float
    memory_limit: int | None = None
    peak_bytes: Sequence[int] | None = None
    slow: dict[int, float] = field(default_factory=dict)
    cures: list[Callable[[Fixed], Fixed]] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)

    @property
    def step(self) -> float:
        return self.observed.step

    @property
    def least(self) -> float:
        """Seconds below which a cause is not worth a word."""
        return MIN_SHARE * self.step

    def what_if(self, costs: Costs) -> float:
        """The step's seconds on other costs."""
        return simulate(self.plan, costs).makespan

    def fault(self, cure: Callable[[Fixed], Fixed], harm: Callable[[Fixed], Fixed]) -> float:
        """What a fault costs: the replayed durations against their cure, and the healthy ones against the harm. The
        cure is kept, so that what no cure explains can be told."""
        self.cures.append(cure)
        return max(
            self.replayed - self.what_if(cure(self.replay)), self.what_if(harm(self.fixed)) - self.base.makespan
        )  # fmt: skip

    def alternative(self, directives: Sequence[AnyDirective]) -> Alternative | None:
        """Lower and run other directives; None where they cannot be, or need more memory than the bound allows."""
        schedule = Schedule(directives=list(directives))
        try:
            plan = lower(schedule, self.model, update=any(task.op == "UPDATE" for task in self.plan.tasks))
            simulation = simulate(plan, self.healthy)
        except InputError:
            return None
        if self.memory_limit is not None and max(simulation.peak_bytes) > max(
            self.memory_limit, max(self.base.peak_bytes)
        ):
            return None
        return Alternative(schedule, plan, simulation)

    def without_communication(self, plan: Plan) -> float:
        """Seconds of a plan on healthy costs where transfers and reductions take no time."""
        return simulate(plan, fixed(plan, self.healthy).silent()).makespan

    def peaks(self) -> Sequence[int]:
        """Peak bytes per device: measured where known."""
        return self.peak_bytes if self.peak_bytes is not None else self.base.peak_bytes

    def add(self, kind: str, seconds: float, text: str, **more: Any) -> None:
        """Report a cause; `tasks` are cut to a few."""
        origin, _ = MEANINGS[kind]
        seconds = max(float(seconds), 0.0)
        share = seconds / self.step if self.step > 0 else 0.0
        more["tasks"] = tuple(more.get("tasks", ()))[:6]
        self.found.append(Finding(kind=kind, origin=origin, seconds=seconds, share=share, text=text, **more))

    # Where in the schedule

    def place_of(self, stage: int) -> int | None:
        """The directive that places a stage."""
        return self._of(Place, stage)

    def replicate_of(self, stage: int) -> int | None:
        """The directive that replicates a stage."""
        return self._of(Replicate, stage)

    def first(self, *kinds: type) -> int | None:
        """The first directive of these kinds."""
        return next((i for i, d in enumerate(self.schedule.directives) if isinstance(d, kinds)), None)

    def row_of(self, stage: int) -> int | None:
        """The order row that lists a stage."""
        for i, d in enumerate(self.schedule.directives):
            if isinstance(d, Order) and any(f.get("PP", stage) in (stage, "*") for group in d.groups() for f in group):
                return i
        return None

    def recomputes(self) -> list[int]:
        return [i for i, d in enumerate(self.schedule.directives) if isinstance(d, Recompute)]

    def _of(self, kind: type[Place] | type[Replicate], stage: int) -> int | None:
        for i, d in enumerate(self.schedule.directives):
            if isinstance(d, kind) and d.filter.get("PP", stage) in (stage, "*"):
                return i
        return None


def ms(seconds: float) -> str:
    """Milliseconds with three digits: `12.3 ms`."""
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"

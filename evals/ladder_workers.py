"""The warm workers of the ladder: one pool, on which the incumbent's and the candidate's plan are both at hand.

Each has a space of the pool (`runtime.pool`), so that steps alternate without anything being loaded in between. A
candidate that becomes the incumbent stays where it is. On a cluster the pool is one placement group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from pibroch.evals import timing
from pibroch.evals.judge import Verdict, audit, fresh_batches, judge
from pibroch.evals.layer_costs import LayerCosts, measure
from pibroch.evals.setting import Setting
from pibroch.evals.timing import Paired, clock
from pibroch.runtime.captured import Captured
from pibroch.runtime.costs import Costs
from pibroch.runtime.directives import Schedule
from pibroch.runtime.model import ModelSpec, ParamSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.profile import Profile
from pibroch.runtime.trainer import StepResult, Trainer
from pibroch.runtime.workload import Workload

JUDGED = 2  # optimizer steps that must be equal before anything is timed
SHORT_PAIR = 0.3  # seconds: two steps that take less are taken twice, in both orders
SIZES = 4  # samples in the larger of the two microbatches that costs are measured at


@dataclass(frozen=True)
class Where:
    """Which workers: as the options of `Trainer`."""

    launcher: str = "local"
    address: str | None = None
    device: str = "auto"
    deadline: float = 60.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of a step of each; `quiet` as in `timing.Sample`, over both."""

    baseline: float
    candidate: float
    quiet: bool


class Side(Trainer):
    """A trainer that knows its plan by the setting's hash, and the seconds that it has spent in steps."""

    key = ""
    spent = 0.0
    finite = True
    described: Profile | None = None

    def restart(self) -> None:
        """From the initial weights, as a candidate begins that was just judged."""
        self.reset()
        self.finite = True

    def step(self, batch: Any) -> StepResult:
        begin = clock()
        result = super().step(batch)
        self.spent += clock() - begin
        self.finite = self.finite and math.isfinite(result.loss)
        return result

    def _lower(self, schedule: Schedule, captured: Captured) -> Plan:
        # Under emulation parameters count with the bytes of the profile's layers: buckets are then cut alike.
        spec = captured.spec if self.described is None else sized_as(captured.spec, self.described)
        return super()._lower(schedule, replace(captured, spec=spec))


@dataclass(frozen=True, slots=True)
class _SizedParam(ParamSpec):
    size: int = 0

    @property
    def nbytes(self) -> int:
        return self.size


def sized_as(model: ModelSpec, profile: Profile) -> ModelSpec:
    """The model with the profile's bytes per layer, all of them on the layer's first parameter."""
    params = dict(model.params)
    for layer, described in zip(model.layers, profile.layers, strict=True):
        for n, name in enumerate(layer.params):
            p = model.params[name]
            params[name] = _SizedParam(name, p.shape, p.dtype, p.trainable, 0 if n else described.parameter_bytes)
    return replace(model, params=params)


class Workers:
    """Two plans on one pool. Raises `WorkerError` where workers die or hang; the pool is then stopped."""

    def __init__(self, setting: Setting, first: Schedule, *, where: Where) -> None:
        self.setting, self._where = setting, where
        self.pace: float | None = None  # seconds of one step of each, in the last pair
        self._paces: Costs | None = setting.profile.costs() if setting.profile else None
        plan = setting.lower(first)
        self._own = Side(
            self._workload(plan), first, ranks=setting.task.devices, launcher=where.launcher,
            address=where.address, device=where.device, deadline=where.deadline, seed=where.seed, emulate=self._paces,
        )  # fmt: skip
        self._own.described = setting.profile
        self._own.prepare()
        self._own.key = plan.hash()
        other = Side(
            self._workload(plan), first, seed=where.seed, emulate=self._paces, pool=self._own.pool.space("other"),
        )  # fmt: skip
        other.described = setting.profile
        self.sides: list[Side] = [self._own, other]

    def measure_costs(self) -> LayerCosts:
        """The costs of the task's layers, at one sample and at a few."""
        task, own = self.setting.task, self._own
        model = self.setting.model(1, self.setting.choices(1)[-1])
        costs = measure(own, model, devices=task.devices, sizes=(1, min(SIZES, task.samples)))
        own.key = ""
        return costs

    @property
    def spent(self) -> float:
        """Seconds in steps so far."""
        return sum(side.spent for side in self.sides)

    def load(self, schedule: Schedule, plan: Plan, *, beside: Side | None = None) -> Side:
        """The side that holds this plan, loaded where none does; never the side `beside`."""
        key = plan.hash()
        for side in self.sides:
            if side.key == key and side is not beside:
                return side
        side = next(side for side in reversed(self.sides) if side is not beside)
        side.key, side.finite = "", True
        side.load(schedule, microbatch=self._size(plan))
        side.key = key
        return side

    def judge(self, side: Side) -> Verdict:
        """Is it equal to the single process over `JUDGED` steps? Tasks take no longer for it than they need."""
        if self._paces is None:
            return judge(side, steps=JUDGED, peak=False)
        side.emulate = None
        side.load(side.schedule)
        try:
            verdict = judge(side, steps=JUDGED, peak=False)
        except BaseException:  # the workers may be gone, and what ended the judge is the news
            side.emulate, side.key = self._paces, ""
            raise
        side.emulate = self._paces
        side.load(side.schedule)
        return verdict

    def audit(self, side: Side) -> Verdict:
        """One more step from where it stands, judged: nothing may have changed since."""
        return audit(side, steps=1)

    def pair(self, baseline: Side, candidate: Side, *, candidate_first: bool) -> Pair:
        """Time a step of each on one fresh batch. Short steps are taken twice, in both orders, and their means count:
        they differ among themselves by far more than by an outlier now and then, so that medians would tell less."""
        orders = (candidate_first,) if self.pace is None or self.pace > SHORT_PAIR else (False, True)
        batches, seconds = [self.batch() for _ in orders], ([0.0], [0.0])

        def both() -> None:
            for batch, candidate_leads in zip(batches, orders, strict=True):
                for side, spent in ((baseline, seconds[0]), (candidate, seconds[1]))[:: -1 if candidate_leads else 1]:
                    begin = clock()
                    side.step(batch)
                    spent[0] += clock() - begin

        # Foreign CPU time is looked at once for all: a look takes a good part of a short step.
        whole = timing.sample(both)
        one, two = (spent[0] / len(orders) for spent in seconds)
        self.pace = one + two
        return Pair(one, two, whole.quiet)

    def batch(self) -> Any:
        """Samples of one step that nobody can know."""
        return fresh_batches(self._own.workload, self.setting.task.samples, 1)[0]

    def paired(self, baseline: Side, candidate: Side, *, pairs: int, keep_noisy: bool) -> Paired:
        """So many pairs, as `timing.paired` gives them."""

        def take(candidate_first: bool) -> tuple[float, float, bool]:
            pair = self.pair(baseline, candidate, candidate_first=candidate_first)
            return pair.baseline, pair.candidate, pair.quiet

        take(False)  # caches and allocators
        return timing.collect(take, pairs=pairs, keep_noisy=keep_noisy)

    def close(self) -> None:
        """Stop the workers."""
        for side in reversed(self.sides):
            side.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _size(self, plan: Plan) -> int:
        return self.setting.size(plan.replicas, plan.microbatches)

    def _workload(self, plan: Plan) -> Workload:
        return replace(self.setting.workload, microbatch=self._size(plan))

"""The step as this schedule would run on a machine without faults.

Schedule findings are worked out on these costs and machine findings against them, so that a slow device cannot look
like an unbalanced cut, nor an unbalanced cut like a slow device. Where the reference claims to be durations, they are
the reference, times one factor for the whole machine, and

    a device that runs all of its chunks slower, of all stages and both directions, is slow
    chunks that are slower than the reference otherwise are what they are: on all replicas, or beside others on the
    same device that are not, it is the reference that errs

Where it claims ratios only (`AnalyticCosts`), they are the best that equal chunks took anywhere in the trace: a slow
device shows only beside a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from statistics import median

from pibroch.evals.feedback.observed import Key, Observed
from pibroch.runtime.costs import AnalyticCosts, Costs
from pibroch.runtime.plan import Plan, Task

NEAR = 0.1
"""A device whose chunks take the reference's durations, give or take this part, shows that the reference holds."""
SLOWER = 1.1
"""A device this much slower than it should be is slow."""


@dataclass
class Healthy:
    """A cost model for any plan of the same stages. `machine` is how much slower than the reference all of it is;
    `stages` has a factor per (stage, op), `link` and `collective` one each."""

    costs: Costs
    absolute: bool
    machine: float = 1.0
    link: float = 1.0
    collectives: float = 1.0
    stages: dict[tuple[int, str], float] = field(default_factory=dict)
    updates: dict[int, float] = field(default_factory=dict)

    def compute(self, plan: Plan, task: Task) -> float:
        if task.op == "UPDATE":
            return self.updates.get(task.stage, 0.0)
        return self.costs.compute(plan, task) * self._factor(task.stage, task.op)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        latency, seconds = self.costs.transfer(plan, task)
        return latency * self.link, seconds * self.link

    def collective(self, plan: Plan, task: Task) -> float:
        return self.costs.collective(plan, task) * self.collectives

    def _factor(self, stage: int, op: str) -> float:
        for name in (op, "B", "BI", "F"):
            if (stage, name) in self.stages:
                return self.stages[stage, name]
        return self.machine


def device_ratios(observed: Observed) -> dict[int, float]:
    """Per device the time of its chunks over the reference's, from medians over microbatches."""
    ratios = {}
    for device, rows in observed.medians().items():
        want = sum(observed.expected[key] for key in rows)
        if want > 0:
            ratios[device] = sum(rows.values()) / want
    return ratios


def slow_devices(observed: Observed, healthy: Callable[[Key], float]) -> dict[int, float]:
    """How much slower than healthy each device is that runs every stage it has slower, forwards and backwards both."""
    found = {}
    for device, rows in observed.medians().items():
        groups: dict[tuple[int, bool], list[float]] = {}
        for key, seconds in rows.items():
            both = groups.setdefault((key[0], key[2] == "F"), [0.0, 0.0])
            both[0] += seconds
            both[1] += healthy(key)
        ratios = [have / want for have, want in groups.values() if want > 0]
        if ratios and min(ratios) > 1 + (SLOWER - 1) / 2:
            whole = sum(have for have, _ in groups.values()) / sum(want for _, want in groups.values())
            if whole > SLOWER:
                found[device] = whole
    return found


def healthy(observed: Observed, costs: Costs) -> Healthy:
    """Fit the healthy costs to a trace."""
    result = Healthy(costs, not isinstance(costs, AnalyticCosts), updates=_updates(observed))
    links = [s / r for i, s in observed.service.items() if (r := observed.reference[i]) > 0]
    groups = [s / r for b, s in observed.collective.items() if (r := observed.reference_collective[b]) > 0]
    if not result.absolute:
        result.stages = _factors(_best(observed), observed)
        result.machine = median(result.stages.values()) if result.stages else 1.0
        result.link = median(links) if links else 1.0
        result.collectives = median(groups) if groups else 1.0
        return result
    ratios = device_ratios(observed)
    whole = 1.0 if any(abs(r - 1) <= NEAR for r in ratios.values()) else min(ratios.values(), default=1.0)
    result.machine, result.link, result.collectives = whole, _between(links, whole), _between(groups, whole)
    slow = slow_devices(observed, lambda key: observed.expected[key] * whole)
    for row in observed.plan.placement:
        if len(row) > 1 and set(row) <= set(slow):
            slow = {device: factor for device, factor in slow.items() if device not in row}
    measured = _factors(_best(observed, without=slow), observed)
    result.stages = {key: f if abs(f / whole - 1) > NEAR else whole for key, f in measured.items()}
    return result


def _best(observed: Observed, *, without: Collection[int] = ()) -> dict[Key, float]:
    """The least median of each chunk and op over its devices."""
    best: dict[Key, float] = {}
    for device, rows in observed.medians().items():
        if device not in without:
            for key, seconds in rows.items():
                best[key] = min(best.get(key, seconds), seconds)
    return best


def _factors(best: dict[Key, float], observed: Observed) -> dict[tuple[int, str], float]:
    """Per stage and op, measured over reference."""
    sums: dict[tuple[int, str], list[float]] = {}
    for key, seconds in best.items():
        both = sums.setdefault((key[0], key[2]), [0.0, 0.0])
        both[0] += seconds
        both[1] += observed.expected[key]
    return {name: have / want for name, (have, want) in sums.items() if want > 0}


def _between(ratios: list[float], machine: float) -> float:
    """Links of a machine that is slower as a whole may be slower too, though no more than it is."""
    return max(1.0, min(median(ratios), machine)) if ratios else 1.0


def _updates(observed: Observed) -> dict[int, float]:
    """What an update of each stage took, on the device where it was fastest."""
    best: dict[int, float] = {}
    for i, seconds in observed.compute.items():
        task = observed.plan.tasks[i]
        if task.op == "UPDATE":
            best[task.stage] = min(best.get(task.stage, seconds), seconds)
    return best

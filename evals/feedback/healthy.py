"""The step as this schedule would run on a machine without faults.

Schedule findings are worked out on these costs and machine findings against them, so that a slow device cannot look
like an unbalanced cut, nor an unbalanced cut like a slow device. They are

    the reference, times one factor for the whole machine     where the reference claims to be durations
    the best that equal chunks took anywhere in this trace    where it claims ratios only (`AnalyticCosts`)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from pibroch.evals.feedback.observed import Key, Observed
from pibroch.runtime.costs import AnalyticCosts, Costs
from pibroch.runtime.plan import Plan, Task

NEAR = 0.1
"""A device whose chunks take the reference's durations, give or take this part, shows that the reference holds."""


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
    reference = _reference(observed)
    ratios = {}
    for device, rows in observed.medians().items():
        want = sum(reference[device][key] for key in rows)
        if want > 0:
            ratios[device] = sum(rows.values()) / want
    return ratios


def healthy(observed: Observed, costs: Costs) -> Healthy:
    """Fit the healthy costs to a trace."""
    absolute = not isinstance(costs, AnalyticCosts)
    result = Healthy(costs, absolute, updates=_updates(observed))
    links = [s / r for i, s in observed.service.items() if (r := observed.reference[i]) > 0]
    groups = [s / r for b, s in observed.collective.items() if (r := observed.reference_collective[b]) > 0]
    ratios = device_ratios(observed)
    if absolute:
        slowest = min(ratios.values(), default=1.0)
        result.machine = 1.0 if any(abs(r - 1) <= NEAR for r in ratios.values()) else slowest
        result.link = _between(links, result.machine)
        result.collectives = _between(groups, result.machine)
        return result
    best: dict[Key, float] = {}
    for rows in observed.medians().values():
        for key, seconds in rows.items():
            best[key] = min(best.get(key, seconds), seconds)
    want: dict[Key, float] = {}
    for table in _reference(observed).values():
        want.update(table)
    sums: dict[tuple[int, str], list[float]] = {}
    for (stage, part, op), seconds in best.items():
        both = sums.setdefault((stage, op), [0.0, 0.0])
        both[0] += seconds
        both[1] += want[stage, part, op]
    result.stages = {key: have / ref for key, (have, ref) in sums.items() if ref > 0}
    result.machine = median(result.stages.values()) if result.stages else 1.0
    result.link = median(links) if links else 1.0
    result.collectives = median(groups) if groups else 1.0
    return result


def _between(ratios: list[float], machine: float) -> float:
    """Links of a machine that is slower as a whole may be slower too, though no more than it is."""
    return max(1.0, min(median(ratios), machine)) if ratios else 1.0


def _reference(observed: Observed) -> dict[int, dict[Key, float]]:
    found: dict[int, dict[Key, float]] = {}
    for i in observed.compute:
        task = observed.plan.tasks[i]
        found.setdefault(task.device, {})[task.stage, task.part, task.op] = observed.reference[i]
    return found


def _updates(observed: Observed) -> dict[int, float]:
    """What an update of each stage took, on the device where it was fastest."""
    best: dict[int, float] = {}
    for i, seconds in observed.compute.items():
        task = observed.plan.tasks[i]
        if task.op == "UPDATE":
            best[task.stage] = min(best.get(task.stage, seconds), seconds)
    return best

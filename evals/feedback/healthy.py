"""The step as this schedule would run on a machine without faults.

Schedule findings are worked out on these costs and machine findings against them, so that a slow device cannot look
like an unbalanced cut, nor an unbalanced cut like a slow device. Where the reference claims to be durations, they are
the reference, times one factor for the whole machine, and

    where the reference errs, as measured: chunks that are slower on every replica, or always and beside another stage
    of the same device that is not, or faster. Other chunks that are slower are the device's doing

Where it claims ratios only (`AnalyticCosts`), they are the best that equal chunks took anywhere in the trace: a slow
device shows only beside a replica.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from pibroch.evals.feedback.observed import COMPUTE, Key, Observed
from pibroch.runtime.costs import AnalyticCosts, Costs
from pibroch.runtime.plan import Plan, Task

NEAR = 0.1
"""A device whose chunks take the reference's durations, give or take this part, shows that the reference holds."""
SLOWER = 1.1
"""A device this much slower than it should be is slow."""


@dataclass
class Healthy:
    """A cost model for any plan of the same stages. `machine` is how much slower than the reference all of it is;
    `stages` has a factor per (stage, op), `sizes` one per transfer or reduction that takes so long in the reference,
    others are `link` and `collectives` times slower."""

    costs: Costs
    absolute: bool
    machine: float = 1.0
    link: float = 1.0
    collectives: float = 1.0
    stages: dict[tuple[int, str], float] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)
    updates: dict[int, float] = field(default_factory=dict)

    def compute(self, plan: Plan, task: Task) -> float:
        if task.op == "UPDATE":
            return self.updates.get(task.stage, 0.0)
        return self.costs.compute(plan, task) * self._factor(task.stage, task.op)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        latency, seconds = self.costs.transfer(plan, task)
        factor = self.sizes.get(_size("SEND", latency + seconds), self.link)
        return latency * factor, seconds * factor

    def collective(self, plan: Plan, task: Task) -> float:
        seconds = self.costs.collective(plan, task)
        return seconds * self.sizes.get(_size("REDUCE", seconds), self.collectives)

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
        result.sizes = _by_size(observed)
        return result
    ratios = device_ratios(observed)
    whole = 1.0 if any(abs(r - 1) <= NEAR for r in ratios.values()) else min(ratios.values(), default=1.0)
    result.machine, result.link, result.collectives = whole, _between(links, whole), _between(groups, whole)
    measured, always = _factors(_best(observed), observed), _always_slow(observed, whole)
    for (stage, op), factor in measured.items():
        errs = len(observed.plan.placement[stage]) > 1 or stage in always or factor < whole
        result.stages[stage, op] = factor if errs and abs(factor / whole - 1) > NEAR else whole
    return result


def _always_slow(observed: Observed, whole: float) -> set[int]:
    """Stages of which no chunk was as fast as the reference, on a device that has another stage of which one was."""
    least: dict[tuple[int, int], dict[bool, float]] = {}
    for i, seconds in observed.compute.items():
        task = observed.plan.tasks[i]
        if task.op in COMPUTE and observed.reference[i] > 0:
            row = least.setdefault((task.device, task.stage), {})
            ratio = seconds / observed.reference[i] / whole
            row[task.op == "F"] = min(row.get(task.op == "F", ratio), ratio)
    slow = {place for place, row in least.items() if min(row.values()) > 1 + NEAR / 2}
    usual = {device for (device, stage) in least if (device, stage) not in slow}
    return {stage for device, stage in slow if device in usual}


def _by_size(observed: Observed) -> dict[str, float]:
    """Of transfers that take equally long in the reference how the best link did, over that; of reductions the middle
    group."""
    found: dict[str, dict[object, list[float]]] = {}
    for i, seconds in observed.service.items():
        task = observed.plan.tasks[i]
        if observed.reference[i] > 0:
            links = found.setdefault(_size("SEND", observed.reference[i]), {})
            links.setdefault((task.device, task.peer), []).append(seconds / observed.reference[i])
    for b, seconds in observed.collective.items():
        if observed.reference_collective[b] > 0:
            groups = found.setdefault(_size("REDUCE", observed.reference_collective[b]), {})
            groups.setdefault(observed.plan.buckets[b].group, []).append(seconds / observed.reference_collective[b])
    best = {}
    for size, rows in found.items():
        middle = [median(ratios) for ratios in rows.values()]
        # A reduction runs once a step: the least of several would be the luckiest.
        best[size] = min(middle) if size.startswith("SEND") else median(middle)
    return best


def _size(op: str, seconds: float) -> str:
    return f"{op} {seconds:.3g}"


def _best(observed: Observed) -> dict[Key, float]:
    """The least median of each chunk and op over its devices."""
    best: dict[Key, float] = {}
    for rows in observed.medians().values():
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

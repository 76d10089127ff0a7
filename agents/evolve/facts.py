"""The facts of a task under its present schedule, by which bullets are found and lessons are bounded."""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.evals.finding import Finding
from pibroch.evals.setting import Setting
from pibroch.runtime.directives import Schedule

Fact = bool | int | float | str

# A finding below this share of the step is no fact to act upon. Findings about memory cost no time and always count.
MIN_SHARE = 0.01


def facts_of(setting: Setting, schedule: Schedule, findings: Sequence[Finding]) -> dict[str, Fact]:
    """Sizes of the task and of the schedule, and `finding:<kind>` for each cause.

    `imbalance` is the slowest stage's compute time over the mean; `link_share` the mean time of a transfer over the
    mean forward time of a stage (0 where nothing is transferred). Both have three digits, so that equal runs agree.
    Raises `InputError` where the schedule does not lower.
    """
    task, plan = setting.task, setting.lower(schedule)
    costs = setting.costs(plan.replicas, plan.microbatches)
    stages, forwards, transfers = [0.0] * plan.stages, [0.0] * plan.stages, list[float]()
    for one in plan.tasks:
        if one.replica or one.mb > 0:
            continue
        if one.op in ("F", "B", "BI", "BW"):
            seconds = costs.compute(plan, one)
            stages[one.stage] += seconds
            forwards[one.stage] += seconds if one.op == "F" else 0.0
        elif one.op == "SEND":
            transfers.append(sum(costs.transfer(plan, one)))
    facts: dict[str, Fact] = {
        "devices": task.devices,
        "samples": task.samples,
        "memory_bound": task.memory_limit is not None,
        "emulated": task.emulate is not None,
        "layers": len(setting.model(plan.replicas, plan.microbatches).layers),
        "replicas": plan.replicas,
        "microbatches": plan.microbatches,
        "stages": plan.stages,
        "imbalance": _rounded(_over(max(stages), sum(stages) / plan.stages, otherwise=1.0)),
        "link_share": _rounded(
            _over(sum(transfers) / max(len(transfers), 1), sum(forwards) / plan.stages, otherwise=0.0)
        ),
    }
    for finding in findings:
        if finding.share >= MIN_SHARE or not finding.seconds:
            facts[f"finding:{finding.kind}"] = True
    return facts


def _over(value: float, base: float, *, otherwise: float) -> float:
    return value / base if base > 0 else otherwise


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")

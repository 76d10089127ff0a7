"""Findings of a schedule that nobody has run: from its simulated step."""

from __future__ import annotations

from pibroch.evals.feedback import diagnose
from pibroch.evals.finding import Finding
from pibroch.evals.setting import Setting
from pibroch.runtime.directives import Schedule
from pibroch.runtime.trace import Trace, events_of


def simulated_findings(setting: Setting, schedule: Schedule) -> list[Finding]:
    """Why a step takes as long as it does in the simulator, the worst cause first. Raises `InputError`."""
    plan = setting.lower(schedule)
    simulation = setting.simulate(plan)
    return diagnose(
        schedule, Trace(plan, events_of(plan, simulation)), costs=setting.costs(plan.replicas, plan.microbatches),
        model=setting.model(plan.replicas, plan.microbatches), memory_limit=setting.task.memory_limit,
        peak_bytes=simulation.peak_bytes,
    )  # fmt: skip

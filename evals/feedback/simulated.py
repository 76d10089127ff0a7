"""Findings of a schedule in its task's setting, from a step that ran or from its simulated one."""

from __future__ import annotations

from pibroch.evals.feedback import diagnose
from pibroch.evals.finding import Finding
from pibroch.evals.setting import Setting
from pibroch.runtime.directives import Schedule
from pibroch.runtime.plan import Plan
from pibroch.runtime.simulate import Simulation
from pibroch.runtime.trace import Trace, events_of


def simulated_findings(setting: Setting, schedule: Schedule) -> list[Finding]:
    """Why a step takes as long as it does in the simulator, the worst cause first. Raises `InputError`."""
    plan = setting.lower(schedule)
    return step_findings(setting, schedule, plan, setting.simulate(plan))


def step_findings(
    setting: Setting, schedule: Schedule, plan: Plan, simulation: Simulation, trace: Trace | None = None
) -> list[Finding]:
    """The same of a plan whose simulation is known; of the step as it ran where there is a trace."""
    return diagnose(
        schedule, trace or Trace(plan, events_of(plan, simulation)),
        costs=setting.costs(plan.replicas, plan.microbatches), model=setting.model(plan.replicas, plan.microbatches),
        memory_limit=setting.task.memory_limit, peak_bytes=simulation.peak_bytes,
    )  # fmt: skip

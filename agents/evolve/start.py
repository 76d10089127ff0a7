"""Where a run starts from: 1F1B, as a person would write it."""

from __future__ import annotations

from typing import Any

from pibroch.evals.setting import Setting
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build, excluded


def starting_schedule(setting: Setting) -> Schedule:
    """The fastest legal 1F1B in the simulator, over the ways to divide devices and batch. Raises `InputError`."""
    found: list[tuple[float, int, Schedule]] = []
    devices = setting.task.devices
    for replicas in (k for k in range(1, devices + 1) if devices % k == 0):
        for microbatches in setting.choices(replicas):
            numbers: dict[str, Any] = {
                "devices": devices // replicas,
                "microbatches": microbatches,
                "replicas": replicas,
            }
            if excluded("1f1b", **numbers):
                continue
            for recompute in (False, True):
                try:
                    schedule = build("1f1b", **numbers, recompute=recompute)
                    plan = setting.lower(schedule)
                    simulation = setting.simulate(plan)
                except InputError:
                    continue
                if not setting.check(plan, simulation):
                    found.append((simulation.makespan, len(found), schedule))
                    break
    if not found:
        raise InputError(
            f"task {setting.task.name}: no 1F1B fits its {devices} devices and memory bound: name a schedule to start "
            "from with --schedule"
        )
    return min(found)[2]

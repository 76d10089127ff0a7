"""Step times that no machine can have reached.

The floor of a plan is its step in the simulator with communication free of charge: every device works off its compute
stream in order, each task after what it depends on. It is never less than the busiest device's compute time, and so
never less than all compute time divided by the devices. The compute times are the profile's under emulation, where the
executor makes every task take at least that long, or those that the judge measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from pibroch.runtime.costs import Costs
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.simulate import simulate

EMULATED = 0.99  # of the floor: clocks of several processes agree far better than this
MEASURED = 0.6  # of the floor: compute times that were measured while others worked may be that much too long


@dataclass
class _FreeCommunication:
    """The compute times of `costs` alone."""

    costs: Costs

    def compute(self, plan: Plan, task: Task) -> float:
        return self.costs.compute(plan, task)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        return 0.0, 0.0

    def collective(self, plan: Plan, task: Task) -> float:
        return 0.0


def floor_seconds(plan: Plan, costs: Costs) -> float:
    """The least seconds of one step. Raises `InputError` where the plan waits for itself."""
    return simulate(plan, _FreeCommunication(costs)).makespan


def implausible(seconds: float, plan: Plan, costs: Costs, *, emulated: bool) -> str | None:
    """Why a measured step of `seconds` is not to be believed, or None.

    `costs` must be measured on this machine (`Trainer.profile()`), or the profile's where the run was `emulated`;
    guessed ones prove nothing.
    """
    floor = floor_seconds(plan, costs)
    if seconds >= floor * (EMULATED if emulated else MEASURED):  # false for NaN
        return None
    return (
        f"a step of {seconds * 1e3:.3g} ms is above the roofline: with communication free of charge its tasks take "
        f"{floor * 1e3:.3g} ms"
    )

"""Emulation: how long each task must take at least, whatever this machine can do.

A small machine cannot time eight stages on two cores. Each task runs its real computation and then waits until its
duration has passed; a send waits while it owns its device's link. Plan, processes, order, communication and numbers
stay real, so this tests plan and executor, not the cost model. Results made this way are labelled `emulated`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pibroch.runtime.plan import Plan, Task

if TYPE_CHECKING:
    from pibroch.runtime.costs import Costs


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Of one device: seconds per compute task or reduction, and (latency, link) per send, by task id. Absent tasks
    take what they take."""

    seconds: dict[int, float] = field(default_factory=dict)
    transfers: dict[int, tuple[float, float]] = field(default_factory=dict)

    def task(self, task: Task) -> float:
        return self.seconds.get(task.id, 0.0)

    def transfer(self, task: Task) -> tuple[float, float]:
        return self.transfers.get(task.id, (0.0, 0.0))


def task_times(costs: Costs, plan: Plan, device: int) -> TaskTimes:
    """What the tasks of one device take."""
    seconds: dict[int, float] = {}
    transfers: dict[int, tuple[float, float]] = {}
    for task in plan.of(device):
        if task.op == "SEND":
            transfers[task.id] = costs.transfer(plan, task)
        elif task.op == "REDUCE":
            seconds[task.id] = costs.collective(plan, task)
        elif task.op != "RECV":
            seconds[task.id] = costs.compute(plan, task)
    return TaskTimes(seconds, transfers)

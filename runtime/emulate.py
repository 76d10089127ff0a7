"""Emulation: how long each task must take at least, whatever this machine can do.

A small machine cannot time eight stages on two cores. Each task runs its real computation and then waits until its
duration has passed; a send waits while it owns its device's link. Plan, processes, order, communication and numbers
stay real, so this tests plan and executor, not the cost model. Results made this way are labelled `emulated`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pibroch.runtime.plan import Task


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Seconds per task id of one device, and (latency, link) per send; absent tasks take what they take."""

    seconds: dict[int, float] = field(default_factory=dict)
    transfers: dict[int, tuple[float, float]] = field(default_factory=dict)

    def compute(self, task: Task) -> float:
        return self.seconds.get(task.id, 0.0)

    def collective(self, task: Task) -> float:
        return self.seconds.get(task.id, 0.0)

    def transfer(self, task: Task) -> tuple[float, float]:
        return self.transfers.get(task.id, (0.0, 0.0))

"""Violations of a plan's rules, with the place shown among the tasks around it.

V2 at device 1, stream compute, 1F3: reads h0 of 0F3, but nothing orders the receive 1<0F3 before it
    device 1, compute: ... 1F1 1B0 1F2 [1F3] 1B1 ...
"""

from __future__ import annotations

from dataclasses import dataclass

from pibroch.runtime.plan import Plan

MAX_PER_RULE = 20
"""Violations of one rule that are written out; a last one tells how many more there are."""

_BEFORE, _AFTER = 3, 2


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: its id (V1 to V8), the place, and the whole message, which begins with both."""

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return self.message


class Report:
    """Collects the violations of one plan. `stream_of[i]` and `position[i]` tell where task i stands (see `Index`)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counts: dict[str, int] = {}
        self._found: list[Violation] = []

    def add(self, rule: str, text: str, *tasks: int, device: int | None = None, stream: str | None = None) -> None:
        """Add a violation at the first of `tasks`; the surroundings of each of them are shown."""
        count = self.counts[rule] = self.counts.get(rule, 0) + 1
        if count > MAX_PER_RULE:
            return
        if tasks:
            task = self.plan.tasks[tasks[0]]
            where = f"device {task.device}, stream {task.stream}, {task}"
        elif device is not None:
            where = f"device {device}" + (f", stream {stream}" if stream is not None else "")
        else:
            where = f"plan {self.plan.model}"
        shown = dict.fromkeys(line for i in tasks for line in self._around(i))
        self._found.append(Violation(rule, where, "\n    ".join([f"{rule} at {where}: {text}", *shown])))

    def result(self) -> list[Violation]:
        """All violations in order of rules."""
        found = sorted(self._found, key=lambda v: v.rule)
        for rule, count in sorted(self.counts.items()):
            if count > MAX_PER_RULE:
                where = f"plan {self.plan.model}"
                found.append(Violation(rule, where, f"{rule} at {where}: and {count - MAX_PER_RULE} more of this rule"))
        return found

    def name(self, task_id: int) -> str:
        """A task as `0F3 on device 0`."""
        task = self.plan.tasks[task_id]
        return f"{task} on device {task.device}"

    def _around(self, task_id: int) -> list[str]:
        """Every place where a stream lists the task (exactly one in a sound plan)."""
        lines = []
        device = self.plan.tasks[task_id].device
        for stream, ids in self.plan.streams.get(device, {}).items():
            for at in [k for k, i in enumerate(ids) if i == task_id][:2]:
                low, high = max(0, at - _BEFORE), at + _AFTER + 1
                words = [f"[{self._text(i)}]" if low + k == at else self._text(i) for k, i in enumerate(ids[low:high])]
                dots = "... " if low else "", " ..." if high < len(ids) else ""
                lines.append(f"device {device}, {stream}: {dots[0]}{' '.join(words)}{dots[1]}")
        return lines

    def _text(self, task_id: int) -> str:
        return str(self.plan.tasks[task_id]) if 0 <= task_id < len(self.plan.tasks) else f"#{task_id}?"

"""What the page's script knows of a plan and its runs: integer columns, one entry per task.

A column whose entries are all equal is written as that one number. Times are whole ticks; a tick is a power of ten of
the run's unit, six or seven digits below the length of the step, so that round decimals stay exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.trace import CAUSES, Bubble, Event, matches

OPS = ("F", "B", "BI", "BW", "SEND", "RECV", "REDUCE", "UPDATE")
CAUSE_TEXT = {
    "warm-up": "waiting for its first microbatch (warm-up)",
    "receive": "waiting for a peer that has not sent yet",
    "transfer": "waiting for data on the link (exposed communication)",
    "reduction": "waiting for a gradient reduction (exposed communication)",
    "dispatch": "nothing to wait for, not started yet (dispatch)",
    "drain": "done with the step (drain)",
}
assert set(CAUSE_TEXT) == set(CAUSES)


@dataclass(frozen=True, slots=True)
class Run:
    """One set of times over a plan. `unit` is "s", or "cost" for unit costs that are no seconds."""

    label: str
    unit: str
    events: list[Event]
    bubbles: list[Bubble]
    makespan: float


def page_data(plan: Plan, runs: list[Run], *, unit_name: str, file: str) -> dict[str, Any]:
    """Plain data for the page."""
    streams = sorted({name for names in plan.streams.values() for name in names})
    number = {name: i for i, name in enumerate(streams)}
    pair = [-1] * len(plan.tasks)
    for send, recv in matches(plan):
        pair[send], pair[recv] = recv, send
    columns: dict[str, Callable[[Task], int]] = {
        "op": lambda t: OPS.index(t.op),
        "device": lambda t: t.device,
        "stream": lambda t: number[t.stream],
        "stage": lambda t: t.stage,
        "part": lambda t: t.part,
        "mb": lambda t: t.mb,
        "peer": lambda t: t.peer,
        "peerStage": lambda t: t.peer_stage,
        "peerPart": lambda t: t.peer_part,
        "payload": lambda t: ("", "F", "B").index(t.payload),
        "bucket": lambda t: t.bucket,
        "replica": lambda t: t.replica,
        "pair": lambda t: pair[t.id],
    }
    waits_at = [0]
    waits: list[int] = []
    for task in plan.tasks:
        waits.extend(task.waits)
        waits_at.append(len(waits))
    return {
        "count": len(plan.tasks),
        "devices": plan.devices,
        "replicas": plan.replicas,
        "ops": OPS,
        "streams": streams,
        "causes": CAUSES,
        "causeText": CAUSE_TEXT,
        "unitName": unit_name,
        "file": file,
        "tasks": {name: _column([value(task) for task in plan.tasks]) for name, value in columns.items()},
        "waits": waits,
        "waitsAt": waits_at,
        "runs": [_run(plan, run) for run in runs],
    }


def _column(values: list[int]) -> int | list[int]:
    return values[0] if values and len(set(values)) == 1 else values


def _run(plan: Plan, run: Run) -> dict[str, Any]:
    tick = 10.0 ** (math.floor(math.log10(run.makespan)) - 6) if run.makespan > 0 else 1e-6
    start, end = [-1] * len(plan.tasks), [-1] * len(plan.tasks)
    for event in run.events:
        start[event.task], end[event.task] = max(0, round(event.start / tick)), max(0, round(event.end / tick))
    return {
        "label": run.label,
        "unit": run.unit,
        "makespan": run.makespan,
        "tick": tick,
        "start": start,
        "end": end,
        "bubbles": [
            (b.device, round(b.start / tick), round(b.end / tick), CAUSES.index(b.cause), b.task, b.on)
            for b in run.bubbles
        ],
    }

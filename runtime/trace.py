"""Traces: when each task of a plan ran, the idle time between them by cause, and the file that Perfetto opens.

Terms
    event    one task's start and end on its device and stream, in seconds from the step's start.
    timed    anything that says when tasks ran: a `Trace`, a simulation, or a list of events.
    bubble   an interval in which a device's compute stream is idle, with its cause (`CAUSES`).

A trace file is Chrome's Trace Event Format (JSON object form): https://ui.perfetto.dev opens it, and `read_trace` reads
it back, since the plan rides along under `otherData`. Times in `ts` and `dur` are microseconds, as that format wants;
`args` holds the exact seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pibroch.runtime.errors import InputError
from pibroch.runtime.files import write_atomically
from pibroch.runtime.plan import Plan, Task

CAUSES = ("warm-up", "receive", "transfer", "reduction", "dispatch", "drain")
"""warm-up: no peer has sent what the device's first compute task needs. receive: the same for a later task. transfer:
the data is on the link, and nothing hides it. reduction: a gradient reduction that nothing hides. dispatch: all that
the task waits for is done, and yet it has not started. drain: done with the step, while other devices are not."""

EXPOSED = ("transfer", "reduction")
"""The causes that are exposed communication."""


class Event(NamedTuple):
    """One task as it ran; `start` and `end` in seconds from the step's start."""

    task: int
    device: int
    stream: str
    start: float
    end: float


@runtime_checkable
class Times(Protocol):
    """Start and end in seconds per task id, as a simulation has them."""

    @property
    def start(self) -> Sequence[float]: ...

    @property
    def end(self) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class Trace:
    """A measured step. `emulated` traces are never shown or compared as measured ones."""

    plan: Plan
    events: list[Event]
    emulated: bool = False

    @property
    def makespan(self) -> float:
        """Seconds from the step's start to the end of its last task."""
        return max((event.end for event in self.events), default=0.0)


Timed = Trace | Times | Sequence[Event]


class Bubble(NamedTuple):
    """Idle time of `device`'s compute stream. `task` is the one that runs next and `on` the task that it waited for
    (-1 where there is none)."""

    device: int
    start: float
    end: float
    cause: str
    task: int = -1
    on: int = -1

    @property
    def seconds(self) -> float:
        return self.end - self.start


def events_of(plan: Plan, timed: Timed) -> list[Event]:
    """The events of a trace, of a simulation or of a list of events, by start."""
    return sorted(_events(plan, timed), key=lambda event: (event.start, event.end, event.task))


def _events(plan: Plan, timed: Timed) -> Iterable[Event]:
    if isinstance(timed, Trace):
        return timed.events
    if isinstance(timed, Times):
        return [Event(t.id, t.device, t.stream, timed.start[t.id], timed.end[t.id]) for t in plan.tasks]
    return timed


def matches(plan: Plan) -> list[tuple[int, int]]:
    """(send, receive) task ids of each transfer."""
    sends: dict[tuple[Any, ...], int] = {}
    pairs = []
    for task in plan.tasks:
        if task.op == "SEND":
            sends[task.chunk, (task.peer_stage, task.peer_part), task.payload, task.mb, task.replica] = task.id
    for task in plan.tasks:
        if task.op == "RECV":
            key = (task.peer_stage, task.peer_part), task.chunk, task.payload, task.mb, task.replica
            if key in sends:
                pairs.append((sends[key], task.id))
    return pairs


def memory(plan: Plan, timed: Timed, device: int) -> list[tuple[float, int]]:
    """(seconds, bytes) of one device after each change; the first entry is what exists before the step.

    A buffer takes its bytes when the task that writes it starts, and gives them back when the task that frees it ends.
    Where both happen at one time, what is freed is subtracted first.
    """
    base = sum(b.nbytes for b in plan.buffers if b.device == device and b.persistent)
    transient = {b.id: b.nbytes for b in plan.buffers if b.device == device and not b.persistent}
    changes: list[tuple[float, int]] = []
    allocated: set[int] = set()
    for event in events_of(plan, [event for event in _events(plan, timed) if event.device == device]):
        task = plan.tasks[event.task]
        for buffer in task.writes:
            if buffer in transient and buffer not in allocated:
                allocated.add(buffer)
                changes.append((event.start, transient[buffer]))
        changes.extend((event.end, -transient[buffer]) for buffer in task.frees if buffer in transient)
    series = [(0.0, base)]
    for time, change in sorted(changes):
        if time == series[-1][0] and len(series) > 1:
            series[-1] = (time, series[-1][1] + change)
        else:
            series.append((time, series[-1][1] + change))
    return series


def bubbles(trace: Trace | tuple[Plan, Times], *, min_seconds: float = 0.0) -> list[Bubble]:
    """All idle intervals longer than `min_seconds` on the compute streams, by device and start, each with its cause.

    A gap that mixes causes is cut: while the peer has not sent it is a `receive` (or `warm-up`), while the data is
    under way a `transfer`, and what is left after the last event that the task waits for is `dispatch`. The seconds
    of `EXPOSED` causes add up to a simulation's `exposed`.
    """
    plan, timed = (trace.plan, trace) if isinstance(trace, Trace) else trace
    events = {event.task: event for event in events_of(plan, timed)}
    partner = {one: other for pair in matches(plan) for one, other in (pair, pair[::-1])}
    end_of_step = max((event.end for event in events.values()), default=0.0)
    found: list[Bubble] = []
    for device in sorted(plan.streams):
        now, idle = 0.0, "warm-up"
        ran = sorted((events[i] for i in plan.streams[device].get("compute", []) if i in events), key=lambda e: e.start)
        for event in ran:
            if event.start > now:
                found.extend(_explain(plan, plan.tasks[event.task], now, events, partner, idle))
            now, idle = max(now, event.end), "receive"
        reductions = [e.end for e in events.values() if e.device == device and plan.tasks[e.task].op == "REDUCE"]
        if (reduced := max(reductions, default=0.0)) > now:
            found.append(Bubble(device, now, reduced, "reduction"))
            now = reduced
        if end_of_step > now:
            found.append(Bubble(device, now, end_of_step, "drain"))
    return [bubble for bubble in found if bubble.seconds > min_seconds]


def _blocker(task: Task, events: dict[int, Event]) -> int:
    """The last to end of what `task` waits for, or -1."""
    return max((i for i in task.waits if i in events), key=lambda i: events[i].end, default=-1)


def _explain(
    plan: Plan, task: Task, now: float, events: dict[int, Event], partner: dict[int, int], idle: str
) -> Iterator[Bubble]:
    """Cut the gap before `task`; `idle` is the cause while a peer has not sent."""
    until = events[task.id].start
    on = _blocker(task, events)
    if on >= 0 and events[on].end > now:
        done = min(events[on].end, until)
        if plan.tasks[on].op == "REDUCE":
            yield Bubble(task.device, now, done, "reduction", task.id, on)
        elif plan.tasks[on].op in ("SEND", "RECV"):
            # A receive is posted early: the data is under way only from when both sides have started.
            begun = max(events[i].start for i in (on, partner.get(on, on)) if i in events)
            begun = min(max(begun, now), done)
            yield Bubble(task.device, now, begun, idle, task.id, on)
            yield Bubble(task.device, begun, done, "transfer", task.id, on)
        else:
            yield Bubble(task.device, now, done, "dispatch", task.id, on)
        now = done
    yield Bubble(task.device, now, until, "dispatch", task.id, on)


def to_perfetto(plan: Plan, timed: Timed, *, emulated: bool = False) -> dict[str, Any]:
    """Trace Event Format: a process per device, a thread per stream, a memory counter per device, and an arrow for each
    transfer from its send to its receive."""
    emulated = emulated or (isinstance(timed, Trace) and timed.emulated)
    events = events_of(plan, timed)
    thread = {(d, name): i for d, names in plan.streams.items() for i, name in enumerate(names)}
    rows: list[dict[str, Any]] = []
    for device in sorted(plan.streams):
        rows.append(_meta("process_name", device, name=f"device {device}{' (emulated)' if emulated else ''}"))
        rows.append(_meta("process_sort_index", device, sort_index=device))
        for name in plan.streams[device]:
            rows.append(_meta("thread_name", device, thread[device, name], name=name))
            rows.append(_meta("thread_sort_index", device, thread[device, name], sort_index=thread[device, name]))
    for event in events:
        task = plan.tasks[event.task]
        args = {"task": task.id, "start": event.start, "end": event.end, "waits": list(task.waits)}
        if task.stage >= 0:
            args["stage"] = task.stage
        if task.mb >= 0:
            args["microbatch"] = task.mb
        rows.append({
            "ph": "X", "name": str(task.action), "cat": task.op, "pid": event.device,
            "tid": thread[event.device, event.stream], "ts": event.start * 1e6,
            "dur": (event.end - event.start) * 1e6, "args": args,
        })  # fmt: skip
    rows.extend(_arrows(plan, {event.task: event for event in events}, thread))
    for device in sorted(plan.streams):
        rows.extend(
            {"ph": "C", "name": "memory", "pid": device, "ts": time * 1e6, "args": {"bytes": nbytes}}
            for time, nbytes in memory(plan, events, device)
        )
    other = {"format": "pibroch-trace", "version": 1, "emulated": emulated, "plan": plan.to_json()}
    return {"traceEvents": rows, "displayTimeUnit": "ms", "otherData": other}


def _meta(kind: str, device: int, tid: int | None = None, **args: Any) -> dict[str, Any]:
    row = {"ph": "M", "name": kind, "pid": device, "args": args}
    return row if tid is None else {**row, "tid": tid}


def _arrows(plan: Plan, events: dict[int, Event], thread: dict[tuple[int, str], int]) -> Iterator[dict[str, Any]]:
    for number, (send, recv) in enumerate(matches(plan)):
        if send not in events or recv not in events:
            continue
        left, right = events[send], events[recv]
        # An arrow binds to the slice that encloses its time: its head lies inside the receive, never before its tail.
        head = max(left.start, (max(left.start, right.start) + right.end) / 2)
        common = {"name": "transfer", "cat": "transfer", "id": number}
        yield {**common, "ph": "s", "pid": left.device, "tid": thread[left.device, left.stream], "ts": left.start * 1e6}
        yield {
            **common, "ph": "f", "bp": "e", "pid": right.device,
            "tid": thread[right.device, right.stream], "ts": head * 1e6,
        }  # fmt: skip


def write_trace(path: str | Path, trace: Trace) -> None:
    """Write a trace file; a reader sees the old file or the whole new one, never a part. Raises `InputError`."""
    write_atomically(path, json.dumps(to_perfetto(trace.plan, trace), separators=(",", ":"), allow_nan=False))


def read_trace(path: str | Path) -> Trace:
    """Read what `write_trace` wrote. Raises `InputError` on anything else."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read the trace: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a trace file: {error}") from error
    try:
        other = data["otherData"]
        if other["format"] != "pibroch-trace" or other["version"] != 1:
            raise ValueError("another format or version")
        plan = Plan.from_json(other["plan"])
        events = []
        for row in data["traceEvents"]:
            if row["ph"] == "X":
                task = plan.tasks[row["args"]["task"]]
                times = float(row["args"]["start"]), float(row["args"]["end"])
                events.append(Event(task.id, task.device, task.stream, *times))
        return Trace(plan, events, bool(other["emulated"]))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise InputError(f"{path}: not a trace that pibroch wrote: {error}") from error

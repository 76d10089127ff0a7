"""From a schedule and a model to a plan: the passes in order, each printable with `pibroch lower --after PASS`."""

from __future__ import annotations

import os
from collections.abc import Callable

from pibroch.runtime.dag import Dag
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.passes import (
    buffers,
    clip,
    order,
    place,
    plans,
    replicate,
    split,
    split_backward,
    stages,
    transfers,
    updates,
)
from pibroch.runtime.plan import Plan, Task

_PASSES: tuple[tuple[str, Callable[[Dag], None], Callable[[Dag], None]], ...] = (
    ("stages", stages.run, stages.ensures),
    ("split", split.run, split.ensures),
    ("split-backward", split_backward.run, split_backward.ensures),
    ("place", place.run, place.ensures),
    ("transfers", transfers.run, transfers.ensures),
    ("replicate", replicate.run, replicate.ensures),
    ("clip", clip.run, clip.ensures),
    ("updates", updates.run, updates.ensures),
    ("order", order.run, order.ensures),
)
PASS_NAMES: tuple[str, ...] = (*(name for name, _, _ in _PASSES), "buffers", "plans")


def lower(schedule: Schedule, model: ModelSpec, *, update: bool = True, optimizer_slots: int = 2) -> Plan:
    """Compile a schedule for a model.

    `update=False` leaves the optimizer out (forward and backward only); `optimizer_slots` is how many tensors of a
    parameter's size the optimizer keeps (AdamW: 2). Raises `InputError` that names the rule and the directive at fault.
    With `PIBROCH_CHECK=1` in the environment each pass's promises are asserted after it.
    """
    dag = _run(schedule, model, PASS_NAMES[-1], update=update, optimizer_slots=optimizer_slots)
    return plans.run(dag)


def lower_after(schedule: Schedule, model: ModelSpec, name: str, *, update: bool = True) -> str:
    """The DAG after one pass, as text: a line per chunk or per device and stream."""
    if name not in PASS_NAMES:
        raise InputError(f"no pass is called {name!r}: the passes are {', '.join(PASS_NAMES)}")
    dag = _run(schedule, model, name, update=update, optimizer_slots=2)
    lines = [f"after {name}: {len(dag.chunks)} chunks, {len(dag.tasks)} tasks, {len(dag.buffers)} buffers"]
    for c in dag.chunks:
        ends = [f"{v} from {s}" for v, s in c.inputs] + [f"{v} to {t}" for v, t in c.outputs]
        note = ", recomputed" if c.recompute else ""
        lines.append(f"chunk {c.key}: layers {c.start} to {c.stop - 1}{note}; {'; '.join(ends) or 'no transfers'}")
    if name == "plans":
        plan = plans.run(dag)
        for device, names in plan.streams.items():
            for stream, ids in names.items():
                lines.append(f"device {device}, {stream}: " + " ".join(_with_waits(plan, i) for i in ids))
        return "\n".join(lines)
    rows: dict[tuple[int, str], list[Task]] = {}
    for task in sorted(dag.tasks, key=lambda t: (dag.rank[t.id] if dag.rank else 0, t.id)):
        rows.setdefault((task.device, task.stream), []).append(task)
    for (device, stream), tasks in sorted(rows.items()):
        where = f"device {device}, {stream}" if device >= 0 else "not placed yet"
        lines.append(f"{where}: " + " ".join(map(str, tasks)))
    return "\n".join(lines)


def _with_waits(plan: Plan, i: int) -> str:
    task = plan.tasks[i]
    return f"{task}[{','.join(str(plan.tasks[w]) for w in task.waits)}]" if task.waits else str(task)


def _run(schedule: Schedule, model: ModelSpec, last: str, *, update: bool, optimizer_slots: int) -> Dag:
    if not model.layers:
        raise InputError("the model has no layers: annotate its regions with annotate('LAYER')")
    dag = Dag(model=model, schedule=schedule)
    check = os.environ.get("PIBROCH_CHECK") == "1"
    for name, run, ensures in _PASSES:
        if name in ("clip", "updates") and not update:
            continue
        run(dag)
        if check:
            ensures(dag)
        if name == last:
            return dag
    buffers.run(dag, optimizer_slots=optimizer_slots)
    if check:
        buffers.ensures(dag)
    return dag

"""place: give every task a device, once per replica.

Requires logical tasks of replica 0.
Ensures every task has a device; replica k of a stage runs on the k-th device of its place, and depends on replica k of
other stages only; the seeds of the loss weigh 1 / (microbatches x replicas).
"""

from __future__ import annotations

from pibroch.runtime.dag import Dag, invalid
from pibroch.runtime.directives import Cut, Order, Place
from pibroch.runtime.errors import InputError
from pibroch.runtime.passes.filters import stages_of
from pibroch.runtime.plan import Task
from pibroch.runtime.words import count, listed


def run(dag: Dag) -> None:
    _read_directives(dag)
    base = list(dag.tasks)
    for task in base:
        task.device = dag.placement[task.stage][0]
        if task.scale:
            task.scale = (1, dag.microbatches * dag.replicas)
    for replica in range(1, dag.replicas):
        offset = replica * dag.block
        for task in base:
            dag.tasks.append(
                Task(
                    task.id + offset, task.op, dag.placement[task.stage][replica], "compute", task.stage, task.part,
                    task.mb, replica=replica, scale=task.scale, deps=[d + offset for d in task.deps],
                )
            )  # fmt: skip


def _read_directives(dag: Dag) -> None:
    placed: dict[int, int] = {}
    devices: dict[int, list[int]] = {}
    streams: dict[str, int] = {}
    for where, d in enumerate(dag.schedule.directives):
        if not isinstance(d, Place):
            continue
        if len(set(d.devices)) != len(d.devices):
            raise invalid(where, f"place names a device twice: {d.devices}")
        for stage in stages_of(dag, where, d.filter, name="place"):
            if stage in placed:
                raise invalid(where, f"stage {stage} is placed by directive {placed[stage]} already")
            placed[stage], devices[stage] = where, list(d.devices)
        if d.stream is not None:
            streams.setdefault(d.stream, where)
            if len(streams) > 1:
                raise invalid(where, f"all places use one transfer stream, not both {' and '.join(streams)}")
            dag.transfer_stream = d.stream
    missing = [s for s in range(dag.stages) if s not in placed]
    if missing:
        raise _unplaced(dag, missing, sorted(placed))
    dag.placement = [devices[s] for s in range(dag.stages)]
    counts = {len(row) for row in dag.placement}
    if len(counts) > 1:
        raise invalid(None, f"stages have different numbers of replicas: {', '.join(map(str, sorted(counts)))}")
    dag.replicas = counts.pop()
    used = {d for row in dag.placement for d in row}
    idle = [d for d in range(max(used) + 1) if d not in used]
    if idle:
        raise invalid(None, f"device {idle[0]} has nothing to do: number devices from 0 without gaps")


def _unplaced(dag: Dag, missing: list[int], placed: list[int]) -> InputError:
    """Says which directive speaks of a stage that no place gives, where there is one."""
    advice = f"add a place with filter {{'PP': {missing[0]}}}"
    if placed:
        given = f"the places give {listed('stage', placed)}"
        for where, d in enumerate(dag.schedule.directives):
            if isinstance(d, Cut):
                return invalid(where, f"cut makes {count(dag.stages, 'stage')}, but {given}: {advice}")
            filters = [f for group in d.groups() for f in group] if isinstance(d, Order) else [d.filter]
            named = [f["PP"] for f in filters if f.get("PP") in missing]
            if named:
                return invalid(where, f"{d.op} names stage {named[0]}, but {given}: add a place, or name another stage")
    return invalid(None, f"stage {missing[0]} is on no device: {advice}")


def ensures(dag: Dag) -> None:
    assert len(dag.tasks) == dag.block * dag.replicas
    for task in dag.tasks:
        assert task.device == dag.placement[task.stage][task.replica]
        assert all(dag.tasks[d].replica == task.replica for d in task.deps)

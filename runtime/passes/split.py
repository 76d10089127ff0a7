"""split: one forward and one backward per chunk and microbatch, with their data dependences.

Requires chunks (from `stages`).
Ensures for every chunk and microbatch one F and one B; F waits on the forwards that produce its inputs, B on its own F
and on the backwards of all chunks that consume its outputs with a gradient.
"""

from __future__ import annotations

from pibroch.runtime.dag import Dag, invalid
from pibroch.runtime.directives import Split
from pibroch.runtime.plan import Task


def run(dag: Dag) -> None:
    _read_directive(dag)
    grad = {value: spec.grad for value, spec in dag.model.values.items()}
    last = dag.chunks[-1].key
    for mb in range(dag.microbatches):
        for c in dag.chunks:
            deps = dict.fromkeys(dag.compute["F", *source, mb] for _, source in c.inputs)
            task = dag.add(Task(0, "F", stage=c.stage, part=c.part, mb=mb, deps=list(deps)))
            dag.compute["F", c.stage, c.part, mb] = task.id
    for mb in range(dag.microbatches):
        for c in reversed(dag.chunks):
            targets = dict.fromkeys(dag.compute["B", *target, mb] for value, target in c.outputs if grad[value])
            task = dag.add(
                Task(0, "B", stage=c.stage, part=c.part, mb=mb, deps=[dag.compute["F", c.stage, c.part, mb], *targets])
            )
            if c.key == last:
                task.scale = (1, dag.microbatches)
            dag.compute["B", c.stage, c.part, mb] = task.id
    dag.block = len(dag.tasks)


def _read_directive(dag: Dag) -> None:
    splits = [(i, d) for i, d in enumerate(dag.schedule.directives) if isinstance(d, Split)]
    if len(splits) > 1:
        raise invalid(splits[1][0], f"a second split: directive {splits[0][0]} has cut the batch already")
    if splits:
        where, split = splits[0]
        if any(index != "*" for index in split.filter.values()):
            raise invalid(where, "split cuts the batch of the whole model: leave its filter empty")
        if split.dim_name in ("PP", "PASS") or any(split.dim_name in layer.tags for layer in dag.model.layers):
            raise invalid(where, f"dim_name {split.dim_name!r} is taken by a tag: choose another name, such as MB")
        dag.microbatches, dag.dim_name = split.num_microbatches, split.dim_name


def ensures(dag: Dag) -> None:
    assert len(dag.tasks) == 2 * len(dag.chunks) * dag.microbatches
    for (op, stage, part, mb), i in dag.compute.items():
        task = dag.tasks[i]
        assert (task.id, task.op, task.stage, task.part, task.mb) == (i, op, stage, part, mb)
        assert op == "F" or dag.compute["F", stage, part, mb] in task.deps

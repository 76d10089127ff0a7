"""updates: one optimizer step per stage and device, when its gradients are complete.

Requires reductions in place.
Ensures every stage with trainable parameters has one UPDATE on each of its devices, after the reductions of its
buckets and after every task there that still reads its parameters.
"""

from __future__ import annotations

from pibroch.runtime.dag import Dag
from pibroch.runtime.plan import Task


def run(dag: Dag) -> None:
    reduces = {(t.bucket, t.device): t.id for t in dag.tasks if t.op == "REDUCE"}
    clipping = {b.id for b in dag.buckets if not b.params}
    bucket_of = {name: b.id for b in dag.buckets for name in b.params}
    for stage in range(dag.stages):
        for replica, device in enumerate(dag.placement[stage]):
            names = owned_parameters(dag, stage, device)
            if not names:
                continue
            users = [c for c in dag.chunks if device in dag.placement[c.stage] and set(c.params) & set(names)]
            deps = [i for c in users for i in dag.backwards(c.stage, c.part, dag.placement[c.stage].index(device))]
            buckets = {bucket_of[n] for n in names if n in bucket_of} | clipping
            deps += [reduces[b, device] for b in sorted(buckets) if (b, device) in reduces]
            dag.add(Task(0, "UPDATE", device, stage=stage, replica=replica, deps=deps))


def owned_parameters(dag: Dag, stage: int, device: int) -> list[str]:
    """Trainable parameters that this stage's optimizer updates on this device: a shared one belongs to the first."""
    names: dict[str, None] = {}
    for c in dag.chunks:
        if c.stage == stage:
            names.update(dict.fromkeys(p for p in c.params if dag.model.params[p].trainable))
    for c in dag.chunks:
        if c.stage < stage and device in dag.placement[c.stage]:
            for p in c.params:
                names.pop(p, None)
    return list(names)


def ensures(dag: Dag) -> None:
    updates = [(t.stage, t.device) for t in dag.tasks if t.op == "UPDATE"]
    assert len(set(updates)) == len(updates)
    for stage in range(dag.stages):
        for device in dag.placement[stage]:
            assert ((stage, device) in updates) == bool(owned_parameters(dag, stage, device))

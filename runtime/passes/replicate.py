"""replicate: one all-reduce per step and bucket, for replicas and for tied parameters.

Requires placed tasks.
Ensures every bucket has one REDUCE on each device of its group, after all backwards there that add to it. Parameters
that chunks of several stages share form buckets of their own over all devices that hold them; the other trainable
parameters of a stage form one bucket, or one per chunk where `bucket_size` cuts the stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.runtime.action import Chunk
from pibroch.runtime.dag import Dag, invalid
from pibroch.runtime.directives import Replicate
from pibroch.runtime.passes.filters import stages_of
from pibroch.runtime.plan import Bucket, Task


def run(dag: Dag) -> None:
    claimed: dict[int, int] = {}
    tied = tied_parameters(dag)
    stream = "reduce"
    for where, d in enumerate(dag.schedule.directives):
        if not isinstance(d, Replicate):
            continue
        stream = d.reduce_stream
        for stage in stages_of(dag, where, d.filter, name="replicate"):
            if stage in claimed:
                raise invalid(where, f"stage {stage} is replicated by directive {claimed[stage]} already")
            claimed[stage] = where
            if sorted(d.devices) != sorted(dag.placement[stage]):
                placed = dag.placement[stage]
                raise invalid(where, f"replicate averages stage {stage} over {d.devices}, but it is placed on {placed}")
            if dag.replicas > 1:
                _stage_buckets(dag, stage, set(tied), stream, per_chunk=d.bucket_size is not None)
    for name, chunks in tied.items():
        stages = sorted({c.stage for c in chunks})
        group = sorted({device for s in stages for device in dag.placement[s]})
        averaged = dag.replicas == 1 or all(s in claimed for s in stages)
        if len(group) > 1 and averaged:
            _bucket(dag, [name], chunks, group, stream)
    for bucket in dag.buckets:
        for device in bucket.group:
            deps = []
            for stage, part in bucket.chunks:
                if device in dag.placement[stage]:
                    deps += dag.backwards(stage, part, dag.placement[stage].index(device))
            dag.add(Task(0, "REDUCE", device, bucket.stream, bucket=bucket.id, group=bucket.group, deps=deps))


def tied_parameters(dag: Dag) -> dict[str, list[Chunk]]:
    """Trainable parameters that chunks of more than one stage use, with those chunks."""
    users: dict[str, list[Chunk]] = {}
    for c in dag.chunks:
        for name in c.params:
            if dag.model.params[name].trainable:
                users.setdefault(name, []).append(c.key)
    return {name: chunks for name, chunks in users.items() if len({c.stage for c in chunks}) > 1}


def _stage_buckets(dag: Dag, stage: int, tied: set[str], stream: str, *, per_chunk: bool) -> None:
    chunks = [c for c in dag.chunks if c.stage == stage]
    seen: set[str] = set()
    groups = [[c] for c in reversed(chunks)] if per_chunk else [chunks]
    for group in groups:
        names = dict.fromkeys(
            p for c in group for p in c.params if dag.model.params[p].trainable and p not in tied and p not in seen
        )
        seen |= set(names)
        if names:
            users = [c.key for c in chunks if set(c.params) & set(names)]
            _bucket(dag, list(names), users, dag.placement[stage], stream)


def _bucket(dag: Dag, names: list[str], chunks: Sequence[Chunk], group: Sequence[int], stream: str) -> None:
    nbytes = sum(dag.model.params[p].nbytes for p in names)
    dag.buckets.append(Bucket(len(dag.buckets), tuple(names), tuple(chunks), tuple(sorted(group)), nbytes, stream))


def ensures(dag: Dag) -> None:
    seen: set[str] = set()
    for bucket in dag.buckets:
        assert not seen & set(bucket.params), "a parameter is in one bucket at most"
        seen |= set(bucket.params)
        members = [t for t in dag.tasks if t.op == "REDUCE" and t.bucket == bucket.id]
        assert [t.device for t in members] == list(bucket.group)

"""transfers: a send and a receive on every edge between devices.

Requires placed tasks.
Ensures no compute task depends on a compute task of another device: it depends on a RECV, that on a SEND, that on the
producer. A channel is one stream, named the same at both ends. Edges within one device stay.
"""

from __future__ import annotations

from pibroch.runtime.action import Chunk
from pibroch.runtime.dag import Dag
from pibroch.runtime.plan import Task


def run(dag: Dag) -> None:
    grad = {value: spec.grad for value, spec in dag.model.values.items()}
    backward = "B", "BI"
    for c in dag.chunks:
        edges: dict[Chunk, list[str]] = {}
        for value, source in c.inputs:
            edges.setdefault(source, []).append(value)
        for peer, values in edges.items():
            back = tuple(v for v in values if grad[v])
            for replica in range(dag.replicas):
                offset = replica * dag.block
                if dag.placement[peer.stage][replica] == dag.placement[c.stage][replica]:
                    continue
                for mb in range(dag.microbatches):
                    first = dag.compute["F", peer.stage, peer.part, mb] + offset
                    second = dag.compute["F", c.stage, c.part, mb] + offset
                    _transfer(dag, first, second, "F", tuple(values))
                    if back:
                        first, second = (
                            next(i for op in backward if (i := dag.compute.get((op, *key, mb), -1)) >= 0) + offset
                            for key in (c.key, peer)
                        )
                        _transfer(dag, first, second, "B", back)


def _transfer(dag: Dag, source: int, target: int, payload: str, values: tuple[str, ...]) -> None:
    a, b = dag.tasks[source], dag.tasks[target]
    stream = f"{dag.transfer_stream}.{a.device}>{b.device}.{payload}"
    send = len(dag.tasks)
    dag.tasks.append(
        Task(send, "SEND", a.device, stream, a.stage, a.part, a.mb, b.device, b.stage, b.part, payload,
             replica=a.replica, values=values, deps=[source])
    )  # fmt: skip
    dag.tasks.append(
        Task(send + 1, "RECV", b.device, stream, b.stage, b.part, b.mb, a.device, a.stage, a.part, payload,
             replica=b.replica, values=values, deps=[send])
    )  # fmt: skip
    b.deps[b.deps.index(source)] = send + 1


def ensures(dag: Dag) -> None:
    for task in dag.tasks:
        for d in task.deps:
            other = dag.tasks[d]
            assert other.device == task.device or (task.op == "RECV" and other.op == "SEND")

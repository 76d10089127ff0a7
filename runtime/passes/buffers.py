"""buffers: what every task reads, writes and frees.

Requires all tasks.
Ensures each transient buffer has one writer and one task that frees it, its last user: a sent activation is freed by
its SEND, a received one and what forward saved by the chunk's backward, what BW needs by BW. A value that several
chunks consume is one buffer per consumer, so each has one last user. Persistent buffers are per device: parameters and
gradients by the first chunk there that uses them (a tied parameter has buffers of its own), optimizer state by stage.
"""

from __future__ import annotations

from pibroch.runtime.dag import Dag
from pibroch.runtime.passes.replicate import tied_parameters
from pibroch.runtime.passes.updates import owned_parameters
from pibroch.runtime.plan import Buffer, ChunkSpec, Task

Edge = tuple[str, int, int, int, int, int, int]  # payload, source chunk, target chunk, microbatch, replica
Held = dict[tuple[int, str], int]  # (device, parameter) -> buffer


def run(dag: Dag, *, optimizer_slots: int) -> None:
    params, grads = _persistent(dag)
    bucket_grads = {
        (b.id, d): tuple(dict.fromkeys(grads[d, p] for p in b.params)) for b in dag.buckets for d in b.group
    }
    for b in dag.buckets:
        if not b.params:  # clipping scales all gradients of a device
            for d in b.group:
                bucket_grads[b.id, d] = tuple(dict.fromkeys(held for (device, _), held in grads.items() if device == d))
    uses = {}
    for c in dag.chunks:
        for device in dag.placement[c.stage]:
            trainable = [p for p in c.params if dag.model.params[p].trainable]
            uses[c.key, device] = (
                tuple(dict.fromkeys(params[device, p] for p in c.params)),
                tuple(dict.fromkeys(grads[device, p] for p in trainable)),
            )
    chunks = {c.key: c for c in dag.chunks}
    edges = _Edges(dag)
    for task in dag.tasks:
        if task.op == "UPDATE":
            names = owned_parameters(dag, task.stage, task.device)
            state = optimizer_slots * sum(dag.model.params[p].nbytes for p in names)
            held = [params[task.device, p] for p in names]
            task.reads = tuple(dict.fromkeys(grads[task.device, p] for p in names))
            task.writes = (*dict.fromkeys(held), _new(dag, "optimizer", task.device, state, f"optimizer {task.stage}"))
        elif task.op == "REDUCE":
            task.reads = task.writes = bucket_grads[task.bucket, task.device]
        elif task.op in ("F", "B", "BI", "BW"):
            _compute(dag, task, chunks[task.chunk], uses[task.chunk, task.device], edges)
    for task in dag.tasks:
        if task.op in ("SEND", "RECV"):
            source, target = (task.stage, task.part), (task.peer_stage, task.peer_part)
            if task.op == "SEND":
                buffer = edges.held[(task.payload, *source, *target, task.mb, task.replica), task.device]
                task.reads = task.frees = (buffer,)
            else:
                buffer = edges.held[(task.payload, *target, *source, task.mb, task.replica), task.device]
                task.writes = (buffer,)


class _Edges:
    """The buffers of values that flow between chunks, one per consumer and device."""

    def __init__(self, dag: Dag) -> None:
        self.held: dict[tuple[Edge, int], int] = {}
        self.inputs: dict[tuple[int, int], list[tuple[tuple[int, int], tuple[str, ...], tuple[str, ...]]]] = {}
        self.outputs: dict[tuple[int, int], list[tuple[tuple[int, int], tuple[str, ...], tuple[str, ...]]]] = {}
        grad = {value: spec.grad for value, spec in dag.model.values.items()}
        for c in dag.chunks:
            for table, ends in ((self.inputs, c.inputs), (self.outputs, c.outputs)):
                by_peer: dict[tuple[int, int], list[str]] = {}
                for value, peer in ends:
                    by_peer.setdefault((peer.stage, peer.part), []).append(value)
                table[c.stage, c.part] = [
                    (peer, tuple(v), tuple(x for x in v if grad[x])) for peer, v in by_peer.items()
                ]

    def get(self, dag: Dag, kind: str, edge: Edge, device: int, values: tuple[str, ...]) -> int:
        found = self.held.get((edge, device))
        if found is None:
            tensors = tuple(dag.model.values[v] for v in values)
            found = _new(dag, kind, device, sum(t.nbytes for t in tensors), "", tensors)
            self.held[edge, device] = found
        return found


def _compute(dag: Dag, t: Task, c: ChunkSpec, uses: tuple[tuple[int, ...], tuple[int, ...]], edges: _Edges) -> None:
    here, (params, grads) = (t.stage, t.part), uses
    if t.op == "BW":
        saved = edges.held[("wsaved", *here, *here, t.mb, t.replica), t.device]
        t.reads, t.writes, t.frees = (saved,), grads, (saved,)
        return
    inputs = []
    for peer, values, _ in edges.inputs[here]:
        local = dag.placement[peer[0]][t.replica] == t.device
        edge = ("F", *peer, *here, t.mb, t.replica)
        inputs.append(edges.get(dag, "activation" if local else "received", edge, t.device, values))
    keep = ("saved", *here, *here, t.mb, t.replica)
    if t.op == "F":
        writes = [] if c.recompute else [_keep(dag, edges, keep, "saved", t.device, c.saved_bytes)]
        for peer, values, _ in edges.outputs[here]:
            writes.append(edges.get(dag, "activation", ("F", *here, *peer, t.mb, t.replica), t.device, values))
        t.reads, t.writes = (*params, *inputs), tuple(writes)
        return
    reads, writes, frees = [*params, *inputs], list(grads), list(inputs)
    if c.recompute:
        saved = _new(dag, "workspace", t.device, c.saved_bytes)
        writes.append(saved)
    else:
        saved = edges.held[keep, t.device]
        reads.append(saved)
    frees.append(saved)
    for peer, _, values in edges.outputs[here]:
        if values:
            local = dag.placement[peer[0]][t.replica] == t.device
            kind = "activation" if local else "received"
            got = edges.get(dag, kind, ("B", *peer, *here, t.mb, t.replica), t.device, values)
            reads.append(got)
            frees.append(got)
    for peer, _, values in edges.inputs[here]:
        if values:
            writes.append(edges.get(dag, "activation", ("B", *here, *peer, t.mb, t.replica), t.device, values))
    if t.op == "BI":
        kept = ("wsaved", *here, *here, t.mb, t.replica)
        writes.append(_keep(dag, edges, kept, "wsaved", t.device, c.weight_saved_bytes))
    t.reads, t.writes, t.frees = tuple(reads), tuple(writes), tuple(frees)


def _keep(dag: Dag, edges: _Edges, edge: Edge, kind: str, device: int, nbytes: int) -> int:
    found = edges.held[edge, device] = _new(dag, kind, device, nbytes)
    return found


def _persistent(dag: Dag) -> tuple[Held, Held]:
    tied = tied_parameters(dag)
    params: Held = {}
    grads: Held = {}
    for c in dag.chunks:
        for device in dag.placement[c.stage]:
            own = [p for p in c.params if (device, p) not in params]
            alone = [p for p in own if p in tied]
            shared = [p for p in own if p not in tied]
            for names, label in [(shared, f"chunk {c.key}"), *(([p], p) for p in alone)]:
                specs = [dag.model.params[p] for p in names]
                trainable = [s for s in specs if s.trainable]
                if names:
                    held = _new(dag, "parameter", device, sum(s.nbytes for s in specs), label)
                    params.update(dict.fromkeys(((device, p) for p in names), held))
                if trainable:
                    held = _new(dag, "gradient", device, sum(s.nbytes for s in trainable), label)
                    grads.update(dict.fromkeys(((device, s.name) for s in trainable), held))
    return params, grads


def _new(dag: Dag, kind: str, device: int, nbytes: int, label: str = "", tensors: tuple = ()) -> int:  # type: ignore[type-arg]
    dag.buffers.append(Buffer(len(dag.buffers), kind, device, nbytes, label, tensors))
    return len(dag.buffers) - 1


def ensures(dag: Dag) -> None:
    freed = [b for t in dag.tasks for b in t.frees]
    assert len(set(freed)) == len(freed)
    assert set(freed) == {b.id for b in dag.buffers if not b.persistent}
    assert all(dag.buffers[b].device == t.device for t in dag.tasks for b in (*t.reads, *t.writes, *t.frees))

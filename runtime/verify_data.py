"""V1, every chunk exactly once, and V2, every chunk after what it needs, through buffers that carry it.

An *edge* is a producing and a consuming chunk with the values between them. Its data takes one of two ways: both
chunks are on one device and share the producer's buffer, or a send reads that buffer and its receive writes another.
Either way the consumer reads a buffer that its source wrote, and is ordered after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pibroch.runtime.action import COMPUTE
from pibroch.runtime.model import ModelSpec, TensorSpec
from pibroch.runtime.verify_index import Index
from pibroch.runtime.verify_order import Order


def check_chunks(index: Index) -> None:
    """V1. Fills `index.done`."""
    plan, report = index.plan, index.report
    cells = len(plan.chunks) * plan.replicas * plan.microbatches
    done = index.done = {op: [-1] * cells for op in COMPUTE}
    updates: dict[tuple[int, int], int] = {}
    keys = {(c.stage, c.part): i for i, c in enumerate(plan.chunks)}
    for t in plan.tasks:
        if t.op in done:
            cell = index.cell(keys[t.stage, t.part], t.mb, t.replica)
            first = done[t.op][cell]
            if first >= 0:
                report.add("V1", f"replica {t.replica} computes it a second time", t.id, first)
                continue
            done[t.op][cell] = t.id
            if plan.placement[t.stage][t.replica] != t.device:
                report.add(
                    "V1",
                    f"replica {t.replica} of stage {t.stage} is placed on device {plan.placement[t.stage][t.replica]}",
                    t.id,
                )
            if t.stream != "compute":
                report.add("V1", "stands outside the compute stream", t.id)
        elif t.op == "UPDATE":
            if (t.stage, t.device) in updates:
                report.add("V1", f"updates stage {t.stage} a second time", t.id, updates[t.stage, t.device])
            updates[t.stage, t.device] = t.id
            if t.device not in plan.placement[t.stage]:
                report.add("V1", f"stage {t.stage} is placed on devices {plan.placement[t.stage]}", t.id)
            elif plan.placement[t.stage][t.replica % plan.replicas] != t.device:
                report.add("V1", f"names replica {t.replica}, which is on another device", t.id)
    for c, chunk in enumerate(plan.chunks):
        for replica, device in enumerate(plan.placement[chunk.stage]):
            for mb in range(plan.microbatches):
                cell = index.cell(c, mb, replica)
                f, b, bi, bw = (done[op][cell] >= 0 for op in COMPUTE)
                if not f or (b + bi, b + bw) != (1, 1):
                    has = ", ".join(op for op in COMPUTE if done[op][cell] >= 0) or "nothing"
                    report.add(
                        "V1",
                        f"chunk {chunk.key}, microbatch {mb}, replica {replica} has {has}; it needs F once and B "
                        "once, or F, BI and BW once",
                        device=device,
                        stream="compute",
                    )


@dataclass(slots=True)
class _Edge:
    source: int
    target: int
    values: tuple[str, ...]


def check_data(index: Index, order: Order, model: ModelSpec | None) -> None:
    """V2. Requires V1, V3 and V5 to hold, and the clocks of `order`."""
    _Data(index, order, model).check()


class _Data:
    def __init__(self, index: Index, order: Order, model: ModelSpec | None) -> None:
        self.index, self.order, self.model = index, order, model
        self.plan, self.tasks, self.report = index.plan, index.plan.tasks, index.report
        done = index.done
        self.backward = [b if b >= 0 else bi for b, bi in zip(done["B"], done["BI"], strict=True)]
        """Per cell, the task that makes gradients of inputs: B or BI."""
        self.received: dict[tuple[str, int, int, int, int], list[int]] = {}
        keys = {(c.stage, c.part): i for i, c in enumerate(self.plan.chunks)}
        for t in self.tasks:
            if t.op == "RECV":
                here, there = keys[t.stage, t.part], keys[t.peer_stage, t.peer_part]
                self.received.setdefault((t.payload, there, here, t.mb, t.replica), []).append(t.id)
        self.used: set[int] = set()

    def check(self) -> None:
        for edge in self._edges():
            rows = self.plan.placement
            a, b = (rows[self.plan.chunks[c].stage] for c in (edge.source, edge.target))
            for replica in range(self.plan.replicas):
                local = a[replica] == b[replica]
                gradients = self._gradients(edge, replica)
                self._edge(edge, replica, "F", edge.values, local=local)
                if gradients:
                    self._edge(_Edge(edge.target, edge.source, ()), replica, "B", gradients, local=local)
        for c, chunk in enumerate(self.plan.chunks):
            first = self.index.cell(c, 0, 0)
            for cell in range(first, first + self.plan.replicas * self.plan.microbatches):
                self._own(cell, recompute=chunk.recompute)
        for (payload, source, target, _, _), ids in self.received.items():
            for i in ids:
                if i not in self.used:
                    chunks = self.plan.chunks
                    self.report.add(
                        "V2",
                        f"nothing of payload {payload} goes from chunk {chunks[source].key} to {chunks[target].key}",
                        i,
                    )

    def _edges(self) -> list[_Edge]:
        edges = []
        for target, chunk in enumerate(self.plan.chunks):
            by_source: dict[int, list[str]] = {}
            for value, key in chunk.inputs:
                by_source.setdefault(self.index.chunk_index[key], []).append(value)
            for source, values in by_source.items():
                expected = [v for v, key in self.plan.chunks[source].outputs if key == chunk.key]
                if sorted(expected) != sorted(values):
                    self.report.add(
                        "V2",
                        f"chunk {chunk.key} expects {', '.join(values)} from chunk {self.plan.chunks[source].key}, "
                        f"whose outputs for it are {', '.join(expected) or 'none'}",
                    )
                edges.append(_Edge(source, target, tuple(values)))
        return edges

    def _gradients(self, edge: _Edge, replica: int) -> tuple[str, ...]:
        """The values of an edge that have a gradient: as the model says, else the buffers, else the transfers."""
        if self.model is not None and all(v in self.model.values for v in edge.values):
            return tuple(v for v in edge.values if self.model.values[v].grad)
        f = self.index.done["F"]
        first = self.index.cell(edge.source, 0, replica)
        written = set(self._wrote("F", edge, first, 0, replica))
        for b in self.tasks[f[self.index.cell(edge.target, 0, replica)]].reads:
            tensors = self.plan.buffers[b].tensors
            if b in written and len(tensors) == len(edge.values):
                return tuple(v for v, t in zip(edge.values, tensors, strict=True) if t.grad)
        device = [self.plan.placement[self.plan.chunks[c].stage][replica] for c in (edge.source, edge.target)]
        if device[0] == device[1]:
            return edge.values
        carried = {
            v
            for mb in range(self.plan.microbatches)
            for i in self.received.get(("B", edge.target, edge.source, mb, replica), ())
            for v in self.tasks[i].values
        }
        return tuple(v for v in edge.values if v in carried)

    def _wrote(self, payload: str, edge: _Edge, cell: int, mb: int, replica: int) -> tuple[int, ...]:
        """Buffers in which the target of an edge may find its data: of the producer and of the receives."""
        producer = self.index.done["F"][cell] if payload == "F" else self.backward[cell]
        ids = [producer, *self.received.get((payload, edge.source, edge.target, mb, replica), ())]
        return tuple(b for i in ids for b in self.tasks[i].writes)

    def _edge(self, edge: _Edge, replica: int, payload: str, values: tuple[str, ...], *, local: bool) -> None:
        tasks, before = self.tasks, self.order.before
        makers = self.index.done["F"] if payload == "F" else self.backward
        source, target = self.index.cell(edge.source, 0, replica), self.index.cell(edge.target, 0, replica)
        what = "" if payload == "F" else "the gradient of "
        shapes = self._shapes(values)
        for mb in range(self.plan.microbatches):
            maker, user = makers[source + mb], makers[target + mb]
            if local:
                if not before(maker, user):
                    self._tell(user, maker, f"needs {what}{', '.join(values)} of {tasks[maker]} before it")
                elif (b := self._linked(maker, user)) < 0:
                    self._tell(user, maker, f"reads no buffer with {what}{', '.join(values)} of {tasks[maker]}")
                else:
                    shapes = self._shaped(user, b, values, shapes)
                continue
            found: list[str] = []
            for r in self.received.get((payload, edge.source, edge.target, mb, replica), ()):
                self.used.add(r)
                found += tasks[r].values
                s = self.index.pair[r]
                if not before(r, user):
                    self._tell(user, r, f"needs {what}{', '.join(values)}, but does not come after {tasks[r]}")
                elif (b := self._linked(r, user)) < 0:
                    self._tell(user, r, f"does not read what {tasks[r]} received")
                elif tasks[r].values == values:
                    shapes = self._shaped(user, b, values, shapes)
                if s >= 0 and tasks[s].device == tasks[maker].device:
                    if not before(maker, s):
                        self._tell(s, maker, f"sends what {tasks[maker]} makes, but does not come after it")
                    elif self._linked(maker, s) < 0:
                        self._tell(s, maker, f"reads no buffer that {tasks[maker]} wrote")
            if sorted(found) != sorted(values):
                got = f"receives {', '.join(found)}" if found else "nothing of it is received"
                self._tell(user, -1, f"needs {what}{', '.join(values)} of {self.report.name(maker)}, but {got}")

    def _own(self, cell: int, *, recompute: bool) -> None:
        """Within one chunk and microbatch: F, then B or BI, then BW, each with what the one before it kept."""
        tasks, done = self.tasks, self.index.done
        forward, backward, weight = done["F"][cell], self.backward[cell], done["BW"][cell]
        if not self.order.before(forward, backward):
            self._tell(backward, forward, f"does not come after {tasks[forward]}")
        elif kept := self._missing(forward, backward, ("saved",)):
            self._tell(backward, forward, f"does not read {kept} that {tasks[forward]} kept for it")
        if recompute:
            for b in tasks[forward].reads:
                if not self.plan.buffers[b].persistent and b not in tasks[backward].reads:
                    self._tell(backward, forward, f"recomputes {tasks[forward]} without reading its input {b}")
        if weight >= 0:
            if not self.order.before(backward, weight):
                self._tell(weight, backward, f"does not come after {tasks[backward]}")
            elif kept := self._missing(backward, weight, ("wsaved",)):
                self._tell(weight, backward, f"does not read {kept} that {tasks[backward]} kept for it")

    def _missing(self, maker: int, user: int, kinds: tuple[str, ...]) -> str:
        reads = self.tasks[user].reads
        for b in self.tasks[maker].writes:
            if b not in reads and self.plan.buffers[b].kind in kinds:
                return f"buffer {b}"
        return ""

    def _linked(self, maker: int, user: int) -> int:
        """A buffer with values that the maker wrote and the user reads, or -1."""
        writes, buffers = self.tasks[maker].writes, self.plan.buffers
        for b in self.tasks[user].reads:
            if b in writes and buffers[b].kind in ("activation", "received"):
                return b
        return -1

    def _shapes(self, values: tuple[str, ...]) -> tuple[TensorSpec, ...] | None:
        if self.model is None or not all(v in self.model.values for v in values):
            return None
        return tuple(self.model.values[v] for v in values)

    def _shaped(
        self, user: int, b: int, values: tuple[str, ...], expected: tuple[TensorSpec, ...] | None
    ) -> tuple[TensorSpec, ...]:
        """What the buffers of an edge hold: as the model says, or as the first of them does. May hold sizes only."""
        held = self.plan.buffers[b].tensors
        if expected is not None and held and held != expected:
            self._tell(user, -1, f"buffer {b} for {', '.join(values)} holds {held}, not {expected}")
        return held if expected is None else expected

    def _tell(self, user: int, other: int, text: str) -> None:
        self.report.add("V2", text, *([user, other] if other >= 0 else [user]))

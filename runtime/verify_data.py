"""V1, every chunk exactly once, and V2, every chunk after what it needs, through buffers that carry it.

An *edge* is a producing and a consuming chunk with the values between them. Its data takes one of two ways: both
chunks are on one device and share the producer's buffer, or a send reads that buffer and its receive writes another.
Which of a task's buffers holds what is told by its place among the transient ones:

    F    reads one per input edge; writes saved (none where it is recomputed), one per output edge
    B    reads what F read, saved, one per output edge with gradients; writes workspace (only where F is recomputed),
    BI   one per input edge with gradients, wsaved (BI only)
    BW   reads wsaved

Edges stand in the order of the chunk's `inputs` and `outputs`, values within an edge too.
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
        if t.stream != "compute" and (t.op in done or t.op == "UPDATE"):
            report.add("V1", "stands outside the compute stream", t.id)
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
    """`gradients` are the values of the edge that have one. Places count the edges before this one: among the inputs of
    its target, the outputs of its source, and the same counting only edges with gradients."""

    number: int
    source: int
    target: int
    values: tuple[str, ...]
    gradients: tuple[str, ...] = ()
    place_in: int = 0
    place_out: int = 0
    gradient_in: int = 0
    gradient_out: int = 0


def check_data(index: Index, order: Order, model: ModelSpec | None) -> None:
    """V2. Requires V1, V3 and V5 to hold, and the clocks of `order`."""
    _Data(index, order, model).check()


class _Data:
    def __init__(self, index: Index, order: Order, model: ModelSpec | None) -> None:
        self.index, self.before, self.model = index, order.before, model
        self.plan, self.tasks, self.report = index.plan, index.plan.tasks, index.report
        self.forward = index.done["F"]
        self.backward = [b if b >= 0 else bi for b, bi in zip(index.done["B"], index.done["BI"], strict=True)]
        """Per cell, the task that makes gradients of inputs: B or BI."""
        passing = [not b.persistent for b in self.plan.buffers]
        self.reads: list[list[int]] = [[b for b in t.reads if passing[b]] for t in self.tasks]
        self.writes: list[list[int]] = [[b for b in t.writes if passing[b]] for t in self.tasks]
        self.cells = self.plan.replicas * self.plan.microbatches
        self.edges: list[_Edge] = []
        self.inputs: list[list[_Edge]] = [[] for _ in self.plan.chunks]
        self.outputs: list[list[_Edge]] = [[] for _ in self.plan.chunks]

    def check(self) -> None:
        if not self._connect():
            return
        received = self._receives()
        self._gradients(received)
        for c in range(len(self.plan.chunks)):
            self._chunk(c)
        if "V2" in self.report.counts:
            return
        for edge in self.edges:
            self._edge(edge, "F", received)
            if edge.gradients:
                self._edge(edge, "B", received)
        for i in received.values():
            self._tell("carries what no chunk needs", i)

    def _connect(self) -> bool:
        """The edges, from the chunks' inputs; outputs must say the same."""
        chunks, numbers = self.plan.chunks, self.index.chunk_index
        for target, chunk in enumerate(chunks):
            for key in dict.fromkeys(key for _, key in chunk.inputs):
                values = tuple(v for v, k in chunk.inputs if k == key)
                edge = _Edge(len(self.edges), numbers[key], target, values, place_in=len(self.inputs[target]))
                self.edges.append(edge)
                self.inputs[target].append(edge)
        by_ends = {(e.source, e.target): e for e in self.edges}
        for source, chunk in enumerate(chunks):
            for key in dict.fromkeys(key for _, key in chunk.outputs):
                out = by_ends.pop((source, numbers[key]), None)
                if out is None or out.values != tuple(v for v, k in chunk.outputs if k == key):
                    self.report.add("V2", f"chunk {chunk.key}'s outputs for chunk {key} are not the inputs there")
                    continue
                out.place_out = len(self.outputs[source])
                self.outputs[source].append(out)
        for edge in by_ends.values():
            key = chunks[edge.source].key
            self.report.add("V2", f"chunk {chunks[edge.target].key} has inputs that chunk {key} does not put out")
        return "V2" not in self.report.counts

    def _receives(self) -> dict[int, int]:
        """The receive of each (edge, payload, microbatch, replica)."""
        received: dict[int, int] = {}
        by_ends = {(e.source, e.target): e.number for e in self.edges}
        keys = {(c.stage, c.part): i for i, c in enumerate(self.plan.chunks)}
        for t in self.tasks:
            if t.op != "RECV":
                continue
            here, there = keys[t.stage, t.part], keys[t.peer_stage, t.peer_part]
            number = by_ends.get((there, here) if t.payload == "F" else (here, there), -1)
            slot = self._slot(number, t.payload, t.replica * self.plan.microbatches + t.mb)
            if number < 0 or slot in received:
                self._tell("carries what no chunk needs" if number < 0 else "carries the same a second time", t.id)
            else:
                received[slot] = t.id
        return received

    def _slot(self, number: int, payload: str, cell: int) -> int:
        return (2 * number + (payload == "B")) * self.cells + cell

    def _gradients(self, received: dict[int, int]) -> None:
        """Which values of each edge have a gradient: as the model says, else the buffers, else the transfers."""
        for edge in self.edges:
            values = edge.values
            reads = self.reads[self.forward[edge.target * self.cells]]
            held = self.plan.buffers[reads[edge.place_in]].tensors if len(reads) > edge.place_in else ()
            if self.model is not None and all(v in self.model.values for v in values):
                edge.gradients = tuple(v for v in values if self.model.values[v].grad)
            elif len(held) == len(values):
                edge.gradients = tuple(v for v, spec in zip(values, held, strict=True) if spec.grad)
            elif self._local(edge, 0):
                edge.gradients = values
            else:
                slots = [self._slot(edge.number, "B", cell) for cell in range(self.cells)]
                carried = {v for s in slots if s in received for v in self.tasks[received[s]].values}
                edge.gradients = tuple(v for v in values if v in carried)
        for edges, name in ((self.inputs, "gradient_in"), (self.outputs, "gradient_out")):
            for row in edges:
                for place, edge in enumerate(e for e in row if e.gradients):
                    setattr(edge, name, place)

    def _local(self, edge: _Edge, replica: int) -> bool:
        chunks, placement = self.plan.chunks, self.plan.placement
        return placement[chunks[edge.source].stage][replica] == placement[chunks[edge.target].stage][replica]

    def _chunk(self, c: int) -> None:
        """F, then B or BI, then BW: in this order, each with as many buffers as it needs and what was kept for it."""
        recompute = self.plan.chunks[c].recompute
        inputs, outputs = len(self.inputs[c]), len(self.outputs[c])
        back_in = sum(1 for e in self.inputs[c] if e.gradients)
        back_out = sum(1 for e in self.outputs[c] if e.gradients)
        for cell in range(c * self.cells, (c + 1) * self.cells):
            f, b, w = self.forward[cell], self.backward[cell], self.index.done["BW"][cell]
            fine = self._count(f, inputs, outputs + (not recompute))
            fine &= self._count(b, inputs + back_out + (not recompute), back_in + recompute + (w >= 0))
            fine &= w < 0 or self._count(w, 1, 0)
            if not fine:
                continue
            if not self.before(f, b):
                self._tell(f"does not come after {self.tasks[f]}", b, f)
            if self.reads[b][:inputs] != self.reads[f]:
                self._tell(f"does not read the inputs of {self.tasks[f]}", b, f)
            if not recompute and self.reads[b][inputs] != self.writes[f][0]:
                self._tell(f"does not read what {self.tasks[f]} kept for it", b, f)
            if w >= 0:
                if not self.before(b, w):
                    self._tell(f"does not come after {self.tasks[b]}", w, b)
                if self.reads[w][0] != self.writes[b][-1]:
                    self._tell(f"does not read what {self.tasks[b]} kept for it", w, b)

    def _count(self, i: int, reads: int, writes: int) -> bool:
        have = len(self.reads[i]), len(self.writes[i])
        if have != (reads, writes):
            self._tell(f"reads {have[0]} and writes {have[1]} transient buffers; {reads} and {writes} are due", i)
        return have == (reads, writes)

    def _edge(self, edge: _Edge, payload: str, received: dict[int, int]) -> None:
        """All microbatches and replicas of an edge in one direction. Takes its receives out of `received`."""
        if payload == "F":
            makers, users, values = self.forward, self.forward, edge.values
            first_maker, first_user = edge.source * self.cells, edge.target * self.cells
            written = edge.place_out + (not self.plan.chunks[edge.source].recompute)
            read = edge.place_in
        else:
            makers, users, values = self.backward, self.backward, edge.gradients
            first_maker, first_user = edge.target * self.cells, edge.source * self.cells
            chunk = self.plan.chunks[edge.source]
            written = edge.gradient_in + self.plan.chunks[edge.target].recompute
            read = len(self.inputs[edge.source]) + (not chunk.recompute) + edge.gradient_out
        shapes = None
        if self.model is not None and all(v in self.model.values for v in values):
            shapes = tuple(self.model.values[v] for v in values)
        what = ("" if payload == "F" else "the gradient of ") + ", ".join(values)
        for replica in range(self.plan.replicas):
            local = self._local(edge, replica)
            for cell in range(replica * self.plan.microbatches, (replica + 1) * self.plan.microbatches):
                maker, user = makers[first_maker + cell], users[first_user + cell]
                made, used = self.writes[maker][written], self.reads[user][read]
                if local:
                    self._follows(maker, user, made, used, what)
                else:
                    r = received.pop(self._slot(edge.number, payload, cell), -1)
                    if r < 0 or self.tasks[r].values != values:
                        has = f"receives {', '.join(self.tasks[r].values)}" if r >= 0 else "nothing of it is received"
                        self._tell(f"needs {what} of {self.report.name(maker)}, but {has}", user)
                        continue
                    s = self.index.pair[r]
                    self._follows(maker, s, made, self.reads[s][0], what)
                    self._follows(r, user, self.writes[r][0], used, what)
                shapes = self._shaped(user, used, what, shapes)

    def _follows(self, maker: int, user: int, made: int, used: int, what: str) -> None:
        """Order and identity of the buffer between two tasks of one device."""
        if not self.before(maker, user):
            self._tell(f"needs {what}, but does not come after {self.tasks[maker]}", user, maker)
        elif made != used:
            self._tell(f"looks for {what} in buffer {used}; {self.tasks[maker]} puts it in {made}", user, maker)

    def _shaped(self, user: int, b: int, what: str, expected: tuple[TensorSpec, ...] | None) -> tuple[TensorSpec, ...]:
        """What the buffers of an edge hold: as the model says, or as the first of them does. May hold sizes only."""
        held = self.plan.buffers[b].tensors
        if expected is not None and held and held != expected:
            self._tell(f"buffer {b} for {what} holds {held}, not {expected}", user)
        return held if expected is None else expected

    def _tell(self, text: str, *tasks: int) -> None:
        self.report.add("V2", text, *tasks)

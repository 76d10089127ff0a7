"""A second opinion on plans: an explicit wait graph, all pairs of accesses, and a symbolic run in random legal orders.

It knows the semantics of plans as `runtime/plan.py` states them and as the executor takes them (a buffer's place among
those that a task reads or writes tells what it holds; a communication stream has one kind of task), and the compiler's
habit of naming persistent buffers ("chunk 2.1", "optimizer 0", or a tied parameter's name); it shares no code and no
algorithm with the verifier. Made for
plans of a few hundred tasks: it closes the wait graph transitively and keeps every contribution to every gradient.

`examine(plan, seed)` returns what is wrong, as a list of texts that begin with a kind: hang, race, memory, wrong.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan, Task

Content = dict[Any, Any]


def examine(plan: Plan, model: ModelSpec, seed: int = 0) -> list[str]:
    """Everything wrong with a plan; an empty list where every legal run of it gives the right result."""
    graph = _Graph(plan)
    if graph.problems:
        return graph.problems
    order = graph.random_order(random.Random(seed))
    if order is None:
        return ["hang: the wait graph has a cycle"]
    return _races(plan) + _Machine(plan, model, graph).run(order)


class _Graph:
    """Nodes 2i (start of task i) and 2i + 1 (its end); partners share one end."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.problems = plan, list[str]()
        self.end = [2 * i + 1 for i in range(len(plan.tasks))]
        self.partners: dict[int, list[int]] = {}
        self.after: dict[int, set[int]] = defaultdict(set)
        self._meetings()
        self._kinds()
        for t in plan.tasks:
            self.after[2 * t.id].add(self.end[t.id])
        for edges in _local_edges(plan).values():
            for a, b in edges:
                self.after[self.end[a // 2] if a % 2 else a].add(b)

    def _meetings(self) -> None:
        channels: dict[tuple[int, int, str], tuple[list[Task], list[Task]]] = defaultdict(lambda: ([], []))
        meetings: dict[tuple[int, int], list[Task]] = defaultdict(list)
        for device, streams in self.plan.streams.items():
            count: dict[int, int] = defaultdict(int)
            for name, ids in streams.items():
                for t in (self.plan.tasks[i] for i in ids):
                    if t.op == "SEND":
                        channels[device, t.peer, name][0].append(t)
                    elif t.op == "RECV":
                        channels[t.peer, device, name][1].append(t)
                    elif t.op == "REDUCE":
                        count[t.bucket] += 1
                        meetings[t.bucket, count[t.bucket]].append(t)
        for (source, target, name), (sends, receives) in channels.items():
            if len(sends) != len(receives):
                self.problems.append(
                    f"hang: channel {source}>{target} {name} has {len(sends)} and {len(receives)} ends"
                )
            for s, r in zip(sends, receives, strict=False):
                self._meet([s, r])
        for (bucket, _), members in meetings.items():
            groups = {t.group for t in members}
            if len(groups) > 1 or sorted(t.device for t in members) != sorted(next(iter(groups))):
                self.problems.append(f"hang: R{bucket} is met by {[t.device for t in members]} of groups {groups}")
            if len({t.stream for t in members}) > 1:
                self.problems.append(f"hang: R{bucket} is launched on different communicators")
            self._meet(members)

    def _kinds(self) -> None:
        """The executor runs a stream by its first task: all others must be of the same kind and channel."""
        for device, streams in self.plan.streams.items():
            for name, ids in streams.items():
                kinds = set()
                for t in (self.plan.tasks[i] for i in ids):
                    kinds.add((t.op, t.peer, t.payload) if t.op in ("SEND", "RECV", "REDUCE") else "compute")
                if len(kinds) > 1 or (kinds == {"compute"}) != (name == "compute" and bool(ids)):
                    self.problems.append(f"hang: stream {name} of device {device} has tasks of kinds {kinds}")

    def _meet(self, members: list[Task]) -> None:
        for t in members:
            self.end[t.id] = 2 * members[0].id + 1
            self.partners[t.id] = [m.id for m in members]

    def random_order(self, rng: random.Random) -> list[int] | None:
        """Starts and ends in one legal order, None where there is none."""
        missing: dict[int, int] = defaultdict(int)
        nodes = {2 * t.id for t in self.plan.tasks} | set(self.end)
        for a in nodes:
            for b in self.after[a]:
                missing[b] += 1
        ready = sorted(n for n in nodes if not missing[n])
        order = []
        while ready:
            k = rng.randrange(len(ready))
            ready[k], ready[-1] = ready[-1], ready[k]
            node = ready.pop()
            order.append(node)
            for b in self.after[node]:
                missing[b] -= 1
                if not missing[b]:
                    ready.append(b)
        return order if len(order) == len(nodes) else None


def _local_edges(plan: Plan) -> dict[int, list[tuple[int, int]]]:
    """Per device, the edges between starts and ends that its streams and waits make."""
    edges: dict[int, list[tuple[int, int]]] = {}
    for device, streams in plan.streams.items():
        mine = edges[device] = []
        for ids in streams.values():
            posted = -1
            for k, i in enumerate(ids):
                task = plan.tasks[i]
                mine += [(2 * w + 1, 2 * i) for w in task.waits]
                if task.op == "RECV":
                    if posted >= 0:
                        mine.append((2 * posted, 2 * i))
                    posted = i
                    continue
                before = ids[:k]
                if task.op == "SEND" and plan.send_buffers > 1:
                    sends = [j for j in before if plan.tasks[j].op == "SEND"]
                    flying = set(sends[-(plan.send_buffers - 1) :])
                    before = [j for j in before if j not in flying]
                mine += [(2 * j + 1, 2 * i) for j in before]
    return edges


def _races(plan: Plan) -> list[str]:
    """Pairs of accesses of one buffer, one of them a write or a free, that the device itself does not order."""
    found = []
    for device, edges in _local_edges(plan).items():
        ids = [i for stream in plan.streams[device].values() for i in stream]
        after: dict[int, list[int]] = defaultdict(list)
        for a, b in edges:
            after[a].append(b)
        for i in ids:
            after[2 * i].append(2 * i + 1)
        for stream in plan.streams[device].values():  # every k-th receive of a channel ends after the one before it
            for i, j in zip(stream, stream[plan.send_buffers :], strict=False):
                if plan.tasks[i].op == "RECV":
                    after[2 * i + 1].append(2 * j + 1)
        reach: dict[int, int] = {}
        for root in [2 * i for i in ids]:
            _close(root, after, reach)
        uses: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        for i in ids:
            t = plan.tasks[i]
            for b in {*t.reads, *t.writes, *t.frees}:
                if plan.buffers[b].device != device:
                    found.append(f"memory: {t} uses a buffer of another device")
                uses[b].append((i, b in t.writes or b in t.frees))
        for b, accesses in uses.items():
            for n, (i, strong) in enumerate(accesses):
                for j, other in accesses[n + 1 :]:
                    if not (strong or other):
                        continue
                    if not (reach[2 * i + 1] >> (2 * j) & 1 or reach[2 * j + 1] >> (2 * i) & 1):
                        found.append(f"race: {plan.tasks[i]} and {plan.tasks[j]} on buffer {b} of device {device}")
    return found


def _close(root: int, after: dict[int, list[int]], reach: dict[int, int]) -> None:
    """Bitsets of all nodes reachable from each node, depth first without recursion."""
    stack = [root]
    while stack:
        node = stack[-1]
        open_ = [n for n in after[node] if n not in reach]
        if node in reach or not open_:
            stack.pop()
            bits = 1 << node
            for n in after[node]:
                bits |= reach[n]
            reach[node] = bits
        else:
            stack += open_


class _Machine:
    """Buffers hold what they mean. A task reads at its start and writes at its end."""

    def __init__(self, plan: Plan, model: ModelSpec, graph: _Graph) -> None:
        self.plan, self.model, self.graph = plan, model, graph
        self.problems: list[str] = []
        self.chunks = {c.key: c for c in plan.chunks}
        self.last = plan.chunks[-1].key
        self.trainable = {p.name for p in model.params.values() if p.trainable}
        self.contents: dict[int, Content | None] = {}
        self.results: dict[int, dict[int, Content]] = {}
        self.ran: dict[tuple[Any, ...], int] = defaultdict(int)
        for b in plan.buffers:
            if b.kind in ("parameter", "gradient"):
                names = self._held(b.label, b.device)
                if b.kind == "gradient":
                    self.contents[b.id] = {p: {} for p in names if p in self.trainable}
                else:
                    self.contents[b.id] = {("param", p): 0 for p in names}
            elif b.kind == "optimizer":
                self.contents[b.id] = {("state", int(b.label.split()[1])): 0}

    def _held(self, label: str, device: int) -> list[str]:
        """The parameters in the persistent buffers of one label: those of a chunk that no earlier one there has."""
        if not label.startswith("chunk "):
            return [label]
        users: dict[str, set[int]] = defaultdict(set)
        first: dict[str, str] = {}
        for c in self.plan.chunks:
            for p in c.params:
                users[p].add(c.stage)
                if device in self.plan.placement[c.stage]:
                    first.setdefault(p, f"chunk {c.key}")
        return [p for p, at in first.items() if at == label and not (p in self.trainable and len(users[p]) > 1)]

    def run(self, order: list[int]) -> list[str]:
        ends: dict[int, list[int]] = defaultdict(list)
        for i, node in enumerate(self.graph.end):
            ends[node].append(i)
        for node in order:
            if node % 2 == 0:
                self._start(self.plan.tasks[node // 2])
            else:
                for i in ends[node]:
                    self._end(self.plan.tasks[i])
        self._final()
        return self.problems

    def _bad(self, text: str) -> None:
        self.problems.append(text)

    def _look(self, t: Task, buffers: Sequence[int]) -> list[Content]:
        """The contents of buffers that a task reads, in order."""
        found = []
        for b in buffers:
            content = self.contents.get(b)
            if content is None:
                self._bad(f"memory: {t} reads buffer {b}, which holds nothing")
            found.append(content or {})
        return found

    def _passing(self, buffers: Sequence[int]) -> list[int]:
        return [b for b in buffers if not self.plan.buffers[b].persistent]

    def _start(self, t: Task) -> None:
        seen = self._look(t, t.reads)
        if t.op == "SEND":
            values = seen[0] if seen else {}
            if [k[1] for k in values if k[0] in ("F", "B")] != list(t.values):
                self._bad(f"wrong: {t} finds {list(values)} and not {t.values} in its buffer")
            self.results[t.id] = {0: values}
        elif t.op in ("F", "B", "BI", "BW"):
            self.ran[t.op, t.chunk, t.mb, t.replica] += 1
            if t.op != "F" and not self.ran["F", t.chunk, t.mb, t.replica]:
                self._bad(f"wrong: {t} runs before its forward")
            self._params(t)
            self.results[t.id] = getattr(self, "_" + t.op.lower())(t)
            if self.plan.placement[t.stage][t.replica] != t.device:
                self._bad(f"wrong: {t} of replica {t.replica} runs on device {t.device}")
        elif t.op == "REDUCE":
            self.results[t.id] = {b: dict(self.contents[b] or {}) for b in t.reads if b in self.contents}

    def _params(self, t: Task) -> None:
        held: Content = {}
        for b in t.reads:
            if self.plan.buffers[b].kind == "parameter":
                held.update(self.contents[b] or {})
        for p in self.chunks[t.chunk].params if t.op != "BW" else ():
            if held.get(("param", p)) != 0:
                self._bad(f"wrong: {t} reads version {held.get(('param', p))} of {p}")

    def _by_peer(self, ends: tuple[tuple[str, Any], ...], *, grad: bool) -> list[tuple[Any, list[str]]]:
        rows: dict[Any, list[str]] = {}
        for value, peer in ends:
            if self.model.values[value].grad or not grad:
                rows.setdefault(peer, []).append(value)
        return list(rows.items())

    def _take(self, t: Task, payload: str, rows: list[tuple[Any, list[str]]], buffers: list[int]) -> list[Any]:
        """What came from each peer, one buffer per peer in order."""
        if len(buffers) != len(rows):
            self._bad(f"wrong: {t} reads {len(buffers)} buffers of payload {payload} for {len(rows)} peers")
        found = []
        for (peer, values), content in zip(rows, self._look(t, buffers), strict=False):
            expected = [(payload, v, peer, t.chunk, (t.mb, t.replica)) for v in values]
            if list(content) != expected:
                self._bad(f"wrong: {t} expects {expected} and finds {list(content)}")
            else:
                found += list(content.values())[:1]
        return found

    def _give(
        self, t: Task, payload: str, rows: list[tuple[Any, list[str]]], buffers: list[int], what: Any
    ) -> dict[int, Content]:
        """One buffer per peer, in order."""
        if len(buffers) != len(rows):
            self._bad(f"wrong: {t} writes {len(buffers)} buffers of payload {payload} for {len(rows)} peers")
        out: dict[int, Content] = {}
        for b, (peer, values) in zip(buffers, rows, strict=False):
            if list(self.plan.buffers[b].tensors) != [self.model.values[v] for v in values]:
                self._bad(f"wrong: buffer {b} has the wrong shape for {values}")
            out[b] = {(payload, v, t.chunk, peer, (t.mb, t.replica)): what for v in values}
        return out

    def _f(self, t: Task) -> dict[int, Content]:
        c = self.chunks[t.chunk]
        self._take(t, "F", self._by_peer(c.inputs, grad=False), self._passing(t.reads))
        writes, out = self._passing(t.writes), {}
        if not c.recompute and writes:
            out[writes.pop(0)] = {("saved", t.chunk, t.mb, t.replica): 1}
        return out | self._give(t, "F", self._by_peer(c.outputs, grad=False), writes, 1)

    def _b(self, t: Task, halves: tuple[str, ...] = ("I", "W")) -> dict[int, Content]:
        c, out = self.chunks[t.chunk], dict[int, Content]()
        reads, writes = self._passing(t.reads), self._passing(t.writes)
        rows = self._by_peer(c.inputs, grad=False)
        self._take(t, "F", rows, reads[: len(rows)])
        reads = reads[len(rows) :]
        if c.recompute:
            out[writes.pop(0) if writes else -1] = {}
        elif self._look(t, reads[:1]) != [{("saved", t.chunk, t.mb, t.replica): 1}]:
            self._bad(f"wrong: {t} does not see what forward saved")
        weights = self._take(t, "B", self._by_peer(c.outputs, grad=True), reads[not c.recompute :])
        if t.chunk == self.last:
            weights = [Fraction(*t.scale)] if t.scale and t.scale[1] else [Fraction(-1)]
        weight = weights[0] if weights else Fraction(0)
        if any(w != weight for w in weights):
            self._bad(f"wrong: {t} mixes weights {weights}")
        if t.op == "BI" and writes:
            out[writes.pop()] = {("wsaved", t.chunk, t.mb, t.replica): weight}
        out |= self._give(t, "B", self._by_peer(c.inputs, grad=True), writes, weight)
        self._add(t, halves, weight)
        return out

    def _bi(self, t: Task) -> dict[int, Content]:
        return self._b(t, ("I",))

    def _bw(self, t: Task) -> dict[int, Content]:
        key = ("wsaved", t.chunk, t.mb, t.replica)
        kept = self._look(t, self._passing(t.reads))
        if [list(content) for content in kept] != [[key]]:
            self._bad(f"wrong: {t} does not see what BI kept")
        self._add(t, ("W",), kept[0].get(key, Fraction(0)) if kept else Fraction(0))
        return {}

    def _add(self, t: Task, halves: tuple[str, ...], weight: Fraction) -> None:
        for b in t.writes:
            if self.plan.buffers[b].kind != "gradient":
                continue
            for p, terms in (self.contents[b] or {}).items():
                if p in self.chunks[t.chunk].params:
                    for half in halves:
                        key = (t.chunk, t.mb, t.replica, half)
                        terms[key] = terms.get(key, Fraction(0)) + weight

    def _end(self, t: Task) -> None:
        if t.op == "RECV":
            self._receive(t)
        elif t.op == "REDUCE":
            self._reduce(t)
        elif t.op == "UPDATE":
            self._update(t)
        else:
            for b in t.writes:
                if self.plan.buffers[b].kind in ("parameter", "optimizer"):
                    self._bad(f"wrong: {t} overwrites a parameter or an optimizer state")
                elif self.plan.buffers[b].kind != "gradient":
                    self.contents[b] = self.results.get(t.id, {}).get(b, {})
        for b in t.frees:
            if self.contents.get(b) is None:
                self._bad(f"memory: {t} frees buffer {b}, which holds nothing")
            if self.plan.buffers[b].persistent:
                self._bad(f"memory: {t} frees a persistent buffer")
            self.contents[b] = None

    def _receive(self, t: Task) -> None:
        sender = self.plan.tasks[next(i for i in self.graph.partners[t.id] if i != t.id)]
        if (sender.mb, sender.replica, sender.values, sender.payload, sender.action.peer, sender.chunk) != (
            t.mb, t.replica, t.values, t.payload, t.chunk, t.action.peer
        ):  # fmt: skip
            self._bad(f"wrong: {t} meets {sender}")
        sent = [x for b in sender.reads for x in self.plan.buffers[b].tensors]
        if sent != [x for b in t.writes for x in self.plan.buffers[b].tensors]:
            self._bad(f"wrong: {t} and {sender} have different shapes")
        for b in t.writes:
            if self.plan.buffers[b].persistent:
                self._bad(f"wrong: {t} overwrites a persistent buffer")
            else:
                self.contents[b] = dict(self.results[sender.id][0])

    def _reduce(self, t: Task) -> None:
        for p in self.plan.buckets[t.bucket].params:
            total: dict[Any, Fraction] = defaultdict(Fraction)
            for m in self.graph.partners[t.id]:
                holders = [content for content in self.results[m].values() if p in content]
                if len(holders) != 1:
                    self._bad(f"wrong: {self.plan.tasks[m]} finds {p} in {len(holders)} buffers")
                for terms in (content[p] for content in holders):
                    for key, weight in terms.items():
                        total[key] += weight
            for b in t.writes:
                content = self.contents.get(b)
                if content is not None and p in content:
                    content[p] = dict(total)
        # What starts reads a copy of the dictionary of parameters, whose terms this replaces and never changes.

    def _expected(self, p: str) -> dict[Any, Fraction]:
        weight = Fraction(1, self.plan.microbatches * self.plan.replicas)
        return {
            (c.key, mb, replica, half): weight
            for c in self.plan.chunks
            if p in c.params
            for mb in range(self.plan.microbatches)
            for replica in range(self.plan.replicas)
            for half in ("I", "W")
        }

    def _update(self, t: Task) -> None:
        grads: Content = {}
        for b in t.reads:
            if self.plan.buffers[b].kind == "gradient":
                grads.update(self.contents[b] or {})
        stepped = 0
        for b in t.writes:
            content = self.contents.get(b)
            if content is None:
                self._bad(f"wrong: {t} writes buffer {b}")
                continue
            for key in content:
                if key[0] == "state":
                    stepped += 1
                    content[key] += 1
                    if key[1] != t.stage:
                        self._bad(f"wrong: {t} uses the optimizer state of stage {key[1]}")
                elif key[0] == "param" and key[1] in self.trainable:
                    if grads.get(key[1]) != self._expected(key[1]):
                        self._bad(f"wrong: {t} steps {key[1]} without its whole gradient")
                    content[key] += 1
                elif key[0] != "param":
                    self._bad(f"wrong: {t} overwrites a gradient")
        if stepped != 1:
            self._bad(f"wrong: {t} uses {stepped} optimizer states")

    def _final(self) -> None:
        updates = any(t.op == "UPDATE" for t in self.plan.tasks)
        for mb in range(self.plan.microbatches):
            for replica in range(self.plan.replicas):
                if self.ran["F", self.last, mb, replica] != 1:
                    self._bad(f"wrong: the loss of microbatch {mb}, replica {replica} is not counted once")
        have: dict[tuple[str, int], int] = defaultdict(int)
        for b in self.plan.buffers:
            content = self.contents.get(b.id)
            if b.kind == "gradient":
                for p, terms in (content or {}).items():
                    if terms != self._expected(p):
                        self._bad(f"wrong: the gradient of {p} on device {b.device} is {len(terms)} terms")
            elif b.kind == "parameter":
                for key, version in (content or {}).items():
                    have[key[1], b.device] = version
                    if key[1] in self.trainable and version != updates:
                        self._bad(f"wrong: {key[1]} on device {b.device} was stepped {version} times")
            elif b.kind != "optimizer" and content is not None:
                self._bad(f"memory: buffer {b.id} of device {b.device} leaks")
        for c in self.plan.chunks:
            for device in self.plan.placement[c.stage]:
                if any((p, device) not in have for p in c.params):
                    self._bad(f"wrong: device {device} lacks parameters of chunk {c.key}")

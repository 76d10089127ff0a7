"""V8, each microbatch's gradient reaches every owner once, with weight 1 / (microbatches x replicas).

The argument, whose other parts are V1 (each backward once) and V2 (each backward after, and fed by, those of its
consumers): the weight of microbatch i of replica k enters at the last chunk's backward as its `scale` and flows through
every backward of (i, k) unchanged. A backward adds to the gradient buffers of its chunk and device. These hold the sum
over the replica's microbatches when the last one has ended; if several devices own a parameter, one REDUCE per device
sums over all of them, after the backwards there and before the optimizer's UPDATE.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from pibroch.runtime.action import Chunk
from pibroch.runtime.plan import Task
from pibroch.runtime.verify_index import Index
from pibroch.runtime.verify_order import Order
from pibroch.runtime.words import count

_Key = tuple[Chunk, int]  # a chunk and a device


def check_weights(index: Index) -> None:
    """V8, what enters, and who must share: the part that no order of tasks changes."""
    check = _Gradients(index)
    check.seeds()
    check.owners()


def check_flow(index: Index, order: Order) -> None:
    """V8, how gradients come together. Requires V1, V3 and V5 to hold, and the clocks of `order`."""
    check = _Gradients(index, order.before)
    check.buffers()
    check.reductions()
    check.updates()


class _Gradients:
    def __init__(self, index: Index, before: Callable[[int, int], bool] | None = None) -> None:
        self.index, self.before = index, before or (lambda a, b: True)
        self.plan, self.tasks, self.report = index.plan, index.plan.tasks, index.report
        self.users: dict[str, list[Chunk]] = {}
        """Per trainable parameter, the chunks that use it."""
        for c in self.plan.chunks:
            for name in dict.fromkeys(c.params):
                if name in self.plan.trainable:
                    self.users.setdefault(name, []).append(c.key)
        self.bucket_of = {name: b.id for b in self.plan.buckets for name in b.params}
        self.written: dict[_Key, tuple[int, ...]] = {}
        """Gradient buffers of a chunk on a device."""
        self.backwards: dict[_Key, list[int]] = {}
        self.owned: dict[_Key, tuple[int, ...]] = {}
        """Parameter buffers of a chunk on a device."""

    def seeds(self) -> None:
        """The gradient of the loss enters once per microbatch and replica, at the last chunk."""
        plan, last = self.plan, self.plan.chunks[-1].key
        weight = Fraction(1, plan.microbatches * plan.replicas)
        for t in self.tasks:
            first = t.op in ("B", "BI") and (t.stage, t.part) == last
            if t.scale is None:
                if first:
                    self.report.add("V8", f"seeds the gradient of the loss without a scale; {weight} is due", t.id)
            elif not first:
                self.report.add("V8", f"has a scale, but only the backward of the last chunk, {last}, seeds one", t.id)
            elif t.scale[1] == 0 or Fraction(*t.scale) != weight:
                self.report.add(
                    "V8",
                    f"seeds the gradient of the loss with {t.scale[0]}/{t.scale[1]}; "
                    f"{count(plan.microbatches, 'microbatch')} on {count(plan.replicas, 'replica')}: {weight} each",
                    t.id,
                )

    def owners(self) -> None:
        """A parameter of several devices is in one bucket, and a bucket's group is its chunks' devices."""
        plan, add = self.plan, self.report.add
        seen: dict[str, int] = {}
        for bucket in plan.buckets:
            for name in bucket.params:
                if name in seen:
                    add("V8", f"parameter {name} is in buckets {seen[name]} and {bucket.id}: it would be summed twice")
                seen[name] = bucket.id
                if not set(self.users.get(name, ())) <= set(bucket.chunks):
                    missing = [str(c) for c in self.users[name] if c not in bucket.chunks]
                    add("V8", f"bucket {bucket.id} leaves out chunk {missing[0]}, which uses its parameter {name}")
            devices = {d for c in bucket.chunks for d in plan.placement[c[0]]}
            if set(bucket.group) != devices or len(set(bucket.group)) != len(bucket.group):
                add(
                    "V8",
                    f"bucket {bucket.id} is summed over devices {list(bucket.group)}, but its chunks "
                    f"{', '.join(str(Chunk(*c)) for c in bucket.chunks)} are on {sorted(devices)}",
                )
        told: set[tuple[int, ...]] = set()
        for name, chunks in self.users.items():
            stages = tuple(dict.fromkeys(c.stage for c in chunks))
            devices = {d for s in stages for d in plan.placement[s]}
            if len(devices) > 1 and name not in self.bucket_of and stages not in told:
                told.add(stages)
                where = f"stage {stages[0]} is" if len(stages) == 1 else f"{name} is tied over stages {list(stages)},"
                tail = " placed on" if len(stages) == 1 else " which are placed on"
                add(
                    "V8",
                    f"{where}{tail} {len(devices)} devices but nothing averages its gradients; add replicate",
                    device=min(devices),
                )

    def buffers(self) -> None:
        """All microbatches of a chunk use the same parameters and add to the same gradients."""
        for t in self.tasks:
            if t.op not in ("F", "B", "BI", "BW"):
                continue
            key = (t.chunk, t.device)
            if t.op != "BW":
                self._same(self.owned, key, self._kind(t.reads, "parameter"), t.id, "reads parameters in")
            if t.op != "F":
                self._same(self.written, key, self._kind(t.writes, "gradient"), t.id, "adds to gradients in")
                self.backwards.setdefault(key, []).append(t.id)
        for (chunk, device), held in self.written.items():
            trains = any(chunk in users for users in self.users.values())
            if trains != bool(held):
                words = "adds to no gradient, but has" if trains else "adds to a gradient, but has no"
                self.report.add("V8", f"{words} parameters to train", self.backwards[chunk, device][0])
            labels = {self.plan.buffers[b].label for b in self.owned.get((chunk, device), ())}
            for b in held:
                if self.plan.buffers[b].label not in labels:
                    task = self.backwards[chunk, device][0]
                    self.report.add("V8", f"adds to gradient buffer {b}, whose parameters its chunk does not use", task)
        for (chunk, device), held in self.owned.items():
            has = bool(self.plan.chunks[self.index.chunk_index[chunk]].params)
            if has != bool(held):
                words = "reads no parameter buffer, but has" if has else "reads a parameter buffer, but has no"
                self.report.add("V8", f"chunk {chunk} {words} parameters", device=device, stream="compute")

    def reductions(self) -> None:
        """Each bucket once on each device of its group, on the gradients of its chunks, after all backwards there."""
        plan, before = self.plan, self.before
        found: dict[tuple[int, int], list[int]] = {}
        for t in self.tasks:
            if t.op == "REDUCE":
                found.setdefault((t.bucket, t.device), []).append(t.id)
                if set(t.reads) != set(t.writes):
                    self.report.add("V8", "reads and writes different buffers: it sums in place", t.id)
        summed: dict[int, list[int]] = {}
        for bucket in plan.buckets:
            shapes: dict[tuple[tuple[int, str], ...], int] = {}
            for device in bucket.group:
                ids = found.pop((bucket.id, device), [])
                if len(ids) != 1:
                    self.report.add(
                        "V8",
                        f"sums bucket {bucket.id} {len(ids)} times in a step; once is due",
                        *ids[1:2],
                        device=device,
                        stream=bucket.stream,
                    )
                if not ids:
                    continue
                task = self.tasks[ids[0]]
                held: set[int] = set()
                for chunk in bucket.chunks:
                    mine = self.written.get((chunk, device), ())
                    held |= set(mine)
                    for b in self.backwards.get((chunk, device), ()):
                        if not before(b, task.id):
                            self.report.add("V8", f"does not wait for the gradients of {self.tasks[b]}", task.id, b)
                    if mine and not set(mine) & set(task.writes):
                        self.report.add("V8", f"leaves out the gradients of chunk {chunk}", task.id)
                if not set(task.writes) <= held:
                    strange = min(set(task.writes) - held)
                    self.report.add("V8", f"sums buffer {strange}, to which none of its chunks adds", task.id)
                if not bucket.params:
                    self._clips_last(task)
                    continue
                for b in task.writes:
                    summed.setdefault(b, []).append(task.id)
                shape = tuple((plan.buffers[b].nbytes, plan.buffers[b].label) for b in task.writes)
                other = shapes.setdefault(shape, task.id)
                if len(shapes) > 1:
                    first = next(iter(shapes.values()))
                    self.report.add("V8", f"sums other gradients than {self.report.name(first)}", other, first)
                    shapes.pop(shape)
        for (bucket_id, _), ids in found.items():
            self.report.add("V8", f"device is outside the group of bucket {bucket_id}", ids[0])
        self._all_summed(summed)

    def _clips_last(self, clip: Task) -> None:
        """A bucket without parameters scales gradients by their norm: they must be complete."""
        for t in self.tasks:
            if t.op == "REDUCE" and t.device == clip.device and t.id != clip.id and not self.before(t.id, clip.id):
                self.report.add("V8", f"scales gradients before {t} has summed them", clip.id, t.id)

    def _all_summed(self, summed: dict[int, list[int]]) -> None:
        for (chunk, device), held in self.written.items():
            params = [p for p, users in self.users.items() if chunk in users]
            for b in held:
                if b not in summed and params and all(p in self.bucket_of for p in params):
                    task = self.backwards[chunk, device][0]
                    self.report.add("V8", f"adds to gradient buffer {b}, which no reduction sums", task)

    def updates(self) -> None:
        """Each gradient feeds one optimizer step, after all that adds to it; each parameter is written by one."""
        plan, before = self.plan, self.before
        steps = [t for t in self.tasks if t.op == "UPDATE"]
        if not steps:
            return
        feeding: dict[int, list[int]] = {}
        for ids in self.backwards.values():
            for i in ids:
                for b in self._kind(self.tasks[i].writes, "gradient"):
                    feeding.setdefault(b, []).append(i)
        for t in self.tasks:
            if t.op == "REDUCE":
                for b in t.writes:
                    feeding.setdefault(b, []).append(t.id)
        taken: dict[int, int] = {}
        for t in steps:
            keys = [(c.key, t.device) for c in plan.chunks if c.stage == t.stage]
            grads = {b for key in keys for b in self.written.get(key, ())}
            params = {b for key in keys for b in self.owned.get(key, ())}
            held = self._kind(t.writes, "parameter")
            for b in t.reads:
                if b not in grads:
                    self.report.add("V8", f"reads buffer {b}, which is no gradient of stage {t.stage}", t.id)
                for i in feeding.get(b, ()):
                    if not before(i, t.id):
                        self.report.add("V8", f"does not wait for the gradients of {self.tasks[i]}", t.id, i)
            if not set(held) <= params or len(held) != len(t.reads):
                self.report.add("V8", f"reads gradients {list(t.reads)}, but writes parameters {list(held)}", t.id)
            for b in (*t.reads, *t.writes):
                if b in taken:
                    self.report.add("V8", f"uses buffer {b}, as {self.tasks[taken[b]]} does", t.id, taken[b])
                taken[b] = t.id
        for b, ids in feeding.items():
            if b not in taken:
                self.report.add("V1", f"adds to gradient buffer {b}, which no optimizer step reads", ids[0])
        for buffer in plan.buffers:
            if buffer.kind == "optimizer" and buffer.id not in taken:
                self.report.add("V8", f"buffer {buffer.id} ({buffer.label}) is never written", device=buffer.device)

    def _kind(self, ids: tuple[int, ...], kind: str) -> tuple[int, ...]:
        return tuple(b for b in ids if self.plan.buffers[b].kind == kind)

    def _same(self, table: dict[_Key, tuple[int, ...]], key: _Key, held: tuple[int, ...], i: int, does: str) -> None:
        first = table.setdefault(key, held)
        if first != held:
            self.report.add("V8", f"{does} buffers {list(held)}, but other tasks of chunk {key[0]} in {list(first)}", i)

"""Every rule of the verifier on plans written by hand: the sound plan passes, one change breaks exactly that rule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pibroch.runtime.action import Chunk
from pibroch.runtime.model import LayerSpec, ModelSpec, ParamSpec, TensorSpec
from pibroch.runtime.plan import Bucket, Buffer, ChunkSpec, Plan, Task
from pibroch.runtime.verify import verify

H0 = TensorSpec((2, 3))


class Bench:
    """Builds a plan task by task; `t["0F1"]` finds a task by device and action, `0:0F1` where devices share one."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.buffers: list[Buffer] = []
        self.streams: dict[int, dict[str, list[int]]] = {}
        self.names: dict[str, int] = {}

    def buffer(self, kind: str, device: int, *, label: str = "", tensors: tuple[TensorSpec, ...] = ()) -> int:
        self.buffers.append(Buffer(len(self.buffers), kind, device, 24, label, tensors))
        return len(self.buffers) - 1

    def add(self, op: str, device: int, stream: str = "compute", *, after: str = "", **fields: Any) -> int:
        waits = tuple(self.names[name] for name in after.split())
        task = Task(len(self.tasks), op, device, stream, waits=waits, **fields)
        self.tasks.append(task)
        self.streams.setdefault(device, {"compute": []}).setdefault(stream, []).append(task.id)
        self.names.setdefault(str(task), task.id)
        self.names[f"{device}:{task}"] = task.id
        return task.id


def two_stages(*, split: bool = False) -> Plan:
    """1F1B over two stages with one microbatch more than needed: 0F0 0F1 0B0 0B1 and 1F0 1B0 1F1 1B1.

    With `split` stage 1 runs BI and BW.
    """
    b = Bench()
    param = [b.buffer("parameter", d, label=f"chunk {d}") for d in (0, 1)]
    grad = [b.buffer("gradient", d, label=f"chunk {d}") for d in (0, 1)]
    adam = [b.buffer("optimizer", d, label=f"optimizer {d}") for d in (0, 1)]
    saved = [[b.buffer("saved", d) for _ in range(2)] for d in (0, 1)]
    kept = [b.buffer("wsaved", 1) for _ in range(2)]
    out, back = ([b.buffer("activation", d, tensors=(H0,)) for _ in range(2)] for d in (0, 1))
    came, home = ([b.buffer("received", d, tensors=(H0,)) for _ in range(2)] for d in (1, 0))
    right: dict[str, Any] = {"stage": 0, "peer": 1, "peer_stage": 1, "values": ("h0",)}
    left: dict[str, Any] = {"stage": 1, "peer": 0, "peer_stage": 0, "values": ("h0",)}
    for i in range(2):
        b.add("F", 0, stage=0, mb=i, reads=(param[0],), writes=(saved[0][i], out[i]))
        b.add("SEND", 0, "t.F", payload="F", mb=i, after=f"0F{i}", reads=(out[i],), frees=(out[i],), **right)
        b.add("RECV", 1, "t.F", payload="F", mb=i, writes=(came[i],), **left)
    for i in range(2):
        b.add("F", 1, stage=1, mb=i, after=f"1<0F{i}", reads=(param[1], came[i]), writes=(saved[1][i],))
        more = (kept[i],) if split else ()
        b.add(
            "BI" if split else "B", 1, stage=1, mb=i, scale=(1, 2), reads=(param[1], came[i], saved[1][i]),
            writes=(grad[1], back[i], *more), frees=(came[i], saved[1][i]),
        )  # fmt: skip
        if split:
            b.add("BW", 1, stage=1, mb=i, reads=(kept[i],), writes=(grad[1],), frees=(kept[i],))
        made = f"1BI{i}" if split else f"1B{i}"
        b.add("SEND", 1, "t.B", payload="B", mb=i, after=made, reads=(back[i],), frees=(back[i],), **left)
        b.add("RECV", 0, "t.B", payload="B", mb=i, writes=(home[i],), **right)
        b.add(
            "B", 0, stage=0, mb=i, after=f"0<1B{i}", reads=(param[0], saved[0][i], home[i]), writes=(grad[0],),
            frees=(saved[0][i], home[i]),
        )  # fmt: skip
    for d in (0, 1):
        b.add("UPDATE", d, stage=d, reads=(grad[d],), writes=(param[d], adam[d]))
    chunks = [
        ChunkSpec(0, 0, 0, 1, params=("w0",), outputs=(("h0", Chunk(1)),)),
        ChunkSpec(1, 0, 1, 2, params=("w1",), inputs=(("h0", Chunk(0)),)),
    ]
    return Plan(
        "hand", 2, 2, 1, "mean", chunks, [[0], [1]], [], b.tasks, b.buffers, b.streams, trainable={"w0": 24, "w1": 24}
    )


def two_replicas(*, streams: tuple[str, str] = ("reduce", "reduce")) -> Plan:
    """Two stages on the same two devices, one microbatch; each stage's gradients are a bucket."""
    b = Bench()
    for d in (0, 1):
        param = [b.buffer("parameter", d, label=f"chunk {s}") for s in (0, 1)]
        grad = [b.buffer("gradient", d, label=f"chunk {s}") for s in (0, 1)]
        adam = [b.buffer("optimizer", d, label=f"optimizer {s}") for s in (0, 1)]
        saved = [b.buffer("saved", d) for _ in (0, 1)]
        out, back = (b.buffer("activation", d, tensors=(H0,)) for _ in (0, 1))
        here: dict[str, Any] = {"mb": 0, "replica": d}
        b.add("F", d, stage=0, reads=(param[0],), writes=(saved[0], out), **here)
        b.add("F", d, stage=1, reads=(param[1], out), writes=(saved[1],), **here)
        b.add(
            "B", d, stage=1, scale=(1, 2), reads=(param[1], out, saved[1]), writes=(grad[1], back),
            frees=(out, saved[1]), **here,
        )  # fmt: skip
        b.add("B", d, stage=0, reads=(param[0], saved[0], back), writes=(grad[0],), frees=(saved[0], back), **here)
        for s in (1, 0):
            held = (grad[s],)
            b.add("REDUCE", d, streams[s], bucket=s, group=(0, 1), after=f"{d}:{s}B0", reads=held, writes=held)
        for s in (0, 1):
            b.add("UPDATE", d, stage=s, replica=d, after=f"{d}:R{s}", reads=(grad[s],), writes=(param[s], adam[s]))
    chunks = [
        ChunkSpec(0, 0, 0, 1, params=("w0",), outputs=(("h0", Chunk(1)),)),
        ChunkSpec(1, 0, 1, 2, params=("w1",), inputs=(("h0", Chunk(0)),)),
    ]
    buckets = [Bucket(s, (f"w{s}",), (Chunk(s),), (0, 1), 24, streams[s]) for s in (0, 1)]
    return Plan(
        "hand", 2, 1, 2, "mean", chunks, [[0, 1], [0, 1]], buckets, b.tasks, b.buffers, b.streams,
        trainable={"w0": 24, "w1": 24},
    )  # fmt: skip


MODEL = ModelSpec(
    "hand",
    (
        LayerSpec(0, {"LAYER": 0}, params=("w0",), produces=("h0",)),
        LayerSpec(1, {"LAYER": 1}, params=("w1",), consumes=("h0",)),
    ),
    {"w0": ParamSpec("w0", (6,)), "w1": ParamSpec("w1", (6,))},
    {"h0": H0},
)


def task(plan: Plan, action: str, device: int | None = None) -> Task:
    """The task with this action (on this device)."""
    return next(t for t in plan.tasks if str(t) == action and device in (None, t.device))


def swap(plan: Plan, device: int, stream: str, a: int, b: int) -> None:
    ids = plan.streams[device][stream]
    ids[a], ids[b] = ids[b], ids[a]


def remove(plan: Plan, *actions: str) -> None:
    """Take tasks out of their streams and renumber the rest."""
    for action in actions:
        gone = task(plan, action)
        plan.streams[gone.device][gone.stream].remove(gone.id)
        plan.tasks.remove(gone)
        new = {t.id: k for k, t in enumerate(plan.tasks)}
        for t in plan.tasks:
            t.id, t.waits = new[t.id], tuple(new[w] for w in t.waits if w in new)
        for names in plan.streams.values():
            for ids in names.values():
                ids[:] = [new[i] for i in ids]


@pytest.mark.parametrize(
    "plan", [two_stages(), two_stages(split=True), two_replicas(), two_replicas(streams=("a", "b"))]
)
@pytest.mark.parametrize("model", [None, MODEL])
def test_sound_plans_pass(plan: Plan, model: ModelSpec | None) -> None:
    assert verify(plan, model=model) == []
    assert verify(Plan.from_json(plan.to_json()), model=model) == []


def edit(action: str, device: int | None = None, **fields: Any) -> Callable[[Plan], None]:
    """A change of one task's fields."""

    def change(plan: Plan) -> None:
        found = task(plan, action, device)
        for name, value in fields.items():
            setattr(found, name, value)

    return change


def _microbatch_twice(plan: Plan) -> None:
    task(plan, "0F1").mb = 0


def _wrong_device(plan: Plan) -> None:
    plan.placement = [[1], [0]]


def _no_update(plan: Plan) -> None:
    remove(plan, "U1")


def _late_weights(plan: Plan) -> None:
    swap(plan, 1, "compute", 1, 2)  # 1F0 1BI0 1BW0 -> 1F0 1BW0 1BI0


def _no_gradient(plan: Plan) -> None:
    remove(plan, "1>0B1", "0<1B1")
    back = task(plan, "0B1")
    back.reads, back.frees = back.reads[:2], back.frees[:1]


def _other_buffer(plan: Plan) -> None:
    first, second = task(plan, "0>1F0"), task(plan, "0>1F1")
    first.waits = second.waits
    first.reads, second.reads = second.reads, first.reads
    first.frees, second.frees = second.frees, first.frees


def _foreign_event(plan: Plan) -> None:
    task(plan, "0B0").waits = (task(plan, "1F0").id,)


def _swapped_receives(plan: Plan) -> None:
    swap(plan, 1, "t.F", 0, 1)


def _half_precision(plan: Plan) -> None:
    received = plan.buffers[task(plan, "1<0F0").writes[0]]
    received.tensors = (replace(H0, dtype="float16"),)


def _send_alone(plan: Plan) -> None:
    remove(plan, "1<0F1")


def _swapped_reductions(plan: Plan) -> None:
    swap(plan, 1, "reduce", 0, 1)


def _no_member(plan: Plan) -> None:
    task(plan, "R0", 1).group = (0,)


def _launch_order(plan: Plan) -> None:
    """On device 1 R1 waits for the update that follows R0: ready in the other order than on device 0."""
    ids = plan.streams[1]["compute"]
    assert [str(plan.tasks[i]) for i in ids[-2:]] == ["U0", "U1"]
    task(plan, "R1", 1).waits = (ids[-2],)


def _waits_round(plan: Plan) -> None:
    task(plan, "0F0").waits = (task(plan, "0<1B0").id,)


def _waits_for_itself(plan: Plan) -> None:
    found = task(plan, "0F1")
    found.waits = (found.id,)


def _send_computes(plan: Plan) -> None:
    send = task(plan, "0>1F1")
    plan.streams[0]["t.F"].remove(send.id)
    send.stream = "compute"
    plan.streams[0]["compute"].insert(2, send.id)


def _free_early(plan: Plan) -> None:
    forward, back = task(plan, "0F0"), task(plan, "0B0")
    forward.frees, back.frees = (back.frees[0],), back.frees[1:]


def _free_twice(plan: Plan) -> None:
    back = task(plan, "0B1")
    back.reads = (*back.reads, task(plan, "0B0").frees[0])
    back.frees = (*back.frees, task(plan, "0B0").frees[0])


def _writes_parameter(plan: Plan) -> None:
    forward = task(plan, "0F0")
    forward.writes = (*forward.writes, forward.reads[0])


def _no_bucket(plan: Plan) -> None:
    for device in (0, 1):
        gone = task(plan, "R1", device)
        after = task(plan, "U1", device)
        after.waits = ()
        plan.streams[device]["reduce"].remove(gone.id)
        plan.tasks.remove(gone)
        new = {t.id: k for k, t in enumerate(plan.tasks)}
        for t in plan.tasks:
            t.id, t.waits = new[t.id], tuple(new[w] for w in t.waits)
        for names in plan.streams.values():
            for ids in names.values():
                ids[:] = [new[i] for i in ids]
    plan.buckets.pop()


def _short_group(plan: Plan) -> None:
    plan.buckets[0].group = (0,)
    for device in (0, 1):
        task(plan, "R0", device).group = (0,)


def _update_first(plan: Plan) -> None:
    task(plan, "U0", 0).waits = ()


def _tied(plan: Plan) -> None:
    for chunk in plan.chunks:
        chunk.params = (*chunk.params, "tied")
    plan.trainable["tied"] = 24


CASES: list[tuple[str, Callable[[], Plan], Callable[[Plan], None], str]] = [
    ("V1", two_stages, _microbatch_twice, "1 at device 0, stream compute, 0F0: replica 0 computes it a second time"),
    ("V1", two_stages, _microbatch_twice, "microbatch 1, replica 0 has B; it needs F once and B once"),
    ("V1", two_stages, _wrong_device, "0F0: replica 0 of stage 0 is placed on device 1"),
    ("V1", two_stages, _no_update, "which no optimizer step reads"),
    ("V2", two_stages, edit("1F0", waits=()), "1F0: needs h0, but does not come after 1<0F0"),
    ("V2", lambda: two_stages(split=True), _late_weights, "1BW0: does not come after 1BI0"),
    ("V2", two_stages, _no_gradient, "0B1: reads 1 and writes 0 transient buffers; 2 and 0 are due"),
    ("V2", two_stages, _other_buffer, "0>1F0: looks for h0 in buffer 13; 0F0 puts it in 12"),
    ("V2", two_stages, edit("0>1F0", waits=()), "0>1F0: needs h0, but does not come after 0F0"),
    ("V3", two_stages, _swapped_receives, "but one is microbatch 0 of replica 0, the other 1 of 0"),
    ("V3", two_stages, _half_precision, "one is float32[2, 3], the other float16[2, 3]"),
    ("V3", two_stages, _send_alone, "has no partner: channel 0>1 of stream t.F has 2 sends and 1 receives"),
    ("V3", two_stages, edit("0>1F0", values=()), "one carries nothing, the other h0"),
    ("V4", two_replicas, _swapped_reductions, "device 0 launches R1 R0, device 1 R0 R1"),
    ("V4", two_replicas, _no_member, "its group is (0,), that of its bucket (0, 1)"),
    ("V4", lambda: two_replicas(streams=("a", "b")), _launch_order, "but the other way round on device 0"),
    ("V5", two_stages, _waits_round, "deadlock: it waits for 0<1B0 on device 0, which meets 1>0B0 on device 1"),
    ("V5", two_stages, _waits_for_itself, "waits for 0F1 on device 0: a cycle"),
    ("V5", two_stages, _send_computes, "communication never stands in the compute stream"),
    ("V5", two_stages, _foreign_event, "an event is known on its own device only"),
    ("V6", two_stages, edit("1F0", waits=()), "received buffer 16"),
    ("V6", two_stages, edit("0>1F0", frees=()), "which nothing frees: it leaks"),
    ("V6", two_stages, _free_early, "0B0: uses saved buffer 6, which 0F0 frees"),
    ("V6", two_stages, _free_twice, "0B1: uses saved buffer 6, which 0B0 frees"),
    ("V6", two_stages, _writes_parameter, "F never writes a parameter"),
    ("V6", two_stages, edit("1<0F0", writes=(17,)), "1F0: reads received buffer 16, which nothing has written"),
    ("V6", two_replicas, edit("R0", 0, waits=()), "unordered with its writer 0B0"),
    ("V8", two_stages, edit("1B1", scale=(1, 1)), "1B1: seeds the gradient of the loss with 1/1; 2 microbatches"),
    ("V8", two_stages, edit("1B1", scale=None), "without a scale; 1/2 is due"),
    ("V8", two_stages, edit("0B1", scale=(1, 2)), "only the backward of the last chunk, 1, seeds one"),
    ("V8", two_replicas, _no_bucket, "1 is placed on 2 devices but nothing averages its gradients; add replicate"),
    ("V8", two_replicas, _short_group, "bucket 0 is summed over devices [0], but its chunks 0 are on [0, 1]"),
    ("V8", two_replicas, edit("R0", 0, waits=()), "R0: does not wait for the gradients of 0B0"),
    ("V8", two_replicas, _update_first, "U0: does not wait for the gradients of R0"),
    ("V8", two_stages, _tied, "tied is tied over stages [0, 1], which are placed on 2 devices but nothing averages"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "build", "change", "text"), CASES, ids=[f"{c[0]}-{c[3][:24]}" for c in CASES])
def test_each_rule(rule: str, build: Callable[[], Plan], change: Callable[[Plan], None], text: str) -> None:
    plan = build()
    change(plan)
    found = [str(v) for v in verify(plan) if v.rule == rule]
    assert any(text in message for message in found), [str(v) for v in verify(plan)]
    assert all(message.startswith(f"{rule} at ") for message in found)


def test_a_message_shows_the_place() -> None:
    plan = two_stages()
    task(plan, "1F1").waits = ()
    found = next(v for v in verify(plan) if v.rule == "V2")
    assert found.where == "device 1, stream compute, 1F1"
    assert found.message.splitlines() == [
        "V2 at device 1, stream compute, 1F1: needs h0, but does not come after 1<0F1",
        "    device 1, compute: 1F0 1B0 [1F1] 1B1 U1",
        "    device 1, t.F: 1<0F0 [1<0F1]",
    ]


def test_memory_against_its_bound() -> None:
    plan = two_stages()
    assert verify(plan, memory_limit=100, peak_bytes=[100, 99]) == []
    assert [str(v) for v in verify(plan, memory_limit=[100, 98], peak_bytes=[100, 99])] == [
        "V7 at device 1: needs 99 bytes at its peak; its bound is 98"
    ]
    assert verify(plan, peak_bytes=[10**12, 0]) == []


def test_the_model_knows_the_values() -> None:
    other = replace(MODEL, values={"h0": replace(H0, dtype="bfloat16")})
    assert {v.rule for v in verify(two_stages(), model=other)} == {"V3"}
    without = replace(MODEL, values={"h0": replace(H0, grad=False)})
    assert {v.rule for v in verify(two_stages(), model=without)} == {"V2"}


def test_two_sends_under_way_may_end_in_either_order() -> None:
    """1F0 waits for the second receive: with one send at a time that tells that the first has ended, too."""
    plan = two_stages()
    task(plan, "1F0").waits = task(plan, "1F1").waits
    assert verify(plan) == []
    plan.send_buffers = 2
    assert {v.rule for v in verify(plan)} == {"V2", "V6"}


def test_a_plan_without_updates_is_sound() -> None:
    plan = two_stages()
    remove(plan, "U0", "U1")
    assert verify(plan) == []


def test_many_violations_are_counted_not_written() -> None:
    plan = two_stages()
    for t in plan.tasks:
        t.frees = (*t.frees, *([0] * 10 if t.device == 0 else []))
    found = verify(plan)
    assert len([v for v in found if v.rule == "V6"]) == 21
    assert "more of this rule" in found[-1].message


@pytest.mark.parametrize("seed", range(6))
def test_a_malformed_plan_raises_nothing(seed: int) -> None:
    rng = random.Random(seed)
    fields = ["id", "device", "stage", "part", "mb", "peer", "peer_stage", "peer_part", "bucket", "replica"]
    rows = ["waits", "reads", "writes", "frees", "group"]
    builders: list[Callable[[], Plan]] = [two_stages, two_replicas]
    for _ in range(60):
        plan = rng.choice(builders)()
        kind = rng.randrange(8)
        t = rng.choice(plan.tasks)
        odd = rng.choice([-7, -1, 99, 10**9])
        if kind < 3:
            setattr(t, rng.choice(fields), odd)
        elif kind < 5:
            setattr(t, rng.choice(rows), (odd,))
        elif kind == 5:
            setattr(
                plan, rng.choice(["devices", "microbatches", "replicas", "send_buffers"]), rng.choice([-1, 0, 1, 3])
            )
        elif kind == 6:
            parts: list[Any] = [plan.streams[0], plan.streams, plan.placement, plan.chunks, plan.tasks, plan.buffers]
            rng.choice([*parts, plan.placement[0]]).clear()
        else:
            t.op, t.stream, t.scale = rng.choice([("G", "compute", None), (t.op, "nowhere", (0, 0))])
        verify(plan)

"""Faults put into sound plans: one small change each, drawn by a seeded generator."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace

from pibroch.runtime import families
from pibroch.runtime.lower import lower
from pibroch.runtime.model import LayerSpec, ModelSpec, ParamSpec, TensorSpec, uniform_model
from pibroch.runtime.plan import Plan, Task

Mutation = Callable[[Plan, random.Random], str | None]
"""Changes a plan in place and tells what it did, or None where the plan offers no place for it."""


def tied_model(layers: int) -> ModelSpec:
    """A chain whose first and last layer share a parameter."""
    base = uniform_model(layers)
    rows = list(base.layers)
    for i in (0, layers - 1):
        rows[i] = replace(rows[i], params=(*rows[i].params, "tied"))
    return replace(base, layers=tuple(rows), params={**base.params, "tied": ParamSpec("tied", (3,))})


def skip_model(layers: int) -> ModelSpec:
    """A chain whose first layer also feeds the third one, and a mask without gradient that every layer reads.

    The second layer has a frozen parameter only.
    """
    base = uniform_model(layers)
    rows = list(base.layers)
    rows[0] = replace(rows[0], produces=(*rows[0].produces, "skip", "mask"))
    for i in range(1, layers):
        more = ("skip",) if i == min(2, layers - 1) else ()
        rows[i] = replace(rows[i], consumes=(*rows[i].consumes, *more, "mask"))
    params = dict(base.params)
    if layers > 2:
        params["w1"] = replace(params["w1"], trainable=False)
    values = {**base.values, "skip": TensorSpec((2, 3)), "mask": TensorSpec((5,), "bool", grad=False)}
    return ModelSpec("skip", tuple(rows), params, values)


def shared_model(layers: int) -> ModelSpec:
    """A chain whose neighbouring layers 0 and 1 share a parameter: within one stage where it has both."""
    base = uniform_model(layers)
    rows: list[LayerSpec] = list(base.layers)
    if layers > 1:
        rows[1] = replace(rows[1], params=(*rows[1].params, "w0"))
    return replace(base, layers=tuple(rows))


MODELS: dict[str, Callable[[int], ModelSpec]] = {
    "uniform": uniform_model, "tied": tied_model, "skip": skip_model, "shared": shared_model,
}  # fmt: skip


def compile_cell(
    family: str, p: int, m: int, replicas: int, model: str, *, bucket: bool, recompute: bool, uneven: bool = False
) -> tuple[Plan, ModelSpec] | None:
    """A compiled plan of one cell of the grid with its model, or None where the family excludes it."""
    v = 2 if family == "interleaved" else 1
    if families.excluded(family, devices=p, microbatches=m, stages_per_device=v, replicas=replicas):
        return None
    stages = p * v
    spec = MODELS[model](2 * stages)
    cut = [1, *range(3, stages + 1)] if uneven and stages > 1 else None
    schedule = families.build(
        family,
        devices=p,
        microbatches=m,
        replicas=replicas,
        stages_per_device=v,
        bucket_size=1e-9 if bucket else None,
        cut=cut,
        recompute=recompute,
    )
    return lower(schedule, spec), spec


def clone(plan: Plan) -> Plan:
    """A copy whose tasks, streams, buffers and buckets may be changed."""
    return replace(
        plan,
        tasks=[copy.copy(t) for t in plan.tasks],
        buffers=[copy.copy(b) for b in plan.buffers],
        buckets=[copy.copy(b) for b in plan.buckets],
        chunks=[copy.copy(c) for c in plan.chunks],
        placement=[list(row) for row in plan.placement],
        streams={d: {name: list(ids) for name, ids in names.items()} for d, names in plan.streams.items()},
    )


def mutate(plan: Plan, rng: random.Random, name: str) -> tuple[Plan, str] | None:
    """One mutant by one named operator, with what was done."""
    mutant = clone(plan)
    done = MUTATIONS[name](mutant, rng)
    return None if done is None else (mutant, f"{name}: {done}")


def _pick(plan: Plan, rng: random.Random, *ops: str, has: str = "") -> Task | None:
    tasks = [t for t in plan.tasks if (not ops or t.op in ops) and (not has or getattr(t, has))]
    return rng.choice(tasks) if tasks else None


def _stream(plan: Plan, rng: random.Random, least: int) -> list[int] | None:
    streams = [ids for names in plan.streams.values() for ids in names.values() if len(ids) >= least]
    return rng.choice(streams) if streams else None


def _other(rng: random.Random, choices: list[int], one: int) -> int | None:
    rest = [c for c in choices if c != one]
    return rng.choice(rest) if rest else None


def _say(t: Task) -> str:
    return f"{t} (device {t.device})"


def _swap_adjacent(plan: Plan, rng: random.Random) -> str | None:
    if (ids := _stream(plan, rng, 2)) is None:
        return None
    k = rng.randrange(len(ids) - 1)
    ids[k], ids[k + 1] = ids[k + 1], ids[k]
    return f"{_say(plan.tasks[ids[k]])} and {plan.tasks[ids[k + 1]]}"


def _swap_any(plan: Plan, rng: random.Random) -> str | None:
    if (ids := _stream(plan, rng, 3)) is None:
        return None
    a, b = rng.sample(range(len(ids)), 2)
    ids[a], ids[b] = ids[b], ids[a]
    return f"{_say(plan.tasks[ids[a]])} and {plan.tasks[ids[b]]}"


def _move(plan: Plan, rng: random.Random) -> str | None:
    if (ids := _stream(plan, rng, 3)) is None:
        return None
    i = ids.pop(rng.randrange(len(ids)))
    at = rng.randrange(len(ids) + 1)
    ids.insert(at, i)
    return f"{_say(plan.tasks[i])} to place {at}"


def _swap_channel(plan: Plan, rng: random.Random) -> str | None:
    """Two neighbours of a channel change places at both ends."""
    found = [
        (device, name, ids)
        for device, names in plan.streams.items()
        for name, ids in names.items()
        if len(ids) >= 2 and plan.tasks[ids[0]].op == "SEND"
    ]
    if not found:
        return None
    _, name, ids = rng.choice(found)
    k = rng.randrange(len(ids) - 1)
    other = plan.streams[plan.tasks[ids[k]].peer][name]
    for row in (ids, other):
        row[k], row[k + 1] = row[k + 1], row[k]
    return f"{_say(plan.tasks[ids[k]])} and {plan.tasks[ids[k + 1]]} at both ends"


def _to_stream(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng)
    assert t is not None
    names = sorted(set(plan.streams[t.device]) - {t.stream})
    if not names:
        return None
    plan.streams[t.device][t.stream].remove(t.id)
    t.stream = rng.choice(names)
    ids = plan.streams[t.device][t.stream]
    ids.insert(rng.randrange(len(ids) + 1), t.id)
    return f"{_say(t)} to {t.stream}"


def _drop(plan: Plan, rng: random.Random) -> str | None:
    gone = rng.choice(plan.tasks)
    plan.streams[gone.device][gone.stream].remove(gone.id)
    _remove(plan, gone.id)
    return _say(gone)


def _drop_pair(plan: Plan, rng: random.Random) -> str | None:
    """A send with its receive."""
    send = _pick(plan, rng, "SEND")
    if send is None:
        return None
    at = plan.streams[send.device][send.stream].index(send.id)
    receive = plan.streams[send.peer][send.stream].pop(at)
    plan.streams[send.device][send.stream].remove(send.id)
    for i in sorted((send.id, receive), reverse=True):
        _remove(plan, i)
    return _say(send)


def _remove(plan: Plan, gone: int) -> None:
    """Renumber all tasks above one that no stream lists any more; its own waits pass to those that waited for it."""
    waits = plan.tasks[gone].waits
    plan.tasks.pop(gone)
    for t in plan.tasks:
        new = tuple(w for w in t.waits if w != gone) + (waits if gone in t.waits else ())
        t.waits = tuple(w - (w > gone) for w in dict.fromkeys(new))
        t.id -= t.id > gone
    for names in plan.streams.values():
        for ids in names.values():
            ids[:] = [i - (i > gone) for i in ids]


def _duplicate(plan: Plan, rng: random.Random) -> str | None:
    t = copy.copy(rng.choice(plan.tasks))
    ids = plan.streams[t.device][t.stream]
    at = rng.randrange(ids.index(t.id) + 1, len(ids) + 1)
    t.id = len(plan.tasks)
    plan.tasks.append(t)
    ids.insert(at, t.id)
    return f"{_say(t)} at place {at}"


def _peer(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "SEND", "RECV")
    if t is None or (peer := _other(rng, list(range(plan.devices)), t.peer)) is None:
        return None
    t.peer = peer
    return f"{_say(t)} to peer {peer}"


def _device(plan: Plan, rng: random.Random) -> str | None:
    t = rng.choice(plan.tasks)
    others = [d for d in plan.streams if d != t.device and t.stream in plan.streams[d]]
    if not others:
        return None
    was = _say(t)
    plan.streams[t.device][t.stream].remove(t.id)
    t.device = rng.choice(others)
    ids = plan.streams[t.device][t.stream]
    ids.insert(rng.randrange(len(ids) + 1), t.id)
    return f"{was} to device {t.device}"


def _mb(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "F", "B", "BI", "BW", "SEND", "RECV")
    assert t is not None
    was = _say(t)
    if (mb := _other(rng, list(range(plan.microbatches)), t.mb)) is None:
        return None
    t.mb = mb
    return f"{was} to {mb}"


def _replica(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "F", "B", "BI", "BW", "SEND", "RECV")
    assert t is not None
    if (replica := _other(rng, list(range(plan.replicas)), t.replica)) is None:
        return None
    t.replica = replica
    return f"{_say(t)} to {replica}"


def _end(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "SEND", "RECV")
    if t is None:
        return None
    other = rng.choice([c.key for c in plan.chunks])
    was = _say(t)
    if rng.random() < 0.5:
        t.peer_stage, t.peer_part = other
    else:
        t.stage, t.part = other
    return None if was == _say(t) else f"{was} becomes {t}"


def _values(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "SEND", "RECV")
    if t is None:
        return None
    names = sorted({v for c in plan.chunks for v, _ in c.inputs})
    was = t.values
    if rng.random() < 0.5:
        t.values = t.values[1:]
    else:
        t.values = (rng.choice(names), *t.values[1:])
    return None if t.values == was else f"{_say(t)}: {was} to {t.values}"


def _op(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "F", "B", "BI", "BW")
    assert t is not None
    was = _say(t)
    t.op = rng.choice([op for op in ("F", "B", "BI", "BW") if op != t.op])
    return f"{was} becomes {t}"


def _payload(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "SEND", "RECV")
    if t is None:
        return None
    t.payload = "B" if t.payload == "F" else "F"
    return _say(t)


def _scale(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, has="scale")
    assert t is not None
    assert t.scale is not None
    old = t.scale
    t.scale = rng.choice([(1, old[1] + 1), (2, old[1]), (1, plan.microbatches), (1, 1), None, (2, 2 * old[1]), (1, 0)])
    return None if t.scale == old else f"{_say(t)}: {old} to {t.scale}"


def _scale_all(plan: Plan, rng: random.Random) -> str | None:
    new = rng.choice([(1, plan.microbatches), (1, plan.replicas), (1, 1)])
    changed = False
    for t in plan.tasks:
        if t.scale:
            changed |= t.scale != new
            t.scale = new
    return f"to {new}" if changed else None


def _buffer(plan: Plan, rng: random.Random) -> str | None:
    """Another buffer of the device, mostly of the same kind, in reads, writes or frees (or in all of them)."""
    name = rng.choice(["reads", "writes", "frees", "all"])
    t = _pick(plan, rng, has="writes" if name == "all" else name)
    if t is None:
        return None
    old = rng.choice(t.writes if name == "all" else getattr(t, name))
    same = rng.random() < 0.8
    choices = [
        b.id
        for b in plan.buffers
        if b.device == t.device and b.id != old and (not same or b.kind == plan.buffers[old].kind)
    ]
    if not choices:
        return None
    new = rng.choice(choices)
    for field in ("reads", "writes", "frees") if name == "all" else (name,):
        setattr(t, field, tuple(new if b == old else b for b in getattr(t, field)))
    return f"{_say(t)}: {name} {new} and not {old} ({plan.buffers[old].kind})"


def _drop_entry(plan: Plan, rng: random.Random) -> str | None:
    name = rng.choice(["reads", "writes"])
    t = _pick(plan, rng, has=name)
    if t is None:
        return None
    gone = rng.choice(getattr(t, name))
    setattr(t, name, tuple(b for b in getattr(t, name) if b != gone))
    return f"{_say(t)}: {name} no {gone} ({plan.buffers[gone].kind})"


def _add_entry(plan: Plan, rng: random.Random) -> str | None:
    name = rng.choice(["reads", "writes", "frees"])
    t = rng.choice(plan.tasks)
    choices = [b.id for b in plan.buffers if b.device == t.device and b.id not in getattr(t, name)]
    if not choices:
        return None
    new = rng.choice(choices)
    setattr(t, name, (*getattr(t, name), new))
    return f"{_say(t)}: {name} {new} ({plan.buffers[new].kind}) too"


def _swap_entries(plan: Plan, rng: random.Random) -> str | None:
    name = rng.choice(["reads", "writes"])
    tasks = [t for t in plan.tasks if sum(not plan.buffers[b].persistent for b in getattr(t, name)) > 1]
    if not tasks:
        return None
    t = rng.choice(tasks)
    row = list(getattr(t, name))
    a, b = rng.sample([k for k, b in enumerate(row) if not plan.buffers[b].persistent], 2)
    row[a], row[b] = row[b], row[a]
    setattr(t, name, tuple(row))
    return f"{_say(t)}: {name} {row}"


def _swap_values(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "SEND", "RECV")
    if t is None or len(t.values) < 2:
        return None
    t.values = t.values[::-1]
    return _say(t)


def _drop_free(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, has="frees")
    if t is None:
        return None
    gone = rng.choice(t.frees)
    t.frees = tuple(b for b in t.frees if b != gone)
    return f"{_say(t)}: {gone}"


def _early_free(plan: Plan, rng: random.Random) -> str | None:
    """Another user of a buffer frees it."""
    t = _pick(plan, rng, has="frees")
    if t is None:
        return None
    b = rng.choice(t.frees)
    users = [u for u in plan.tasks if u.id != t.id and (b in u.reads or b in u.writes)]
    if not users:
        return None
    t.frees = tuple(x for x in t.frees if x != b)
    user = rng.choice(users)
    user.frees = (*user.frees, b)
    return f"{_say(user)} frees {b} and not {t}"


def _drop_wait(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, has="waits")
    if t is None:
        return None
    gone = rng.choice(t.waits)
    t.waits = tuple(w for w in t.waits if w != gone)
    return f"{_say(t)} for {plan.tasks[gone]}"


def _other_wait(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, has="waits")
    if t is None:
        return None
    old = rng.choice(t.waits)
    ids = plan.streams[t.device][plan.tasks[old].stream]
    at = ids.index(old) + rng.choice([-1, 1])
    if not 0 <= at < len(ids):
        return None
    t.waits = tuple(ids[at] if w == old else w for w in t.waits)
    return f"{_say(t)} for {plan.tasks[ids[at]]} and not {plan.tasks[old]}"


def _add_wait(plan: Plan, rng: random.Random) -> str | None:
    t = rng.choice(plan.tasks)
    others = [u.id for u in plan.tasks if u.device == t.device and u.stream != t.stream]
    if not others:
        return None
    new = rng.choice(others)
    t.waits = (*t.waits, new)
    return f"{_say(t)} for {plan.tasks[new]} too"


def _group(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "REDUCE")
    if t is None:
        return None
    old, new = t.group, _changed(plan, rng, t.group)
    if new == old:
        return None
    where = rng.choice(["task", "tasks", "all"])
    for u in plan.tasks:
        if u is t or (where != "task" and u.op == "REDUCE" and u.bucket == t.bucket):
            u.group = new
    if where == "all":
        plan.buckets[t.bucket].group = new
    return f"{_say(t)}, {where}: {old} to {new}"


def _changed(plan: Plan, rng: random.Random, group: tuple[int, ...]) -> tuple[int, ...]:
    outside = [d for d in range(plan.devices) if d not in group]
    if outside and rng.random() < 0.5:
        return tuple(sorted((*group, rng.choice(outside))))
    gone = rng.choice(group)
    return tuple(d for d in group if d != gone)


def _bucket(plan: Plan, rng: random.Random) -> str | None:
    t = _pick(plan, rng, "REDUCE")
    if t is None or (bucket := _other(rng, list(range(len(plan.buckets))), t.bucket)) is None:
        return None
    was = _say(t)
    t.bucket = bucket
    return f"{was} becomes {t}"


def _bucket_params(plan: Plan, rng: random.Random) -> str | None:
    if not plan.buckets:
        return None
    bucket = rng.choice(plan.buckets)
    gone = rng.choice(bucket.params)
    bucket.params = tuple(p for p in bucket.params if p != gone)
    return f"bucket {bucket.id} loses {gone}"


def _drop_bucket(plan: Plan, rng: random.Random) -> str | None:
    """The last bucket and all its reductions."""
    if not plan.buckets:
        return None
    bucket = plan.buckets.pop()
    for t in [t for t in plan.tasks if t.op == "REDUCE" and t.bucket == bucket.id][::-1]:
        plan.streams[t.device][t.stream].remove(t.id)
        _remove(plan, t.id)
    return f"bucket {bucket.id}"


def _tensors(plan: Plan, rng: random.Random) -> str | None:
    buffers = [b for b in plan.buffers if b.tensors]
    if not buffers:
        return None
    b = rng.choice(buffers)
    first = b.tensors[0]
    new = rng.choice([replace(first, dtype="float16"), replace(first, shape=(*first.shape, 2))])
    b.tensors = (new, *b.tensors[1:])
    return f"buffer {b.id} ({b.kind}): {new}"


MUTATIONS: dict[str, Mutation] = {
    "swap adjacent": _swap_adjacent, "swap any": _swap_any, "move": _move, "swap channel": _swap_channel,
    "to stream": _to_stream, "drop": _drop, "drop pair": _drop_pair, "duplicate": _duplicate, "peer": _peer,
    "device": _device, "microbatch": _mb, "replica": _replica, "end": _end, "values": _values, "op": _op,
    "payload": _payload, "scale": _scale, "scale all": _scale_all, "buffer": _buffer, "drop entry": _drop_entry,
    "add entry": _add_entry, "swap entries": _swap_entries, "swap values": _swap_values, "drop free": _drop_free,
    "early free": _early_free, "drop wait": _drop_wait, "other wait": _other_wait, "add wait": _add_wait,
    "group": _group, "bucket": _bucket, "bucket params": _bucket_params, "drop bucket": _drop_bucket,
    "tensors": _tensors,
}  # fmt: skip

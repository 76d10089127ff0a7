"""What one worker gets of a plan: its own tasks, and what these name of the whole.

Terms
    channel     one stream of sends from one device to another.
    group key   the members of a communicator and the stream it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pibroch.runtime.action import Chunk
from pibroch.runtime.launch_order import launch_order
from pibroch.runtime.plan import Bucket, Buffer, ChunkSpec, Plan, Task

TRANSFER = "transfer"  # begins the stream of a transfer's group key, so that no reduction's stream equals it


class GroupKey(NamedTuple):
    """Of a transfer over NCCL, `members` are (source, target)."""

    stream: str
    members: tuple[int, ...]


class Channel(NamedTuple):
    source: int
    target: int
    payload: str
    stream: str

    def group(self, *, nccl: bool, world: int) -> GroupKey:
        if nccl:
            # One communicator per direction: NCCL runs what one communicator is given in order, so that a send could
            # not pass a receive that its peer has put first.
            return GroupKey(f"{TRANSFER} {self.stream} {self.payload}", (self.source, self.target))
        return GroupKey(f"{TRANSFER} {self.payload}", tuple(range(world)))


@dataclass(slots=True)
class Program:
    """One device's part of a plan. `buffers` and `tasks` hold only its own. `order` is that of launches from one
    thread, where the worker launches so. `counted` are the parameters whose gradients this device counts in the norm
    that clipping bounds by `clip_norm`: each parameter counts on one device only."""

    device: int
    devices: int
    microbatches: int
    replicas: int
    loss: str
    chunks: dict[Chunk, ChunkSpec]
    split: frozenset[Chunk]
    buckets: dict[int, Bucket]
    stages: dict[int, tuple[str, ...]]
    tasks: dict[int, Task]
    streams: dict[str, list[int]]
    buffers: dict[int, Buffer]
    recv_window: int
    counted: tuple[str, ...] = ()
    clip_norm: float | None = None
    order: list[int] = field(default_factory=list)

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p for c in self.chunks.values() for p in c.params))


def programs_of(plan: Plan, ranks: int, *, ordered: bool, clip_norm: float | None = None) -> list[Program | None]:
    """Every rank's program; None for ranks beyond the plan's devices. `ordered` adds the launch order."""
    order = launch_order(plan) if ordered else {}
    programs = [program_of(plan, r, order=order.get(r, ())) for r in range(min(ranks, plan.devices))]
    for program in programs:
        program.clip_norm = clip_norm
    return [*programs, *[None] * (ranks - len(programs))]


def program_of(plan: Plan, device: int, *, order: Sequence[int] = ()) -> Program:
    """The part of a plan that one worker executes."""
    streams = plan.streams[device]
    tasks = {i: replace(plan.tasks[i], deps=[]) for ids in streams.values() for i in ids}
    mine = {t.chunk for t in tasks.values() if t.op == "F"}
    chunks = {c.key: c for c in plan.chunks if c.key in mine}
    used = {b for t in tasks.values() for b in (*t.reads, *t.writes, *t.frees)}
    owned: set[str] = set()
    stages: dict[int, tuple[str, ...]] = {}
    for stage in sorted({c.stage for c in chunks.values()}):
        names = dict.fromkeys(
            p for c in chunks.values() if c.stage == stage for p in c.params if p in plan.trainable and p not in owned
        )
        owned |= set(names)
        stages[stage] = tuple(names)
    return Program(
        device=device,
        devices=plan.devices,
        microbatches=plan.microbatches,
        replicas=plan.replicas,
        loss=plan.loss,
        chunks=chunks,
        split=frozenset(t.chunk for t in tasks.values() if t.op == "BI"),
        buckets={b.id: b for b in plan.buckets if device in b.group},
        stages=stages,
        tasks=tasks,
        streams=streams,
        buffers={b: plan.buffers[b] for b in used},
        recv_window=plan.recv_window,
        counted=tuple(name for name, home in _homes(plan).items() if home == device),
        order=list(order),
    )


def _homes(plan: Plan) -> dict[str, int]:
    """For each trainable parameter, the first device that holds it."""
    homes: dict[str, int] = {}
    for c in plan.chunks:
        for name in c.params:
            if name in plan.trainable:
                homes.setdefault(name, plan.placement[c.stage][0])
    return homes


def groups_of(plan: Plan, *, nccl: bool, world: int) -> list[GroupKey]:
    """The communicators that a plan needs, in the one order in which all ranks make them."""
    keys = {GroupKey(b.stream, b.group) for b in plan.buckets}
    for t in plan.tasks:
        if t.op == "SEND":
            keys.add(Channel(t.device, t.peer, t.payload, t.stream).group(nccl=nccl, world=world))
    return sorted(keys)


def forward_only(program: Program) -> Program:
    """The same program without backwards, for evaluation: nothing is kept, reduced or updated."""
    kept = {i: t for i, t in program.tasks.items() if t.op == "F" or (t.op in ("SEND", "RECV") and t.payload == "F")}
    tasks = {i: replace(t, waits=tuple(w for w in t.waits if w in kept)) for i, t in kept.items()}
    streams = {name: [i for i in ids if i in kept] for name, ids in program.streams.items()}
    return replace(
        program,
        tasks=tasks,
        streams={name: ids for name, ids in streams.items() if ids},
        order=[i for i in program.order if i in kept],
    )

"""The plan: all tasks of all devices, the events they wait on and the buffers they use, as plain data.

A plan is everything that the verifier, the simulator and the executor know of a schedule; none of them knows a
strategy. It is a list of integer-numbered tasks; per device and stream a total order; and buffers.

Terms
    stream      "compute", or the name of a communication stream of one device. Tasks of a stream run in order.
    event       the end of a task. `Task.waits` names tasks of the *same device* on other streams that must have ended.
    channel     (source device, destination device, stream): sends and receives pair up on it first in, first out.
                Between devices there is nothing else but collectives, which pair up by bucket.
    window      a receive is posted at most `recv_window` consumers ahead (lowering writes this as `waits`); at most
                `send_buffers` sends of one stream are under way at once.
    buffer      a set of tensors on one device. A persistent one (parameter, gradient, optimizer) exists before the
                step; a transient one is written by one task and freed by exactly one task, its last user, when that
                task ends. A buffer listed in both `writes` and `frees` of one task lives only while that task runs.
                Transient buffers stand in the order of what they hold. F reads one per producing chunk, and writes what
                is saved (unless recomputed) and one per consuming chunk. B and BI read inputs, what was saved, and the
                gradients of outputs, and write a workspace (if recomputed), the gradients of inputs, and for BW what
                that needs.
    comm. stream    holds one kind of task: the sends, or the receives, of one channel, or reductions.

Weights: the backward of the last chunk seeds the gradient of the loss with `scale` = (numerator, denominator), for a
mean loss 1 / (microbatches x replicas). For a loss of (sum, count) the executor replaces the denominator's role by the
token count: weight = scale x microbatches x replicas / total count. Reductions sum.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pibroch.runtime.action import Action, Chunk
from pibroch.runtime.model import TensorSpec

PLAN_VERSION = 1
PERSISTENT = ("parameter", "gradient", "optimizer")


@dataclass(slots=True)
class Task:
    """One node of the DAG, and one step of a plan.

    In the DAG `deps` holds all predecessors on any device (a RECV's SEND included). In a plan `waits` holds those that
    need an event. `values` names the model values that a transfer carries. `group` is the devices of a collective.
    """

    id: int
    op: str
    device: int = -1
    stream: str = "compute"
    stage: int = -1
    part: int = 0
    mb: int = -1
    peer: int = -1
    peer_stage: int = -1
    peer_part: int = 0
    payload: str = ""
    bucket: int = -1
    replica: int = 0
    scale: tuple[int, int] | None = None
    values: tuple[str, ...] = ()
    group: tuple[int, ...] = ()
    deps: list[int] = field(default_factory=list)
    waits: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()

    @property
    def chunk(self) -> Chunk:
        return Chunk(self.stage, self.part)

    @property
    def action(self) -> Action:
        return Action(self.op, self.chunk, self.mb, Chunk(self.peer_stage, self.peer_part), self.payload, self.bucket)

    def __str__(self) -> str:
        return str(self.action)


@dataclass(slots=True)
class Buffer:
    """`kind`: parameter, gradient, optimizer, activation (made here, consumed elsewhere), saved (kept for backward),
    wsaved (kept for BW), received, workspace. `tensors` is empty where only the size is known."""

    id: int
    kind: str
    device: int
    nbytes: int
    label: str = ""
    tensors: tuple[TensorSpec, ...] = ()

    @property
    def persistent(self) -> bool:
        return self.kind in PERSISTENT


@dataclass(slots=True)
class ChunkSpec:
    """Part `part` of stage `stage`: layers [start, stop) of the model.

    `inputs` are (value, producing chunk) pairs in a fixed order; `outputs` are (value, consuming chunk) pairs.
    """

    stage: int
    part: int
    start: int
    stop: int
    params: tuple[str, ...] = ()
    inputs: tuple[tuple[str, Chunk], ...] = ()
    outputs: tuple[tuple[str, Chunk], ...] = ()
    saved_bytes: int = 0
    weight_saved_bytes: int = 0
    flops: float = 1.0
    recompute: bool = False

    @property
    def key(self) -> Chunk:
        return Chunk(self.stage, self.part)


@dataclass(slots=True)
class Bucket:
    """Trainable parameters whose gradients are summed together over `group` (one group per bucket).

    `chunks` contribute to it. A parameter that chunks of several stages share (a tied one) is a bucket of its own. A
    bucket without parameters is clipping: what is summed is the squared norm of all gradients, which are then scaled.
    """

    id: int
    params: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    group: tuple[int, ...]
    nbytes: int
    stream: str = "reduce"


@dataclass(slots=True)
class Plan:
    """`placement[s][k]` is the device of replica k of stage s; `streams[d][name]` lists task ids in order."""

    model: str
    devices: int
    microbatches: int
    replicas: int
    loss: str
    chunks: list[ChunkSpec]
    placement: list[list[int]]
    buckets: list[Bucket]
    tasks: list[Task]
    buffers: list[Buffer]
    streams: dict[int, dict[str, list[int]]]
    trainable: dict[str, int] = field(default_factory=dict)
    recv_window: int = 2
    send_buffers: int = 1
    version: int = PLAN_VERSION

    @property
    def stages(self) -> int:
        return len(self.placement)

    def of(self, device: int) -> list[Task]:
        """All tasks of one device, stream by stream."""
        return [self.tasks[i] for ids in self.streams[device].values() for i in ids]

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        # Written out for the long lists: `asdict` copies every number, which takes seconds for large plans.
        kept = [f.name for f in fields(Task) if f.name != "deps"]
        data["tasks"] = [{name: getattr(task, name) for name in kept} for task in self.tasks]
        data["buffers"] = [_buffer_row(buffer) for buffer in self.buffers]
        data["chunks"] = [asdict(chunk) for chunk in self.chunks]
        data["buckets"] = [asdict(bucket) for bucket in self.buckets]
        data["streams"] = {str(d): names for d, names in self.streams.items()}
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """Raises `ValueError` where the data is not a plan of this version."""
        if data.get("version") != PLAN_VERSION:
            raise ValueError(f"plan version {data.get('version')!r}: this pibroch reads version {PLAN_VERSION}")
        try:
            given = dict(data)
            given["chunks"] = [_chunk(c) for c in data["chunks"]]
            given["buckets"] = [
                Bucket(**{**b, "params": tuple(b["params"]), "group": tuple(b["group"]),
                          "chunks": tuple(Chunk(*c) for c in b["chunks"])}) for b in data["buckets"]
            ]  # fmt: skip
            given["tasks"] = [_task(t) for t in data["tasks"]]
            given["buffers"] = [Buffer(**{**b, "tensors": _specs(b["tensors"])}) for b in data["buffers"]]
            given["streams"] = {int(d): names for d, names in data["streams"].items()}
            return cls(**given)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a plan: {error}") from error

    def hash(self) -> str:
        """Equal plans have equal hashes, whatever the schedule that they came from."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def _buffer_row(buffer: Buffer) -> dict[str, Any]:
    row = {f.name: getattr(buffer, f.name) for f in fields(buffer)}
    return {**row, "tensors": tuple(asdict(spec) for spec in buffer.tensors)}


def _specs(rows: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(**{**row, "shape": tuple(row["shape"])}) for row in rows)


def _task(row: dict[str, Any]) -> Task:
    lists = {key: tuple(row[key]) for key in ("values", "group", "waits", "reads", "writes", "frees")}
    scale = None if row["scale"] is None else (int(row["scale"][0]), int(row["scale"][1]))
    return Task(**{**row, **lists, "scale": scale})


def _chunk(row: dict[str, Any]) -> ChunkSpec:
    ends = {key: tuple((v, Chunk(*c)) for v, c in row[key]) for key in ("inputs", "outputs")}
    return ChunkSpec(**{**row, **ends, "params": tuple(row["params"])})

"""Cost models: how long each task of a plan takes.

    UnitCosts       F, BI and BW cost one, B two, communication nothing: the closed forms of the literature hold
    AnalyticCosts   from the model's operations and bytes, and a device's speed
    ProfileCosts    measured per chunk and op
    Profile.costs   the costs of a described cluster (`runtime/profile.py`)

Seconds, except under unit costs. Parts of a stage share what is known of the stage by their `flops`. A recomputed
chunk runs its forward again within B or BI. The simulator and the emulating executor use the same objects, so they
pickle, and nothing here imports more than the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

from pibroch.runtime.action import Chunk
from pibroch.runtime.errors import InputError
from pibroch.runtime.plan import ChunkSpec, Plan, Task

COSTS_VERSION = 1
_OPS = ("F", "B", "BI", "BW", "UPDATE")


class Costs(Protocol):
    """What the simulator and the emulator ask. Durations are finite and not negative."""

    def compute(self, plan: Plan, task: Task) -> float:
        """Of F, B, BI, BW or UPDATE."""
        ...

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        """Of a SEND: its latency, and how long it occupies the sending device's link."""
        ...

    def collective(self, plan: Plan, task: Task) -> float:
        """Of a REDUCE, from when all members are ready."""
        ...


def payload_bytes(plan: Plan, task: Task) -> int:
    """Bytes that a SEND or RECV moves."""
    return sum(plan.buffers[b].nbytes for b in (task.reads if task.op == "SEND" else task.writes))


def ring_seconds(members: int, nbytes: float, *, latency: float, bandwidth: float) -> float:
    """A ring all-reduce: 2(n - 1) steps of 1/n of the bytes each (Patarasuk and Yuan, JPDC 69, 2009)."""
    return 2 * (members - 1) * (latency + nbytes / members / bandwidth)


@dataclass
class ChunkCosts:
    """Base of cost models whose compute times depend on chunk and op alone: each is worked out once per plan."""

    _plan: Plan | None = field(default=None, init=False, repr=False, compare=False)
    _known: dict[tuple[int, int, str], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _chunks: dict[Chunk, ChunkSpec] = field(default_factory=dict, init=False, repr=False, compare=False)

    def compute(self, plan: Plan, task: Task) -> float:
        self._look_at(plan)
        key = (task.stage, task.part, task.op)
        seconds = self._known.get(key)
        if seconds is None:
            seconds = self._known[key] = self.seconds(plan, task.chunk, task.op)
        return seconds

    def seconds(self, plan: Plan, chunk: Chunk, op: str) -> float:
        """The duration of one op of one chunk."""
        raise NotImplementedError

    def share(self, plan: Plan, chunk: Chunk) -> float:
        """The part of its stage's operations that a chunk has."""
        self._look_at(plan)
        parts = [c for c in plan.chunks if c.stage == chunk.stage]
        total = sum(c.flops for c in parts)
        return self._chunks[chunk].flops / total if total > 0 else 1 / len(parts)

    def _look_at(self, plan: Plan) -> None:
        if plan is not self._plan:
            self._plan, self._known, self._chunks = plan, {}, {c.key: c for c in plan.chunks}

    def combine(self, chunk: Chunk, op: str, forward: float, backward_input: float, backward_weight: float) -> float:
        """The duration of `op` from the three elementary ones."""
        again = forward if self._chunks[chunk].recompute else 0.0
        return {
            "F": forward,
            "B": backward_input + backward_weight + again,
            "BI": backward_input + again,
            "BW": backward_weight,
            "UPDATE": 0.0,
        }[op]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None, "_known": {}, "_chunks": {}}


@dataclass
class UnitCosts(ChunkCosts):
    """`f`, `bi` and `bw` per stage; B costs `bi + bw`; updates and communication nothing."""

    f: float = 1.0
    bi: float = 1.0
    bw: float = 1.0

    def seconds(self, plan: Plan, chunk: Chunk, op: str) -> float:
        return self.share(plan, chunk) * self.combine(chunk, op, self.f, self.bi, self.bw)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        return 0.0, 0.0

    def collective(self, plan: Plan, task: Task) -> float:
        return 0.0


@dataclass
class AnalyticCosts(ChunkCosts):
    """A forward takes its `flops` at `flops_per_s`, BI and BW as long each; `bandwidth` in bytes/s, `latency` in s.

    The defaults are those of one processor core and of gloo over the loopback.
    """

    flops_per_s: float = 2e10
    bandwidth: float = 4.5e9
    latency: float = 4e-5

    def seconds(self, plan: Plan, chunk: Chunk, op: str) -> float:
        forward = self._chunks[chunk].flops / self.flops_per_s
        return self.combine(chunk, op, forward, forward, forward)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        return self.latency, payload_bytes(plan, task) / self.bandwidth

    def collective(self, plan: Plan, task: Task) -> float:
        nbytes = plan.buckets[task.bucket].nbytes
        return ring_seconds(len(task.group), nbytes, latency=self.latency, bandwidth=self.bandwidth)


@dataclass
class ProfileCosts(ChunkCosts):
    """Measured seconds per (stage, part, op); op is F, B, BI, BW or UPDATE.

    A plan of the same stages may cut its chunks or split its backwards in another way: a stage's total is shared by
    flops, B stands for BI + BW, and half of B for either. `recomputed` names the chunks that ran their forward again
    when they were measured. A stage that was not measured is an `InputError`; an update that was not costs nothing.
    """

    measured: dict[tuple[int, int, str], float] = field(default_factory=dict)
    latency: float = 0.0
    bandwidth: float = float("inf")
    collective_latency: float = 0.0
    collective_bandwidth: float = float("inf")
    recomputed: tuple[tuple[int, int], ...] = ()

    def seconds(self, plan: Plan, chunk: Chunk, op: str) -> float:
        exact = self.measured.get((*chunk, op))
        if op == "UPDATE":
            return exact or 0.0
        same_parts = {c.part for c in plan.chunks if c.stage == chunk.stage} == {
            part for stage, part, name in self.measured if stage == chunk.stage and name != "UPDATE"
        }
        if exact is not None and same_parts and self._chunks[chunk].recompute == ((*chunk,) in self.recomputed):
            return exact
        again = sum(self.measured.get((s, part, "F"), 0.0) for s, part in self.recomputed if s == chunk.stage)
        forward = self._stage(chunk.stage, "F")
        if forward is None:
            raise self._missing(chunk.stage, "F")
        whole = self._stage(chunk.stage, "B")
        inputs, weights = self._stage(chunk.stage, "BI"), self._stage(chunk.stage, "BW")
        if inputs is None or weights is None:
            if whole is None:
                raise self._missing(chunk.stage, op)
            inputs = weights = max(whole - again, 0.0) / 2
        else:
            inputs = max(inputs - again, 0.0)
        return self.share(plan, chunk) * self.combine(chunk, op, forward, inputs, weights)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        return self.latency, payload_bytes(plan, task) / self.bandwidth

    def collective(self, plan: Plan, task: Task) -> float:
        nbytes = plan.buckets[task.bucket].nbytes
        return ring_seconds(
            len(task.group), nbytes, latency=self.collective_latency, bandwidth=self.collective_bandwidth
        )

    def to_json(self) -> dict[str, Any]:
        """Keys of `compute` are as `0F` or `1.2BI`; an infinite bandwidth is null."""
        return {
            "version": COSTS_VERSION,
            "compute": {f"{Chunk(s, part)}{op}": seconds for (s, part, op), seconds in self.measured.items()},
            "latency": self.latency,
            "bandwidth": self.bandwidth if isfinite(self.bandwidth) else None,
            "collective_latency": self.collective_latency,
            "collective_bandwidth": self.collective_bandwidth if isfinite(self.collective_bandwidth) else None,
            "recomputed": [str(Chunk(*chunk)) for chunk in self.recomputed],
        }

    @classmethod
    def from_json(cls, data: Any) -> ProfileCosts:
        """Raises `InputError` on what `to_json` did not write."""
        try:
            if data["version"] != COSTS_VERSION:
                raise ValueError(f"version {data['version']!r}: this pibroch reads version {COSTS_VERSION}")
            links = {
                name: _number(data[name])
                for name in ("latency", "bandwidth", "collective_latency", "collective_bandwidth")
            }
            measured = {_parse_key(key): _number(seconds) for key, seconds in data["compute"].items()}
            recomputed = tuple(_parse_key(f"{chunk}F")[:2] for chunk in data["recomputed"])
            return cls(measured=measured, recomputed=recomputed, **links)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"not measured costs: {what}") from error

    def _stage(self, stage: int, op: str) -> float | None:
        found = [seconds for (s, _, name), seconds in self.measured.items() if s == stage and name == op]
        return sum(found) if found else None

    def _missing(self, stage: int, op: str) -> InputError:
        stages = sorted({s for s, _, _ in self.measured})
        known = f"it knows stages {stages[0]} to {stages[-1]}" if stages else "it is empty"
        return InputError(f"the measured costs do not give {op} of stage {stage} ({known}): measure a plan that has it")


def _parse_key(text: str) -> tuple[int, int, str]:
    op = next((op for op in _OPS if text.endswith(op) and text[: -len(op)].replace(".", "").isdigit()), None)
    if op is None:
        raise ValueError(f"{text!r} is no chunk and op, such as 0F or 1.2BI")
    stage, _, part = text[: -len(op)].partition(".")
    return int(stage), int(part or 0), op


def _number(value: Any) -> float:
    if value is None:
        return float("inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{value!r} is no number of seconds or bytes/s")
    return float(value)

"""Costs measured per layer, for any cut, division, order and recomputation of a task.

A layer takes a + b x (samples of the microbatch) seconds for each of F, B, BI and BW, and its update a constant. A task
takes what its layers take and an overhead of its own. All are worked out from traced steps on warm workers while all
ranks run (figures taken alone are too low): each layer as a stage of its own, stages dealt out to the devices in turn,
with whole and with split backwards, at two sizes; the same again with one stage per device, whose tasks have one
overhead where the others have many. All of it from the first device on and from the second: on one machine a device may
be slower than another by more than layers differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from pibroch.runtime.action import Chunk
from pibroch.runtime.costs import ChunkCosts, payload_bytes, ring_seconds
from pibroch.runtime.directives import AnyDirective, Cut, Order, Place, Schedule, Split
from pibroch.runtime.errors import InputError
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.probe import chunk_times, measured_link
from pibroch.runtime.trainer import Trainer

VERSION = 1
OPS = ("F", "B", "BI", "BW")
MICROBATCHES = 4
STEPS = 2  # traced, after one that is not


@dataclass(frozen=True)
class LayerCosts:
    """`layers[i][op]` is (a, b) in seconds and seconds per sample; UPDATE's b is 0. `overhead[op]` seconds per task."""

    layers: tuple[Mapping[str, tuple[float, float]], ...]
    overhead: Mapping[str, float]
    latency: float
    bandwidth: float

    def at(self, size: int) -> SizedCosts:
        """The costs of microbatches of that many samples."""
        return SizedCosts(layers=self, size=size)

    def without_overhead(self) -> LayerCosts:
        """What the layers alone take: a bound for chunks of any extent."""
        return replace(self, overhead=dict.fromkeys(self.overhead, 0.0))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "version": VERSION,
            "layers": [{op: list(pair) for op, pair in layer.items()} for layer in self.layers],
            "overhead": dict(self.overhead),
            "latency": self.latency,
            "bandwidth": self.bandwidth,
        }

    @classmethod
    def from_json(cls, data: Any) -> LayerCosts:
        """Raises `InputError` on what `to_json` did not write."""
        try:
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']!r}: this pibroch reads version {VERSION}")
            return cls(
                layers=tuple(
                    {op: (float(layer[op][0]), float(layer[op][1])) for op in (*OPS, "UPDATE")}
                    for layer in data["layers"]
                ),
                overhead={op: float(data["overhead"][op]) for op in OPS},
                latency=float(data["latency"]),
                bandwidth=float(data["bandwidth"]),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            what = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"not measured costs of layers: {what}") from error


@dataclass
class SizedCosts(ChunkCosts):
    """What the simulator asks, for one size of microbatch."""

    layers: LayerCosts = field(kw_only=True)
    size: int = field(kw_only=True)

    def seconds(self, plan: Plan, chunk: Chunk, op: str) -> float:
        if op == "UPDATE":
            return sum(self._sum(c.start, c.stop, op) for c in plan.chunks if c.stage == chunk.stage)
        spec = self._chunks[chunk]
        total = self._sum(spec.start, spec.stop, op) + self.layers.overhead[op]
        return total + (self._sum(spec.start, spec.stop, "F") if spec.recompute and op in ("B", "BI") else 0.0)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        return self.layers.latency, payload_bytes(plan, task) / self.layers.bandwidth

    def collective(self, plan: Plan, task: Task) -> float:
        nbytes = plan.buckets[task.bucket].nbytes
        return ring_seconds(len(task.group), nbytes, latency=self.layers.latency, bandwidth=self.layers.bandwidth)

    def _sum(self, start: int, stop: int, op: str) -> float:
        return sum(a + b * self.size for a, b in (layer[op] for layer in self.layers.layers[start:stop]))


def unmeasurable(model: ModelSpec, *, devices: int) -> str | None:
    """Why the layers of a model cannot be stages of their own on these devices; None where they can."""
    if model.fixed_stages:
        return "the model's annotations fix its stages"
    if len(model.layers) < devices:
        return f"it has {len(model.layers)} layers, fewer than the {devices} devices"
    return None


def measure(trainer: Trainer, model: ModelSpec, *, devices: int, sizes: tuple[int, int]) -> LayerCosts:
    """Measure on a trainer's workers; it is left with another schedule and other weights. `sizes` are two numbers of
    samples in a microbatch; where they are equal, time is taken as proportional to it."""
    layers = len(model.layers)
    fine, coarse = list(range(1, layers)), [round(layers * d / devices) for d in range(1, devices)]
    found = [
        (_times(trainer, fine, devices, size), _times(trainer, coarse, devices, size)) for size in dict.fromkeys(sizes)
    ]
    overhead = {op: statistics.fmean(_overhead(a, b, coarse, layers, op) for a, b in found) for op in OPS}
    rows = []
    for layer in range(layers):
        row = {op: _line([max(a[op][layer] - overhead[op], 0.0) for a, _ in found], sizes) for op in OPS}
        rows.append({**row, "UPDATE": (statistics.fmean(a["UPDATE"].get(layer, 0.0) for a, _ in found), 0.0)})
    latency, bandwidth = measured_link(trainer.pool)
    return LayerCosts(tuple(rows), overhead, latency, min(bandwidth, 1e18))


def _times(trainer: Trainer, cut: Sequence[int], devices: int, size: int) -> dict[str, dict[int, float]]:
    """Seconds by op and stage: the mean over the runs, each on other devices, of its median."""
    medians: dict[str, dict[int, list[float]]] = {op: {} for op in (*OPS, "UPDATE")}
    for split, first in product((False, True), range(min(devices, 2))):
        trainer.load(dealt_out(cut, devices=devices, split=split, first=first), microbatch=size)
        trainer.step(trainer.workload.batch(trainer.batch_size, 0))
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(STEPS):
            for (stage, _, op), seconds in chunk_times(trainer.plan, trainer.trace().events).items():
                times.setdefault((op, stage), []).extend(seconds)
        for (op, stage), found in times.items():
            medians[op].setdefault(stage, []).append(statistics.median(found))
    return {op: {stage: statistics.fmean(found) for stage, found in rows.items()} for op, rows in medians.items()}


def dealt_out(cut: Sequence[int], *, devices: int, split: bool, first: int) -> Schedule:
    """Stage s on device (first + s) % devices, all forwards before all backwards; with `split` each of these in two."""
    stages = len(cut) + 1
    directives: list[AnyDirective] = [Split(num_microbatches=MICROBATCHES)]
    if cut:
        directives.append(Cut(at=list(cut)))
    directives += [Place(filter={"PP": s}, devices=[(first + s) % devices]) for s in range(stages)]
    if split:
        for start in range(min(devices, stages)):
            mine = range(start, stages, devices)
            row = [(s, mb, "F") for mb in range(MICROBATCHES) for s in mine]
            row += [(s, mb, op) for mb in range(MICROBATCHES) for s in reversed(mine) for op in ("BI", "BW")]
            directives.append(Order(filters=[{"PP": s, "MB": mb, "PASS": op} for s, mb, op in row]))
    return Schedule(directives=directives)


def _overhead(
    fine: Mapping[str, Mapping[int, float]], coarse: Mapping[str, Mapping[int, float]], cut: Sequence[int], layers: int,
    op: str,
) -> float:  # fmt: skip
    """Seconds per task: what many tasks take longer than few over the same layers. Never below 0."""
    extra = layers - len(cut) - 1
    return max(sum(fine[op].values()) - sum(coarse[op].values()), 0.0) / extra if extra else 0.0


def _line(seconds: Sequence[float], sizes: tuple[int, int]) -> tuple[float, float]:
    """(a, b) of a + b x size through the measured points, neither of them negative."""
    small, large = sizes
    if small == large:
        return 0.0, seconds[0] / small
    slope = (seconds[1] - seconds[0]) / (large - small)
    start = seconds[0] - slope * small
    if slope < 0:
        return statistics.fmean(seconds), 0.0
    return (start, slope) if start >= 0 else (0.0, statistics.fmean(t / s for t, s in zip(seconds, sizes, strict=True)))

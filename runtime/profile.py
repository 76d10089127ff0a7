"""Profiles: a cluster and a model as figures, to simulate or emulate what this machine is too small for.

A profile lists the layers of a model in execution order with what each takes and holds, the usual cut into stages, and
the links. It is a JSON file; `runtime/profiles/` holds the shipped ones. `Profile.model()` is a model of those sizes
for simulations without a real one, `Profile.costs()` are its durations for any plan:

    a plan with as many layers as the profile      each chunk takes what its layers take
    else, with as many stages as the profile       stage i takes what the profile's stage i takes
    else                                           stage i of n takes what the i-th n-th of the layers takes

In the last two cases the parts of a stage share its time by their flops.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any

from pibroch.runtime.action import Chunk
from pibroch.runtime.costs import ChunkCosts, ring_seconds
from pibroch.runtime.errors import InputError
from pibroch.runtime.model import LayerSpec, ModelSpec, ParamSpec, TensorSpec
from pibroch.runtime.plan import Plan, Task

PROFILE_VERSION = 1
SHORTEST = 0.02
"""Seconds of the shortest chunk under emulation: below that, two processor cores spoil the timing of eight stages."""

_SHIPPED = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True)
class ProfileLayer:
    """Seconds and bytes of one layer for one microbatch; `boundary_bytes` is the activation that it hands on."""

    name: str
    forward: float
    backward_input: float
    backward_weight: float
    parameter_bytes: int
    saved_bytes: int
    weight_saved_bytes: int
    boundary_bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """`cut[i]` is the first layer of stage i + 1. Bandwidths in bytes/s, latencies in s; a device owns the bandwidth of
    what it sends. `time_scale` is how much slower than described everything runs."""

    name: str
    source: str
    derivation: tuple[str, ...]
    layers: tuple[ProfileLayer, ...]
    cut: tuple[int, ...]
    latency: float
    bandwidth: float
    collective_latency: float
    collective_bandwidth: float
    time_scale: float = 1.0

    @property
    def stages(self) -> int:
        return len(self.cut) + 1

    @property
    def bounds(self) -> tuple[int, ...]:
        """Stage i is layers [bounds[i], bounds[i + 1])."""
        return (0, *self.cut, len(self.layers))

    @property
    def forward(self) -> tuple[float, ...]:
        """Seconds per stage under the usual cut; so are the next two."""
        return self._per_stage("forward")

    @property
    def backward_input(self) -> tuple[float, ...]:
        return self._per_stage("backward_input")

    @property
    def backward_weight(self) -> tuple[float, ...]:
        return self._per_stage("backward_weight")

    def costs(self) -> EmulatedCosts:
        """The durations of this profile, for the simulator and the emulator."""
        return EmulatedCosts(profile=self)

    def model(self) -> ModelSpec:
        """A chain of layers with these sizes, in bfloat16. A layer's flops are its forward in units of the longest."""
        longest = max(layer.forward for layer in self.layers) or 1.0
        last = len(self.layers) - 1
        return ModelSpec(
            name=self.name,
            layers=tuple(
                LayerSpec(
                    index=i,
                    tags={"LAYER": i},
                    params=(f"w{i}",),
                    consumes=(f"h{i - 1}",) if i else (),
                    produces=(f"h{i}",) if i < last else (),
                    saved_bytes=layer.saved_bytes,
                    weight_saved_bytes=layer.weight_saved_bytes,
                    flops=layer.forward / longest,
                )
                for i, layer in enumerate(self.layers)
            ),
            params={
                f"w{i}": ParamSpec(f"w{i}", (layer.parameter_bytes // 2,), "bfloat16")
                for i, layer in enumerate(self.layers)
            },
            values={
                f"h{i}": TensorSpec((layer.boundary_bytes // 2,), "bfloat16")
                for i, layer in enumerate(self.layers[:-1])
            },
        )

    def scaled(self, *, shortest: float = SHORTEST, plan: Plan | None = None) -> Profile:
        """All durations times one factor, so that the shortest chunk takes `shortest` seconds: of `plan`'s chunks as
        the plan splits them, or without one of F, BI and BW of each stage. Chunks that take no time do not count."""
        if plan is None:
            times = [*self.forward, *self.backward_input, *self.backward_weight]
        else:
            costs = self.costs()
            times = [costs.compute(plan, task) for task in plan.tasks if task.op in ("F", "B", "BI", "BW")]
        return self.times(shortest / min((t for t in times if t > 0), default=shortest))

    def times(self, factor: float) -> Profile:
        """The same with all durations times `factor`."""
        layers = tuple(
            replace(
                layer,
                forward=layer.forward * factor,
                backward_input=layer.backward_input * factor,
                backward_weight=layer.backward_weight * factor,
            )
            for layer in self.layers
        )
        return replace(
            self,
            layers=layers,
            latency=self.latency * factor,
            bandwidth=self.bandwidth / factor,
            collective_latency=self.collective_latency * factor,
            collective_bandwidth=self.collective_bandwidth / factor,
            time_scale=self.time_scale * factor,
        )

    def _per_stage(self, name: str) -> tuple[float, ...]:
        times = [getattr(layer, name) for layer in self.layers]
        return tuple(sum(times[a:b]) for a, b in zip(self.bounds, self.bounds[1:], strict=False))


@dataclass
class EmulatedCosts(ChunkCosts):
    """The durations that a profile gives to the tasks of any plan. Updates take no time."""

    profile: Profile = field(kw_only=True)
    _links: dict[tuple[Chunk, Chunk, str], tuple[float, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def _look_at(self, plan: Plan) -> None:
        if plan is not self._plan:
            self._links = {}
        super()._look_at(plan)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_links": {}}

    def seconds(self, plan: Plan, chunk: Chunk, op: str) -> float:
        forward, inputs, weights = (
            self._over(plan, chunk, name) for name in ("forward", "backward_input", "backward_weight")
        )
        return self.combine(chunk, op, forward, inputs, weights)

    def transfer(self, plan: Plan, task: Task) -> tuple[float, float]:
        self._look_at(plan)
        here, there = task.chunk, Chunk(task.peer_stage, task.peer_part)
        key = (here, there, task.payload)
        if key not in self._links:
            # An activation and its gradient are as large as what the chunk that makes the activation hands on.
            self._links[key] = self._link(plan, here if task.payload == "F" else there)
        return self._links[key]

    def _link(self, plan: Plan, maker: Chunk) -> tuple[float, float]:
        stop = self._layers(plan, maker)[1]
        nbytes = self.profile.layers[max(min(int(stop + 0.5), len(self.profile.layers)) - 1, 0)].boundary_bytes
        return self.profile.latency, nbytes / self.profile.bandwidth

    def collective(self, plan: Plan, task: Task) -> float:
        bucket = plan.buckets[task.bucket]
        nbytes: float = bucket.nbytes
        if len({chunk.stage for chunk in bucket.chunks}) == 1:
            nbytes = sum(self._over(plan, chunk, "parameter_bytes") for chunk in bucket.chunks)
        profile = self.profile
        return ring_seconds(
            len(task.group), nbytes, latency=profile.collective_latency, bandwidth=profile.collective_bandwidth
        )

    def _over(self, plan: Plan, chunk: Chunk, name: str) -> float:
        """The sum of one figure over the layers of a chunk; a layer counts in part where the range cuts it."""
        start, stop = self._layers(plan, chunk)
        sums = [0.0, *accumulate(float(getattr(layer, name)) for layer in self.profile.layers)]

        def until(x: float) -> float:
            whole = min(int(x), len(self.profile.layers) - 1)
            return sums[whole] + (x - whole) * (sums[whole + 1] - sums[whole])

        total = until(stop) - until(start)
        return total if self._exact(plan) else total * self.share(plan, chunk)

    def _layers(self, plan: Plan, chunk: Chunk) -> tuple[float, float]:
        if self._exact(plan):
            self._look_at(plan)
            return self._chunks[chunk].start, self._chunks[chunk].stop
        count, stages = len(self.profile.layers), plan.stages
        if stages == self.profile.stages:
            return self.profile.bounds[chunk.stage], self.profile.bounds[chunk.stage + 1]
        return chunk.stage * count / stages, (chunk.stage + 1) * count / stages

    def _exact(self, plan: Plan) -> bool:
        return max(c.stop for c in plan.chunks) == len(self.profile.layers)


def shipped_profiles() -> tuple[str, ...]:
    """Names of the profiles that come with the package."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.json")))


def load_profile(name_or_path: str | Path) -> Profile:
    """A shipped profile by name, or one's own by path. Raises `InputError` that lists the shipped ones or names the
    field at fault."""
    text, shipped = str(name_or_path), shipped_profiles()
    path = _SHIPPED / f"{text}.json" if text in shipped else Path(text)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"no profile {text!r} ({error.strerror}): name a file or one of {', '.join(shipped)}"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    try:
        return _parse(data)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


_NUMBERS = ("latency", "bandwidth", "collective_latency", "collective_bandwidth")
_SECONDS = ("forward", "backward_input", "backward_weight")
_BYTES = ("parameter_bytes", "saved_bytes", "weight_saved_bytes", "boundary_bytes")


def _parse(data: Any) -> Profile:
    _fields(data, ("version", "name", "source", "derivation", "layers", "cut", *_NUMBERS), "the profile")
    if data["version"] != PROFILE_VERSION:
        raise ValueError(f"version {data['version']!r}: this pibroch reads version {PROFILE_VERSION}")
    for name in ("name", "source"):
        if not isinstance(data[name], str):
            raise ValueError(f"{name} is text, not {data[name]!r}")
    if not isinstance(data["derivation"], list) or not all(isinstance(line, str) for line in data["derivation"]):
        raise ValueError("derivation is a list of lines of text")
    if not isinstance(data["layers"], list) or not data["layers"]:
        raise ValueError("layers is a list of at least one layer")
    layers: list[ProfileLayer] = []
    for i, row in enumerate(data["layers"]):
        where = f"layers[{i}]"
        _fields(row, ("name", "count", *_SECONDS, *_BYTES), where)
        seconds = {name: _number(row[name], f"{where}.{name}") for name in _SECONDS}
        sizes = {name: _count(row[name], f"{where}.{name}") for name in _BYTES}
        figures: dict[str, Any] = {**seconds, **sizes}
        layer = ProfileLayer(name=str(row["name"]), **figures)
        layers += [layer] * _count(row["count"], f"{where}.count")
    cut = data["cut"]
    if (
        not isinstance(cut, list)
        or cut != sorted({_count(c, "cut") for c in cut})
        or not all(0 < c < len(layers) for c in cut)
    ):
        raise ValueError(f"cut is an ascending list of layers between 1 and {len(layers) - 1}, not {cut!r}")
    links = {name: _number(data[name], name) for name in _NUMBERS}
    if links["bandwidth"] <= 0 or links["collective_bandwidth"] <= 0:
        raise ValueError("a bandwidth is more than 0 bytes/s")
    return Profile(
        name=data["name"],
        source=data["source"],
        derivation=tuple(data["derivation"]),
        layers=tuple(layers),
        cut=tuple(cut),
        **links,
    )


def _fields(row: Any, names: tuple[str, ...], where: str) -> None:
    if not isinstance(row, dict):
        raise ValueError(f"{where} is an object, not {row!r}")
    missing, unknown = [n for n in names if n not in row], [n for n in row if n not in names]
    if missing or unknown:
        what = f"lacks {', '.join(missing)}" if missing else f"has the unknown field {unknown[0]!r}"
        raise ValueError(f"{where} {what}")


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value >= 0):
        raise ValueError(f"{where} is a finite number of at least 0, not {value!r}")
    return float(value)


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{where} is a whole number of at least 0, not {value!r}")
    return value

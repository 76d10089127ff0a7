"""The schedules that an intent leaves open, as numbers: family, degrees, microbatches, cut, buckets, recompute.

Terms: p pipeline devices, v stages per device, k replicas, m microbatches per replica; stages = p * v, devices = p * k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product

from pibroch.agents.intent import Bound, Intent
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import FAMILIES, build, excluded
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.passes.stages import balanced_bounds
from pibroch.runtime.words import count

MAX_CANDIDATES = 96


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice of everything that `families.build` takes. `bucket_size` in MB; `cut` as in a cut directive."""

    family: str
    p: int
    v: int
    k: int
    m: int
    cut: tuple[int, ...] | None = None
    bucket_size: float | None = None
    recompute: bool = False
    stream: str | None = None
    reduce_stream: str | None = None

    def build(self) -> Schedule:
        """The directives."""
        return build(
            self.family, devices=self.p, microbatches=self.m, replicas=self.k, stages_per_device=self.v,
            bucket_size=self.bucket_size, cut=self.cut, recompute=self.recompute, stream=self.stream,
            reduce_stream=self.reduce_stream,
        )  # fmt: skip

    def __str__(self) -> str:
        parts = [f"{self.family} PP={self.p}"]
        if self.v > 1:
            parts.append(f"{count(self.v, 'stage')} per device")
        if self.k > 1:
            parts.append(f"DP={self.k}")
        parts.append(count(self.m, "microbatch"))
        if self.cut is not None:
            parts.append(f"cut at {', '.join(map(str, self.cut))}")
        if self.bucket_size is not None:
            parts.append(f"buckets of {self.bucket_size:g} MB")
        if self.recompute:
            parts.append("recompute")
        return ", ".join(parts)


def candidates(intent: Intent, model: ModelSpec, *, devices_available: int | None = None) -> list[Candidate]:
    """Every candidate that keeps the intent's numbers, in a fixed order. Raises `InputError` where there is none."""
    check_model(intent, model)
    rows: list[Candidate] = []
    reasons: list[str] = []
    families = (intent.family,) if intent.family else intent.families or FAMILIES
    for family in families:
        if family in intent.excluded:
            continue
        for p, v, k in _degrees(intent, model, family, devices_available):
            for m in _microbatches(intent, p, v, k):
                reason = excluded(family, devices=p, microbatches=m, stages_per_device=v, replicas=k)
                if reason:
                    reasons.append(reason)
                    continue
                for cut, bucket in product(_cuts(intent, model, p * v), _buckets(intent, model, p * v, k)):
                    rows.append(
                        Candidate(
                            family, p, v, k, m, cut, bucket, bool(intent.recompute), intent.stream,
                            intent.reduce_stream,
                        )
                    )  # fmt: skip
    if not rows:
        why = reasons[0] if reasons else _why_none(intent, model, devices_available)
        raise InputError(f"no schedule keeps every number of the intent: {why}")
    return rows[:MAX_CANDIDATES]


def check_model(intent: Intent, model: ModelSpec) -> None:
    """What the sentence says of the model must be true of it. Raises `InputError`."""
    layers = len(model.layers)
    if intent.model_layers is not None and intent.model_layers != layers:
        raise InputError(f"the intent speaks of {intent.model_layers} layers; model {model.name} has {layers}")
    if intent.layers_per_stage and sum(intent.layers_per_stage) != layers:
        said = "+".join(map(str, intent.layers_per_stage))
        total = sum(intent.layers_per_stage)
        raise InputError(f"the intent's stages hold {said} = {total} layers; {model.name} has {layers}")
    if intent.cut and (list(intent.cut) != sorted(set(intent.cut)) or intent.cut[-1] >= layers or intent.cut[0] < 1):
        raise InputError(f"cut at {list(intent.cut)}: boundaries ascend and lie between layer 1 and layer {layers - 1}")
    if intent.uniform_layers and layers % intent.uniform_layers:
        raise InputError(f"{layers} layers do not divide into stages of {intent.uniform_layers} layers")
    if model.fixed_stages and (intent.cut or intent.layers_per_stage or intent.uniform_layers):
        raise InputError(f"model {model.name} annotates PP and so fixes its stages: drop the cut from the intent")


def stage_count(intent: Intent, model: ModelSpec) -> int | None:
    """The number of stages where intent or model fix it."""
    if model.fixed_stages:
        return len({layer.tags["PP"] for layer in model.layers if "PP" in layer.tags})
    if intent.cut:
        return len(intent.cut) + 1
    if intent.layers_per_stage:
        return len(intent.layers_per_stage)
    if intent.uniform_layers:
        return len(model.layers) // intent.uniform_layers
    return intent.stages


def cut_of(intent: Intent) -> tuple[int, ...] | None:
    """The boundaries that the sentence names, if any."""
    if intent.cut:
        return intent.cut
    if intent.layers_per_stage:
        return tuple(accumulate(intent.layers_per_stage))[:-1]
    return None


def _allowed(intent: Intent, name: str, value: int) -> bool:
    exact = getattr(intent, name)
    return (exact is None or exact == value) and intent.bounds.get(name, Bound()).allows(value)


def _degrees(
    intent: Intent, model: ModelSpec, family: str, available: int | None
) -> Iterator[tuple[int, int, int]]:
    stages = stage_count(intent, model)
    bound = {name: intent.bounds.get(name, Bound()) for name in ("replicas", "num_devices", "stages", "pipeline")}
    most = _highest(bound["num_devices"]) or intent.num_devices or available
    if intent.replicas:
        ks = [intent.replicas]
    elif any(what == "replicas" for what, *_ in intent.ratios):
        ks = list(range(1, 33))  # the one that keeps the ratio stays
    elif "replicas" in intent.bounds:
        ks = _values(bound["replicas"], [1])
    elif intent.num_devices and (intent.pipeline or stages):
        ks = list(range(1, intent.num_devices + 1))  # those that multiply up to num_devices stay, see `named`
    else:
        ks = [2 if intent.buckets else 1]
    flat = intent.pipeline == 1 or stages == 1 or intent.num_devices == 1
    for k in ks:
        vs = [intent.stages_per_device] if intent.stages_per_device else [2, 3, 4] if family == "interleaved" else [1]
        if intent.pipeline and stages and stages % intent.pipeline == 0:
            vs = [stages // intent.pipeline]
        for v in vs:
            if intent.pipeline:
                ps = [intent.pipeline]
            elif stages:
                ps = [stages // v] if stages % v == 0 else []
            elif intent.num_devices:
                ps = [intent.num_devices // k] if intent.num_devices % k == 0 else []
            elif "stages" in intent.bounds or "pipeline" in intent.bounds:
                ps = sorted({q // v for q in _values(bound["stages"], [])} | set(_values(bound["pipeline"], [])))
            else:
                ps = [max(2, (most or 2) // k)]
            for p in ps:
                n = p * v
                fits = n <= len(model.layers) and (stages is None or n == stages) and (most is None or p * k <= most)
                named = all(
                    _allowed(intent, name, value)
                    for name, value in (("stages", n), ("pipeline", p), ("replicas", k), ("num_devices", p * k))
                )
                named = named and _replica_ratio(intent, p, v, k)
                # One device per replica leaves no bubble for interleaving or split backwards to fill.
                useful = p > 1 or family in ("gpipe", "1f1b") or intent.family == family
                if p >= (1 if flat else 2) and fits and named and useful:
                    yield p, v, k


def _replica_ratio(intent: Intent, p: int, v: int, k: int) -> bool:
    counts = {"stages": p * v, "pipeline": p, "replicas": k}
    return all(k * down == counts[base] * up for what, up, down, base in intent.ratios if what == "replicas")


def _values(bound: Bound, default: list[int]) -> list[int]:
    """A few values that a bound allows, its ends first of all."""
    if bound.among is not None:
        return [n for n in bound.among if bound.allows(n)]
    if bound.low is None and bound.high is None:
        return default
    low = bound.low or 1
    high = bound.high or low * 2
    return list(range(low, high + 1))[:16]


def _highest(bound: Bound) -> int | None:
    return max(bound.among) if bound.among else bound.high


def _microbatches(intent: Intent, p: int, v: int, k: int) -> list[int]:
    if intent.microbatches:
        return [intent.microbatches]
    if intent.total_microbatches:
        return [intent.total_microbatches // k] if intent.total_microbatches % k == 0 else []
    for what, up, down, base in intent.ratios:
        if what.startswith("micro"):
            n = {"stages": p * v, "pipeline": p, "replicas": k}[base] * up
            return [n // down] if n % down == 0 else []
    bound = intent.bounds.get("microbatches", Bound())
    usual = [p, 2 * p, 4 * p]
    if bound.among is not None:
        usual = list(bound.among)
    usual = sorted({*usual, *(n for n in (bound.low, bound.high) if n)})
    total = intent.bounds.get("total_microbatches", Bound())
    if total.high:
        usual = sorted({*usual, max(1, total.high // k)})
    return [m for m in usual if bound.allows(m) and total.allows(m * k)]


def _cuts(intent: Intent, model: ModelSpec, stages: int) -> list[tuple[int, ...] | None]:
    named = cut_of(intent)
    if named is not None:
        return [named]
    if intent.uniform_layers:
        return [tuple(range(intent.uniform_layers, len(model.layers), intent.uniform_layers))]
    if intent.even is not False or model.fixed_stages or stages == 1:
        return [None]
    bounds = balanced_bounds([layer.flops for layer in model.layers], stages)
    rows: dict[tuple[int, ...], None] = {}
    for i in range(1, stages):
        for step in (0, -1, 1):
            moved = [*bounds[:i], bounds[i] + step, *bounds[i + 1 :]]
            sizes = {b - a for a, b in pairwise(moved)}
            if min(sizes) >= 1 and len(sizes) > 1:
                rows[tuple(moved[1:-1])] = None
    return list(rows)


def _buckets(intent: Intent, model: ModelSpec, stages: int, k: int) -> list[float | None]:
    if not intent.buckets or k == 1:
        return [None]
    if intent.bucket_size:
        return [intent.bucket_size]
    mb = sum(p.nbytes for p in model.params.values() if p.trainable) / stages / 1e6
    if mb <= 0:
        return [25.0]
    return [round_up(mb / parts) for parts in (2, 4)]


def round_up(mb: float) -> float:
    """Two significant digits, so that a schedule file stays readable."""
    return float(f"{mb:.2g}")


def _why_none(intent: Intent, model: ModelSpec, available: int | None) -> str:
    stages = stage_count(intent, model)
    if stages and stages > len(model.layers):
        return f"{count(stages, 'stage')}, but {model.name} has {count(len(model.layers), 'layer')}"
    if model.fixed_stages and intent.stages and intent.stages != stages:
        return f"{model.name} fixes {count(stages or 0, 'stage')}, the intent says {intent.stages}"
    if available is not None:
        return f"check the degrees against {available} available devices and {len(model.layers)} layers"
    return f"check the degrees against each other and against the {len(model.layers)} layers of {model.name}"


def with_recompute(candidate: Candidate) -> Candidate:
    """The same, recomputing every layer."""
    return replace(candidate, recompute=True)

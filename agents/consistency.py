"""What the phrases of one sentence say together: families, bounds, and degrees that must multiply."""

from __future__ import annotations

from typing import Any

from pibroch.agents.values import Values
from pibroch.runtime.errors import InputError
from pibroch.runtime.words import count


def settle(values: Values) -> dict[str, Any]:
    """The fields of `Intent` that follow from several phrases. Raises `InputError` naming the phrases that disagree."""
    out: dict[str, Any] = {}
    out.update(_family(values))
    _degrees(values, out.get("family"))
    out.update({name: value for name, (value, _) in values.fields.items()})
    out["bounds"] = _bounds(values)
    out["ratios"] = tuple(row[:4] for row in values.ratios)
    for row in values.ratios:
        if row[0] in values.fields:
            raise InputError(f"the intent contradicts itself: {values.fields[row[0]][1]!r} and {row[4]!r}; keep one")
    _memory_and_buckets(values)
    return out


def _family(values: Values) -> dict[str, Any]:
    wanted = dict(values.families)
    excluded = dict(values.excluded)
    for family, phrase in wanted.items():
        if family in excluded:
            raise InputError(
                f"the intent contradicts itself: {phrase!r} and the negated {excluded[family]!r}; keep one"
            )
    names = list(wanted)
    if set(names) == {"1f1b", "interleaved"} and values.fields.get("either", (None,))[0] is None:
        names = ["interleaved"]  # interleaved 1F1B said in two places
    either = values.fields.pop("either", (None, ""))[0]
    if len(names) > 1 and not either:
        raise InputError(
            f"the intent names two schedule families: {wanted[names[0]]!r} and {wanted[names[1]]!r}; keep one, or "
            f"write '{wanted[names[0]]} or {wanted[names[1]]}' to let the planner choose"
        )
    out: dict[str, Any] = {"excluded": tuple(excluded)}
    if len(names) == 1:
        out["family"] = names[0]
    elif names:
        out["families"] = tuple(names)
    return out


def _degrees(values: Values, family: str | None) -> None:
    """stages = pipeline x stages_per_device; num_devices = pipeline x replicas; total = microbatches x replicas."""
    one_each = "interleaved" in dict(values.excluded) or family in ("1f1b", "zb-h1")
    stages, devices = values.fields.get("stages"), values.fields.get("num_devices")
    enough = not (stages and devices and stages[0] > devices[0])
    if "interleaved" not in dict(values.families) and "pipeline" not in values.fields and enough:
        if stages or family == "gpipe":  # "over 4 stages" means on 4 devices
            values.fields.setdefault("stages_per_device", (1, "one stage per device"))
    elif family == "gpipe" and not stages:
        values.fields.setdefault("stages_per_device", (1, "one stage per device"))
    if one_each:
        v = values.fields.get("stages_per_device")
        if v and v[0] > 1:
            name = family or "a schedule that is not interleaved"
            raise InputError(f"{v[1]!r} needs the interleaved family, but the intent asks for {name}; keep one")
        values.fields.setdefault("stages_per_device", (1, "one stage per device"))
    for _ in range(3):
        _product(values, "stages", "pipeline", "stages_per_device")
        _product(values, "num_devices", "pipeline", "replicas")
        _product(values, "total_microbatches", "microbatches", "replicas")
    pipeline = values.fields.get("pipeline")
    said = [phrase for _, phrase in values.families]
    if pipeline and pipeline[0] == 1 and said:
        raise InputError(
            f"{said[0]!r} needs a pipeline of at least 2 devices, but {pipeline[1]!r} leaves 1; "
            "name the stages, for example 'PP=2, DP=2'"
        )


def _product(values: Values, whole: str, a: str, b: str) -> None:
    fields = values.fields
    w, x, y = fields.get(whole), fields.get(a), fields.get(b)
    if x and y and w and w[0] != x[0] * y[0]:
        raise InputError(
            f"the intent contradicts itself: {w[1]!r} says {whole.replace('_', ' ')} = {w[0]}, "
            f"but {x[1]!r} and {y[1]!r} make {x[0] * y[0]}"
        )
    if x and y and not w:
        fields[whole] = (x[0] * y[0], f"{x[1]} and {y[1]}")
    for known, missing in ((x, b), (y, a)):
        if w and known and missing not in fields:
            if w[0] % known[0]:
                raise InputError(
                    f"the intent does not come out even: {w[1]!r} is not a multiple of {known[0]} ({known[1]!r})"
                )
            fields[missing] = (w[0] // known[0], f"{w[1]} and {known[1]}")


def _bounds(values: Values) -> dict[str, Any]:
    out: dict[str, dict[str, Any]] = {}
    for name, rows in values.bounds.items():
        low = [(value, phrase) for kind, value, phrase in rows if kind == "low"]
        high = [(value, phrase) for kind, value, phrase in rows if kind == "high"]
        among = [value for kind, value, _ in rows if kind == "among"]
        one: dict[str, Any] = {}
        if low:
            one["low"] = max(low)[0]
        if high:
            one["high"] = min(high)[0]
        if among:
            one["among"] = tuple(sorted(set(among[0]).intersection(*among[1:])))
        if low and high and one["low"] > one["high"]:
            raise InputError(f"the intent contradicts itself: {max(low)[1]!r} and {min(high)[1]!r} leave no {name}")
        exact = values.fields.get(name)
        if exact:
            for kind, value, phrase in rows:
                n = exact[0]
                if not (n in value if kind == "among" else n >= value if kind == "low" else n <= value):
                    raise InputError(
                        f"the intent contradicts itself: {exact[1]!r} says {name} = {exact[0]}, against {phrase!r}"
                    )
        out[name] = one
    return out


def _memory_and_buckets(values: Values) -> None:
    limit = values.fields.get("memory_limit")
    if limit and limit[0] < 1:
        raise InputError(f"{limit[1]!r}: a memory bound must be positive")
    bucket = values.fields.get("bucket_size")
    if bucket and bucket[0] <= 0:
        raise InputError(f"{bucket[1]!r}: a bucket must be larger than 0 MB")
    ways = [name for name in ("cut", "layers_per_stage", "uniform_layers") if name in values.fields]
    if len(ways) > 1:
        first, second = (values.fields[name][1] for name in ways[:2])
        raise InputError(f"the intent cuts the model in two ways: {first!r} and {second!r}; keep one")
    cut, layers, stages = (values.fields.get(name) for name in ("cut", "layers_per_stage", "stages"))
    parts = len(cut[0]) + 1 if cut else len(layers[0]) if layers else None
    said = cut or layers
    if parts and said and stages and parts != stages[0]:
        raise InputError(
            f"the intent contradicts itself: {said[1]!r} makes {count(parts, 'stage')}, {stages[1]!r} makes {stages[0]}"
        )

"""A model in a few lines of text: what a writer needs to know to place and cut it."""

from __future__ import annotations

import re

from pibroch.runtime.model import LayerSpec, ModelSpec


def facts(model: ModelSpec, *, optimizer_slots: int = 2) -> str:
    """Layers in order with their parameters, saved activations, boundary and share of the work.

    Equal neighbours are one line, with the modules of the first and the last. Bytes are of one microbatch; a parameter
    costs itself, its gradient and the optimizer's slots.
    """
    total = sum(layer.flops for layer in model.layers) or 1.0
    trainable = sum(p.nbytes for p in model.params.values() if p.trainable)
    lines = [
        f"Model {model.name}: {len(model.layers)} layers, numbered 0 to {len(model.layers) - 1}. Trainable parameters "
        f"{trainable} bytes; with gradient and optimizer state each of those occupies {2 + optimizer_slots} bytes "
        "on every device that holds it.",
        "The model fixes its stages itself: no cut." if model.fixed_stages else
        "Stages are runs of consecutive layers; without a cut they are balanced by work.",
        "",
        "| layers | modules of their parameters | parameters, bytes each | kept from forward to backward, bytes each "
        "| sent to the next layer, bytes | work, each |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    run: list[LayerSpec] = []
    for layer in [*model.layers, None]:
        if run and (layer is None or _kind(model, layer, total) != _kind(model, run[0], total)):
            name = f"{run[0].index}" if len(run) == 1 else f"{run[0].index} to {run[-1].index}"
            modules = [_modules(one) for one in (run[0], run[-1])]
            owners = " to ".join(dict.fromkeys(modules))
            lines.append("| " + " | ".join((name, owners, *_row(model, run[0], total))) + " |")
            run = []
        if layer is not None:
            run.append(layer)
    users: dict[str, list[int]] = {}
    for layer in model.layers:
        for p in layer.params:
            users.setdefault(p, []).append(layer.index)
    for p, indices in users.items():
        if len(indices) > 1:
            where = ", ".join(map(str, indices))
            lines.append(f"\nParameter {p} is shared by layers {where}; its copies stay equal by themselves.")
    if model.fixed_stages:
        stages = sorted({layer.tags["PP"] for layer in model.layers if "PP" in layer.tags})
        lines.append(f"\nIts stages: PP = {', '.join(map(str, stages))}.")
    return "\n".join(lines)


def _modules(layer: LayerSpec) -> str:
    """Where the layer's parameters live in the model: what their names begin with (layers have no other names)."""
    owners = [p.split(".")[:-1] or [p] for p in layer.params]
    same = [parts[0] for parts in zip(*owners, strict=False) if len(set(parts)) == 1]
    if same and all(owner[: len(same)] == same for owner in owners):
        return ".".join(same)
    return ", ".join(dict.fromkeys(owner[0] for owner in owners)) or "none"


def _kind(model: ModelSpec, layer: LayerSpec, total: float) -> tuple[str, ...]:
    """Equal for layers that only their number tells apart."""
    return re.sub(r"\d+", "0", _modules(layer)), *_row(model, layer, total)


def _row(model: ModelSpec, layer: LayerSpec, total: float) -> tuple[str, str, str, str]:
    params = sum(model.params[p].nbytes for p in layer.params)
    sent = sum(model.values[v].nbytes for v in layer.produces)
    return str(params), str(layer.saved_bytes), str(sent), f"{layer.flops / total:.1%}"

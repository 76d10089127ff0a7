"""A model in a few lines of text: what a writer needs to know to place and cut it."""

from __future__ import annotations

from pibroch.runtime.model import LayerSpec, ModelSpec


def facts(model: ModelSpec, *, optimizer_slots: int = 2) -> str:
    """Layers in order with their parameters, saved activations, boundary and share of the work.

    Equal neighbours are one line. Bytes are of one microbatch; a parameter costs itself, its gradient and the
    optimizer's slots.
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
        "| layers | parameters, bytes each | kept from forward to backward, bytes each "
        "| sent to the next layer, bytes | work, each |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    run: list[LayerSpec] = []
    for layer in [*model.layers, None]:
        if run and (layer is None or _row(model, layer, total) != _row(model, run[0], total)):
            name = f"{run[0].index}" if len(run) == 1 else f"{run[0].index} to {run[-1].index}"
            lines.append("| " + " | ".join((name, *_row(model, run[0], total))) + " |")
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


def _row(model: ModelSpec, layer: LayerSpec, total: float) -> tuple[str, str, str, str]:
    params = sum(model.params[p].nbytes for p in layer.params)
    sent = sum(model.values[v].nbytes for v in layer.produces)
    return str(params), str(layer.saved_bytes), str(sent), f"{layer.flops / total:.1%}"

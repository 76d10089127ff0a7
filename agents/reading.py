"""What a request tells the writer of the sentence and of the settled placement."""

from __future__ import annotations

from pibroch.agents.intent import Intent
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan

_NAMES = {
    "pipeline": "pipeline devices", "num_devices": "devices in all", "microbatches": "microbatches per replica",
    "total_microbatches": "microbatches over all replicas", "buckets": "gradient buckets (bucket_size)",
    "bucket_size": "bucket size in MB", "reduce_stream": "reductions run on", "stream": "transfers run on",
    "families": "family, one of", "cut": "stage i + 1 starts at layer", "even": "equal stages",
    "uniform_layers": "layers in every stage",
}  # fmt: skip


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def reading(intent: Intent, limit: int | None, devices: int | None) -> str:
    """What the mechanical checks hold a writer to, and which clauses they cannot."""
    skipped = {
        "text", "used", "unused", "open_clauses", "unsupported", "bounds", "ratios", "excluded", "memory_limit",
        "model_layers",
    }  # fmt: skip
    lines = [
        f"- {_NAMES.get(name, name.replace('_', ' '))}: {_plain(value)}"
        for name, value in intent.model_dump(exclude_defaults=True).items()
        if name not in skipped
    ]
    lines += [f"- {_NAMES.get(name, name.replace('_', ' '))}: {bound}" for name, bound in intent.bounds.items()]
    lines += [
        f"- {what}: {up}/{down} times the number of {base.replace('pipeline', 'pipeline devices')}"
        for what, up, down, base in intent.ratios
    ]
    lines += [f"- not {family}" for family in intent.excluded]
    if devices is not None:
        lines.append(f"- devices available: {devices}")
    if not lines:
        lines.append("- no number or family in it is checked; do what it says as far as directives can")
    lines.append("- memory bound: " + ("no bound is set" if limit is None else f"{limit} bytes per device"))
    if intent.open_clauses:
        clauses = "; ".join(f'"{clause}"' for clause in intent.open_clauses)
        lines.append(f"- clauses with words that no check covers: {clauses}. Follow them where directives can")
    lines += [f"- cannot be followed: {u.phrase} ({u.reason}); do the rest" for u in intent.unsupported if u.known]
    return "\n".join(lines)


def stages(plan: Plan, model: ModelSpec) -> str:
    """Layers, devices and trainable parameters of each stage, as buckets count them (MB is 10^6 bytes)."""
    lines = []
    for stage in range(plan.stages):
        parts = [chunk for chunk in plan.chunks if chunk.stage == stage]
        first, last = min(c.start for c in parts), max(c.stop for c in parts) - 1
        params = [model.params[p] for layer in model.layers[first : last + 1] for p in layer.params]
        size = sum(p.nbytes for p in params if p.trainable) / 1e6
        where = ", ".join(map(str, plan.placement[stage]))
        lines.append(
            f"- stage {stage} on device{'s' * (len(plan.placement[stage]) > 1)} {where}: "
            f"layer{f's {first} to {last}' if last > first else f' {first}'}, trainable parameters {size:.4g} MB"
        )
    if plan.replicas > 1:
        lines.append("\nA bucket_size above half of a stage's MB cuts nothing there.")
    return "\n".join(lines)

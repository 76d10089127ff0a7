"""Whether a lowered schedule keeps what the sentence says, checked mechanically.

The same checks hold for the planner's schedules and for written ones. Family names are checked by what defines them:
under unit costs (F = BI = BW = 1, no communication) a schedule may take no longer than the family's own and hold no
more microbatches in flight on any device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pibroch.agents.candidates import cut_of
from pibroch.agents.feedback import Feedback
from pibroch.agents.intent import Intent
from pibroch.runtime.costs import UnitCosts
from pibroch.runtime.directives import Replicate, Schedule
from pibroch.runtime.families import build, excluded
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.simulate import Simulation, simulate
from pibroch.runtime.words import count

_TINY = 1e-9


def degrees(plan: Plan) -> dict[str, int]:
    """What the plan's placement amounts to. `stages_per_device` is of the fullest device."""
    first = [row[0] for row in plan.placement]
    devices = {d for row in plan.placement for d in row}
    return {
        "stages": plan.stages,
        "pipeline": len(set(first)),
        "stages_per_device": max(first.count(d) for d in set(first)),
        "replicas": plan.replicas,
        "num_devices": len(devices),
        "microbatches": plan.microbatches,
        "total_microbatches": plan.microbatches * plan.replicas,
    }


def stage_sizes(plan: Plan) -> list[int]:
    """Layers per stage."""
    sizes = [0] * plan.stages
    for chunk in plan.chunks:
        sizes[chunk.stage] += chunk.stop - chunk.start
    return sizes


def placement_findings(intent: Intent, plan: Plan) -> list[Feedback]:
    """Phase 1: degrees, microbatches, cut and recompute against the sentence."""
    rows: list[Feedback] = []
    have = degrees(plan)
    for name, value in have.items():
        want = getattr(intent, name)
        words = name.replace("_", " ")
        if want is not None and want != value:
            rows.append(_intent(f"asked for {words} = {want}, the schedule has {value}"))
        bound = intent.bounds.get(name)
        if bound is not None and not bound.allows(value):
            rows.append(_intent(f"asked for {words} {bound}, the schedule has {value}"))
    for what, up, down, base in intent.ratios:
        target = "microbatches" if what.startswith("micro") else "replicas"
        if have[target] * down != have[base] * up:
            want = f"{up}/{down} times as many {target} as {base.replace('pipeline', 'pipeline devices')}"
            number = f"{have[base] * up / down:g}"
            rows.append(_intent(f"asked for {want}: that is {number}, the schedule has {have[target]}"))
    sizes = stage_sizes(plan)
    starts, at = [], 0
    for size in sizes[:-1]:
        at += size
        starts.append(at)
    cut = cut_of(intent)
    if cut is not None and list(cut) != starts:
        rows.append(_intent(f"asked for a cut at {list(cut)}, the stages start at {starts}"))
    if intent.uniform_layers and any(size != intent.uniform_layers for size in sizes):
        rows.append(_intent(f"asked for {intent.uniform_layers} layers per stage, the stages have {sizes}"))
    if intent.even is False and len(set(sizes)) == 1 and plan.stages > 1:
        rows.append(_intent(f"asked for an uneven cut, the stages have {sizes} layers"))
    recomputed = [chunk.recompute for chunk in plan.chunks]
    if intent.recompute is True and not all(recomputed):
        rows.append(_intent("asked for recompute: add {\"op\": \"recompute\"} with an empty filter"))
    if intent.recompute is False and any(recomputed):
        rows.append(_intent("asked for no recompute: remove the recompute directive"))
    if "interleaved" in intent.excluded and have["stages_per_device"] > 1:
        rows.append(_intent("asked for a schedule that is not interleaved: one stage per device"))
    if intent.family == "interleaved" and have["stages_per_device"] < 2:
        rows.append(_intent("interleaved means at least 2 stages on each device"))
    if intent.family in ("1f1b", "zb-h1") and have["stages_per_device"] > 1:
        rows.append(_intent(f"{intent.family} means one stage per device"))
    if intent.family and have["pipeline"] < 2 and intent.pipeline != 1:
        rows.append(_intent(f"{intent.family} is a pipeline: place the stages on at least 2 devices"))
    return rows


def concurrency_findings(intent: Intent, schedule: Schedule, plan: Plan, model: ModelSpec) -> list[Feedback]:
    """Phase 2: buckets, streams and the family against the sentence."""
    rows: list[Feedback] = []
    replicates = [d for d in schedule.directives if isinstance(d, Replicate)]
    for d in replicates:
        if intent.buckets is False and d.bucket_size is not None:
            rows.append(_intent("asked for no buckets: remove bucket_size", f"replicate {d.filter}"))
        if intent.buckets and d.bucket_size is None:
            rows.append(_intent("asked for gradient buckets: give bucket_size (MB)", f"replicate {d.filter}"))
        if intent.bucket_size and d.bucket_size is not None and abs(d.bucket_size - intent.bucket_size) > 1e-6:
            rows.append(_intent(f"asked for {intent.bucket_size:g} MB, not {d.bucket_size:g}", f"replicate {d.filter}"))
    if intent.buckets and not replicates:
        rows.append(_intent("asked for gradient buckets, but with one replica nothing is reduced"))
    rows += _streams(intent, plan)
    unit = simulate(plan, UnitCosts())
    rows += _family(intent, plan, model, unit)
    return rows


def _streams(intent: Intent, plan: Plan) -> list[Feedback]:
    rows: list[Feedback] = []
    reduces = sorted({b.stream for b in plan.buckets})
    transfers = sorted({t.stream for t in plan.tasks if t.op == "SEND"})
    if intent.reduce_stream and reduces:
        if intent.reduce_stream != "reduce" and reduces != [intent.reduce_stream]:
            rows.append(_intent(f"asked for reductions on stream {intent.reduce_stream!r}, they run on {reduces}"))
        elif set(reduces) & {"compute", *transfers}:
            rows.append(_intent(f"asked for reductions on their own stream, but they share {reduces} with other tasks"))
    named = intent.stream not in (None, "transfer")
    if named and transfers and transfers != [intent.stream]:
        rows.append(_intent(f"asked for transfers on stream {intent.stream!r}, they run on {transfers}"))
    elif intent.stream and set(transfers) & {"compute", *reduces}:
        rows.append(_intent(f"asked for transfers on their own stream, but they share {transfers} with other tasks"))
    return rows


def reference_plan(family: str, plan: Plan, model: ModelSpec) -> Plan | None:
    """The family's own schedule for the same stages, devices and microbatches; None where it has none."""
    have = degrees(plan)
    p, n = have["pipeline"], have["stages"]
    if n % p:
        return None
    cell: dict[str, Any] = {
        "devices": p, "microbatches": plan.microbatches, "stages_per_device": n // p, "replicas": plan.replicas,
    }  # fmt: skip
    if excluded(family, **cell):
        return None
    sizes, cut, at = stage_sizes(plan), [], 0
    for size in sizes[:-1]:
        at += size
        cut.append(at)
    recompute = all(chunk.recompute for chunk in plan.chunks)
    return lower(build(family, **cell, cut=None if model.fixed_stages else cut, recompute=recompute), model)


def default_family(plan: Plan) -> str:
    """What a schedule is measured by where the sentence names no family."""
    return "interleaved" if degrees(plan)["stages_per_device"] > 1 else "1f1b"


def limits(intent: Intent, plan: Plan, model: ModelSpec) -> str:
    """The numbers that phase 2's order is held to on this placement, for a prompt."""
    named: list[str] = [intent.family] if intent.family else list(intent.families)
    lines = [] if named else ["- No family is named: only the step time is limited, not the microbatches in flight."]
    if len(named) > 1:
        lines.append("- Several families are named: keep to one of them.")
    bounded = False
    for family in named or [default_family(plan)]:
        reference = reference_plan(family, plan, model)
        if reference is None:
            lines.append(f"- {family} cannot be built on this placement" + ("" if named else ": no limit is set") + ".")
            continue
        bounded = True
        own = simulate(reference, UnitCosts())
        held = f"; in flight per device, from device 0: at most {own.peak_inflight}" if named else ""
        lines.append(f"- {family} here: step time at most {own.makespan:g} units{held}.")
    if bounded:
        lines.append(
            "- A unit: F = BI = BW = 1, B = 2, recomputing 1 more, no communication. In flight counts (stage, "
            "microbatch) pairs from the start of F to the end of B, or of BW where the backward is split."
        )
    if intent.unused:
        lines.append(
            "- All this is advice here: where words that no check covers ask for something else, the sentence wins."
        )
    return "\n".join(lines)


def _family(intent: Intent, plan: Plan, model: ModelSpec, unit: Simulation) -> list[Feedback]:
    rows: list[Feedback] = []
    named = [intent.family] if intent.family else list(intent.families)
    for family in intent.excluded:
        other = reference_plan(family, plan, model)
        if other is not None and compute_order(other) == compute_order(plan) and plan.microbatches > 1:
            rows.append(_intent(f"asked for anything but {family}, and this is {family}'s order"))
    if named:
        usual = min((_is_family(family, plan, model, unit) for family in named), key=len)
    else:
        usual = _bubble(plan, model, unit)
    return rows + [replace(row, advice=bool(intent.unused)) for row in usual]


def _is_family(family: str, plan: Plan, model: ModelSpec, unit: Simulation) -> list[Feedback]:
    reference = reference_plan(family, plan, model)
    if reference is None:
        on = f"{count(plan.stages, 'stage')} on {count(degrees(plan)['pipeline'], 'pipeline device')}"
        return [_intent(f"{family} cannot be built on this placement: {on}")]
    rows: list[Feedback] = []
    own = simulate(reference, UnitCosts())
    split = any(t.op == "BW" for t in plan.tasks)
    if family == "zb-h1" and not split:
        rows.append(_intent("a zero-bubble schedule splits backwards: name BI and BW in its rows"))
    if family != "zb-h1" and split:
        rows.append(_intent(f"{family} keeps backwards whole: name B, not BI and BW"))
    if family == "gpipe":
        for device, names in plan.streams.items():
            ops = [plan.tasks[i].op for i in names.get("compute", []) if plan.tasks[i].op in ("F", "B")]
            if "F" in ops[ops.index("B") if "B" in ops else len(ops) :]:
                rows.append(_intent("GPipe runs all forwards before the first backward", f"device {device}"))
    if unit.makespan > own.makespan + _TINY:
        rows.append(
            Feedback("BUBBLE", "unit-cost simulation", f"the step takes {unit.makespan:g} units, {family} takes "
                     f"{own.makespan:g} (F = BI = BW = 1, no communication); idle per device {_list(unit.idle)}, "
                     f"{family}'s {_list(own.idle)}")
        )  # fmt: skip
    over = [d for d in range(plan.devices) if unit.peak_inflight[d] > own.peak_inflight[d]]
    if over:
        rows.append(
            Feedback("INFLIGHT", f"device {over[0]}", f"{count(unit.peak_inflight[over[0]], 'microbatch')} in flight "
                     f"at once, {family} holds {own.peak_inflight[over[0]]} (per device: {unit.peak_inflight} against "
                     f"{own.peak_inflight}): run a backward earlier")
        )  # fmt: skip
    return rows


def _bubble(plan: Plan, model: ModelSpec, unit: Simulation) -> list[Feedback]:
    """No family asked for: no slower than the classic one of the same placement."""
    family = default_family(plan)
    reference = reference_plan(family, plan, model)
    if reference is None:
        return []
    own = simulate(reference, UnitCosts())
    if unit.makespan <= own.makespan + _TINY:
        return []
    return [
        Feedback("BUBBLE", "unit-cost simulation", f"the step takes {unit.makespan:g} units; {family} on the same "
                 f"placement takes {own.makespan:g} (F = BI = BW = 1, no communication)")
    ]  # fmt: skip


def compute_order(plan: Plan) -> dict[int, list[str]]:
    """Per device the compute actions in order, parts of a stage merged."""
    rows: dict[int, list[str]] = {}
    for device, names in plan.streams.items():
        row: list[str] = []
        for i in names.get("compute", []):
            task = plan.tasks[i]
            if task.mb >= 0 and (not row or row[-1] != f"{task.stage}{task.op}{task.mb}"):
                row.append(f"{task.stage}{task.op}{task.mb}")
        rows[device] = row
    return rows


def _list(values: list[float]) -> str:
    return "[" + ", ".join(f"{v:g}" for v in values) + "]"


def _intent(message: str, where: str = "") -> Feedback:
    return Feedback("INTENT", where, message)

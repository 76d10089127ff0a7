"""The two phases of a schedule, split by field, and how each is judged.

Phase 1 (what goes where) owns split, place and replicate with their devices, cut and recompute. Phase 2 (when) owns
`place.stream`, `replicate.reduce_stream`, `replicate.bucket_size` and the order rows. Erasing phase 2's fields from a
finished schedule gives phase 1's result back.
"""

from __future__ import annotations

from pibroch.agents.constraints import concurrency_findings, placement_findings
from pibroch.agents.feedback import Feedback
from pibroch.agents.intent import Intent
from pibroch.runtime.costs import Costs
from pibroch.runtime.directives import AnyDirective, Order, Place, Replicate, Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.simulate import Simulation, simulate
from pibroch.runtime.verify import verify


def erase_phase2(schedule: Schedule) -> Schedule:
    """The schedule without the fields of phase 2: order rows gone, streams and bucket sizes at their defaults."""
    rows: list[AnyDirective] = []
    for d in schedule.directives:
        if isinstance(d, Order):
            continue
        if isinstance(d, Place):
            rows.append(Place(filter=d.filter, devices=d.devices))
        elif isinstance(d, Replicate):
            rows.append(Replicate(filter=d.filter, devices=d.devices))
        else:
            rows.append(d)
    return Schedule(directives=rows)


def judge_placement(schedule: Schedule, intent: Intent, model: ModelSpec) -> tuple[Plan | None, list[Feedback]]:
    """Phase 1: no field of phase 2, V1 to V6, V8 and V9 under the default order, and the sentence's numbers."""
    if erase_phase2(schedule).directives != schedule.directives:
        message = "order, stream, reduce_stream and bucket_size belong to phase 2: leave them out for now"
        return None, [Feedback("PHASE", "", message)]
    plan, rows = _lower(schedule, model)
    if plan is None:
        return None, rows
    rows = [Feedback(v.rule, v.where, v.message) for v in verify(plan, model=model)]
    return plan, rows + placement_findings(intent, plan)


def judge_concurrency(
    schedule: Schedule,
    placement: Schedule,
    intent: Intent,
    model: ModelSpec,
    costs: Costs,
    limit: int | None,
) -> tuple[Simulation | None, list[Feedback]]:
    """Phase 2: phase 1 untouched, all rules with the simulated peak against the bound, family and streams."""
    if erase_phase2(schedule).directives != placement.directives:
        return None, [Feedback("PHASE", _first_change(erase_phase2(schedule), placement), (
            "phase 2 changes only stream, reduce_stream and bucket_size, and adds order rows: without them the "
            "schedule must equal phase 1's result, directive by directive and in its order"
        ))]  # fmt: skip
    plan, rows = _lower(schedule, model)
    if plan is None:
        return None, rows
    try:
        simulation = simulate(plan, costs)
    except InputError as error:
        return None, [Feedback("V5", "", str(error))]
    found = verify(plan, model=model, memory_limit=limit, peak_bytes=simulation.peak_bytes)
    rows = [Feedback(v.rule, v.where, v.message) for v in found]
    if not rows:
        rows = concurrency_findings(intent, schedule, plan, model)
    return simulation, rows + placement_findings(intent, plan)


def numbers(simulation: Simulation) -> str:
    """What the simulator says, for a prompt."""
    return (
        f"bubble {simulation.bubble:.1%}, peak bytes per device {simulation.peak_bytes}, "
        f"microbatches in flight per device {simulation.peak_inflight}"
    )


def _lower(schedule: Schedule, model: ModelSpec) -> tuple[Plan | None, list[Feedback]]:
    try:
        return lower(schedule, model), []
    except InputError as error:
        text = str(error)
        rule = next((f"V{i}" for i in range(1, 10) if f"V{i}" in text), "V9")
        return None, [Feedback(rule, "", text)]


def _first_change(have: Schedule, want: Schedule) -> str:
    for i, (a, b) in enumerate(zip(have.directives, want.directives, strict=False)):
        if a != b:
            return f"directive {i} without phase 2's fields is {a.model_dump(exclude_defaults=True)} of op {a.op}"
    return f"{len(have.directives)} directives without order rows, phase 1 has {len(want.directives)}"

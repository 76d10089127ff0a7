"""`pibroch check`: lower, verify and simulate a schedule; nothing runs."""

from __future__ import annotations

from typing import Any

from pibroch.cli.common import Json, MemoryLimit, Model, Profile, ScheduleFile, finish, parse_bytes, say

NAME = "check"


def command(
    schedule: ScheduleFile,
    model: Model = None,
    memory_limit: MemoryLimit = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Prove a schedule: every rule of the verifier over all devices at once, then a simulated step."""
    from pibroch.cli.loading import Refused, load_model, load_schedule_named, lower_named
    from pibroch.cli.report import (
        VERIFIED,
        choose_costs,
        costs_line,
        plan_line,
        simulation_lines,
        simulation_row,
        violation_lines,
        violation_rows,
    )
    from pibroch.runtime.simulate import simulate
    from pibroch.runtime.verify import verify

    limit = parse_bytes(memory_limit)
    costs, kind = choose_costs(profile), "profile" if profile else "estimated"
    parsed = load_schedule_named(schedule)
    spec = load_model(model).spec
    result: dict[str, Any] = {"ok": False, "schedule": str(schedule), "model": spec.name}
    try:
        plan = lower_named(schedule, parsed, spec)
    except Refused as error:
        # The compiler found it before there was a plan to verify: report it in the same form.
        row = {"rule": error.rule, "where": error.where, "message": error.reason}
        refused = {**result, "violations": [row], "simulated": None}
        finish(refused, [], problems=[f"{schedule}: refused by the compiler: {error.short}"], as_json=as_json)
        return
    say(f"verifying {len(plan.tasks)} tasks")
    violations = verify(plan, model=spec)
    # A plan that breaks a rule may never end: only one that keeps them is simulated.
    simulation = simulate(plan, costs) if not violations else None
    if simulation and limit is not None:
        violations = verify(plan, model=spec, memory_limit=limit, peak_bytes=simulation.peak_bytes)
    result["ok"] = not violations
    result["violations"] = violation_rows(violations)
    result["simulated"] = {**simulation_row(simulation), "costs": kind} if simulation else None
    lines = [plan_line(plan), *([] if violations else [VERIFIED])]
    if simulation:
        lines += [*simulation_lines(simulation), costs_line(kind)]
    finish(result, lines, problems=violation_lines(str(schedule), violations), as_json=as_json)

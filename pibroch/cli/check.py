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
        choose_costs,
        plan_line,
        simulation_lines,
        simulation_row,
        violation_lines,
        violation_rows,
    )
    from pibroch.runtime.simulate import simulate
    from pibroch.runtime.verify import verify

    limit = parse_bytes(memory_limit)
    costs = choose_costs(profile)
    parsed = load_schedule_named(schedule)
    spec = load_model(model).spec
    result: dict[str, Any] = {"ok": False, "schedule": str(schedule), "model": spec.name}
    try:
        plan = lower_named(schedule, parsed, spec)
    except Refused as error:
        # The compiler found it before there was a plan to verify: report it in the same form.
        row = {"rule": error.rule, "where": error.where, "message": error.reason}
        lines = ["refused    by the compiler", f"  {error.rule} {error.where}: {error.reason}"]
        finish({**result, "violations": [row], "simulated": None}, lines, as_json=as_json)
        return
    say(f"verifying {len(plan.tasks)} tasks")
    violations = verify(plan, model=spec)
    # A plan that breaks a rule may never end: only one that keeps them is simulated.
    simulation = simulate(plan, costs) if not violations else None
    if simulation and limit is not None:
        violations = verify(plan, model=spec, memory_limit=limit, peak_bytes=simulation.peak_bytes)
    result["ok"] = not violations
    result["violations"] = violation_rows(violations)
    result["simulated"] = simulation_row(simulation) if simulation else None
    lines = [plan_line(plan), *violation_lines(violations)]
    if simulation:
        lines += simulation_lines(simulation)
    finish(result, lines, as_json=as_json)

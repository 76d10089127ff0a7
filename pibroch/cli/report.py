"""Results in numbers (for `--json`) and in lines (for people) that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pibroch.cli.common import show_bytes, show_seconds
from pibroch.runtime.words import count

if TYPE_CHECKING:
    from pibroch.runtime.costs import Costs
    from pibroch.runtime.plan import Plan
    from pibroch.runtime.simulate import Simulation
    from pibroch.runtime.verify import Violation

VERIFIED = "verified   every rule holds, V1 to V9, over all devices"
COSTS = {
    "estimated": "estimated from operations",
    "measured": "measured on these workers",
    "profile": "from a profile",
    "units": "unit costs",
}


def plan_line(plan: Plan) -> str:
    """How large a plan is, in one line."""
    replicas = f" × {plan.replicas} replicas" if plan.replicas > 1 else ""
    return (
        f"plan       {plan.model}: {count(plan.stages, 'stage')}{replicas} on {count(plan.devices, 'device')}, "
        f"{count(plan.microbatches, 'microbatch')}, {len(plan.tasks)} tasks"
    )


def violation_rows(violations: list[Violation]) -> list[dict[str, str]]:
    return [{"rule": v.rule, "where": v.where, "message": v.message} for v in violations]


def violation_lines(source: str, violations: list[Violation], *, most: int = 20) -> list[str]:
    """What the verifier found in `source`, at most `most` violations in full; nothing where every rule holds."""
    if not violations:
        return []
    lines = [f"{source}: refused by the verifier: {count(len(violations), 'violation')}"]
    # A message opens with its rule and place already, and may draw the rows around the fault below.
    lines += ["  " + v.message.replace("\n", "\n  ") for v in violations[:most]]
    if len(violations) > most:
        lines.append(f"  … and {len(violations) - most} more (--json lists all)")
    return lines


def simulation_row(simulation: Simulation) -> dict[str, Any]:
    """The simulated step: times in seconds (in units under unit costs), memory in bytes, lists per device."""
    return {
        "makespan": simulation.makespan,
        "bubble": simulation.bubble,
        "idle": list(simulation.idle),
        "peak_inflight": list(simulation.peak_inflight),
        "peak_bytes": list(simulation.peak_bytes),
    }


def simulation_lines(simulation: Simulation, *, units: bool = False, memory: bool = True) -> list[str]:
    """`memory=False` leaves the bytes out, where the model is only a stand-in."""

    def show(times: list[float]) -> str:
        return ", ".join(f"{t:g}" if units else show_seconds(t) for t in times)

    span = show([simulation.makespan]) + (" units" if units else "")
    lines = [
        f"simulated  makespan {span} · bubble {simulation.bubble:.1%}",
        f"idle       {show(simulation.idle)} per device",
        f"in flight  {', '.join(map(str, simulation.peak_inflight))} microbatches at most, per device",
    ]
    if memory:
        lines.append(f"memory     {', '.join(show_bytes(b) for b in simulation.peak_bytes)} at most, per device")
    return lines


def costs_line(costs: str) -> str:
    """Which costs a simulated step was timed with: "estimated", "measured", "profile" or "units"."""
    return f"costs      {COSTS[costs]}"


def choose_costs(profile: str | None, *, unit_costs: bool = False) -> Costs:
    """Unit costs, a profile's costs, or the analytic default. Raises `InputError` for an unknown profile."""
    from pibroch.runtime.costs import AnalyticCosts, UnitCosts

    if unit_costs:
        return UnitCosts()
    if profile is None:
        return AnalyticCosts()
    from pibroch.runtime.profile import load_profile

    return load_profile(profile).costs()

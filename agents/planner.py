"""The deterministic writer: classic families, their open parameters chosen on the simulator.

It chooses what the intent leaves open (family, microbatches, cut, bucket size, and recompute where nothing else fits a
memory bound) by simulated step time per microbatch, or by peak memory where the intent asks for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pibroch.agents.candidates import Candidate, candidates, with_recompute
from pibroch.agents.intent import Intent
from pibroch.runtime.costs import AnalyticCosts, Costs
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.generated import load_generated
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.simulate import Simulation, simulate
from pibroch.runtime.verify import verify
from pibroch.runtime.words import count

MAX_ALTERNATIVES = 8


@dataclass(frozen=True, slots=True)
class Alternative:
    """A candidate that was simulated: step time in seconds of the cost model, peak bytes of the fullest device."""

    candidate: str
    seconds: float
    peak_bytes: int
    note: str


@dataclass(frozen=True, slots=True)
class PlannedSchedule:
    """The planner's choice. `matches` is False where the sentence asks for something that was not followed."""

    schedule: Schedule
    family: str
    why: list[str]
    alternatives: list[Alternative] = field(default_factory=list)
    matches: bool = True


@dataclass(frozen=True, slots=True)
class _Scored:
    candidate: Candidate
    schedule: Schedule
    plan: Plan
    simulation: Simulation

    @property
    def peak(self) -> int:
        return max(self.simulation.peak_bytes)

    @property
    def per_microbatch(self) -> float:
        return self.simulation.makespan / (self.candidate.m * self.candidate.k)


def default_costs(model: ModelSpec) -> Costs:
    """Costs that need no measurement. Only their ratios matter here: one forward of the whole model takes 0.1 s, and
    a link carries 1 GB/s after 0.1 ms."""
    total = sum(layer.flops for layer in model.layers) or 1.0
    return AnalyticCosts(flops_per_s=total / 0.1, bandwidth=1e9, latency=1e-4)


def plan_schedule(
    intent: Intent,
    model: ModelSpec,
    *,
    devices_available: int | None = None,
    costs: Costs | None = None,
    memory_limit: int | None = None,
) -> PlannedSchedule:
    """The best schedule that keeps what the intent says. `memory_limit` (bytes per device) joins the intent's own.

    Raises `InputError` where nothing keeps the intent's numbers, or nothing fits the memory bound.
    """
    costs = costs or default_costs(model)
    limits = [n for n in (intent.memory_limit, memory_limit) if n is not None]
    limit = min(limits) if limits else None
    rows = candidates(intent, model, devices_available=devices_available)
    scored = [_score(row, model, costs) for row in rows]
    fitting = [s for s in scored if limit is None or s.peak <= limit]
    if not fitting and intent.recompute is None:
        again = [_score(with_recompute(row), model, costs) for row in rows]
        scored += again
        fitting = [s for s in again if limit is None or s.peak <= limit]
    if not fitting:
        least = min(scored, key=lambda s: s.peak)
        raise InputError(
            f"nothing fits {limit} bytes per device: the least is {least.peak} bytes with {least.candidate}; "
            "raise the bound, or ask for more stages or fewer microbatches"
        )
    ranked = _ranked(fitting, intent)
    best = next((s for s in ranked if not verify(s.plan, model=model)), None)
    if best is None:
        first = verify(ranked[0].plan, model=model)[0]
        raise InputError(f"{ranked[0].candidate} cannot be proven: {first.message}")
    others = [s for s in _ranked(scored, intent) if s is not best]
    return PlannedSchedule(
        schedule=best.schedule,
        family=best.candidate.family,
        why=_why(best, intent, limit, len(scored)),
        alternatives=[_alternative(s, best, limit) for s in others[:MAX_ALTERNATIVES]],
        matches=not intent.unsupported,
    )


def _score(candidate: Candidate, model: ModelSpec, costs: Costs) -> _Scored:
    schedule = candidate.build()
    plan = lower(schedule, model)
    return _Scored(candidate, schedule, plan, simulate(plan, costs))


def _ranked(scored: list[_Scored], intent: Intent) -> list[_Scored]:
    """Best first: those that no other beats in time and memory at once, then the others."""
    ordered = sorted(scored, key=lambda s: _key(s, intent))
    front = load_generated("pareto").front([_objectives(s) for s in ordered])
    rest = sorted(set(range(len(ordered))) - set(front))
    return [ordered[i] for i in (*front, *rest)]


def _objectives(s: _Scored) -> list[int]:
    """To be minimised: time per microbatch, to six digits as in `_key`, and peak bytes."""
    return [round(float(f"{s.per_microbatch:.6g}") * 1e12), s.peak]


def _key(s: _Scored, intent: Intent) -> tuple[float, ...]:
    # Rounded: two candidates that differ in the tenth digit are equal, and then the simpler one wins.
    time, peak = float(f"{s.per_microbatch:.6g}"), float(s.peak)
    simple = (float(s.candidate.v), s.candidate.bucket_size is not None, -(s.candidate.bucket_size or 0.0))
    first = (peak, time) if intent.objective == "memory" else (time, peak)
    return (*first, *simple)


def _why(best: _Scored, intent: Intent, limit: int | None, tried: int) -> list[str]:
    goal = "the least peak memory" if intent.objective == "memory" else "the least simulated time per microbatch"
    lines = [f"{best.candidate}: {goal} of {count(tried, 'candidate')}"]
    lines.append(f"simulated bubble {best.simulation.bubble:.1%}, peak {best.peak} bytes on the fullest device")
    if limit is not None:
        lines.append(f"fits the bound of {limit} bytes per device")
    c = best.candidate
    chosen = []
    if not intent.family:
        chosen.append(f"family {c.family}")
    if not any((intent.microbatches, intent.total_microbatches, intent.ratios)):
        chosen.append(f"{count(c.m, 'microbatch')} per replica")
    if not (intent.stages or intent.pipeline):
        chosen.append(f"{count(c.p * c.v, 'stage')} on {count(c.p, 'pipeline device')}")
    if intent.replicas is None:
        chosen.append(count(c.k, "replica"))
    if c.bucket_size and not intent.bucket_size:
        chosen.append(f"bucket size {c.bucket_size:g} MB")
    if c.recompute and intent.recompute is None:
        chosen.append("recompute, as nothing else fits")
    if chosen:
        lines.append("chosen, as the intent leaves it open: " + ", ".join(chosen))
    if intent.buckets and c.k == 1:
        lines.append("buckets have no effect with one replica")
    lines += [f"not followed: {u.phrase!r} ({u.reason} is not supported)" for u in intent.unsupported]
    if intent.unused:
        lines.append("words not used: " + "; ".join(intent.unused))
    return lines


def _alternative(s: _Scored, best: _Scored, limit: int | None) -> Alternative:
    if limit is not None and s.peak > limit:
        note = f"peak {s.peak} bytes exceeds the bound"
    else:
        ratio = s.per_microbatch / best.per_microbatch if best.per_microbatch else 1.0
        note = f"{ratio:.3f} times the time per microbatch, {s.peak - best.peak:+d} bytes of peak memory"
    return Alternative(str(s.candidate), s.simulation.makespan, s.peak, note)

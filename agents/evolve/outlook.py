"""What a design could reach at best, from its figures alone: no order of chunks is made and nothing is simulated.

    position    waits until the first microbatch reaches its lowest stage, then has m microbatches of work; its stages
                end with the last of them, from the highest to the lowest, and their gradients are reduced in turn
    microbatch  one goes forwards and back through all stages, the others follow it through the slowest stage

Where the memory bound has no room for what a full pipeline holds (in-flight bounds of depth 1), the position's forwards
are counted twice: they would be recomputed.
"""

from __future__ import annotations

from pibroch.agents.evolve.design import Design, changed
from pibroch.agents.evolve.figures import Figures, figures
from pibroch.agents.evolve.order import in_flight_bounds
from pibroch.evals.setting import Setting


def outlook(design: Design, setting: Setting) -> float:
    """Seconds of a step. Raises `InputError` where the design does not lower; infinite where nothing fits."""
    known = figures(changed(design, recompute=frozenset(), layer_recompute=()), setting)
    m, limit = design.microbatches, setting.task.memory_limit
    bounds = in_flight_bounds(design, known, 1.0, split=False)
    arrives = _arrivals(design, known)
    worst = 0.0
    for r, stages in enumerate(design.positions):
        work = m * known.load(stages)
        again = design.recompute & set(stages)
        if limit is not None:
            if known.fixed[r] > limit:
                return float("inf")
            held = known.fixed[r] + sum(known.kept[s] * bounds[s] for s in stages)
            if held + max(known.during["B"][s] for s in stages) > limit:
                again = again | set(stages)
        work += m * sum(known.seconds["F"][s] for s in again)
        end = min(arrives[s] for s in stages) + work
        reduced = 0.0
        for s in reversed(stages):
            ready = end - sum(known.seconds["B"][t] for t in stages if t < s)
            reduced = max(reduced, ready) + sum(seconds for _, seconds in known.reductions[s])
        worst = max(worst, end, reduced)
    slowest = max(max(known.seconds["F"][s], known.seconds["BI"][s]) for s in range(design.stages))
    return max(worst, _round_trip(design, known, arrives) + (m - 1) * slowest)


def _arrivals(design: Design, known: Figures) -> list[float]:
    """When each stage's first forward can start."""
    times = [0.0] * design.stages
    for s in range(design.stages):
        for edge in known.forward_to[s]:
            there = times[s] + known.seconds["F"][s] + edge.seconds + edge.latency
            times[edge.stage] = max(times[edge.stage], there)
    return times


def _round_trip(design: Design, known: Figures, arrives: list[float]) -> float:
    """One microbatch alone: until the first stage's input gradient, or what is nearest to it, is done."""
    times = [arrives[s] + known.seconds["F"][s] for s in range(design.stages)]
    for s in reversed(range(design.stages)):
        times[s] += known.seconds["BI"][s]
        for edge in known.backward_to[s]:
            times[edge.stage] = max(times[edge.stage], times[s] + edge.seconds + edge.latency)
    return max(times)

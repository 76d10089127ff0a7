"""What a design could reach at best, from its figures alone: no order of chunks is made and nothing is simulated.

    position    waits until the first microbatch reaches its lowest stage, then has m microbatches of work; its stages
                end with the last of them, from the highest to the lowest, and their gradients are reduced in turn
    microbatch  one goes forwards and back through all stages, the others follow it through the slowest stage

Where the memory bound has no room for what a full pipeline holds (in-flight bounds of depth 1), forwards of the
position's stages are counted twice until there is, the shortest first: they would be recomputed.
"""

from __future__ import annotations

from pibroch.agents.evolve.design import Design, changed
from pibroch.agents.evolve.figures import Figures, figures
from pibroch.agents.evolve.order import in_flight_bounds
from pibroch.evals.setting import Setting

_OPS = {"B": ("B",), "BI": ("BI", "BW")}


def outlook(design: Design, setting: Setting) -> float:
    """Seconds of a step. Raises `InputError` where the design does not lower; infinite where nothing fits."""
    known = figures(changed(design, recompute=frozenset(), layer_recompute=()), setting)
    m, limit = design.microbatches, setting.task.memory_limit
    less = known
    if limit is not None:
        less = figures(changed(design, recompute=frozenset(range(design.stages)), layer_recompute=()), setting)
    bounds = in_flight_bounds(design, known, 1.0, split=frozenset())
    arrives = _arrivals(design, known)
    worst = 0.0
    for r, stages in enumerate(design.positions):
        work = m * known.load(stages)
        again = design.recompute & set(stages)
        if limit is not None:
            if known.fixed[r] > limit:
                return float("inf")
            held = known.fixed[r] + sum(known.kept[s] * bounds[s] for s in stages)
            extra = max(known.during["B"][s] for s in stages)
            for s in sorted(stages, key=lambda s: known.seconds["F"][s]):
                if held + extra <= limit:
                    break
                again = again | {s}
                held -= (known.kept[s] - less.kept[s]) * bounds[s]
                extra = max(extra, less.during["B"][s])
        work += m * sum(known.seconds["F"][s] for s in again)
        end = min(arrives[s] for s in stages) + work
        reduced = 0.0
        for s in reversed(stages):
            ready = end - sum(known.seconds["B"][t] for t in stages if t < s)
            reduced = max(reduced, ready) + sum(seconds for _, seconds in known.reductions[s])
        worst = max(worst, max(end, reduced) + sum(known.update[s] for s in stages))
    slowest = max(max(known.seconds["F"][s], known.seconds["BI"][s]) for s in range(design.stages))
    return max(worst, _round_trip(design, known, arrives) + (m - 1) * slowest)


def family_outlook(design: Design, setting: Setting) -> float:
    """Seconds of a step with a classic family's rows, from closed forms: the pipeline fills up to a position, the
    position works without a break, and the last gradient goes back through the stages before it. Split backwards fill
    part of that way with weight gradients (as ZB-H1's bubble, arXiv 2401.10241). Exact for equal stages and free
    transfers. Raises `InputError` where the design does not lower."""
    known, m = figures(design, setting), design.microbatches
    back = "BI" if design.split_stages else "B"
    arrives = _arrivals(design, known)
    drain = [0.0] * design.stages
    for s in range(design.stages):
        for edge in known.backward_to[s]:
            saved = known.seconds["BW"][edge.stage] if back == "BI" else 0.0
            way = edge.seconds + edge.latency + known.seconds[back][edge.stage]
            drain[s] = max(drain[s], drain[edge.stage] + max(0.0, way - saved))
    worst = 0.0
    for stages in design.positions:
        work = m * sum(known.seconds["F"][s] + sum(known.seconds[op][s] for op in _OPS[back]) for s in stages)
        sent = m * sum(edge.seconds for s in stages for edge in (*known.forward_to[s], *known.backward_to[s]))
        end = min(arrives[s] for s in stages) + max(work, sent) + min(drain[s] for s in stages)
        reduced = sum(seconds for _, seconds in known.reductions[stages[0]])
        worst = max(worst, end + reduced + sum(known.update[s] for s in stages))
    return worst


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

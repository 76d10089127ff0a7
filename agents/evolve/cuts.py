"""Cuts under the memory bound: the slowest position counts with the forwards that it has to run again.

A stage's figures are put together from those of its layers, so that no cut that is looked at has to be lowered: it
keeps what its layers keep, less what they give each other, or where it is recomputed, what its first layer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pibroch.agents.evolve.design import Design, Rule
from pibroch.agents.evolve.figures import PASSES, Edge, Figures, figures
from pibroch.agents.evolve.kept import kept
from pibroch.agents.evolve.order import in_flight_bounds
from pibroch.evals.setting import Setting

Score = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Layers:
    """Figures of a pipeline with one layer per stage, without and with recompute."""

    plain: Figures
    again: Figures


def layer_figures(setting: Setting, replicas: int, microbatches: int) -> Layers:
    """For models that do not fix their stages."""

    def make() -> Layers:
        count = len(setting.model(replicas, microbatches).layers)
        plain, again = (
            Design(
                microbatches=microbatches,
                placement=tuple(tuple(range(s * replicas, (s + 1) * replicas)) for s in range(count)),
                rows=(),
                rule=Rule("rows"),
                cut=tuple(range(1, count)),
                recompute=recompute,
                bucket_size=(None,) * count,
            )
            for recompute in (frozenset[int](), frozenset(range(count)))
        )
        # What each task costs beyond its layers would count once per layer.
        bare = setting.without_overhead()
        return Layers(figures(plain, bare), figures(again, bare))

    return kept(setting, "layer figures", (replicas, microbatches), make)


def cut_in_bound(design: Design, setting: Setting, start: Sequence[int]) -> tuple[int, ...]:
    """Inner boundaries for which the slowest position, with what the memory bound makes it recompute, is fast. From
    `start` one layer at a time goes to or from a stage of the slowest position, while that helps."""
    layers = layer_figures(setting, design.replicas, design.microbatches)
    count = len(layers.plain.kept)
    limit = setting.task.memory_limit
    best = [0, *start, count]
    score, slowest = _score(design, layers, best, limit)
    improved = True
    while improved:
        improved = False
        for moved in _moves(best, design.positions[slowest]):
            new, where = _score(design, layers, moved, limit)
            if new < (score[0] * (1 - 1e-9), score[1] * (1 - 1e-9), score[2]):
                best, score, slowest, improved = moved, new, where, True
                break
    return tuple(best[1:-1])


def _moves(bounds: list[int], stages: Sequence[int]) -> list[list[int]]:
    """One layer from these stages to another or back: the boundaries between the two move by one."""
    found = []
    for s in stages:
        for t in range(len(bounds) - 1):
            low, high = min(s, t), max(s, t)
            for step in (-1, 1) if s != t else ():
                moved = [b + step if low < i <= high else b for i, b in enumerate(bounds)]
                if moved[low + 1] > moved[low] and moved[high + 1] > moved[high]:
                    found.append(moved)
    return found


def _score(design: Design, layers: Layers, bounds: list[int], limit: int | None) -> tuple[Score, int]:
    """(bytes over the bound, seconds of the slowest position, sum of squares), and the position that is slowest."""
    known = stage_figures(layers, bounds)
    flying = in_flight_bounds(design, known, 1.0, split=frozenset())
    over, times, alone = 0.0, [], len(design.positions) == 1
    for stages in design.positions:
        time = known.load(stages) + sum(known.update[s] for s in stages) / design.microbatches
        fixed = sum(layers.plain.fixed[x] for s in stages for x in range(bounds[s], bounds[s + 1]))
        held = {s: flying[s] * known.kept[s] + (0 if alone else known.posted[s]) for s in stages}
        needs = {s: known.during["B"][s] for s in stages}
        # Alone, the last stage's backward follows its forward: to recompute it saves nothing.
        for s in sorted(stages[:-1] if alone else stages, key=lambda s: known.seconds["F"][s]):
            if limit is None or fixed + _fullest(held, needs, alone=alone) <= limit:
                break
            held[s] -= flying[s] * (known.kept[s] - layers.again.kept[bounds[s]])
            needs[s] += known.kept[s]
            time += known.seconds["F"][s]
        over = max(over, fixed + _fullest(held, needs, alone=alone) - limit) if limit is not None else 0.0
        times.append(time)
    slowest = times.index(max(times))
    return (over, times[slowest], sum(t * t for t in times)), slowest


def _fullest(held: dict[int, int], needs: dict[int, int], *, alone: bool) -> int:
    """Bytes when the backward that `needs` most runs and everything is in flight. Where one position has all stages,
    they run one microbatch after the other, so that a stage's backward finds nothing left of the later stages."""
    if alone:
        return max(sum(held[t] for t in held if t <= s) + needs[s] for s in needs)
    return sum(held.values()) + max(needs.values())


def stage_figures(both: Layers, bounds: Sequence[int]) -> Figures:
    """Figures of stages of consecutive layers, each on a position of its own."""
    layers = both.plain
    stages = len(bounds) - 1
    of = [s for s in range(stages) for _ in range(bounds[s], bounds[s + 1])]

    def total(values: Sequence[int]) -> tuple[int, ...]:
        sums = [0, *accumulate(values)]
        return tuple(sums[bounds[s + 1]] - sums[bounds[s]] for s in range(stages))

    def seconds(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(sum(values[bounds[s] : bounds[s + 1]]) for s in range(stages))

    def edges(rows: Sequence[Sequence[Edge]]) -> tuple[tuple[Edge, ...], ...]:
        found: list[dict[int, Edge]] = [{} for _ in range(stages)]
        for x, row in enumerate(rows):
            for edge in row:
                s, t = of[x], of[edge.stage]
                if s != t:
                    before = found[s].get(t, Edge(t, 0.0, 0.0))
                    found[s][t] = Edge(t, max(before.latency, edge.latency), before.seconds + edge.seconds)
        return tuple(tuple(row.values()) for row in found)

    return Figures(
        seconds={op: seconds(layers.seconds[op]) for op in PASSES},
        forward_to=edges(layers.forward_to),
        backward_to=edges(layers.backward_to),
        # In a chain what an inner layer was given is its neighbour's, and kept there.
        kept=tuple(
            kept - sum(both.again.kept[bounds[s] + 1 : bounds[s + 1]]) for s, kept in enumerate(total(layers.kept))
        ),
        weight_kept=total(layers.weight_kept),
        during={op: tuple(max(layers.during[op][bounds[s] : bounds[s + 1]]) for s in range(stages)) for op in PASSES},
        posted=tuple(max(layers.posted[bounds[s]], layers.posted[bounds[s + 1] - 1]) for s in range(stages)),
        reductions=((),) * stages,
        update=seconds(layers.update),
        fixed=total(layers.fixed),
    )

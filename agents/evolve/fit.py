"""Fitting a design into the memory bound: recompute as little as that needs. Bytes are counted along the rows."""

from __future__ import annotations

from itertools import product

from pibroch.agents.evolve.design import Design, changed
from pibroch.agents.evolve.figures import Figures, figures, most_bytes
from pibroch.evals.setting import Setting

_SUBSETS = 6
"""Stages of one position for which every choice is looked at; with more, they go from the last to the first."""


def least_recompute(design: Design, setting: Setting) -> frozenset[int]:
    """The stages to recompute so that every position's row fits the memory bound, at the least cost in time.

    All stages of a position that does not fit anyhow. Raises `InputError` where the design does not lower.
    """
    every = frozenset(range(design.stages))
    limit = setting.task.memory_limit
    if limit is None:
        return frozenset()
    plain = changed(design, recompute=frozenset(), layer_recompute=())
    with_, without = figures(changed(plain, recompute=every), setting), figures(plain, setting)
    chosen: set[int] = set()
    for r, stages in enumerate(design.positions):
        for some in _choices(stages, without):
            if _peak(design, r, with_, without, some) <= limit:
                chosen |= some
                break
        else:
            chosen |= set(stages)
    return frozenset(chosen)


def _choices(stages: tuple[int, ...], known: Figures) -> list[set[int]]:
    """Sets of stages to recompute, the cheapest first."""
    if len(stages) <= _SUBSETS:
        masks = product((False, True), repeat=len(stages))
        sets = [{s for s, on in zip(stages, mask, strict=True) if on} for mask in masks]
    else:
        sets = [set(stages[len(stages) - n :]) for n in range(len(stages) + 1)]
    return sorted(sets, key=lambda some: (sum(known.seconds["F"][s] for s in some), sorted(some)))


def _peak(design: Design, position: int, with_: Figures, without: Figures, some: set[int]) -> int:
    mixed = Figures(
        seconds=without.seconds,
        forward_to=without.forward_to,
        backward_to=without.backward_to,
        kept=_mixed(with_.kept, without.kept, some),
        weight_kept=without.weight_kept,
        during={op: _mixed(with_.during[op], without.during[op], some) for op in without.during},
        posted=without.posted,
        reductions=without.reductions,
        fixed=without.fixed,
    )
    return most_bytes(design, mixed)[position]


def _mixed(one: tuple[int, ...], other: tuple[int, ...], some: set[int]) -> tuple[int, ...]:
    return tuple(a if s in some else b for s, (a, b) in enumerate(zip(one, other, strict=True)))

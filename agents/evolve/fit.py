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
    limit = setting.task.memory_limit
    if limit is None:
        return frozenset()
    plain = changed(design, recompute=frozenset(), layer_recompute=())
    without = figures(plain, setting)
    chosen: set[int] = set()
    for r, stages in enumerate(design.positions):
        for some in _choices(stages, without):
            if _peak(changed(plain, recompute=frozenset(some)), r, setting) <= limit:
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


def _peak(design: Design, position: int, setting: Setting) -> int:
    return most_bytes(design, figures(design, setting))[position]

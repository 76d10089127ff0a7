"""The classic families that promise most on a task, by closed forms: what a run tries before it changes structure.

Each is fitted into the memory bound by recomputing as few stages as its rows need.
"""

from __future__ import annotations

from pibroch.agents.evolve.cuts import cut_in_bound
from pibroch.agents.evolve.design import Design, changed
from pibroch.agents.evolve.edit_base import NotApplicable, fitted
from pibroch.agents.evolve.figures import figures, least_bytes, most_bytes
from pibroch.agents.evolve.grid import CUTS, cell_design, cells
from pibroch.agents.evolve.outlook import family_outlook
from pibroch.evals.setting import Setting
from pibroch.runtime.errors import InputError

NEAR = 1.4
"""A family whose outlook is so many times the best one's is not worth an evaluation."""


def promising(setting: Setting, *, count: int) -> list[tuple[Design, str]]:
    """At most `count` designs with a name: the best outlook of each number of stages per device, the best first, and
    then the best of the others, no two of one family on one division."""
    found: dict[tuple[str, int, int], tuple[float, int, Design, str]] = {}
    for cell in cells(setting):
        if cell.cut != CUTS[0] or cell.bucket is not None or cell.recompute:
            continue
        plain = cell_design(cell, setting)
        if plain is None:
            continue
        fits = [one for cut in _cuts(plain, setting) if (one := _fitted(changed(plain, cut=cut), setting)) is not None]
        if not fits:
            continue
        seconds, design = min(fits, key=lambda one: one[0])
        name = f"{cell.family}, {cell.replicas} x {cell.microbatches} microbatches, {cell.each} stages per device"
        key = (cell.family, cell.replicas, cell.each)
        row = (seconds, len(found), design, name)
        found[key] = min(found.get(key, row), row, key=lambda one: one[:2])
    ranked = sorted(found.items(), key=lambda item: item[1][:2])
    ranked = [item for item in ranked if item[1][0] <= NEAR * ranked[0][1][0]]
    first = {key[2]: key for key, _ in reversed(ranked)}
    ranked.sort(key=lambda item: first[item[0][2]] != item[0])
    return [(design, name) for _, (_, _, design, name) in ranked[:count]]


def _cuts(plain: Design, setting: Setting) -> list[tuple[int, ...] | None]:
    """The even cut, and the one for which the bound makes the slowest position recompute least."""
    if plain.cut is None or setting.task.memory_limit is None:
        return [plain.cut]
    return list(dict.fromkeys((plain.cut, cut_in_bound(plain, setting, plain.cut))))


def _fitted(plain: Design, setting: Setting) -> tuple[float, Design] | None:
    """With its outlook; None where it is not legal, or does not fit."""
    limit = setting.task.memory_limit
    try:
        design = fitted(plain, setting)
        known = figures(design, setting)
        # What may stand ready for later chunks seldom does so at the fullest moment: half of it counts.
        if limit is not None and sum(max(f(design, known)) for f in (least_bytes, most_bytes)) / 2 > limit:
            return None
        return family_outlook(design, setting), design
    except (NotApplicable, InputError):
        return None

"""The strongest hand-written baseline: classic families, their parameters on a grid.

Families x replicas (the rest of the devices are the pipeline) x stages per device x microbatches x cut x bucket size x
recompute. What holds more than the memory bound for sure is left out, so that no evaluation is lost on it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product

from pibroch.agents.evolve.design import Design, Rule, changed, encode, rows_of_family, schedule_hash
from pibroch.agents.evolve.edit_base import cut_by_costs, even_positions
from pibroch.agents.evolve.edit_parameters import stage_megabytes
from pibroch.agents.evolve.figures import figures, least_bytes
from pibroch.evals.setting import Setting
from pibroch.runtime.directives import Schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import FAMILIES

CUTS = ("costs", "flops", "layers")
BUCKETS = (None, 0.25, 0.5)
_MOST_STAGES = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """One point: `cut` as in `balance_cut`, `bucket` as a part of a stage's parameters. `rank` counts the choices that
    are not the first one to try."""

    family: str
    replicas: int
    microbatches: int
    each: int
    cut: str
    bucket: float | None
    recompute: bool

    @property
    def rank(self) -> int:
        return CUTS.index(self.cut) + BUCKETS.index(self.bucket) + 2 * self.recompute


def grid(setting: Setting, *, budget: int, seed: int = 0) -> list[Schedule]:
    """At most `budget` different schedules. Where the grid is larger, the plain cells come first: every family at every
    division of the devices and the batch, cut by costs, then one parameter after the other; evenly over the
    divisions, in an order that `seed` draws."""
    rng = random.Random(seed)
    found: dict[str, Schedule] = {}
    for _, tier in groupby(sorted(cells(setting), key=lambda c: c.rank), key=lambda c: c.rank):
        for cell in _spread(list(tier), rng):
            if len(found) >= budget:
                return list(found.values())
            schedule = _schedule(cell, setting)
            if schedule is not None:
                found.setdefault(schedule_hash(schedule), schedule)
    return list(found.values())


def cells(setting: Setting) -> Iterator[Cell]:
    devices = setting.task.devices
    for replicas in (k for k in range(1, devices + 1) if devices % k == 0):
        p = devices // replicas
        for family, m, each in product(FAMILIES, setting.choices(replicas), range(1, _MOST_STAGES + 1)):
            # One device per replica: the order of a family is no matter, and stages only cost.
            if p == 1 and (family != "1f1b" or each > 1):
                continue
            for cut, bucket, recompute in product(CUTS, BUCKETS, (False, True)):
                if bucket is None or replicas > 1:
                    yield Cell(family, replicas, m, each, cut, bucket, recompute)


def _spread(cells: list[Cell], rng: random.Random) -> Iterator[Cell]:
    """In turn one cell of each division and family."""
    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.replicas, cell.family), []).append(cell)
    for group in groups.values():
        rng.shuffle(group)
    keys = sorted(groups)
    while keys:
        rng.shuffle(keys)
        for key in keys:
            yield groups[key].pop()
        keys = [key for key in sorted(groups) if groups[key]]


def _schedule(cell: Cell, setting: Setting) -> Schedule | None:
    """None where the family, the model or the memory bound rules the cell out, or it is another cell's twin."""
    design = cell_design(cell, setting)
    if design is None:
        return None
    try:
        known = figures(design, setting)
    except InputError:
        return None
    limit = setting.task.memory_limit
    return encode(design) if limit is None or max(least_bytes(design, known)) <= limit else None


def cell_design(cell: Cell, setting: Setting) -> Design | None:
    """None where the family or the model rules the cell out, or it is another cell's twin."""
    devices, k, m = setting.task.devices, cell.replicas, cell.microbatches
    p = devices // k
    model = setting.model(k, m)
    stages = p * cell.each
    if model.fixed_stages:
        if stages != len({layer.tags["PP"] for layer in model.layers if "PP" in layer.tags}) or cell.cut != CUTS[0]:
            return None
    elif stages > len(model.layers):
        return None
    design = Design(
        microbatches=m,
        placement=tuple(tuple(i * p + s % p for i in range(k)) for s in range(stages)),
        rows=(),
        rule=Rule("family", cell.family),
        recompute=frozenset(range(stages)) if cell.recompute else frozenset(),
        bucket_size=(None,) * stages,
    )
    rows = rows_of_family(cell.family, design)
    if rows is None:
        return None
    if not model.fixed_stages:
        if stages == 1 and cell.cut != CUTS[0]:
            return None
        weights = [layer.flops if cell.cut == "flops" else 1.0 for layer in model.layers]
        cut = cut_by_costs(design, setting) if cell.cut == "costs" else even_positions(weights, design.position_of)
        design = changed(design, cut=tuple(cut))
    if cell.bucket is not None:
        sizes = [float(f"{whole * cell.bucket:.2g}") for whole in stage_megabytes(design, setting)]
        design = changed(design, bucket_size=tuple(size or None for size in sizes))
    return changed(design, rows=rows)

"""Designs: schedules in the form that edits change, and the way there and back.

A design is the whole choice that a schedule makes, field by field, with one explicit row of chunks per pipeline
position, and the rule that made the rows, so that an edit of something else can make them again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pibroch.evals.setting import Setting
from pibroch.runtime.directives import AnyDirective, Cut, Order, Place, Recompute, Replicate, Schedule, Split
from pibroch.runtime.families import FAMILIES, excluded
from pibroch.runtime.families import rows as family_rows
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.passes.filters import Filter, matches_layer
from pibroch.runtime.plan import Plan

Item = tuple[str, int, int]
"""(pass, stage, microbatch): F, B, BI or BW."""
Row = tuple[Item, ...]
LayerFilter = tuple[tuple[str, int | str | None], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """How rows were made. `family`: by the family `name`. `list`: by list scheduling (`order.py`) with the policy
    `name`, backwards split where that pays or nowhere, in-flight bounds of `depth` times the round trip (None: the
    policy chooses), plus `extra` per position. `rows`: by hand."""

    kind: Literal["family", "list", "rows"]
    name: str = ""
    split: bool = False
    depth: float | None = None
    extra: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind != "list":
            return f"{self.kind}:{self.name}" if self.name else self.kind
        parts = [self.name, "split" if self.split else "whole"]
        parts += [f"depth={self.depth:g}"] if self.depth is not None else []
        parts += [f"extra={','.join(map(str, self.extra))}"] if any(self.extra) else []
        return "list:" + " ".join(parts)


@dataclass(frozen=True)
class Design:
    """`placement[s][k]` is the device of replica k of stage s; stages of equal placement are one *position*.

    `cut` is the first layer of each stage but the first (None where the model fixes its stages). `rows` has one row per
    position, in ascending order of devices. `recompute` holds stages; `layer_recompute` filters of single layers.
    `bucket_size` (MB) is per stage. `reduce_stream` is per stage, None for the default. `overlaps` holds (position,
    index in its row): that chunk and the next are one group. `stream` names the transfer stream.
    """

    microbatches: int
    placement: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]
    rule: Rule
    cut: tuple[int, ...] | None = None
    recompute: frozenset[int] = frozenset()
    layer_recompute: tuple[LayerFilter, ...] = ()
    bucket_size: tuple[float | None, ...] = ()
    reduce_stream: tuple[str, ...] | None = None
    stream: str | None = None
    overlaps: frozenset[tuple[int, int]] = frozenset()
    dim_name: str = "MB"

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.placement)

    @property
    def replicas(self) -> int:
        """Of every stage."""
        return len(self.placement[0])

    @cached_property
    def positions(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each pipeline position, in ascending order of their devices."""
        table: dict[tuple[int, ...], list[int]] = {}
        for stage, devices in enumerate(self.placement):
            table.setdefault(devices, []).append(stage)
        return tuple(tuple(table[devices]) for devices in sorted(table))

    @cached_property
    def position_of(self) -> tuple[int, ...]:
        """The position of each stage."""
        found = {stage: r for r, stages in enumerate(self.positions) for stage in stages}
        return tuple(found[s] for s in range(self.stages))

    @property
    def stages_per_device(self) -> int:
        """Of the position that has the most."""
        return max(map(len, self.positions))

    @cached_property
    def split_stages(self) -> frozenset[int]:
        """Stages with at least one backward cut in two."""
        return frozenset(stage for row in self.rows for op, stage, _ in row if op == "BW")

    def bounds(self, layers: int) -> tuple[int, ...]:
        """Stage s is layers [bounds[s], bounds[s + 1]). Not for models that fix their stages."""
        assert self.cut is not None
        return (0, *self.cut, layers)


def encode(design: Design) -> Schedule:
    """The schedule as a list of directives, always in the same order and form."""
    rows: list[AnyDirective] = [Split(num_microbatches=design.microbatches, dim_name=design.dim_name)]
    if design.cut:
        rows.append(Cut(at=list(design.cut)))
    for stage, devices in enumerate(design.placement):
        rows.append(Place(filter={"PP": stage}, devices=list(devices), stream=design.stream))
    for stage, devices in enumerate(design.placement):
        size = design.bucket_size[stage] if design.bucket_size else None
        if design.replicas > 1 or size is not None or design.reduce_stream is not None:
            named: dict[str, Any] = {"reduce_stream": design.reduce_stream[stage]} if design.reduce_stream else {}
            rows.append(Replicate(filter={"PP": stage}, devices=list(devices), bucket_size=size, **named))
    if len(design.recompute) == design.stages:
        rows.append(Recompute())
    else:
        rows += [Recompute(filter={"PP": stage}) for stage in sorted(design.recompute)]
    rows += [Recompute(filter=dict(filt)) for filt in design.layer_recompute]
    for position, row in enumerate(design.rows):
        filters: list[Any] = []
        for i, (op, stage, mb) in enumerate(row):
            one = {"PP": stage, design.dim_name: mb, "PASS": op}
            if (position, i - 1) in design.overlaps:
                filters[-1] = [filters[-1], one]
            else:
                filters.append(one)
        rows.append(Order(filters=filters))
    return Schedule(directives=rows)


def schedule_hash(schedule: Schedule) -> str:
    """The name of a schedule: equal directives, equal hash."""
    text = json.dumps(schedule.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def decode(schedule: Schedule, setting: Setting) -> Design:
    """The design of any legal schedule: what it leaves to defaults is read from its plan.

    Rows that order parts of a stage become rows of whole stages. Raises `InputError` where it does not lower.
    """
    plan = setting.lower(schedule)
    model = setting.model(plan.replicas, plan.microbatches)
    starts = {chunk.stage: chunk.start for chunk in reversed(plan.chunks)}
    ranges = {s: range(starts[s], starts.get(s + 1, len(model.layers))) for s in starts}
    places = [d for d in schedule.directives if isinstance(d, Place)]
    replicates = {
        s: d for d in schedule.directives if isinstance(d, Replicate) for s in _stages(d.filter, model, ranges)
    }
    recompute, by_layer = _recomputed(schedule, model, ranges)
    named = any("reduce_stream" in d.model_fields_set for d in replicates.values())
    design = Design(
        microbatches=plan.microbatches,
        placement=tuple(map(tuple, plan.placement)),
        rows=(),
        rule=Rule("rows"),
        cut=None if model.fixed_stages else tuple(starts[s] for s in range(1, plan.stages)),
        recompute=recompute,
        layer_recompute=by_layer,
        bucket_size=tuple(replicates[s].bucket_size if s in replicates else None for s in range(plan.stages)),
        reduce_stream=tuple(replicates[s].reduce_stream if s in replicates else "reduce" for s in range(plan.stages))
        if named
        else None,
        stream=next((d.stream for d in places if d.stream is not None), None),
        dim_name=next((d.dim_name for d in schedule.directives if isinstance(d, Split)), "MB"),
    )
    rows = tuple(_row(plan, stages) for stages in design.positions)
    overlaps = _overlaps(schedule, rows, design.dim_name)
    return changed(design, rows=rows, rule=_rule(design, rows), overlaps=overlaps)


def changed(design: Design, **changes: Any) -> Design:
    """The design with some fields replaced."""
    kept = {name: getattr(design, name) for name in Design.__dataclass_fields__}
    return Design(**{**kept, **changes})


def looped(design: Design) -> bool:
    """Whether stage s sits on position s modulo the positions, as in every family."""
    return all(r == s % len(design.positions) for s, r in enumerate(design.position_of))


def rows_of_family(family: str, design: Design) -> tuple[Row, ...] | None:
    """The family's rows for the design's numbers; None where it cannot be built for them."""
    p, m = len(design.positions), design.microbatches
    v, rest = divmod(design.stages, p)
    if rest or not looped(design):
        return None
    if excluded(family, devices=p, microbatches=m, stages_per_device=v, replicas=design.replicas):
        return None
    return tuple(tuple(row) for row in family_rows(family, devices=p, microbatches=m, stages_per_device=v))


def _rule(design: Design, rows: tuple[Row, ...]) -> Rule:
    for family in FAMILIES:
        if rows_of_family(family, design) == rows:
            return Rule("family", family)
    return Rule("rows", split=any(op == "BW" for row in rows for op, _, _ in row))


def _row(plan: Plan, stages: tuple[int, ...]) -> Row:
    """One position's chunks in the order in which replica 0 runs them, parts of a stage taken together."""
    ids = plan.streams[plan.placement[stages[0]][0]]["compute"]
    tasks = [plan.tasks[i] for i in ids if plan.tasks[i].stage in stages and plan.tasks[i].op != "UPDATE"]
    split = {(t.stage, t.mb) for t in tasks if t.op == "BI"}
    items = [("BI" if t.op == "B" and (t.stage, t.mb) in split else t.op, t.stage, t.mb) for t in tasks]
    return tuple(dict.fromkeys(items))


def _stages(filt: Filter, model: ModelSpec, ranges: dict[int, range]) -> list[int]:
    return [s for s, layers in ranges.items() if all(matches_layer(filt, model.layers[i], s) for i in layers)]


def _recomputed(
    schedule: Schedule, model: ModelSpec, ranges: dict[int, range]
) -> tuple[frozenset[int], tuple[LayerFilter, ...]]:
    stages: set[int] = set()
    layers: list[LayerFilter] = []
    for d in schedule.directives:
        if isinstance(d, Recompute):
            if set(d.filter) <= {"PP"}:
                stages |= set(_stages(d.filter, model, ranges))
            else:
                layers.append(tuple(d.filter.items()))
    return frozenset(stages), tuple(layers)


def _overlaps(schedule: Schedule, rows: tuple[Row, ...], dim_name: str) -> frozenset[tuple[int, int]]:
    """Groups of two single chunks that are neighbours in their row."""
    pairs: set[frozenset[Any]] = set()
    for d in schedule.directives:
        if isinstance(d, Order):
            for group in d.groups():
                if len(group) == 2:
                    pairs.add(frozenset((f.get("PASS"), f.get("PP"), f.get(dim_name)) for f in group))
    found: set[tuple[int, int]] = set()
    for position, row in enumerate(rows):
        for i in range(len(row) - 1):
            if frozenset(row[i : i + 2]) in pairs and (position, i - 1) not in found:
                found.add((position, i))
    return frozenset(found)

"""Edits of structure: which device runs what, and in which order."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pibroch.agents.evolve.cuts import cut_in_bound
from pibroch.agents.evolve.design import Design, Item, Row, Rule, changed, rows_of_family
from pibroch.agents.evolve.edit_base import (
    EditBase,
    NotApplicable,
    Which,
    arranged,
    best_fit,
    by_hand,
    check_rows,
    divided,
    fitted,
    named,
    positions_named,
    remade,
    stages_named,
    with_row,
)
from pibroch.agents.evolve.edit_parameters import Step, layout_now
from pibroch.agents.evolve.order import relaxed
from pibroch.evals.setting import Setting


class SplitBackward(EditBase):
    """Cut the backwards of a stage into BI and BW, which stay neighbours, or join them again where BI stands. The rows
    of a list rule are made again when all stages change."""

    op: Literal["split_backward"] = "split_backward"
    stage: Which = "all"
    on: bool

    def describe(self) -> str:
        where = named(self.stage, "stage")
        return f"Split the backwards of {where}." if self.on else f"Join the split backwards of {where}."

    def apply(self, design: Design, setting: Setting) -> Design:
        stages = set(stages_named(self.stage, design, setting))
        if design.rule.kind == "list" and self.stage == "all" and design.rule.split != self.on:
            rule = Rule("list", design.rule.name, self.on, design.rule.depth, design.rule.extra)
            return remade(design, setting, rule)
        rows = []
        for row in design.rows:
            new: list[Item] = []
            for op, s, mb in row:
                if s in stages and op == "B" and self.on:
                    new += [("BI", s, mb), ("BW", s, mb)]
                elif s in stages and op in ("BI", "BW") and not self.on:
                    new += [("B", s, mb)] if op == "BI" else []
                else:
                    new.append((op, s, mb))
            rows.append(tuple(new))
        return by_hand(design, tuple(rows))


class Reorder(EditBase):
    """Rows by list scheduling with the task's costs and memory bound. `depth` scales the in-flight bounds (1 is that of
    1F1B); without it, and with the policy `auto`, the builder chooses."""

    op: Literal["reorder"] = "reorder"
    policy: Literal["auto", "backward-first", "forward-first"] = "auto"
    split: bool = True
    depth: float | None = Field(default=None, gt=0, le=64)

    def describe(self) -> str:
        depth = "" if self.depth is None else f", {self.depth:g} times the usual microbatches in flight"
        split = "backwards split where that pays" if self.split else "whole backwards"
        return f"Order the chunks by list scheduling ({self.policy}) with {split}{depth}."

    def apply(self, design: Design, setting: Setting) -> Design:
        new = remade(design, setting, Rule("list", self.policy, self.split, self.depth))
        if new.rows == design.rows:
            raise NotApplicable("the rows stay the same")
        return new


class SwapFamily(EditBase):
    """The rows of another classic family."""

    op: Literal["family"] = "family"
    name: Literal["gpipe", "1f1b", "interleaved", "zb-h1"]

    def describe(self) -> str:
        return f"Order the chunks as {self.name} does."

    def apply(self, design: Design, setting: Setting) -> Design:
        rows = rows_of_family(self.name, design)
        if rows is None:
            raise NotApplicable(f"{self.name} has no rows for {design.stages} stages so placed")
        if rows == design.rows:
            raise NotApplicable("the rows stay the same")
        return changed(design, rows=rows, rule=Rule("family", self.name), overlaps=frozenset())


class SetStagesPerDevice(EditBase):
    """More or fewer stages on each device, cut by costs."""

    op: Literal["stages_per_device"] = "stages_per_device"
    by: Step
    layout: Literal["loop", "v"] = "loop"

    def describe(self) -> str:
        where = "placed to and fro" if self.layout == "v" else "placed round and round"
        return f"Give each device {abs(self.by)} {'more' if self.by > 0 else 'fewer'} stages, {where}."

    def apply(self, design: Design, setting: Setting) -> Design:
        p = len(design.positions)
        each = design.stages // p + self.by
        if self.by == 0 or each < 1 or p == 1:
            raise NotApplicable(f"no {each} stages per device on {p} positions")
        layout = self.layout if each > 1 else "loop"
        return arranged(design, setting, positions=p, stages=p * each, replicas=design.replicas, layout=layout)


class Divide(EditBase):
    """All devices in use shared out anew: so many replicas, so many stages per device of what is left. Rows by list
    scheduling, backwards split where memory allows and it pays. `microbatches` are those of a replica, about as many as
    before where it is not given."""

    op: Literal["divide"] = "divide"
    replicas: int = Field(ge=1, le=4096)
    stages_per_device: int = Field(ge=1, le=64)
    layout: Literal["loop", "v"] = "loop"
    microbatches: int | None = Field(default=None, ge=1, le=1 << 20)

    def describe(self) -> str:
        each = "1 stage" if self.stages_per_device == 1 else f"{self.stages_per_device} stages"
        where = "" if self.stages_per_device == 1 else " to and fro" if self.layout == "v" else " round and round"
        many = "" if self.microbatches is None else f" of {self.microbatches} microbatches"
        replicas = f"{self.replicas} replicas{many}"
        return f"Divide the devices into {replicas}, with {each} per device{where}, by list scheduling."

    def division(self, design: Design, setting: Setting) -> Design:
        """The design without rows. Raises `NotApplicable`."""
        used, m, choices = setting.task.devices, self.microbatches, setting.choices(self.replicas)
        if m is not None and m not in choices:
            raise NotApplicable(f"{self.replicas} replicas can have {list(choices)} microbatches, not {m}")
        if used % self.replicas:
            raise NotApplicable(f"{used} devices do not divide into {self.replicas} replicas")
        p = used // self.replicas
        if p == 1 and self.stages_per_device > 1 and setting.task.memory_limit is None:
            raise NotApplicable(
                "with one device per replica more stages make no pipeline, and there is no memory bound"
            )
        return divided(
            design, setting, positions=p, stages=p * self.stages_per_device, replicas=self.replicas, layout=self.layout,
            microbatches=self.microbatches,
        )  # fmt: skip

    def apply(self, design: Design, setting: Setting) -> Design:
        plain = self.division(design, setting)
        limit = setting.task.memory_limit
        split = Rule("list", "auto", len(plain.positions) > 1)
        if limit is None:
            return fitted(changed(plain, rule=split), setting)
        cuts = {plain.cut: None, cut_in_bound(plain, setting, plain.cut): None} if plain.cut else {plain.cut: None}
        new = min((best_fit(changed(plain, rule=split, cut=cut), setting) for cut in cuts), key=lambda one: one[0])
        if new[0][0] <= 0:
            return new[1]
        return fitted(changed(plain, rule=Rule("list", "auto")), setting)


class SetLayout(EditBase):
    """The stages' devices: `loop` puts stage s on position s modulo p, `v` goes to and fro."""

    op: Literal["layout"] = "layout"
    to: Literal["loop", "v"]

    def describe(self) -> str:
        return f"Place the stages {'to and fro (V)' if self.to == 'v' else 'round and round'} over the devices."

    def apply(self, design: Design, setting: Setting) -> Design:
        p = len(design.positions)
        if design.stages == p or p == 1 or layout_now(design) == self.to:
            raise NotApplicable("the stages have that layout, or one stage per device has no other")
        return arranged(
            design, setting, positions=p, stages=design.stages, replicas=design.replicas, layout=self.to,
            microbatches=design.microbatches,
        )  # fmt: skip


class SwapStages(EditBase):
    """Two stages change places; rows are made again."""

    op: Literal["swap_stages"] = "swap_stages"
    first: int
    second: int

    def describe(self) -> str:
        return f"Let {named(self.first, 'stage')} and {named(self.second, 'stage')} change devices."

    def apply(self, design: Design, setting: Setting) -> Design:
        (a,), (b,) = stages_named(self.first, design, setting), stages_named(self.second, design, setting)
        placement = list(design.placement)
        placement[a], placement[b] = placement[b], placement[a]
        if tuple(placement) == design.placement:
            raise NotApplicable("the stages are on one device")
        return remade(changed(design, placement=tuple(placement), rows=()), setting)


class MoveChunk(EditBase):
    """One chunk goes so many places later (`by` > 0) or earlier in its row."""

    op: Literal["move_chunk"] = "move_chunk"
    chunk: Literal["F", "B", "BI", "BW"]
    stage: int
    microbatch: int
    by: Step

    def describe(self) -> str:
        word = "later" if self.by > 0 else "earlier"
        what = f"{self.chunk} of {named(self.stage, 'stage')}, microbatch {self.microbatch}"
        return f"Run {what}, {abs(self.by)} places {word}."

    def apply(self, design: Design, setting: Setting) -> Design:
        (s,) = stages_named(self.stage, design, setting)
        mb = self.microbatch if self.microbatch >= 0 else design.microbatches + self.microbatch
        r, item = design.position_of[s], (self.chunk, s, mb)
        row = list(design.rows[r])
        if item not in row:
            raise NotApplicable(f"there is no {self.chunk} of stage {s}, microbatch {mb}")
        index = row.index(item) + self.by
        if not 0 <= index < len(row):
            raise NotApplicable("the row ends before that")
        row.remove(item)
        row.insert(index, item)
        return with_row(design, r, tuple(row))


class ShiftWeights(EditBase):
    """All BW of a stage go so many places later or earlier in their row, as far as BI and the row's end allow."""

    op: Literal["shift_weights"] = "shift_weights"
    stage: Which = "all"
    by: Step

    def describe(self) -> str:
        word = "later" if self.by > 0 else "earlier"
        return f"Run the weight gradients of {named(self.stage, 'stage')} {abs(self.by)} places {word}."

    def apply(self, design: Design, setting: Setting) -> Design:
        stages = set(stages_named(self.stage, design, setting)) & design.split_stages
        if not stages or self.by == 0:
            raise NotApplicable("these backwards are not split")
        rows = tuple(_weights_shifted(row, stages, self.by) for row in design.rows)
        return by_hand(design, rows)


def _weights_shifted(row: Row, stages: set[int], by: int) -> Row:
    new = list(row)
    moving = [item for item in row if item[0] == "BW" and item[1] in stages]
    for item in moving if by < 0 else reversed(moving):
        index = new.index(item)
        first = new.index(("BI", *item[1:])) + 1
        new.pop(index)
        new.insert(min(max(index + by, first), len(new)), item)
    return tuple(new)


class WarmUp(EditBase):
    """More or fewer microbatches in flight on a position: its forwards run so many backwards earlier or later. List
    rules keep this for when their rows are made again."""

    op: Literal["warm_up"] = "warm_up"
    position: Which = "all"
    by: Annotated[int, Field(ge=-8, le=8)]

    def describe(self) -> str:
        word = "more" if self.by > 0 else "fewer"
        return f"Keep {abs(self.by)} {word} microbatches in flight on {named(self.position, 'position')}."

    def apply(self, design: Design, setting: Setting) -> Design:
        chosen = positions_named(self.position, design, setting)
        if self.by == 0:
            raise NotApplicable("nothing changes")
        if design.rule.kind == "list":
            rule = design.rule
            for r in chosen:
                rule = relaxed(rule, position=r, positions=len(design.positions), by=self.by)
            new = remade(design, setting, rule)
            if new.rows == design.rows:
                raise NotApplicable("the rows stay the same")
            return new
        rows = list(design.rows)
        for r in chosen:
            for _ in range(abs(self.by)):
                rows[r] = _warmed(rows[r], deeper=self.by > 0)
        return by_hand(design, tuple(rows))


def _warmed(row: Row, *, deeper: bool) -> Row:
    """Every forward that follows a backward runs one backward earlier; or those, and the last one that follows none,
    one backward later, but before their own."""
    backwards = [item[1:] for item in row if item[0] in ("B", "BI")]
    place = {key: j for j, key in enumerate(backwards)}
    count, after = 0, []  # per forward: how many backwards come before it
    for op, *_ in row:
        if op == "F":
            after.append(count)
        count += op in ("B", "BI")
    forwards = [item for item in row if item[0] == "F"]
    warm = after.count(0)
    wanted = [
        max(0, n - 1) if deeper else min(n + (n > 0 or 1 < warm == i + 1), place[item[1:]])
        for i, (item, n) in enumerate(zip(forwards, after, strict=True))
    ]
    new: list[Item] = []
    left, count, latest = list(zip(wanted, forwards, strict=True)), 0, 0
    for item in row:
        if item[0] in ("B", "BI"):
            while left and max(latest, left[0][0]) <= count:
                latest = max(latest, left[0][0])
                new.append(left.pop(0)[1])
            count += 1
        if item[0] != "F":
            new.append(item)
    return (*new, *(item for _, item in left))


class Overlap(EditBase):
    """Group each forward of a position with the backward next to it (`on`), or dissolve its groups."""

    op: Literal["overlap"] = "overlap"
    position: Which = "all"
    on: bool

    def describe(self) -> str:
        where = named(self.position, "position")
        return f"Let neighbouring forwards and backwards of {where} overlap." if self.on else f"No overlaps on {where}."

    def apply(self, design: Design, setting: Setting) -> Design:
        chosen = positions_named(self.position, design, setting)
        kept = {pair for pair in design.overlaps if pair[0] not in chosen}
        for r in chosen if self.on else ():
            row, i = design.rows[r], 0
            while i + 1 < len(row):
                a, b = row[i], row[i + 1]
                if {a[0], b[0]} in ({"F", "B"}, {"F", "BI"}) and a[1:] != b[1:]:
                    kept.add((r, i))
                    i += 1
                i += 1
        if frozenset(kept) == design.overlaps:
            raise NotApplicable("the groups stay the same")
        new = changed(design, overlaps=frozenset(kept))
        check_rows(new)
        return new

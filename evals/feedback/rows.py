"""Other orders of the same chunks, on the same devices, with no more of them in flight.

A *piece* is (op, stage, microbatch) of one replica; a *row* is the pieces of one position (the device of replica 0).
The greedy order starts whatever can start, backwards first, then forwards while fewer are in flight than the cap, then
weight gradients: with a cap of p - r on position r of p that is 1F1B, and with split backwards a zero-bubble order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pibroch.evals.feedback.case import Case
from pibroch.runtime.directives import AnyDirective, Order, Split
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import excluded
from pibroch.runtime.families import rows as family_rows
from pibroch.runtime.plan import Plan

Piece = tuple[str, int, int]
Rows = dict[int, list[Piece]]


@dataclass(frozen=True)
class Pieces:
    """The pieces of one replica: `seconds` of each, `device` of each stage, and which stages feed which."""

    seconds: dict[Piece, float]
    device: list[int]
    feeds: dict[int, tuple[int, ...]]
    fed_by: dict[int, tuple[int, ...]]

    def needs(self, piece: Piece) -> list[Piece]:
        """The pieces that must have ended before this one."""
        op, stage, mb = piece
        if op == "F":
            return [("F", s, mb) for s in self.feeds_into(stage)]
        if op == "BW":
            return [("BI", stage, mb)]
        later = [("BI" if ("BI", s, mb) in self.seconds else "B", s, mb) for s in self.feeds.get(stage, ())]
        return [("F", stage, mb), *later]

    def feeds_into(self, stage: int) -> tuple[int, ...]:
        return self.fed_by.get(stage, ())


def pieces_of(case: Case, *, split: bool | None = None) -> Pieces:
    """The plan's pieces at healthy durations; `split` cuts every backward in two (or joins the halves)."""
    plan, seconds = case.plan, dict[Piece, float]()
    for i, s in case.fixed.seconds.items():
        task = plan.tasks[i]
        if task.replica == 0 and task.op != "UPDATE":
            piece = task.op, task.stage, task.mb
            seconds[piece] = seconds.get(piece, 0.0) + s
    if split:
        for op, stage, mb in list(seconds):
            if op == "B":
                both = seconds.pop((op, stage, mb))
                seconds["BI", stage, mb], seconds["BW", stage, mb] = both / 2, both / 2
    feeds: dict[int, set[int]] = {}
    fed_by: dict[int, set[int]] = {}
    for chunk in plan.chunks:
        for _, target in chunk.outputs:
            if target.stage != chunk.stage:
                feeds.setdefault(chunk.stage, set()).add(target.stage)
                fed_by.setdefault(target.stage, set()).add(chunk.stage)
    return Pieces(
        seconds, [row[0] for row in plan.placement],
        {s: tuple(sorted(t)) for s, t in feeds.items()}, {s: tuple(sorted(t)) for s, t in fed_by.items()},
    )  # fmt: skip


def present_rows(plan: Plan) -> Rows:
    """The pieces of each position in the order of its compute stream, a stage's parts as one."""
    found: Rows = {}
    for device in dict.fromkeys(row[0] for row in plan.placement):
        row: dict[Piece, None] = {}
        for i in plan.streams[device]["compute"]:
            task = plan.tasks[i]
            if task.op != "UPDATE" and task.replica == 0:
                row[task.op, task.stage, task.mb] = None
        found[device] = list(row)
    return found


def greedy(pieces: Pieces, caps: Mapping[int, int]) -> tuple[Rows, float] | None:
    """Rows and makespan of the greedy order with communication for nothing; None where the caps stop everything."""
    left = {piece: len(pieces.needs(piece)) for piece in pieces.seconds}
    after: dict[Piece, list[Piece]] = {}
    for piece in pieces.seconds:
        for need in pieces.needs(piece):
            after.setdefault(need, []).append(piece)
    ready: dict[int, dict[Piece, float]] = {d: {} for d in set(pieces.device)}
    for piece, n in left.items():
        if not n:
            ready[pieces.device[piece[1]]][piece] = 0.0
    free, flight = dict.fromkeys(ready, 0.0), dict.fromkeys(ready, 0)
    rows: Rows = {d: [] for d in sorted(ready)}
    when: dict[Piece, float] = {}
    depth = max(len(set(pieces.device)), 1)
    for _ in range(len(pieces.seconds)):
        best: tuple[float, int] | None = None
        for device, waiting in ready.items():
            allowed = [r for p, r in waiting.items() if p[0] != "F" or flight[device] < caps[device]]
            if allowed:
                start = max(free[device], min(allowed))
                if best is None or start < best[0]:
                    best = start, device
        if best is None:
            return None
        start, device = best
        now = [
            p for p, r in ready[device].items() if r <= start + 1e-12 and (p[0] != "F" or flight[device] < caps[device])
        ]
        piece = min(now, key=lambda p: _rank(p, depth))
        del ready[device][piece]
        rows[device].append(piece)
        end = free[device] = start + pieces.seconds[piece]
        op = piece[0]
        if op == "F":
            flight[device] += 1
        elif op in ("B", "BW"):
            flight[device] -= 1
        for other in after.get(piece, ()):
            left[other] -= 1
            when[other] = max(when.get(other, 0.0), end)
            if not left[other]:
                ready[pieces.device[other[1]]][other] = when[other]
    return rows, max(free.values(), default=0.0)


def run_rows(pieces: Pieces, rows: Rows) -> float | None:
    """Makespan of rows with communication for nothing; None where they wait for each other."""
    done: dict[Piece, float] = {}
    free, heads = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0)
    left = sum(len(row) for row in rows.values())
    while left:
        before = left
        for device, row in rows.items():
            while heads[device] < len(row):
                piece = row[heads[device]]
                needs = pieces.needs(piece)
                if not all(need in done for need in needs):
                    break
                start = max([free[device], *(done[need] for need in needs)])
                done[piece] = free[device] = start + pieces.seconds[piece]
                heads[device] += 1
                left -= 1
        if left == before:
            return None
    return max(free.values(), default=0.0)


def _rank(piece: Piece, depth: int) -> tuple[int, int, int, int]:
    """Backwards of the oldest microbatch first; forwards stage by stage for as many microbatches as positions."""
    op, stage, mb = piece
    if op == "F":
        return 1, mb // depth, stage, mb
    return (2 if op == "BW" else 0), mb // depth, -stage, mb


def as_directives(case: Case, rows: Rows) -> list[AnyDirective]:
    """The schedule with these rows instead of its own."""
    dim = next((d.dim_name for d in case.schedule.directives if isinstance(d, Split)), "MB")
    kept: list[AnyDirective] = [d for d in case.schedule.directives if not isinstance(d, Order)]
    for row in rows.values():
        if len(row) > 1:
            kept.append(Order(filters=[{"PP": stage, dim: mb, "PASS": op} for op, stage, mb in row]))
    return kept


def family(case: Case, name: str) -> Rows | None:
    """A classic family's rows, where the stages lie on the devices as that family has them."""
    plan = case.plan
    positions = list(dict.fromkeys(row[0] for row in plan.placement))
    p = len(positions)
    if plan.stages % p or any(row[0] != positions[s % p] for s, row in enumerate(plan.placement)):
        return None
    v = plan.stages // p
    try:
        if excluded(name, devices=p, microbatches=plan.microbatches, stages_per_device=v):
            return None
        found = family_rows(name, devices=p, microbatches=plan.microbatches, stages_per_device=v)
    except InputError:
        return None
    return {positions[r]: [(op, stage, mb) for op, stage, mb in row] for r, row in enumerate(found)}


def moved(row: Sequence[Piece], piece: Piece, index: int) -> list[Piece]:
    """The row with one piece at `index`."""
    rest = [p for p in row if p != piece]
    return [*rest[:index], piece, *rest[index:]]

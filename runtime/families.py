"""Families: builders of the classic pipeline schedules.

Terms
    p, m, v     pipeline positions (devices of one replica), microbatches, stages per position. Stage s sits on
                position s % p; position r of replica k is device k * p + r.
    row         the chunks of one position in the order in which they run: (pass, stage, microbatch).
    in flight   chunks whose F has started and whose B (or BW, if split) has not ended: their activations are held.

In the drawings one column is one unit of time, a full backward B takes two and `..` is idle time (F = BI = BW = 1, no
communication). `bX` and `wX` are BI and BW of microbatch X; with several stages per device the stage comes first.

Every family takes any p >= 1 and m >= 1; `excluded` says which numbers of stages per position it cannot use, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pibroch.runtime.directives import AnyDirective, Cut, Order, Place, Recompute, Replicate, Schedule, Split
from pibroch.runtime.errors import InputError
from pibroch.runtime.words import count

FAMILIES: tuple[str, ...] = ("gpipe", "1f1b", "interleaved", "zb-h1")

Row = list[tuple[str, int, int]]


def build(
    family: str,
    *,
    devices: int,
    microbatches: int,
    replicas: int = 1,
    stages_per_device: int = 1,
    bucket_size: float | None = None,
    cut: Sequence[int] | None = None,
    recompute: bool = False,
    stream: str | None = None,
    reduce_stream: str | None = None,
) -> Schedule:
    """A complete schedule of one family over `devices` pipeline positions (`devices * replicas` devices in all).

    `bucket_size` (MB) and `reduce_stream` concern the reductions over replicas and have no effect with one replica;
    without `reduce_stream` they run on `replicate`'s default.
    `cut` lists the first layer of each stage but the first. Raises `InputError` on an unknown family, on numbers below
    one, on a cut of the wrong length, and where `excluded` gives a reason.
    """
    reason = excluded(
        family, devices=devices, microbatches=microbatches, stages_per_device=stages_per_device, replicas=replicas
    )
    if reason:
        raise InputError(reason)
    stages = devices * stages_per_device
    if cut is not None and len(cut) != stages - 1:
        raise InputError(f"{family}: cut has length {len(cut)}, {count(stages, 'stage')} need {stages - 1}")
    directives: list[AnyDirective] = [Split(num_microbatches=microbatches)]
    if cut:
        directives.append(Cut(at=list(cut)))
    members = [[k * devices + s % devices for k in range(replicas)] for s in range(stages)]
    directives += [Place(filter={"PP": s}, devices=members[s], stream=stream) for s in range(stages)]
    if replicas > 1:
        named: dict[str, Any] = {} if reduce_stream is None else {"reduce_stream": reduce_stream}
        directives += [
            Replicate(filter={"PP": s}, devices=members[s], bucket_size=bucket_size, **named) for s in range(stages)
        ]
    if recompute:
        directives.append(Recompute())
    for row in rows(family, devices=devices, microbatches=microbatches, stages_per_device=stages_per_device):
        directives.append(Order(filters=[{"PP": stage, "MB": mb, "PASS": name} for name, stage, mb in row]))
    return Schedule(directives=directives)


def excluded(
    family: str, *, devices: int, microbatches: int, stages_per_device: int = 1, replicas: int = 1
) -> str | None:
    """Why `family` cannot be built for these numbers, or None. Raises `InputError` where they make no sense at all."""
    if family not in FAMILIES:
        raise InputError(f"no family {family!r}: choose one of {', '.join(FAMILIES)}")
    numbers = {"devices": devices, "microbatches": microbatches, "replicas": replicas}
    for name, number in {**numbers, "stages_per_device": stages_per_device}.items():
        if number < 1:
            raise InputError(f"{family}: {name} is at least 1, not {number}")
    if family == "interleaved" and stages_per_device < 2:
        return "interleaved: needs at least 2 stages per device; with one stage per device use 1f1b"
    if family in ("1f1b", "zb-h1") and stages_per_device > 1:
        return f"{family}: has one stage per device, not {stages_per_device}; for several use interleaved or gpipe"
    return None


def rows(family: str, *, devices: int, microbatches: int, stages_per_device: int = 1) -> list[Row]:
    """The row of each pipeline position. The arguments must have passed `excluded`."""
    return _ROWS[family](devices, microbatches, stages_per_device)


def gpipe(p: int, m: int, v: int = 1) -> list[Row]:
    """GPipe (Huang et al., arXiv 1811.06965): all forwards, then all backwards.

    p = 3, m = 3:

        0 | F0 F1 F2 .. .. .. .. .. .. B0 B0 B1 B1 B2 B2
        1 | .. F0 F1 F2 .. .. .. B0 B0 B1 B1 B2 B2 .. ..
        2 | .. .. F0 F1 F2 B0 B0 B1 B1 B2 B2 .. .. .. ..

    Idle per device (p - 1)(F + B); in flight m * v. With v > 1 each stage in turn runs all microbatches, which is
    looped breadth-first (Lamy-Poirier, arXiv 2211.05953), with idle (p - 1)(F + B) of a chunk for m >= p.
    """
    return [
        [("F", c * p + r, i) for c in range(v) for i in range(m)]
        + [("B", c * p + r, i) for c in reversed(range(v)) for i in range(m)]
        for r in range(p)
    ]


def one_f_one_b(p: int, m: int, v: int = 1) -> list[Row]:
    """1F1B (PipeDream-Flush; Narayanan et al., arXiv 2006.09503): from position r's warm-up on, a backward follows
    each forward.

    p = 3, m = 4:

        0 | F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 .. B2 B2 .. B3 B3
        1 | .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3 .. ..
        2 | .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. .. .. ..

    Position r: min(m, p-1-r) forwards, then F and B in turn, then the other backwards. Idle per device
    (p - 1)(F + B); in flight min(m, p - r).
    """
    assert v == 1
    return [
        _one_by_one([("F", r, i) for i in range(m)], [("B", r, i) for i in range(m)], warm_up=p - 1 - r)
        for r in range(p)
    ]


def interleaved(p: int, m: int, v: int) -> list[Row]:
    """Interleaved 1F1B (Narayanan et al., arXiv 2104.04473): stages r, r + p, r + 2p, ... on position r.

    p = 2, m = 2, v = 2 (stage first: `2F0` is stage 2, microbatch 0):

        0 | 0F0 0F1 2F0 2F1 ... ... 2B0 2B0 ... 2B1 2B1 0B0 0B0 0B1 0B1
        1 | ... 1F0 1F1 3F0 3B0 3B0 3F1 3B1 3B1 1B0 1B0 1B1 1B1 ... ...

    Microbatches go in groups: a group's forwards pass through one stage after another, its backwards through the
    stages in reverse. Groups have p microbatches; where m is no multiple of p, the m // p groups have nearly equal
    sizes instead, the largest, g, first. Position r: 2(p-1-r) + (v-1)g chunks of warm-up, then F and B in turn. Idle
    per device is (p - 1)(F + B) of a chunk for every m >= p, that is (p - 1)(F + B)/v of a position; in flight at
    most 2(p-1-r) + (v-1)g + 1 chunks.
    """
    groups = max(1, m // p)
    sizes = [m // groups + (k < m % groups) for k in range(groups)]
    walk: list[tuple[int, int]] = []
    first = 0
    for size in sizes:
        walk += [(c, first + i) for c in range(v) for i in range(size)]
        first += size
    return [
        _one_by_one(
            [("F", c * p + r, i) for c, i in walk],
            [("B", (v - 1 - c) * p + r, i) for c, i in walk],
            warm_up=2 * (p - 1 - r) + (v - 1) * sizes[0],
        )
        for r in range(p)
    ]


def zb_h1(p: int, m: int, v: int = 1) -> list[Row]:
    """ZB-H1 (Qi et al., arXiv 2401.10241): 1F1B with split backwards whose weight halves fill the bubbles.

    p = 3, m = 4:

        0 | F0 F1 F2 .. .. b0 w0 F3 b1 w1 b2 w2 b3 w3
        1 | .. F0 F1 .. b0 F2 b1 w0 F3 b2 w1 b3 w2 w3
        2 | .. .. F0 b0 F1 b1 F2 b2 w0 F3 b3 w1 w2 w3

    Position r: p - r forwards; then for each microbatch i its BI, the BW of microbatch i - r (position r lags r
    weight halves behind), and the next forward; at last the r other BW. Before forward p - r + i at most i - r + 1
    BW have run, so in flight is min(m, p) everywhere: the peak of 1F1B's first position. Idle per device is
    (p - 1)(F + B - 2W) for m >= p under unit costs, and for m >= 2p wherever W is the shortest of the three.
    """
    assert v == 1
    result = []
    for r in range(p):
        row: Row = [("F", r, i) for i in range(min(m, p - r))]
        for i in range(m + r):
            if i < m:
                row.append(("BI", r, i))
            if i >= r:
                row.append(("BW", r, i - r))
            if p - r + i < m:
                row.append(("F", r, p - r + i))
        result.append(row)
    return result


def _one_by_one(forwards: Row, backwards: Row, *, warm_up: int) -> Row:
    """`warm_up` forwards (or all), then one forward and one backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    row = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        row += (forward, backward)
    return row + backwards[len(forwards) - warm_up :]


_ROWS: dict[str, Callable[[int, int, int], list[Row]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
}

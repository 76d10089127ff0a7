"""Functions that the clauses of a schedule's spec may use (`library: [pipeline]`): rows of chunks, timed and counted.

Terms
    chunk   (kind, stage, microbatch); kinds are F, B (a whole backward), BI and BW (its halves: gradient of the
            inputs, gradient of the weights). A stage's backward of one microbatch is either whole or split.
    rows    per pipeline position, its chunks in the order in which its compute stream runs them.

F of stage s waits for F of stage s - 1 of the same microbatch; B and BI wait for F of their own stage and for B or BI
of stage s + 1; BW waits for BI. There are no transfers and no other costs: a position idles where a chunk waits.

Every function takes any rows, wrong ones too, and raises nothing: what cannot run to its end finishes at -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

Chunk = tuple[str, int, int]
Rows = list[list[Chunk]]

_KINDS = ("F", "B", "BI", "BW")
_HELD = {"F": 1, "B": -1, "BW": -1}  # what a chunk adds to the microbatches in flight

SIGNATURES: Final = """
def chunks(kinds: list[str], p: int, m: int, v: int) -> list[list[tuple[str, int, int]]]: ...
def finish(rows: list[list[tuple[str, int, int]]], f: int, b: int, w: int) -> int: ...
def idle(rows: list[list[tuple[str, int, int]]], f: int, b: int, w: int) -> list[int]: ...
def in_flight(rows: list[list[tuple[str, int, int]]]) -> list[int]: ...
"""


def chunks(kinds: list[str], p: int, m: int, v: int) -> Rows:
    """All chunks of these kinds per position, sorted, where stage s of p * v stages sits on position s % p."""
    return [[(kind, s, i) for kind in sorted(kinds) for s in range(r, p * v, p) for i in range(m)] for r in range(p)]


def finish(rows: Rows, f: int, b: int, w: int) -> int:
    """When the last chunk ends, where F, BI and BW take f, b and w, and B takes b + w; -1 where the rows cannot end
    (a deadlock, a chunk without the ones that it waits for, a chunk twice, an unknown kind)."""
    ends = _run(rows, f, b, w)
    return -1 if ends is None else max(ends.values(), default=0)


def idle(rows: Rows, f: int, b: int, w: int) -> list[int]:
    """Per position, the part of `finish` in which it runs nothing; empty where the rows cannot end."""
    ends = _run(rows, f, b, w)
    if ends is None:
        return []
    cost = _costs(f, b, w)
    last = max(ends.values(), default=0)
    return [last - sum(cost[kind] for kind, _, _ in row) for row in rows]


def in_flight(rows: Rows) -> list[int]:
    """Per position, the most forwards that are done or under way and whose B (or BW, if split) has not ended."""
    peaks = []
    for row in rows:
        peak = now = 0
        for kind, _, _ in row:
            now += _HELD.get(kind, 0)
            peak = max(peak, now)
        peaks.append(peak)
    return peaks


_LIBRARIES: Final[Mapping[str, tuple[Callable[..., object], ...]]] = {"pipeline": (chunks, finish, idle, in_flight)}


@lru_cache
def functions(names: tuple[str, ...]) -> Mapping[str, Callable[..., object]] | None:
    """By name, what `library: names` gives to clauses; None for no library. The same object for the same names."""
    return {f.__name__: f for name in names for f in _LIBRARIES[name]} or None


def _costs(f: int, b: int, w: int) -> dict[str, int]:
    return dict(zip(_KINDS, (f, b + w, b, w), strict=True))


def _run(rows: Rows, f: int, b: int, w: int) -> dict[Chunk, int] | None:
    """When each chunk ends."""
    every = [chunk for row in rows for chunk in row]
    cost = _costs(f, b, w)
    if len(set(every)) < len(every) or any(kind not in cost for kind, _, _ in every):
        return None
    last = max((stage for _, stage, _ in every), default=0)
    ends: dict[Chunk, int] = {}

    def ready(chunk: Chunk) -> int:
        """When the chunks that this one waits for have ended; -1 where one has not run."""
        kind, stage, mb = chunk
        if kind == "F":
            return ends.get(("F", stage - 1, mb), -1) if stage > 0 else 0
        if kind == "BW":
            return ends.get(("BI", stage, mb), -1)
        own = ends.get(("F", stage, mb), -1)
        if stage == last or own < 0:
            return own
        return max(own, later) if (later := _any(ends, stage + 1, mb)) >= 0 else -1

    heads, free = [0] * len(rows), [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for r, row in enumerate(rows):
            while heads[r] < len(row) and (at := ready(row[heads[r]])) >= 0:
                free[r] = ends[row[heads[r]]] = max(free[r], at) + cost[row[heads[r]][0]]
                heads[r] += 1
                moved = True
    return ends if len(ends) == len(every) else None


def _any(ends: Mapping[Chunk, int], stage: int, mb: int) -> int:
    found: Iterable[int] = (ends.get((kind, stage, mb), -1) for kind in ("B", "BI"))
    return max(found)

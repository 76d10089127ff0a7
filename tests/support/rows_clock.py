"""An order simulator that knows rows only: no plan, no transfers, no streams.

It shares no code with `pibroch.runtime.simulate`.

F of stage s waits for F of stage s - 1; B (or BI) waits for F of its own stage and B (or BI) of stage s + 1; BW waits
for BI. `cost` gives each pass its duration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Chunk = tuple[str, int, int]


def clock(rows: Sequence[Sequence[Chunk]], cost: Mapping[str, float]) -> dict[Chunk, tuple[float, float]]:
    """Start and end of every chunk. Raises RuntimeError on a deadlock."""
    stages = 1 + max(stage for row in rows for _, stage, _ in row)
    split = {(stage, mb) for row in rows for name, stage, mb in row if name == "BI"}
    times: dict[Chunk, tuple[float, float]] = {}

    def needs(chunk: Chunk) -> list[Chunk]:
        name, stage, mb = chunk
        if name == "F":
            return [("F", stage - 1, mb)] if stage else []
        if name == "BW":
            return [("BI", stage, mb)]
        after = [("BI" if (stage + 1, mb) in split else "B", stage + 1, mb)] if stage < stages - 1 else []
        return [("F", stage, mb), *after]

    heads, free = [0] * len(rows), [0.0] * len(rows)
    moved = True
    while moved:
        moved = False
        for r, row in enumerate(rows):
            while heads[r] < len(row) and all(n in times for n in needs(row[heads[r]])):
                chunk = row[heads[r]]
                start = max([free[r], *(times[n][1] for n in needs(chunk))])
                free[r] = start + cost[chunk[0]]
                times[chunk] = (start, free[r])
                heads[r] += 1
                moved = True
    if any(head < len(row) for head, row in zip(heads, rows, strict=True)):
        raise RuntimeError(f"deadlock at {[row[h] for h, row in zip(heads, rows, strict=True) if h < len(row)]}")
    return times


def inflight(row: Sequence[Chunk]) -> int:
    """The most chunks of one position whose F has started and whose B (or BW) has not ended."""
    peak = now = 0
    for name, _, _ in row:
        now += {"F": 1, "B": -1, "BI": 0, "BW": -1}[name]
        peak = max(peak, now)
    return peak


def draw(rows: Sequence[Sequence[Chunk]], *, unit: Mapping[str, float], stages: bool) -> list[str]:
    """The rows as the docstrings of `families` draw them."""
    times = clock(rows, unit)
    length = int(max(end for _, end in times.values()))
    lines = []
    for r, row in enumerate(rows):
        cells = ["..." if stages else ".."] * length
        for name, stage, mb in row:
            start, end = times[name, stage, mb]
            short = {"F": "F", "B": "B", "BI": "b", "BW": "w"}[name]
            for t in range(int(start), int(end)):
                cells[t] = f"{stage}{short}{mb}" if stages else f"{short}{mb}"
        lines.append(f"{r} | " + " ".join(cells))
    return lines

"""A schedule in a few lines for a prompt: what goes where, and each position's row with its repetitions folded."""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.agents.evolve.design import Design, Item

MAX_PERIOD = 4
MAX_ROWS = 3000  # characters; a writer who needs each chunk of a longer order gets it as its function's argument


def outline(design: Design) -> str:
    """Directive by directive, without a word for what is at its default."""
    p = len(design.positions)
    lines = [
        f"{_count(design.replicas, 'replica')} x {_count(design.microbatches, 'microbatch', 'es')}; "
        f"{_count(design.stages, 'stage')} on {_count(p, 'position')}; devices of each stage: {_same(design.placement)}"
    ]
    if design.cut:
        lines.append(f"cut at {list(design.cut)}")
    if design.recompute or design.layer_recompute:
        where = "all stages" if len(design.recompute) == design.stages else f"stages {sorted(design.recompute)}"
        lines.append(f"recompute: {where if design.recompute else 'some layers'}")
    if any(size is not None for size in design.bucket_size):
        lines.append(f"bucket_size (MB) of each stage: {_one(design.bucket_size)}")
    if design.reduce_stream is not None:
        lines.append(f"reduce_stream of each stage: {_one(design.reduce_stream)}")
    if design.stream is not None:
        lines.append(f"stream: {design.stream}")
    if design.rule.kind == "family":
        lines.append(f"order: exactly the rows of the family {design.rule.name}")
    else:
        lines += ["order, one row per position (F3 is F of microbatch 3, 5F3 of stage 5; (B0 F4)..(B3 F7) counts up):"]
        lines += _rows(design)
    if design.overlaps:
        lines.append(f"overlapping pairs of neighbours: {len(design.overlaps)}")
    return "\n".join(lines)


def folded(row: Sequence[Item], *, stages: bool) -> str:
    """A row as text: runs whose microbatches count up by one are folded, with a period of up to `MAX_PERIOD` chunks."""
    parts: list[str] = []
    i = 0
    while i < len(row):
        period, times = max(((k, _times(row, i, k)) for k in range(1, MAX_PERIOD + 1)), key=lambda kn: _gain(*kn))
        if _gain(period, times) <= 0:
            period, times = 1, 1
        first, last = row[i : i + period], row[i + period * (times - 1) : i + period * times]
        texts = [" ".join(_item(one, stages) for one in items) for items in (first, last)]
        if times == 1:
            parts.append(texts[0])
        else:
            parts.append("..".join(texts) if period == 1 else f"({texts[0]})..({texts[1]})")
        i += period * times
    return " ".join(parts)


def _times(row: Sequence[Item], start: int, period: int) -> int:
    """How often the `period` chunks from `start` on come, each time with microbatches one higher."""
    times = 1
    while start + period * (times + 1) <= len(row):
        here = row[start + period * times : start + period * (times + 1)]
        if any((op, s, mb - times) != row[start + k] for k, (op, s, mb) in enumerate(here)):
            break
        times += 1
    return times


def _gain(period: int, times: int) -> int:
    """Chunks that folding saves."""
    return period * times - 2 * period


def _item(item: Item, stages: bool) -> str:
    op, stage, mb = item
    return f"{stage if stages else ''}{op}{mb}"


def _rows(design: Design) -> list[str]:
    lines = [f"{r}: {folded(row, stages=len(design.positions[r]) > 1)}" for r, row in enumerate(design.rows)]
    shown: list[str] = []
    for line in lines:
        if sum(map(len, shown)) + len(line) > MAX_ROWS:
            shown.append(f"... and {len(lines) - len(shown)} rows more, which your function gets whole")
            break
        shown.append(line)
    return shown


def _count(n: int, noun: str, plural: str = "s") -> str:
    return f"{n} {noun}{plural if n > 1 else ''}"


def _one(values: Sequence[object]) -> str:
    """One value for all, or the list."""
    return f"{values[0]}" if len(set(values)) == 1 else str(list(values)).replace("'", "")


def _same(placement: Sequence[Sequence[int]]) -> str:
    return str([list(devices) if len(devices) > 1 else devices[0] for devices in placement])

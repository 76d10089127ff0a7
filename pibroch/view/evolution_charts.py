"""Speed over the evaluations, and against peak memory, as SVG. No script is needed to read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pibroch.view.evolution_data import Candidate, RunView
from pibroch.view.evolution_marks import mark, pick, words
from pibroch.view.parts import size

WIDTH = 1160
LEFT, RIGHT = 74, WIDTH - 16


class _Frame:
    """A plot's scales and its axes."""

    def __init__(self, *, xs: tuple[float, float], ys: tuple[float, float], height: int) -> None:
        self.xs, self.ys, self.height = xs, ys, height
        self.top, self.bottom = 16.0, height - 46.0

    def x(self, value: float) -> float:
        low, high = self.xs
        return LEFT + 14 + (value - low) / ((high - low) or 1) * (WIDTH - LEFT - 44)

    def y(self, value: float) -> float:
        low, high = self.ys
        at = self.bottom - (value - low) / ((high - low) or 1) * (self.bottom - self.top)
        return min(max(at, self.top), self.bottom)

    def axes(self, *, across: str, up: str, ticks: Iterable[tuple[float, str]]) -> str:
        """The grid, both axes and their names."""
        middle = (self.top + self.bottom) / 2
        rows = [f'<path class="grid" d="M{LEFT} {self.y(v):.1f}H{RIGHT}"/>' for v in nice(*self.ys, 8)]
        rows += [words(LEFT - 8, self.y(v) + 4, f"{v:.4g}×", kind="tick", anchor="end") for v in nice(*self.ys, 8)]
        rows += [words(self.x(v), self.bottom + 18, text, kind="tick") for v, text in ticks]
        rows.append(f'<path class="axis" d="M{LEFT} {self.bottom}H{RIGHT}"/>')
        rows.append(words((LEFT + RIGHT) / 2, self.height - 8, across, kind="label"))
        rows.append(f'<g transform="translate(14 {middle}) rotate(-90)">{words(0, 0, up, kind="label")}</g>')
        return "".join(rows)


def nice(low: float, high: float, most: int) -> list[float]:
    """Round values in the range, at most so many and one."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= raw * 0.999)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _range(run: RunView, shown: Sequence[Candidate]) -> tuple[float, float]:
    """Of speeds: all but the slowest twentieth, and what of the intervals is near them."""
    values = sorted([1.0, *(c.speed for c in shown if c.speed is not None)])
    low, high = min(1.0, values[len(values) // 20]), values[-1]
    room = max(0.02, high - low)
    ends = [v for c in shown for v in (c.lower, c.upper) if v is not None and low - room / 2 <= v <= high + room / 2]
    confirmed = run.confirmed
    if confirmed is not None and confirmed.incumbent == run.start:
        ends += [confirmed.lower, confirmed.upper]
    low, high = min([low, *ends]), max([high, *ends])
    room = max(0.02, 0.06 * (high - low))
    return low - room, high + room


def speeds(run: RunView) -> str:
    """Speed against the start over the evaluations: points with intervals, and the best so far as a line."""
    rows = run.evaluated
    last = max([1, run.evaluations, *(c.number for c in rows)])
    frame = _Frame(xs=(0, last + 1), ys=_range(run, [c for c in rows if c.speed is not None]), height=380)
    index = {key: i for i, key in enumerate(run.candidates)}
    best, path, marks = 1.0, f"M{frame.x(0):.1f} {frame.y(1):.1f}", ""
    r = 4.5 if last <= 150 else 2.5
    for one in rows:
        x, i = frame.x(one.number), index[one.schedule]
        path += f"H{x:.1f}"
        if one.speed is None:
            marks += pick(run, i, one, mark(one.state, x, frame.bottom - 7, r - 1), kind="without")
            continue
        if one.state == "faster":
            path += f"V{frame.y(one.speed):.1f}"
            best = one.speed
        inside = _error(frame, x, one.lower, one.upper) + mark(one.state, x, frame.y(one.speed), r)
        marks += pick(run, i, one, inside, kind=f"point{_pale(run, one)}")
    ticks = [(v, f"{v:.0f}") for v in nice(0, last, 10) if v == int(v)]
    return (
        f'<svg class="figure" id="speeds" viewBox="0 0 {WIDTH} {frame.height}" role="group" '
        f'aria-label="Speed over {len(rows)} evaluations; best so far {best:.3f} times the start, {run.kind}">'
        f"{frame.axes(across='evaluation', up=_UP.format(run.kind), ticks=ticks)}"
        f'<path class="one" d="M{LEFT} {frame.y(1):.1f}H{RIGHT}"/><path class="best" d="{path}"/>'
        f"{marks}{_confirmed(run, frame, frame.x(last + 1))}</svg>"
    )


_UP = "speed over the start ({})"


def _error(frame: _Frame, x: float, low: float | None, high: float | None, *, strong: bool = False) -> str:
    """An interval; a cap is drawn only where that end lies inside the frame."""
    if low is None or high is None:
        return ""
    w = 5 if strong else 3
    caps = "".join(f"M{x - w:.1f} {frame.y(v):.1f}h{2 * w}" for v in (low, high) if frame.ys[0] <= v <= frame.ys[1])
    kind = "error strong" if strong else "error"
    return f'<path class="{kind}" d="M{x:.1f} {frame.y(low):.1f}V{frame.y(high):.1f}{caps}"/>'


def _confirmed(run: RunView, frame: _Frame, x: float) -> str:
    """The fresh run's figure, where it is one against the start."""
    one = run.confirmed
    if one is None or one.incumbent != run.start:
        return ""
    text = f"fresh run of the best: {one.ratio:.3f}× ({one.lower:.3f} to {one.upper:.3f}), {run.confirmed_kind}"
    bar = _error(frame, x, one.lower, one.upper, strong=True)
    diamond = f'<path class="confirmed" d="M{x:.1f} {frame.y(one.ratio) - 7:.1f}l7 7l-7 7l-7 -7z"/>'
    return f'<g role="img" aria-label="{text}"><title>{text}</title>{bar}{diamond}</g>'


def _pale(run: RunView, one: Candidate) -> str:
    return " simulated" if run.of(one) == "simulated" and run.kind != "simulated" else ""


def front(run: RunView) -> list[Candidate]:
    """The candidates that no other beats in speed and in peak memory at once; of one kind of figures only."""
    able = [
        c for c in run.candidates.values()
        if c.speed is not None and c.result and c.result.peak_bytes is not None
        and c.result.verdict not in ("invalid", "unequal") and run.of(c) == run.kind
    ]  # fmt: skip
    able.sort(key=lambda c: (_peak(c), -(c.speed or 0)))
    kept: list[Candidate] = []
    for one in able:
        if not kept or (one.speed or 0) > (kept[-1].speed or 0):
            kept.append(one)
    return kept


def pareto(run: RunView) -> str:
    """Speed against peak memory; the front is the line up and to the left."""
    rows = [c for c in run.candidates.values() if c.speed is not None and c.result and c.result.peak_bytes is not None]
    if not rows:
        return '<p class="note">No evaluation has both a speed and a peak of memory yet.</p>'
    peaks, limit = [_peak(c) for c in rows], int(run.task.get("memory_limit") or 0)
    span = max(peaks) - min(peaks) or max(peaks) * 0.1 or 1.0
    near = limit > 0 and min(peaks) - span <= limit <= max(peaks) + span
    low, high = min(peaks) - 0.05 * span, max([*peaks, *([limit] if near else [])]) + 0.05 * span
    frame = _Frame(xs=(low, high), ys=_range(run, rows), height=360)
    index = {key: i for i, key in enumerate(run.candidates)}
    best, path, marks = front(run), "", ""
    for one in best:
        x, y = frame.x(_peak(one)), frame.y(one.speed or 0)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    on = {c.schedule for c in best}
    for one in sorted(rows, key=lambda c: c.state == "faster"):  # the accepted ones on top
        inside = mark(one.state, frame.x(_peak(one)), frame.y(one.speed or 0), 4.5)
        kind = f"point{' front' if one.schedule in on else ''}{_pale(run, one)}"
        marks += pick(run, index[one.schedule], one, inside, kind=kind)
    bound = ""
    if near:
        line = f"M{frame.x(limit):.1f} {frame.top}V{frame.bottom}"
        bound = f'<path class="limit" d="{line}"><title>memory limit {size(limit)}</title></path>'
    axes = frame.axes(
        across="peak memory of the fullest device", up=_UP.format(run.kind),
        ticks=_sizes(low, high),
    )  # fmt: skip
    return (
        f'<svg class="figure" id="pareto" viewBox="0 0 {WIDTH} {frame.height}" role="group" '
        f'aria-label="Speed against peak memory, {len(best)} of {len(rows)} schedules on the front, {run.kind}">'
        f'{axes}<path class="front-line" d="{path}{f"H{RIGHT}" if path else ""}"/>{bound}{marks}</svg>'
    )


def _peak(one: Candidate) -> int:
    assert one.result
    assert one.result.peak_bytes is not None
    return one.result.peak_bytes


def _sizes(low: float, high: float) -> list[tuple[float, str]]:
    """Round sizes in the range, all in one unit."""
    units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
    unit, name = next((u for u in units if high >= u[0]), units[-1])
    return [(v * unit, f"{v:.4g} {name}") for v in nice(max(0.0, low) / unit, high / unit, 7)]

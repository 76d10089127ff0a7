"""The page's figures as SVG: lineage, speed over evaluations, speed against peak memory. No script is needed to read
them; each mark has a title, and `data-i` ties it to its candidate. All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from pibroch.view.evolution_data import Candidate, RunView
from pibroch.view.parts import size

WIDTH = 1160
LEFT = 74  # for the labels of rows or of the axis
VERDICTS = {
    "start": "the start",
    "faster": "faster: accepted",
    "slower": "slower",
    "undecided": "undecided",
    "same": "the incumbent's very plan",
    "unequal": "other numbers than the single process",
    "invalid": "refused before it ran",
    "waiting": "not judged yet",
}


def name_of(candidate: Candidate) -> str:
    return f"#{candidate.number}" if candidate.number else "start"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}×"


def spread(one: Candidate) -> str:
    """Speed with its interval."""
    if one.speed is None:
        return "no speed"
    interval = f" ({one.lower:.3f} to {one.upper:.3f})" if one.lower is not None and one.upper is not None else ""
    return f"{times(one.speed)}{interval}"


def mark(state: str, x: float, y: float, r: float) -> str:
    """One shape per verdict, so that colour is not needed to tell them apart."""
    at = f'class="m m-{state}"'
    if state in ("start",):
        return f'<rect {at} x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}"/>'
    if state == "invalid":
        return f'<path {at} d="M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}"/>'
    if state == "unequal":
        return f'<path {at} d="M{x:.1f} {y - r:.1f}l{r} {2 * r}h{-2 * r}z"/>'
    if state == "slower":
        return f'<path {at} d="M{x:.1f} {y + r:.1f}l{r} {-2 * r}h{-2 * r}z"/>'
    return f'<circle {at} cx="{x:.1f}" cy="{y:.1f}" r="{r + (1.5 if state == "faster" else 0)}"/>'


def legend(run: RunView) -> str:
    """Only the verdicts that occur."""
    present = {c.state for c in run.candidates.values()}
    return "".join(
        f'<li><svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">{mark(state, 8, 8, 5)}</svg>'
        f"{escape(text)}</li>"
        for state, text in VERDICTS.items()
        if state in present
    )


def _group(run: RunView, index: int, one: Candidate, inside: str, kind: str = "") -> str:
    peak = f", peak {size(one.result.peak_bytes)}" if one.result and one.result.peak_bytes is not None else ""
    reason = one.result.reason if one.result else ""
    spent = f" Model: {one.asked.tokens:,} tokens{money(one.asked.money)}." if one.asked.calls else ""
    text = f"{name_of(one)}: {VERDICTS[one.state]}. {spread(one)}, {run.of(one)}{peak}. {reason}{spent}"
    title = escape(" ".join(text.split())[:400])
    return f'<g class="pick {kind}" data-i="{index}" role="button" tabindex="-1" aria-label="{title}"><title>{title}</title>{inside}</g>'  # noqa: E501


def money(value: float | None) -> str:
    return "" if value is None else f", cost {value:.4f}"


def lineage(run: RunView) -> str:
    """Parents above children, one band of rows per generation; the line of incumbents is drawn strong."""
    order = list(run.candidates)
    depth = _depths(run)
    bands: dict[int, list[str]] = {}
    for key in order:
        bands.setdefault(depth[key], []).append(key)
    place: dict[str, tuple[float, float]] = {}
    labels, y = [], 26.0
    for level in sorted(bands):
        keys = sorted(bands[level], key=lambda k: (place.get(run.candidates[k].parent or "", (0, 0))[0], order.index(k)))
        fits = 46
        rows = [keys[i : i + fits] for i in range(0, len(keys), fits)]
        labels.append((f"generation {level}" if level < 1 else str(level), y))
        for row in rows:
            for key, x in zip(row, _spread([place.get(run.candidates[k].parent or "", (0, 0))[0] for k in row]), strict=True):  # noqa: E501
                place[key] = (x, y)
            y += 34 if len(rows) > 1 else 46
        y += 12
    height = max(70.0, y - 20)
    line = _incumbents(run)
    edges = []
    for key, (x, at) in place.items():
        parent = run.candidates[key].parent
        if parent in place and parent != key:
            px, py = place[parent]
            strong = ' class="edge strong"' if key in line and parent in line else ' class="edge"'
            edges.append((key in line, f'<path{strong} d="M{px:.1f} {py:.1f}C{px:.1f} {(py + at) / 2:.1f} {x:.1f} {(py + at) / 2:.1f} {x:.1f} {at:.1f}"/>'))  # noqa: E501
    nodes = []
    for index, key in enumerate(order):
        one, (x, at) = run.candidates[key], place[key]
        ring = f'<circle class="ring" cx="{x:.1f}" cy="{at:.1f}" r="11"/>' if key == run.best else ""
        text = f'<text x="{x:.1f}" y="{at + 19:.1f}" text-anchor="middle">{name_of(one).removeprefix("#")}</text>'
        nodes.append(_group(run, index, one, f'<circle class="hit" cx="{x:.1f}" cy="{at:.1f}" r="12"/>{ring}{mark(one.state, x, at, 5)}{text}', "node"))  # noqa: E501
    names = "".join(f'<text class="label" x="4" y="{at + 4:.1f}">{text}</text>' for text, at in labels)
    drawn = "".join(text for _, text in sorted(edges))
    return (
        f'<svg class="figure" id="lineage" viewBox="0 0 {WIDTH} {height:.0f}" role="group" aria-label="Lineage of {len(order)} schedules">'  # noqa: E501
        f"{names}{drawn}{''.join(nodes)}</svg>"
    )


def _spread(wanted: Sequence[float]) -> list[float]:
    """Places in a row near the parents' (0: no wish), at least so far apart that labels fit."""
    left, right = LEFT + 24.0, WIDTH - 16.0
    gap = min(48.0, (right - left) / max(1, len(wanted) - 1)) if len(wanted) > 1 else 0.0
    start = 0
    xs: list[float] = []
    while start < len(wanted):  # siblings lie evenly around their parent
        stop = start
        while stop < len(wanted) and wanted[stop] == wanted[start]:
            stop += 1
        middle = wanted[start] or (left + right) / 2
        xs += [middle + (k - (stop - start - 1) / 2) * gap for k in range(stop - start)]
        start = stop
    for k in range(len(xs)):
        xs[k] = max(xs[k], left if not k else xs[k - 1] + gap)
    for k in reversed(range(len(xs))):
        xs[k] = min(xs[k], right - (len(xs) - 1 - k) * gap)
    return xs


def _depths(run: RunView) -> dict[str, int]:
    """Generation of each schedule; one without a known parent is a root."""
    depth: dict[str, int] = {}
    for key in run.candidates:
        path: list[str] = []
        at: str | None = key
        while at is not None and at in run.candidates and at not in depth and at not in path:
            path.append(at)
            at = run.candidates[at].parent
        base = depth.get(at or "", -1)
        for back, one in enumerate(reversed(path), 1):
            depth[one] = base + back
    return depth


def _incumbents(run: RunView) -> set[str]:
    """The best and its ancestors."""
    line: set[str] = set()
    at: str | None = run.best
    while at and at in run.candidates and at not in line:
        line.add(at)
        at = run.candidates[at].parent
    return line


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

    def inside(self, value: float) -> bool:
        return self.ys[0] <= value <= self.ys[1]

    def axes(self, *, across: str, up: str, ticks: Iterable[tuple[float, str]]) -> str:
        rows = []
        for value in nice(*self.ys, 6):
            rows.append(
                f'<path class="grid" d="M{LEFT} {self.y(value):.1f}H{WIDTH - 16}"/>'
                f'<text class="tick" x="{LEFT - 8}" y="{self.y(value) + 4:.1f}" text-anchor="end">{value:.4g}×</text>'
            )
        for value, text in ticks:
            rows.append(f'<text class="tick" x="{self.x(value):.1f}" y="{self.bottom + 18}" text-anchor="middle">{escape(text)}</text>')  # noqa: E501
        middle = (self.top + self.bottom) / 2
        rows.append(f'<path class="axis" d="M{LEFT} {self.bottom}H{WIDTH - 16}"/>')
        rows.append(f'<text class="label" x="{(LEFT + WIDTH) / 2}" y="{self.height - 8}" text-anchor="middle">{escape(across)}</text>')  # noqa: E501
        rows.append(f'<text class="label" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(up)}</text>')  # noqa: E501
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
    low, high = values[len(values) // 20], values[-1]
    room = max(0.02, high - low)
    ends = [v for c in shown for v in (c.lower, c.upper) if v is not None and low - room / 2 <= v <= high + room / 2]
    confirmed = run.confirmed
    if confirmed is not None and confirmed.incumbent == run.start:
        ends += [confirmed.lower, confirmed.upper]
    low, high = min([low, *ends]), max([high, *ends])
    return low - 0.06 * (high - low + 0.02), high + 0.06 * (high - low + 0.02)


def speeds(run: RunView) -> str:
    """Speed against the start over the evaluations: points with intervals, and the best so far as a line."""
    rows = run.evaluated
    with_speed = [c for c in rows if c.speed is not None]
    last = max([1, run.evaluations, *(c.number for c in rows)])
    frame = _Frame(xs=(0, last + 1), ys=_range(run, with_speed), height=380)
    index = {key: i for i, key in enumerate(run.candidates)}
    best, path = 1.0, f"M{frame.x(0):.1f} {frame.y(1):.1f}"
    marks = []
    r = 4.5 if last <= 150 else 2.5
    for one in rows:
        x = frame.x(one.number)
        if one.result and one.result.accepted and one.speed:
            path += f"H{x:.1f}V{frame.y(one.speed):.1f}"
            best = one.speed
        path += f"H{x:.1f}"
        if one.speed is None:
            marks.append(_group(run, index[one.schedule], one, mark(one.state, x, frame.bottom - 7, r - 1), "without"))
            continue
        bar = ""
        if one.lower is not None and one.upper is not None:
            a, b = frame.y(one.lower), frame.y(one.upper)
            caps = "".join(f"M{x - 3:.1f} {v:.1f}h6" for v, y in ((a, one.lower), (b, one.upper)) if frame.inside(y))
            bar = f'<path class="error" d="M{x:.1f} {a:.1f}V{b:.1f}{caps}"/>'
        pale = " simulated" if run.of(one) == "simulated" and run.kind != "simulated" else ""
        low = "" if frame.inside(one.speed) else " off"
        marks.append(_group(run, index[one.schedule], one, bar + mark(one.state, x, frame.y(one.speed), r), f"point{pale}{low}"))  # noqa: E501
    final, confirmed = "", run.confirmed
    if confirmed is not None and confirmed.incumbent == run.start:
        x, y = frame.x(last + 1), frame.y(confirmed.ratio)
        a, b = frame.y(confirmed.lower), frame.y(confirmed.upper)
        text = f"confirmed in a fresh run: {confirmed.ratio:.3f}× ({confirmed.lower:.3f} to {confirmed.upper:.3f})"
        final = f'<g role="img" aria-label="{text}"><title>{text}</title><path class="error strong" d="M{x:.1f} {a:.1f}V{b:.1f}M{x - 4:.1f} {a:.1f}h8M{x - 4:.1f} {b:.1f}h8"/><path class="confirmed" d="M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z"/></g>'  # noqa: E501
    ticks = [(v, f"{v:.0f}") for v in nice(0, last, 10) if v == int(v)]
    text = f"Speed over {len(rows)} evaluations; best so far {best:.3f} times the start"
    return (
        f'<svg class="figure" id="speeds" viewBox="0 0 {WIDTH} {frame.height}" role="group" aria-label="{text}">'
        f"{frame.axes(across='evaluation', up=f'speed over the start ({run.kind})', ticks=ticks)}"
        f'<path class="one" d="M{LEFT} {frame.y(1):.1f}H{WIDTH - 16}"/><path class="best" d="{path}"/>'
        f"{''.join(marks)}{final}</svg>"
    )


def front(run: RunView) -> list[Candidate]:
    """The candidates that no other beats in speed and in peak memory at once; of one kind of figures only."""
    able = [
        c for c in run.candidates.values()
        if c.speed is not None and c.result and c.result.peak_bytes is not None
        and c.result.verdict not in ("invalid", "unequal") and run.of(c) == run.kind
    ]  # fmt: skip
    able.sort(key=lambda c: (c.result.peak_bytes if c.result else 0, -(c.speed or 0)))
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
    peaks = [float(c.result.peak_bytes or 0) for c in rows if c.result]
    limit = run.task.get("memory_limit")
    span = max(peaks) - min(peaks) or max(peaks) * 0.1 or 1.0
    near = isinstance(limit, int) and min(peaks) - span <= limit <= max(peaks) + span
    low, high = min(peaks) - 0.05 * span, max([*peaks, *([float(limit or 0)] if near else [])]) + 0.05 * span
    frame = _Frame(xs=(low, high), ys=_range(run, rows), height=360)
    index = {key: i for i, key in enumerate(run.candidates)}
    best = front(run)
    path = ""
    for one in best:
        assert one.result
        x, y = frame.x(one.result.peak_bytes or 0), frame.y(one.speed or 0)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    path += f"H{WIDTH - 16}" if path else ""
    on = {c.schedule for c in best}
    marks = []
    for one in rows:
        assert one.result
        x, y = frame.x(one.result.peak_bytes or 0), frame.y(one.speed or 0)
        kind = "front" if one.schedule in on else ""
        pale = " simulated" if run.of(one) == "simulated" and run.kind != "simulated" else ""
        marks.append(_group(run, index[one.schedule], one, mark(one.state, x, y, 4.5), f"point {kind}{pale}"))
    bound = ""
    if near and isinstance(limit, int):
        bound = f'<path class="limit" d="M{frame.x(limit):.1f} {frame.top}V{frame.bottom}"><title>memory limit {size(limit)}</title></path>'  # noqa: E501
    ticks = [(v, size(v)) for v in _sizes(low, high)]
    return (
        f'<svg class="figure" id="pareto" viewBox="0 0 {WIDTH} {frame.height}" role="group" '
        f'aria-label="Speed against peak memory, {len(best)} of {len(rows)} on the front">'
        f"{frame.axes(across='peak memory of the fullest device', up=f'speed over the start ({run.kind})', ticks=ticks)}"
        f'<path class="front-line" d="{path}"/>{bound}{"".join(marks)}</svg>'
    )


def _sizes(low: float, high: float) -> list[float]:
    """Round sizes in the range."""
    unit = next((u for u in (1 << 30, 1 << 20, 1 << 10) if high >= u), 1)
    return [v * unit for v in nice(max(0.0, low) / unit, high / unit, 7)]

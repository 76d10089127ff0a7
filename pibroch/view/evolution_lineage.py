"""The lineage of a run's schedules as SVG: parents above children, a band of rows per generation."""

from __future__ import annotations

from collections.abc import Sequence

from pibroch.view.evolution_data import RunView
from pibroch.view.evolution_marks import mark, name_of, pick, words

WIDTH = 1160
LEFT, RIGHT = 98.0, WIDTH - 16.0
GAP = 44.0  # between siblings, where there is room
ROW = 46  # schedules in a row, at most
MOST_NUMBERS = 160  # schedules; more leave no room for their numbers


def lineage(run: RunView) -> str:
    """The line of incumbents that leads to the best is drawn strong, and straight where there is room."""
    order, line = {key: i for i, key in enumerate(run.candidates)}, _incumbents(run)
    place, labels, height = _places(run, order, line)
    edges = []
    for key, (x, y) in place.items():
        parent = run.candidates[key].parent
        if parent in place and parent != key:
            px, py = place[parent]
            strong = key in line and parent in line
            middle = f"{(py + y) / 2:.1f}"
            path = f"M{px:.1f} {py:.1f}C{px:.1f} {middle} {x:.1f} {middle} {x:.1f} {y:.1f}"
            edges.append((strong, f'<path class="edge{" strong" if strong else ""}" d="{path}"/>'))
    nodes = []
    for key, index in order.items():
        one, (x, y) = run.candidates[key], place[key]
        ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="11"/>' if key == run.best else ""
        number = words(x, y + 19, name_of(one).removeprefix("#"), kind="number") if len(order) < MOST_NUMBERS else ""
        target = f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="12"/>'
        nodes.append(pick(run, index, one, f"{target}{ring}{mark(one.state, x, y, 5)}{number}", kind="node"))
    return (
        f'<svg class="figure" id="lineage" viewBox="0 0 {WIDTH} {height:.0f}" role="group" '
        f'aria-label="Lineage of {len(order)} schedules">'
        f"{labels}{''.join(text for _, text in sorted(edges))}{''.join(nodes)}</svg>"
    )


def _places(
    run: RunView, order: dict[str, int], line: set[str]
) -> tuple[dict[str, tuple[float, float]], str, float]:
    """Where each schedule goes, the generations' labels, and the height."""
    bands: dict[int, list[str]] = {}
    for key, depth in _depths(run).items():
        bands.setdefault(depth, []).append(key)
    place: dict[str, tuple[float, float]] = {}
    labels, y = "", 26.0

    def above(key: str) -> float:
        return place.get(run.candidates[key].parent or "", ((LEFT + RIGHT) / 2, 0.0))[0]

    for depth in sorted(bands):
        keys = sorted(bands[depth], key=lambda k: (above(k), order[k]))
        labels += words(4, y + 4, f"generation {depth}" if depth == 0 else str(depth), kind="label", anchor="start")
        rows = [keys[i : i + ROW] for i in range(0, len(keys), ROW)]
        for row in rows:
            xs = _spread([above(k) for k in row], [k in line for k in row])
            place |= {key: (x, y) for key, x in zip(row, xs, strict=True)}
            y += 34 if len(rows) > 1 else 46
        y += 12
    return place, labels, max(70.0, y - 20)


def _spread(wanted: Sequence[float], on_line: Sequence[bool]) -> list[float]:
    """Places in a row under the parents', so far apart that labels fit. Siblings lie around their parent; the one that
    leads to the best lies right under it."""
    gap = min(GAP, (RIGHT - LEFT) / max(1, len(wanted) - 1))
    xs: list[float] = []
    while len(xs) < len(wanted):
        first = len(xs)
        group = [k for k in range(first, len(wanted)) if wanted[k] == wanted[first]]
        middle = next((k - first for k in group if on_line[k]), (len(group) - 1) / 2)
        xs += [wanted[first] + (k - first - middle) * gap for k in group]
    for k in range(len(xs)):
        xs[k] = max(xs[k], LEFT if k == 0 else xs[k - 1] + gap)
    for k in reversed(range(len(xs))):
        xs[k] = min(xs[k], RIGHT - (len(xs) - 1 - k) * gap)
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

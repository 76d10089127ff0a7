"""Who relies on whom: the dependency map of the specs as text and as one self-contained SVG."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from pibroch.specs.model import Spec
from pibroch.specs.store import order

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 46, 96, 18, 24
_PER_COLUMN = 8  # modules without relies and dependents, per column of the lower part
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1b1f24 }
.small { font-size: 11px; fill: #57606a }
.box { fill: #ffffff; stroke: #8c959f }
.two { stroke: #0969da; stroke-width: 1.6 }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.2; marker-end: url(#tip) }
#tip path { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .box { fill: #161b22; stroke: #6e7681 } .two { stroke: #4493f8 }
  .arrow { stroke: #9198a1 } #tip path { fill: #9198a1 }
}"""


def edges(specs: Mapping[str, Spec]) -> list[tuple[str, str, tuple[str, ...]]]:
    """(module, the module that it relies on, the functions that it uses), sorted."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, spec in specs.items():
        for rely in spec.relies:
            found.setdefault((name, rely.module), []).append(rely.function.name)
    return [(user, used, tuple(functions)) for (user, used), functions in sorted(found.items())]


def as_text(specs: Mapping[str, Spec]) -> list[str]:
    """One line per module in the order in which they are generated, with what it relies on and who relies on it."""
    width = max((len(name) for name in specs), default=0)
    arrows = edges(specs)
    rows = []
    for name in order(specs):
        spec = specs[name]
        relies = [f"{used}.{f}" for user, used, functions in arrows if user == name for f in functions]
        users = [user for user, used, _ in arrows if used == name]
        parts = [f"{name:<{width}}  v{spec.front.version}  {_phases(spec):<10}"]
        if relies:
            parts.append(f"relies on {', '.join(relies)}")
        if users:
            parts.append(f"used by {', '.join(users)}")
        rows.append("  ".join(parts).rstrip())
    return rows


def as_svg(specs: Mapping[str, Spec]) -> str:
    """The map as an SVG document. What a module relies on stands to its right; two phases have a blue frame."""
    arrows = edges(specs)
    linked = {name for user, used, _ in arrows for name in (user, used)}
    columns = _columns(specs, [(user, used) for user, used, _ in arrows], linked)
    alone = [name for name in sorted(specs) if name not in linked]
    places = _places(columns, alone)
    width = max((x for x, _ in places.values()), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in places.values()), default=0) + _HEIGHT + _MARGIN
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-label="Which module relies on which">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
    ]
    for user, used, functions in arrows:
        if used in places:
            rows.append(_arrow(places[user], places[used], f"{user} uses {', '.join(functions)} of {used}"))
    rows += [_box(specs[name], x, y) for name, (x, y) in sorted(places.items())]
    return "\n".join([*rows, "</svg>", ""])


def _phases(spec: Spec) -> str:
    model = spec.front.concurrency.model
    return "sequential" if model == "none" else model


def _columns(specs: Mapping[str, Spec], arrows: list[tuple[str, str]], linked: set[str]) -> list[list[str]]:
    """Linked modules by their longest way to the left; in a column near the mean place of their users."""
    depth: dict[str, int] = {}
    for name in reversed(order(specs)):  # users first
        if name in linked:
            depth[name] = max((depth[user] + 1 for user, used in arrows if used == name), default=0)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in sorted(depth):
        columns[depth[name]].append(name)
    place = {name: float(i) for i, name in enumerate(columns[0])} if columns else {}
    for column in columns[1:]:
        users = {name: [place[user] for user, used in arrows if used == name] for name in column}
        column.sort(key=lambda name: (sum(users[name]) / len(users[name]), name))
        place |= {name: float(i) for i, name in enumerate(column)}
    return columns


def _places(columns: list[list[str]], alone: list[str]) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    for i, column in enumerate(columns):
        for j, name in enumerate(column):
            places[name] = (_MARGIN + i * (_WIDTH + _GAP_X), _MARGIN + j * (_HEIGHT + _GAP_Y))
    top = max((len(column) for column in columns), default=0) * (_HEIGHT + _GAP_Y) + (_GAP_Y if columns else 0)
    across = max(len(columns), -(-len(alone) // _PER_COLUMN), 1)
    step = _WIDTH + (_GAP_X if columns else _GAP_Y)
    for i, name in enumerate(alone):
        places[name] = (_MARGIN + i % across * step, _MARGIN + top + i // across * (_HEIGHT + _GAP_Y))
    return places


def _box(spec: Spec, x: int, y: int) -> str:
    kind = "box" if spec.phases == (1,) else "box two"
    return (
        f'<g><title>{escape(spec.front.summary)}</title><rect class="{kind}" x="{x}" y="{y}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" rx="7"/><text x="{x + 12}" y="{y + 20}">{escape(spec.module)}</text>'
        f'<text class="small" x="{x + 12}" y="{y + 36}">v{spec.front.version}, {_phases(spec)}, '
        f"{len(spec.clauses)} clauses</text></g>"
    )


def _arrow(start: tuple[int, int], end: tuple[int, int], title: str) -> str:
    x, y = start[0] + _WIDTH, start[1] + _HEIGHT // 2
    to_x, to_y = end[0], end[1] + _HEIGHT // 2
    middle = (x + to_x) // 2
    path = f"M{x} {y} C{middle} {y} {middle} {to_y} {to_x} {to_y}"
    return f'<path class="arrow" d="{path}"><title>{escape(title)}</title></path>'

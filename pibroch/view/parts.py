"""Fragments of the page that need no script: facts, times by cause, memory, directives. All text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from pibroch.runtime.directives import Cut, Order, Place, Recompute, Replicate, Schedule, Split
from pibroch.runtime.plan import Plan
from pibroch.runtime.trace import CAUSES, EXPOSED
from pibroch.runtime.words import count
from pibroch.view.data import CAUSE_TEXT, Run

COMPUTE = ("F", "B", "BI", "BW", "UPDATE")
_OP_NAMES = {
    "F": "forward",
    "B": "backward",
    "BI": "backward, inputs",
    "BW": "backward, weights",
    "UPDATE": "update",
    "REDUCE": "all-reduce",
    "SEND": "send",
    "RECV": "receive",
}
_CAUSE_NAMES = {
    "warm-up": "warm-up, drain",
    "receive": "waits for peer",
    "transfer": "exposed transfer",
    "reduction": "exposed reduction",
    "dispatch": "dispatch",
}


def seconds(value: float, unit: str = "s") -> str:
    """Four digits and the unit that fits: `0.0123` is "12.3 ms". `unit` is "s" or the name of another unit."""
    if unit != "s":
        return f"{value:.4g} {unit}"
    for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= size or (value == 0 and size == 1.0):
            return f"{value / size:.4g} {name}"
    return f"{value / 1e-9:.4g} ns"


def size(nbytes: float) -> str:
    for factor, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {name}"
    return f"{nbytes:.0f} B"


def badges(rows: Iterable[tuple[str, str]]) -> str:
    """(state, text) rows; state is ok, bad, warn or none, and the mark that it gets is spoken as a word."""
    words = {"ok": "yes", "bad": "no", "warn": "note", "none": "unknown"}
    return "".join(
        f'<li class="{state}"><span class="sr">{words[state]}: </span>{escape(text)}</li>' for state, text in rows
    )


def stats(rows: Iterable[tuple[str, str, str]]) -> str:
    return "".join(
        f"<div><dt>{escape(term)}</dt><dd>{escape(value)}{f'<small>{escape(note)}</small>' if note else ''}</dd></div>"
        for term, value, note in rows
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(value)}</dd></div>" for term, value in rows)


def legend(plan: Plan, runs: Sequence[Run]) -> str:
    """Only what occurs."""
    present = {(task.op, task.payload) for task in plan.tasks}
    items = []
    for op, name in _OP_NAMES.items():
        for payload in ("", "F", "B"):
            if (op, payload) in present:
                text = name + {"": "", "F": " activation", "B": " gradient"}[payload]
                items.append(_swatch(op, payload, text))
    held = {(task.device, task.stage) for task in plan.tasks if task.op == "F"}
    if len(held) > len({device for device, _ in held}):
        items.append("<li>lighter: a later stage of the same device</li>")
    items.append('<li class="break" aria-hidden="true"></li>')
    causes = {bubble.cause for run in runs for bubble in run.bubbles}
    if "drain" in causes:
        causes.add("warm-up")
    items.extend(_swatch(cause, "", f"idle: {name}") for cause, name in _CAUSE_NAMES.items() if cause in causes)
    return "".join(items)


def _swatch(kind: str, payload: str, text: str) -> str:
    canvas = f'<canvas width="22" height="13" data-kind="{kind}" data-payload="{payload}" aria-hidden="true"></canvas>'
    hint = f' title="{escape(CAUSE_TEXT[kind])}"' if kind in CAUSE_TEXT else ""
    return f"<li{hint}>{canvas}{escape(text)}</li>"


def time_table(plan: Plan, runs: Sequence[Run], unit_name: str) -> str:
    """Per run and device: seconds of compute by op and of idle time by cause, as a bar and as numbers."""
    bodies = []
    causes = [c for c in CAUSES if c != "drain" and any(b.cause in (c, _also(c)) for r in runs for b in r.bubbles)]
    for run in runs:
        unit = "s" if run.unit == "s" else unit_name
        rows = []
        for device in sorted(plan.streams):
            parts: dict[str, float] = dict.fromkeys((*COMPUTE, *CAUSES), 0.0)
            for event in run.events:
                if event.device == device and event.stream == "compute":
                    parts[plan.tasks[event.task].op] += event.end - event.start
            for bubble in run.bubbles:
                if bubble.device == device:
                    parts[bubble.cause] += bubble.seconds
            parts["warm-up"] += parts.pop("drain")
            whole = sum(parts.values()) or 1.0
            bar = "".join(
                f'<i class="s-{name}" style="width:{100 * part / whole:.3f}%"></i>'
                for name, part in parts.items()
                if part
            )
            busy = sum(parts[op] for op in COMPUTE)
            cells = [f"{100 * busy / whole:.1f}%", *(seconds(parts[c], unit) if parts[c] else "–" for c in causes)]
            rows.append(
                f'<tr><th scope="row">Device {device}</th>'
                f'<td class="bar"><div aria-hidden="true">{bar}</div></td>'
                + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
                + "</tr>"
            )
        name = f'<tr><th scope="rowgroup" colspan="{3 + len(causes)}">{escape(run.label)}</th></tr>'
        bodies.append(f"<tbody>{name}{''.join(rows)}</tbody>")
    heads = ["busy", *(_CAUSE_NAMES[cause] for cause in causes)]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    return (
        '<div class="wide" tabindex="0" role="region" aria-labelledby="h-time"><table class="time">'
        '<caption class="sr">Compute and idle time by device</caption><thead><tr>'
        '<th scope="col"><span class="sr">Device</span></th>'
        f'<th scope="col"><span class="sr">share of the step</span></th>{head}</tr></thead>'
        f"{''.join(bodies)}</table></div>"
    )


def _also(cause: str) -> str:
    return "drain" if cause == "warm-up" else cause


def exposed(run: Run) -> float:
    return sum(bubble.seconds for bubble in run.bubbles if bubble.cause in EXPOSED)


def memory_charts(plan: Plan, series: Mapping[int, Sequence[tuple[float, int]]], makespan: float) -> str:
    """A small chart per device, all on one scale: what exists before the step, and what the step adds."""
    top = max((n for rows in series.values() for _, n in rows), default=0) or 1
    items = []
    for device, rows in series.items():
        peak, base = max((n for _, n in rows), default=0), rows[0][1] if rows else 0
        held = {b.id: b.nbytes for b in plan.buffers if b.device == device and b.persistent}
        base = sum(held.values()) if held else base
        line, floor, high = _steps(rows, makespan, top), 100 - 96 * base / top, 100 - 96 * peak / top
        stages = ", ".join(str(s) for s, row in enumerate(plan.placement) if device in row)
        label = f"Device {device}: peak {size(peak)}, of which {size(base)} before the step"
        items.append(
            f"<li><figure><figcaption><b>Device {device}</b><span>stage {stages}</span><b>{size(peak)}</b></figcaption>"
            f'<svg viewBox="0 0 400 100" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
            f'<path class="area" d="M0 100{line}L400 100z"/><rect class="base" x="0" y="{floor:.2f}" width="400" '
            f'height="{100 - floor:.2f}"/><path class="edge" d="M{line[1:]}"/>'
            f'<path class="peak" d="M0 {high:.2f}H400"/></svg></figure></li>'
        )
    note = "Simulated bytes over the step; the dashed line is the peak, the lower band is what exists before the step "
    note += f"(parameters, gradients, optimizer). All charts share one scale, up to {size(top)}."
    return f'<ul class="mems">{"".join(items)}</ul><p class="note">{escape(note)}</p>'


def _steps(rows: Sequence[tuple[float, int]], makespan: float, top: int) -> str:
    """A step line in 400 columns; each column keeps its highest value, so that no peak is lost."""
    columns: dict[int, tuple[int, int]] = {}
    for time, nbytes in rows:
        x = round(400 * time / makespan) if makespan else 0
        columns[x] = (max(nbytes, columns[x][0]) if x in columns else nbytes, nbytes)
    line, last = "", None
    for x, (high, left) in sorted(columns.items()):
        if last is not None:
            line += f"L{x} {100 - 96 * last / top:.2f}"
        line += f"L{x} {100 - 96 * high / top:.2f}" + (f"L{x} {100 - 96 * left / top:.2f}" if left != high else "")
        last = left
    return line + (f"L400 {100 - 96 * last / top:.2f}" if last is not None else "")


def directives(schedule: Schedule) -> str:
    """One readable line per directive."""
    rows = []
    for d in schedule.directives:
        chips = ""
        if isinstance(d, Place):
            text = f"{_where(d.filter)} on {_devices(d.devices)}" + (f", transfers on {d.stream}" if d.stream else "")
        elif isinstance(d, Replicate):
            text = f"{_where(d.filter)} over {_devices(d.devices)}, reductions on {d.reduce_stream}"
            text += f" in buckets of {d.bucket_size:g} MB" if d.bucket_size else ""
        elif isinstance(d, Split):
            text = f"{count(d.num_microbatches, 'microbatch')}, named {d.dim_name}"
            text += f", of {_where(d.filter)}" if d.filter else ""
        elif isinstance(d, Cut):
            text = "stage boundaries before layer " + ", ".join(str(at) for at in d.at)
        elif isinstance(d, Recompute):
            text = f"{_where(d.filter)}: drop what forward saved, recompute it in backward"
        else:
            text, chips = "", _order(d)
        rows.append(f"<li><code>{escape(d.op)}</code><div>{escape(text)}{chips}</div></li>")
    return "".join(rows)


def _order(order: Order) -> str:
    groups = []
    for group in order.groups():
        chips = "".join(_chip(one) for one in group)
        groups.append(f'<span class="both">{chips}</span>' if len(group) > 1 else chips)
    text, chips = f"{len(groups)} groups follow each other", f'<div class="chips">{"".join(groups)}</div>'
    return text + chips if len(groups) <= 64 else f"<details><summary>{text}</summary>{chips}</details>"


def _chip(one: Mapping[str, Any]) -> str:
    kind, rest = one.get("PASS"), {k: v for k, v in one.items() if k != "PASS"}
    if kind in COMPUTE and set(rest) == {"PP", "MB"} and all(isinstance(v, int) for v in rest.values()):
        return f'<span class="c-{kind} mono">{rest["PP"]}{kind}{rest["MB"]}</span>'
    return f'<span class="c-any mono">{escape(_where(one))}</span>'


def _where(chosen: Mapping[str, Any]) -> str:
    if not chosen:
        return "everything"
    return " ".join(f"{tag}={'untagged' if index is None else index}" for tag, index in chosen.items())


def _devices(devices: Sequence[int]) -> str:
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(str(d) for d in devices)}"


def stages(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    items = "".join(
        f"<details><summary>{number}. after {escape(name)}</summary>"
        f'<pre tabindex="0" aria-label="{escape(name)}">{escape(text)}</pre></details>'
        for number, (name, text) in enumerate(rows, 1)
    )
    return f'<section aria-labelledby="h-lowering"><h2 id="h-lowering">Lowering</h2>{items}</section>'

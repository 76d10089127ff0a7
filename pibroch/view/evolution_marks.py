"""Marks of the page's figures: one shape and one colour per verdict, a title, and `data-i`, which ties a mark to its
candidate. All text is escaped here."""

from __future__ import annotations

from html import escape

from pibroch.view.evolution_data import Candidate, RunView
from pibroch.view.parts import size

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
    return "no speed" if one.speed is None else f"{times(one.speed)}{interval(one.lower, one.upper)}"


def interval(low: float | None, high: float | None) -> str:
    """In brackets; nothing where there is none, as in the simulator."""
    return "" if low is None or high is None or low == high else f" ({low:.3f} to {high:.3f})"


def mark(state: str, x: float, y: float, r: float) -> str:
    """One shape per verdict, so that colour is not needed to tell them apart."""
    at = f'class="m m-{state}"'
    if state == "start":
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


def pick(run: RunView, index: int, one: Candidate, inside: str, *, kind: str) -> str:
    """A mark that can be chosen; `index` is the candidate's in the data block."""
    peak = f", peak {size(one.result.peak_bytes)}" if one.result and one.result.peak_bytes is not None else ""
    reason = one.result.reason if one.result else ""
    price = "" if one.asked.money is None else f", cost {one.asked.money:.4f}"
    asked = f" Model: {one.asked.tokens:,} tokens{price}." if one.asked.calls else ""
    text = f"{name_of(one)}: {VERDICTS[one.state]}. {spread(one)}, {run.of(one)}{peak}. {reason}{asked}"
    title = escape(" ".join(text.split())[:400])
    return (
        f'<g class="pick {kind}" data-i="{index}" role="button" tabindex="-1" aria-label="{title}">'
        f"<title>{title}</title>{inside}</g>"
    )


def words(x: float, y: float, text: str, *, kind: str, anchor: str = "middle") -> str:
    """A label."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

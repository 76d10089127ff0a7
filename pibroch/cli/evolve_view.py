"""The live view of `pibroch evolve`, on stderr: a panel on a terminal, one plain line per evaluation elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pibroch.cli.common import say
from pibroch.view.evolution_data import Candidate, RunView
from pibroch.view.evolution_fold import Fold
from pibroch.view.evolution_marks import VERDICTS, interval, name_of, spread, times
from pibroch.view.evolution_parts import duration, short

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LAST = 6  # verdicts that the panel shows
COLOURS = {"faster": "green", "slower": "red", "unequal": "red", "invalid": "magenta", "start": "blue"}


class LiveView:
    """Give it the journal's records in order; those that a resumed run hands out again are shown once."""

    def __init__(self, *, budget: int | None = None) -> None:
        self.fold, self.budget = Fold(), budget
        self._begun = time.monotonic()
        self._live: Live | None = None
        self._lock = threading.Lock()  # the panel is drawn by a thread of its own

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False)
            self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def record(self, record: Mapping[str, Any]) -> None:
        """One line of the journal."""
        with self._lock:
            new = self.fold.add(record)
        if not new:
            return
        if self._live is None and (line := told(self.fold.run, record, budget=self.budget)) is not None:
            say(line)

    def _panel(self) -> RenderableType:
        with self._lock:
            return panel(self.fold.run, budget=self.budget, elapsed=time.monotonic() - self._begun)


def told(run: RunView, record: Mapping[str, Any], *, budget: int | None) -> str | None:
    """A record as one plain line, where it is worth one: the start, evaluations, failed calls, confirmation, end."""
    kind = record.get("kind")
    if kind == "start":
        return f"{run.task.get('name', 'task')}: {run.kind}, start {run.start[:12]}"
    if kind == "evaluation" and (one := run.candidates.get(str(record.get("schedule")))) is not None and one.number:
        return f"{_progress(run, budget)}  {_verdict(run, one)}"
    if kind == "reply" and "error" in record:
        return _line(f"the model failed: {record.get('text', '')}")
    if kind == "confirm" and run.confirmations:
        last = run.confirmations[-1]
        speed = f"{times(last.ratio)}{interval(last.lower, last.upper)}"
        return f"fresh run of the best: {speed} over the start, {run.confirmed_kind}"
    if kind == "end":
        return _line(f"ended: {run.reason}")
    return None


def _progress(run: RunView, budget: int | None) -> str:
    most = budget or run.budget.get("evaluations")
    return f"{run.evaluations}/{most}" if most else str(run.evaluations)


def _verdict(run: RunView, one: Candidate) -> str:
    assert one.result
    speed = f" {spread(one)} of the start's speed, {run.of(one)}" if one.speed is not None else ""
    what = short(one.edit) if one.edit else one.source
    return _line(f"{VERDICTS[one.state]}{speed}  {what}: {one.result.reason}", 240)


def _line(text: str, most: int = 160) -> str:
    """On one line, and without characters that a terminal obeys."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def panel(run: RunView, *, budget: int | None, elapsed: float) -> RenderableType:
    """What the terminal shows now. `elapsed` in seconds of this session."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    most = budget or run.budget.get("evaluations") or 0
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("evaluations", Text(_progress(run, budget)))
    best = run.candidates.get(run.best)
    if best is None or best.number == 0:
        facts.add_row("best", Text("the start"))
    else:
        note = f"{name_of(best)}, {spread(best)} of the start's speed, {run.of(best)}, not confirmed yet"
        facts.add_row("best", Text(note, style="green"))
    for found in run.findings.get(run.best, ())[:2]:
        facts.add_row("finding", Text(_line(found.text)))
    if run.lm or run.spent.calls:
        money = "" if run.spent.money is None else f", cost {run.spent.money:.4f}"
        failed = f", {run.spent.failures} failed" if run.spent.failures else ""
        facts.add_row("model", Text(f"{run.spent.tokens:,} tokens in {run.spent.calls} calls{money}{failed}"))
    facts.add_row("not evaluated", Text(str(len(run.refusals))))
    facts.add_row("elapsed", Text(duration(elapsed)))
    last = Table.grid(padding=(0, 2))
    last.add_column(justify="right", style="dim")
    last.add_column(no_wrap=True)
    last.add_column(overflow="ellipsis", no_wrap=True)
    for one in run.evaluated[-LAST:]:
        assert one.result
        speed = f" {one.speed:.3f}×" if one.speed is not None else ""
        words = Text(f"{one.state}{speed}", style=COLOURS.get(one.state, ""))
        last.add_row(name_of(one), words, Text(_line(f"{short(one.edit)}: {one.result.reason}")))
    bar = ProgressBar(total=max(most, 1), completed=run.evaluations, width=40)
    title = Text(_line(f"{run.task.get('name', 'evolve')} ({run.kind})", 80))
    return Panel(Group(bar, facts, last), title=title, title_align="left", border_style="dim")

"""One self-contained page that shows a schedule: timeline, idle time by cause, memory, directives.

`render` returns HTML that works from a file without a network: style, script and data are inlined, and the page's own
policy forbids to load or run anything else. The script is data-blind: it is a constant, named by its hash in that
policy, and all text of a user goes through `html.escape` or JSON without angle brackets.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Protocol

from pibroch.runtime.directives import Schedule, schedule_text
from pibroch.runtime.plan import Plan
from pibroch.runtime.trace import Trace, bubbles, events_of
from pibroch.view import parts
from pibroch.view.data import Run, page_data

_SCRIPTS = ("surface.js", "model.js", "timeline.js", "page.js", "panels.js")


class Simulated(Protocol):
    """What the page needs of a simulation; `start` and `end` are per task id."""

    @property
    def start(self) -> Sequence[float]: ...
    @property
    def end(self) -> Sequence[float]: ...
    @property
    def makespan(self) -> float: ...
    @property
    def bubble(self) -> float: ...
    @property
    def peak_bytes(self) -> Sequence[int]: ...
    def memory(self, device: int) -> Sequence[tuple[float, int]]: ...


def render(
    *,
    title: str,
    plan: Plan,
    schedule: Schedule,
    simulation: Simulated,
    trace: Trace | None = None,
    verdict: Mapping[str, Any] | None = None,
    stages: Sequence[tuple[str, str]] | None = None,
    unit: str | None = None,
) -> str:
    """The page as text.

    `verdict` may hold `verified` and `equal` (booleans), `tokens_per_second`, and further facts, which are shown as
    they are. `stages` are (pass, text) of the lowering. `unit` is "s", or a name such as "units" where the
    simulation's costs are no seconds; by default costs count as units where each forward takes exactly 1.
    """
    unit = unit or ("units" if _unit_costs(plan, simulation) else "s")
    runs = [_run("Simulated", "s" if unit == "s" else "cost", plan, simulation, simulation.makespan)]
    if trace is not None:
        label = "Emulated" if trace.emulated else "Measured"
        runs.append(_run(label, "s", plan, trace, trace.makespan))
    script = "\n".join((files("pibroch.view") / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    file = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-") or "schedule"
    series = {device: simulation.memory(device) for device in sorted(plan.streams)}
    return Template((files("pibroch.view") / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=(files("pibroch.view") / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=inline_json(page_data(plan, runs, unit_name=unit, file=file)),
        badges=parts.badges(_badges(verdict or {}, trace)),
        stats=parts.stats(_stats(plan, simulation, runs, verdict or {}, unit)),
        facts=parts.facts(_facts(plan, verdict or {})),
        legend=parts.legend(plan, runs),
        time=parts.time_table(plan, runs, unit),
        memory=parts.memory_charts(plan, series, simulation.makespan),
        directives=parts.directives(schedule),
        json=escape(schedule_text(schedule)),
        stages=parts.stages(stages or ()),
    )


def _run(label: str, unit: str, plan: Plan, timed: Trace | Simulated, makespan: float) -> Run:
    found = bubbles(timed) if isinstance(timed, Trace) else bubbles((plan, timed))
    # Gaps of less than a hundred-thousandth of the step are rounding, not idle time.
    return Run(label, unit, events_of(plan, timed), [b for b in found if b.seconds > 1e-5 * makespan], makespan)


def _unit_costs(plan: Plan, simulation: Simulated) -> bool:
    spans = [simulation.end[t.id] - simulation.start[t.id] for t in plan.tasks if t.op == "F"]
    return bool(spans) and all(abs(span - 1) < 1e-9 for span in spans)


def inline_json(data: Any) -> str:
    """JSON that cannot end the script element that holds it, nor start a comment or a tag."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _badges(verdict: Mapping[str, Any], trace: Trace | None) -> list[tuple[str, str]]:
    texts = {
        "verified": ("the plan is verified", "the plan fails verification", "not verified"),
        "equal": ("equal to the reference", "not equal to the reference", "not compared with the reference"),
    }
    rows = []
    for key, (yes, no, unknown) in texts.items():
        value = verdict.get(key)
        rows.append(("none", unknown) if value is None else ("ok", yes) if value else ("bad", no))
    if trace is None:
        rows.append(("none", "not run"))
    elif trace.emulated:
        rows.append(("warn", "emulated: durations come from a profile, not from this machine"))
    return rows


def _stats(
    plan: Plan, simulation: Simulated, runs: Sequence[Run], verdict: Mapping[str, Any], unit: str
) -> list[tuple[str, str, str]]:
    rows = [("Step, simulated", parts.seconds(simulation.makespan, unit), "")]
    for run in runs[1:]:
        ratio = ""
        if runs[0].unit == run.unit and simulation.makespan:
            ratio = f"{100 * (run.makespan / simulation.makespan - 1):+.1f}% against simulated"
        rows.append((f"Step, {run.label.lower()}", parts.seconds(run.makespan), ratio))
    if isinstance(rate := verdict.get("tokens_per_second"), int | float):
        rows.append(("Tokens per second", f"{rate:,.0f}", "emulated" if runs[-1].label == "Emulated" else ""))
    for run in runs:
        busy = sum(e.end - e.start for e in run.events if e.stream == "compute")
        idle = 1 - busy / (run.makespan * plan.devices) if run.makespan else 0.0
        share = parts.exposed(run) / (run.makespan * plan.devices) if run.makespan else 0.0
        rows.append((f"Idle, {run.label.lower()}", f"{100 * idle:.1f}%", f"{100 * share:.1f}% exposed communication"))
    if simulation.peak_bytes:
        peak = max(simulation.peak_bytes)
        rows.append(("Peak memory", parts.size(peak), f"device {list(simulation.peak_bytes).index(peak)}, simulated"))
    return rows


def _facts(plan: Plan, verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("Model", plan.model),
        ("Devices", str(plan.devices)),
        ("Stages", str(plan.stages)),
        ("Replicas", str(plan.replicas)),
        ("Microbatches", f"{plan.microbatches} per replica"),
        ("Tasks", f"{len(plan.tasks):,}"),
        ("Plan", plan.hash()),
    ]
    for key, value in verdict.items():
        if key not in ("verified", "equal", "tokens_per_second") and isinstance(value, str | int | float):
            shown = ("yes" if value else "no") if isinstance(value, bool) else value
            rows.append(
                (key.replace("_", " ").capitalize(), f"{shown:,.6g}" if isinstance(shown, float) else str(shown))
            )
    return rows

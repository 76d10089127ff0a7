"""One self-contained page that shows a run of evolution, from its journal: for a finished run or one under way.

Like the page of a schedule (`pibroch.view`) it works from a file without a network: its policy allows its one constant
script, and the timeline's own, by their hashes. What comes from users and models is escaped text.
"""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from pydantic import ValidationError

from pibroch.runtime.directives import schedule_text
from pibroch.runtime.errors import InputError
from pibroch.view import evolution_charts, evolution_parts, inline_json, parts, render
from pibroch.view.evolution_data import RunView
from pibroch.view.evolution_fold import read_run
from pibroch.view.evolution_lineage import lineage
from pibroch.view.evolution_marks import legend, name_of

__all__ = ["RunView", "best_timeline", "read_run", "render_evolution", "report"]


def report(run_dir: Path) -> str:
    """The page of a run directory, with the timeline of its best. Raises `InputError` where it holds no journal."""
    run = read_run(run_dir)
    timeline = None
    if run.best in run.schedules:
        try:
            timeline = best_timeline(run, run_dir)
        except (InputError, ValidationError, ImportError) as error:  # a task of a project that is not here
            run.problems.append(f"the best schedule's timeline cannot be drawn: {error}")
    return render_evolution(run, timeline=timeline)


def best_timeline(run: RunView, run_dir: Path) -> str:
    """The page of the run's best: simulated with the run's costs, and as it ran where a step of it was traced.

    Raises `InputError` where the task cannot be opened, or refuses the schedule."""
    from pibroch.agents.evolve.rundir import RunDir
    from pibroch.evals.layer_costs import LayerCosts
    from pibroch.evals.setting import open_setting
    from pibroch.evals.task import Task

    setting = open_setting(Task.model_validate(run.task))
    if run.costs is not None:
        setting.measured = LayerCosts.from_json(run.costs)
    schedule = run.schedules[run.best]
    plan = setting.lower(schedule)
    simulation = setting.simulate(plan)
    trace = RunDir(run_dir).load_trace(run.best, plan)
    facts = {"verified": not setting.check(plan, simulation), "task": setting.task.name}
    return render(
        title=f"{setting.task.title}: the best schedule", plan=plan, schedule=schedule, simulation=simulation,
        trace=trace, verdict=facts,
    )  # fmt: skip


def render_evolution(run: RunView, *, timeline: str | None = None) -> str:
    """The page as text. `timeline` is the page of the best schedule (`pibroch.view.render`), which is embedded."""
    source = files("pibroch.view")
    script = (source / "evolution.js").read_text(encoding="utf-8")
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    hashes = [f"'sha256-{_hash(script)}'"]
    if timeline is not None:  # a frame obeys the policy of the page around it as well
        hashes += [f"'sha256-{_hash(inner)}'" for inner in re.findall(r"<script>(.*?)</script>", timeline, re.S)]
    order = list(run.candidates)
    items = [
        {**evolution_parts.details(run, one), "parent": order.index(one.parent) if one.parent in run.candidates else -1}
        for one in run.candidates.values()
    ]
    return Template((source / "evolution.html").read_text(encoding="utf-8")).substitute(
        title=escape(evolution_parts.cut(str(run.task.get("title") or run.task.get("name") or "unknown task"), 200)),
        style="\n".join((source / name).read_text(encoding="utf-8") for name in ("page.css", "evolution.css")),
        script=script,
        script_hashes=" ".join(hashes),
        data=inline_json({"candidates": items}),
        kind=run.kind if run.kind == run.confirmed_kind else f"{run.kind}, but for the fresh run of the best,",
        badges=parts.badges(evolution_parts.badges(run)),
        stats=parts.stats(evolution_parts.stats(run)),
        facts=parts.facts(evolution_parts.facts(run)),
        speeds=evolution_charts.speeds(run),
        legend=legend(run),
        lineage=lineage(run),
        pareto=evolution_charts.pareto(run),
        findings=evolution_parts.findings(run),
        best=_best(run, timeline),
        confirmations=evolution_parts.confirmations(run),
        evaluations=evolution_parts.evaluations(run),
        refusals=evolution_parts.refusals(run),
        playbook=evolution_parts.playbook(run),
        failures=evolution_parts.failures(run),
        problems=_problems(run),
    )


def _best(run: RunView, timeline: str | None) -> str:
    best = run.candidates.get(run.best)
    who = "nothing yet" if best is None else name_of(best)
    rows = [f'<p class="note">{escape(who)}, schedule <code>{escape(run.best[:24])}</code></p>']
    if timeline is not None:
        rows.append(
            f'<iframe class="embedded" title="Timeline of the best schedule" srcdoc="{escape(timeline)}"></iframe>'
        )
    schedule = run.schedules.get(run.best)
    if schedule is not None:
        if timeline is None:
            rows.append(f'<ol class="directives">{parts.directives(schedule)}</ol>')
        rows.append(
            '<details id="best-json"><summary>Schedule file (JSON)</summary>'
            f'<pre tabindex="0" aria-label="Best schedule as JSON">{escape(schedule_text(schedule))}</pre></details>'
        )
    return "".join(rows)


def _problems(run: RunView) -> str:
    if not run.problems:
        return ""
    items = "".join(f"<li>{escape(evolution_parts.cut(text, 300))}</li>" for text in run.problems[:50])
    more = f"<li>and {len(run.problems) - 50} more</li>" if len(run.problems) > 50 else ""
    return (
        '<section aria-labelledby="h-problems"><h2 id="h-problems">Problems in reading the run</h2>'
        f"<ul>{items}{more}</ul></section>"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

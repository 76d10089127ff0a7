"""The page's text and tables. All text of users and models is escaped here, and cut where it is long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from pibroch.evals.finding import Finding
from pibroch.runtime.words import count
from pibroch.view import parts
from pibroch.view.evolution_data import Candidate, Change, Refusal, RunView
from pibroch.view.evolution_marks import VERDICTS, interval, name_of, spread, times

KINDS = {
    "measured": ("ok", "measured: paired runs on real workers"),
    "emulated": ("warn", "emulated: real workers, durations from a profile and not from this machine"),
    "simulated": ("warn", "simulated: nothing was run, all figures are the simulator's"),
    "calibrated": ("warn", "calibrated: the simulator's figures; the best alone is run"),
}
MOST = 2000  # characters of one text that the page holds
TALL = 12  # rows: a longer table scrolls in its box


def cut(text: str, most: int = MOST) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"


def badges(run: RunView) -> list[tuple[str, str]]:
    rows = [KINDS["calibrated" if run.scores == "calibrated" else run.kind]]
    if run.reason:
        rows.append(("ok", f"ended: {cut(run.reason, 300)}"))
    else:
        rows.append(("none", "no end in the journal: under way, or interrupted"))
    if run.torn:
        rows.append(("warn", "the journal's last line is incomplete and is left out"))
    if run.problems:
        rows.append(("bad", f"{count(len(run.problems), 'problem')} in reading the run, listed below"))
    return rows


def stats(run: RunView) -> list[tuple[str, str, str]]:
    best, confirmed = run.candidates.get(run.best), run.confirmed
    rows: list[tuple[str, str, str]] = []
    if run.best == run.start or best is None:
        rows.append(("Best", "the start", f"nothing faster {'was found' if run.reason else 'yet'} ({run.kind})"))
    elif confirmed is None:
        note = f"{run.kind}, not confirmed: the search's own figure is too high by its choice of the best"
        rows.append(("Best so far", times(best.speed), note))
    else:
        against = "the start" if confirmed.incumbent == run.start else "another schedule than the start"
        pairs = f", {count(confirmed.pairs, 'pair')}" if confirmed.pairs else ""
        level = f" at {100 * confirmed.confidence:.4g}%" if confirmed.confidence and confirmed.pairs else ""
        limits = f"{confirmed.lower:.3f} to {confirmed.upper:.3f}{level}, " if confirmed.lower < confirmed.upper else ""
        name = "Best, confirmed" if confirmed.lower > 1 else "Best, gain not confirmed"
        if run.scores == "simulated":  # the simulator says the same each time: nothing is confirmed by it
            name, pairs = "Best", ""
        rows.append((name, times(confirmed.ratio), f"{limits}{run.confirmed_kind}{pairs}, over {against}"))
    if best is not None and best.result is not None and best.result.tokens_per_s:
        rows.append(("Tokens per second", f"{best.result.tokens_per_s:,.0f}", f"best, {run.of(best)}"))
    most = run.budget.get("evaluations")
    states = [c.state for c in run.evaluated]
    accepted = states.count("faster")
    rows.append(("Evaluations", f"{run.evaluations}{f' of {most}' if most else ''}", f"{accepted} accepted"))
    price = "no price known" if run.spent.money is None else f"cost {run.spent.money:.4f}"
    failed = f", {run.spent.failures} failed" if run.spent.failures else ""
    rows.append(("Model tokens", f"{run.spent.tokens:,}", f"in {count(run.spent.calls, 'call')}{failed}; {price}"))
    rows.append(("Time", duration(run.seconds), f"wall time{f', resumed {run.resumed} times' if run.resumed else ''}"))
    return rows


def facts(run: RunView) -> list[tuple[str, str]]:
    task = run.task
    limit = task.get("memory_limit")
    rows = [
        ("Task", str(task.get("name", "unknown"))),
        ("Model", str(task.get("model", "unknown"))),
        ("Devices", str(task.get("devices", "unknown"))),
        ("Samples of a step", str(task.get("samples", "unknown"))),
        ("Memory limit", parts.size(limit) if isinstance(limit, int) else "none"),
        ("Scores", run.scores),
        ("Seed", str(run.seed)),
        ("Language model", run.lm or "none"),
    ]
    if task.get("emulate"):
        rows.append(("Profile", str(task["emulate"])))
    for name, value in run.budget.items():
        if value is not None and name != "evaluations":
            rows.append((f"Budget, {name}", f"{value:,}" if isinstance(value, int | float) else str(value)))
    rows += [("Journal version", run.version or "unknown"), ("Run", run.path)]
    return [(name, cut(value, 200)) for name, value in rows]


def duration(seconds: float) -> str:
    """`95` as `1 min 35 s`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def details(run: RunView, one: Candidate) -> dict[str, Any]:
    """What the page shows of a chosen candidate; plain text."""
    rows = [("Verdict", VERDICTS[one.state]), ("Speed over the start", f"{spread(one)}, {run.of(one)}")]
    result = one.result
    if result is not None:
        rows.append(("Reason", cut(result.reason)))
        if result.ratio is not None and one.number:
            pairs = f", {count(result.pairs, 'pair')}" if result.pairs else ""
            rows.append(("Over its incumbent", f"{times(result.ratio)}{interval(result.lower, result.upper)}{pairs}"))
        rows.append(("Last rung", result.rung))
        if result.step_s is not None:
            rows.append(("Step", f"{parts.seconds(result.step_s)}, {run.of(one)}"))
        if result.simulated_s is not None:
            rows.append(("Step, simulated", parts.seconds(result.simulated_s)))
        if result.peak_bytes is not None:
            rows.append(("Peak memory", parts.size(result.peak_bytes)))
        rows.append(("Took", f"{parts.seconds(result.total_s)}, {parts.seconds(result.steps_s)} of it in steps"))
        if result.findings:
            rows.append(("Findings", "; ".join(cut(f.text, 300) for f in result.findings[:3])))
    if one.number:
        rows.append(("Source", one.source or "unknown"))
        parent = run.candidates.get(one.parent or "")
        rows.append(("Parent", name_of(parent) if parent else "unknown"))
    if one.why:
        rows.append(("Why", cut(one.why)))
    if one.bullets:
        rows.append(("Bullets", ", ".join(cut(b, 60) for b in one.bullets[:40])))
    if one.asked.calls:
        price = "" if one.asked.money is None else f", cost {one.asked.money:.4f}"
        rows.append(("Model", f"{one.asked.tokens:,} tokens in {count(one.asked.calls, 'call')}{price}"))
    rows.append(("Schedule", cut(one.schedule, 80)))
    edit = cut(json.dumps(one.edit, indent=1, ensure_ascii=False), 4000) if one.edit else ""
    return {"name": "The start" if not one.number else f"Evaluation {one.number}", "rows": rows, "edit": edit}


def short(edit: dict[str, Any] | None) -> str:
    """An edit on one line."""
    if not edit:
        return "–"
    rest = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in edit.items() if k != "op")
    return cut(f"{edit.get('op', 'edit')}({rest})", 240)


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], kinds: str) -> str:
    """Plain text cells. `kinds` has a letter per column: "n" figures, "w" words on one line, "l" long words."""
    if not rows:
        return '<p class="note">None.</p>'
    classes = {"n": "", "w": ' class="text"', "l": ' class="text long"'}
    head = "".join(f'<th scope="col"{classes[k]}>{escape(h)}</th>' for h, k in zip(heads, kinds, strict=True))
    body = ""
    for row in rows:
        first, *rest = (f"{classes[k]}>{escape(cell)}" for cell, k in zip(row, kinds, strict=True))
        body += f'<tr><th scope="row"{first}</th>{"".join(f"<td{cell}</td>" for cell in rest)}</tr>'
    return boxed(
        caption,
        f'<table class="log"><caption class="sr">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        tall=len(rows) > TALL,
    )


def boxed(name: str, inside: str, *, tall: bool) -> str:
    """What is too long or too wide scrolls in its own box."""
    kind = "wide tall" if tall else "wide"
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{escape(name)}">{inside}</div>'


def evaluations(run: RunView) -> str:
    rows = []
    for one in run.evaluated:
        assert one.result
        step, peak, reason = one.result.step_s, one.result.peak_bytes, cut(one.result.reason, 300)
        took = "–"
        if step is not None or one.result.simulated_s is not None:
            took = parts.seconds(step) if step is not None else f"{parts.seconds(one.result.simulated_s or 0)} sim."
        rows.append(
            (
                name_of(one), one.source, one.state, spread(one) if one.speed is not None else "–", took,
                parts.size(peak) if peak is not None else "–", run.of(one), short(one.edit), reason,
            )
        )  # fmt: skip
    heads = ("", "Source", "Verdict", "Speed over the start", "Step", "Peak", "Figures", "Edit", "Reason")
    return table("All evaluations", heads, rows, "wwwnnnwll")


def refusals(run: RunView) -> str:
    """Proposals that were not evaluated, and candidates that were refused or differed."""
    kinds: dict[str, int] = {}
    for one in run.refusals:
        kinds[_kind(one)] = kinds.get(_kind(one), 0) + 1
    rows = [
        (f"after #{r.after}", r.source or "–", _kind(r), cut(r.reason, 400), short(r.edit), r.schedule[:12] or "–")
        for r in run.refusals
    ]
    bad = [c for c in run.evaluated if c.result and c.state in ("invalid", "same", "unequal")]
    rows += [
        (name_of(c), c.source, c.state, cut(c.result.reason, 400), short(c.edit), c.schedule[:12])
        for c in bad if c.result
    ]  # fmt: skip
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    note = f'<p class="note">Not evaluated: {escape(told or "none")}. Evaluated in vain: {len(bad)}.</p>'
    heads = ("When", "Source", "Kind", "Reason", "Edit", "Schedule")
    return note + table("Rejected proposals", heads, rows, "wwwllw")


def _kind(refusal: Refusal) -> str:
    return cut(refusal.reason.split(":", 1)[0], 40) or "no reason"


def findings(run: RunView) -> str:
    best = run.candidates.get(run.best)
    columns = [("The start", run.findings.get(run.start, ()))]
    if run.best != run.start:
        columns.append((f"The best ({name_of(best)})" if best else "The best", run.findings.get(run.best, ())))
    return '<div class="columns">' + "".join(_findings(name, rows, run.kind) for name, rows in columns) + "</div>"


def _findings(name: str, rows: Sequence[Finding], kind: str) -> str:
    items = "".join(
        f"<li><b>{escape(cut(f.kind, 60))}</b> <span class='muted'>{escape(_cost(f))}, {escape(f.origin)}</span>"
        f"<br>{escape(cut(f.text, 600))}</li>"
        for f in rows
    )
    body = f"<ol>{items}</ol>" if rows else '<p class="note">None in the journal.</p>'
    return f'<div><h3>{escape(name)} <span class="muted">({kind})</span></h3>{body}</div>'


def _cost(one: Finding) -> str:
    return f"{parts.seconds(one.seconds)}, {100 * one.share:.1f}% of the step" if one.seconds else "no time"


def playbook(run: RunView) -> str:
    done: dict[str, int] = {}
    for one in run.changes:
        done[one.done] = done.get(one.done, 0) + 1
    told = ", ".join(f"{n} {name}" for name, n in sorted(done.items())) or "no changes"
    rows = "".join(_change(one) for one in run.changes)
    if not rows:
        return f'<p class="note">{told}.</p>'
    box = boxed("Playbook changes", f'<ul class="changes">{rows}</ul>', tall=len(run.changes) > TALL)
    return f'<p class="note">{escape(told)}.</p>{box}'


def _change(one: Change) -> str:
    before = f"<del>{escape(cut(one.before, 900))}</del>" if one.before and one.before != one.after else ""
    after = f"<ins>{escape(cut(one.after, 900))}</ins>" if one.after and one.done != "removed" else ""
    reason = f'<span class="muted">{escape(cut(one.reason, 400))}</span>' if one.reason else ""
    return (
        f'<li class="c-{escape(one.done)}"><span>#{one.evaluation}</span><b>{escape(one.done)}</b>'
        f"<code>{escape(cut(one.id, 40) or '–')}</code><div>{before}{after}{reason}</div></li>"
    )


def failures(run: RunView) -> str:
    rows = [(f"after #{f.after}", f.role, f.kind, cut(f.text, 500)) for f in run.failures]
    return table("Failed calls", ("When", "Role", "Error", "What it said"), rows, "wwwl")


def confirmations(run: RunView) -> str:
    rows = []
    for one in run.confirmations:
        who = [run.candidates.get(key) for key in (one.schedule, one.incumbent)]
        names = [name_of(c) if c else key[:12] for c, key in zip(who, (one.schedule, one.incumbent), strict=True)]
        level = f"{100 * one.confidence:.4g}%" if one.confidence else "–"
        limits = f"{one.lower:.3f} to {one.upper:.3f}" if one.lower < one.upper else "–"
        rows.append((*names, times(one.ratio), limits, level, str(one.pairs), run.confirmed_kind))
    heads = ("Schedule", "Against", "Speed", "Interval", "Confidence", "Pairs", "Figures")
    return table("Confirmation runs", heads, rows, "wwnnnnw")

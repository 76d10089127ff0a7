"""The page of a run: what is read from a journal, and what the page holds without a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from evolution_journal import NASTY, TOKENS, Written, evaluation, write_run

from pibroch.agents.evolve.rundir import RunDir
from pibroch.evals.setting import open_setting
from pibroch.evals.task import Task
from pibroch.runtime.errors import InputError
from pibroch.runtime.trace import Event, Trace, events_of
from pibroch.view.evolution import RunView, read_run, render_evolution, report
from pibroch.view.evolution_charts import front, nice
from pibroch.view.evolution_fold import Fold


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_run(tmp_path_factory.mktemp("run"), evaluations=20)


@pytest.fixture(scope="module")
def run(told: Written) -> RunView:
    return read_run(told.path)


def without_script(html: str) -> str:
    return re.sub(r"<script.*?</script>|<style.*?</style>", "", html, flags=re.S)


def test_a_journal_is_read_as_it_was_written(told: Written, run: RunView) -> None:
    assert run.problems == []
    assert not run.torn
    assert (run.start, run.best, run.reason) == (told.start, told.best, "budget: 12 evaluations")
    assert list(run.candidates) == told.schedules
    assert {c.schedule: c.state for c in run.evaluated} == told.verdicts
    assert run.evaluations == 20
    assert len(run.refusals) == told.skipped
    assert (len(run.failures), run.spent.calls) == (told.failures, told.calls)
    replied = told.calls - told.failures
    assert (run.spent.input_tokens, run.spent.output_tokens) == (replied * TOKENS[0], replied * TOKENS[1])
    assert run.spent.money == pytest.approx(replied * (TOKENS[0] * 1.0 + TOKENS[1] * 4.0) / 1e6)
    assert [c.done for c in run.changes] == told.outcomes
    assert {"added", "tagged", "merged", "removed", "refused"} <= set(told.outcomes)
    assert set(run.schedules) == {told.start, told.best}


def test_speeds_are_products_along_the_incumbents(told: Written, run: RunView) -> None:
    assert len(told.speed) > 8
    for key, speed in told.speed.items():
        one = run.candidates[key]
        assert one.speed == pytest.approx(speed)
        assert one.lower is not None
        assert one.upper is not None
        assert one.lower <= speed <= one.upper
    assert all(c.speed is None for c in run.evaluated if c.state in ("invalid", "same", "unequal"))


def test_each_proposal_carries_what_it_cost_the_model(run: RunView) -> None:
    asked = [c.asked for c in run.evaluated]
    assert sum(a.tokens for a in asked) == run.spent.tokens
    assert [a.failures for a in asked[:5]] == [0, 0, 0, 0, 1]


def test_bullets_are_shown_before_and_after(run: RunView) -> None:
    tags = [c for c in run.changes if c.done == "tagged"]
    assert "not tested" in tags[0].before
    assert "tested 1, helpful 1" in tags[0].after
    assert "tested 2, helpful 2" in tags[1].after
    removed = next(c for c in run.changes if c.done == "removed")
    assert "move the cut by 9 layers" in removed.before
    assert removed.after == ""
    assert removed.reason == "one seed"


def test_without_the_playbook_file_a_change_still_shows_its_words(tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=3)
    (tmp_path / "playbook.json").unlink()
    changes = read_run(told.path).changes
    assert [c.done for c in changes] == ["added", "tagged"]
    assert "move the cut by 3 layers" in changes[0].after
    assert changes[1].after == "shown 1, tested 1, helpful 1"


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "a", end=None)
    write_run(tmp_path / "b", end=None, torn=True)
    torn = read_run(tmp_path / "b")
    assert torn.torn
    assert torn.problems == []
    assert list(torn.candidates) == whole.schedules
    assert "last line is incomplete" in render_evolution(torn)


def test_every_prefix_of_a_journal_is_a_run_under_way(tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=8)
    raw = (tmp_path / "journal.jsonl").read_bytes()
    cuts = [i + 1 for i, byte in enumerate(raw) if byte == 10]
    seen = []
    for end in (0, *cuts, *(i + 9 for i in cuts[:-1])):
        (tmp_path / "journal.jsonl").write_bytes(raw[:end])
        run = read_run(tmp_path)
        html = render_evolution(run)
        assert html.count('class="pick node"') == len(run.candidates)
        seen.append(run.evaluations)
        assert run.reason == "" or end == len(raw)
    assert max(seen) == 8
    (tmp_path / "journal.jsonl").write_bytes(raw[: cuts[-3]])
    assert f"of {len(told.verdicts)}" in without_script(render_evolution(read_run(tmp_path)))


def test_a_proposal_that_waits_and_then_is_skipped_leaves_the_tree(tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=1, end=None)
    told.add("proposal", evaluation=2, source="edit", parent=told.start, schedule="ab", edit={"op": "x"}, bullets=[],
             why="")  # fmt: skip
    assert read_run(tmp_path).candidates["ab"].state == "waiting"
    assert "not judged yet" in render_evolution(read_run(tmp_path))
    told.add("skipped", schedule="ab", reason="duplicate", source="edit", parent=told.start, edit=None, bullets=[])
    run = read_run(tmp_path)
    assert "ab" not in run.candidates
    assert (run.refusals[-1].reason, run.refusals[-1].edit) == ("duplicate", {"op": "x"})


def test_a_resumed_run_has_no_end_until_it_ends_again(tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=2, end="interrupted")
    told.add("resume")
    assert read_run(tmp_path).reason == ""
    told.add("end", reason="stopped", best=told.best, evaluations=2)
    run = read_run(tmp_path)
    assert (run.reason, run.resumed) == ("stopped", 1)


def test_records_that_are_handed_out_again_change_nothing(told: Written) -> None:
    once, twice = Fold(), Fold()
    for record in told.records:
        assert once.add(record)
    for record in [*told.records[:9], *told.records]:
        twice.add(record)
    assert render_evolution(once.run) == render_evolution(twice.run)


def test_lines_that_are_no_records_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=3, end=None)
    with (tmp_path / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write("garbage\n[1]\n")
    told.add("evaluation", evaluation=4, schedule="x", incumbent=told.start, result={"verdict": "odd"})
    told.add("proposal", evaluation="many")
    told.add("news", text="a kind of a later version")
    run = read_run(tmp_path)
    assert len(run.problems) == 4
    lines = (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    for text in ("garbage", "[1]"):
        assert f"line {lines.index(text) + 1} of the journal is not a record" in run.problems
    assert sum("cannot be read" in problem for problem in run.problems) == 2
    html = without_script(render_evolution(run))
    assert "Problems in reading the run" in html
    assert html.count('class="pick node"') == 4


def test_a_folder_without_a_run_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run to read: journal\.jsonl"):
        read_run(tmp_path)


def test_the_page_loads_nothing_and_its_policy_names_its_script(run: RunView) -> None:
    html = render_evolution(run)
    assert not re.search(r'(?:src|href)="(?!#|data:,")', html.split("<script", 1)[0])
    assert "url(" not in html.split("</style>")[0]
    script = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert len(script) == 1
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html


def test_facts_are_in_the_page_without_a_script(told: Written, run: RunView) -> None:
    html = without_script(render_evolution(run))
    for text in ("1.090×", "1.050 to 1.130", "24 pairs", "20 of 20", "ended: budget: 12 evaluations", "warm-up is long",
                 "a transfer is exposed", "no such group", "duplicate", "no fence in the reply", "cost 0.0208",
                 "move(device=1, to=1)"):  # fmt: skip
        assert text in html, text
    assert html.count('class="pick node"') == len(told.schedules) == 21
    assert html.count('class="pick point') - html.count('class="pick without') > 0
    speeds = html[html.index('id="speeds"') : html.index('id="h-lineage"')]
    assert speeds.count('class="pick point') == len(told.speed) - 1  # the start is the line at 1
    assert speeds.count('class="error"') == len(told.speed) - 1
    assert speeds.count('class="pick without') == 21 - len(told.speed)


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, "measured"), ({"emulate": "equal-8"}, "emulated"), ({"scores": "simulated"}, "simulated")],
)
def test_figures_are_never_called_what_they_are_not(tmp_path: Path, options: dict[str, Any], kind: str) -> None:
    told = write_run(tmp_path, **options)
    html = without_script(render_evolution(read_run(told.path))).lower()
    assert f"speed over the start ({kind})" in html
    for other in {"measured", "emulated", "simulated"} - {kind}:
        assert f"({other})" not in html
        assert f", {other}" not in html
    if kind == "simulated":
        assert "nothing was run" in html


def test_a_calibrated_run_says_which_figures_are_the_simulators(tmp_path: Path) -> None:
    html = without_script(render_evolution(read_run(write_run(tmp_path, scores="calibrated").path))).lower()
    assert "the best alone is run" in html
    assert "speed over the start (simulated)" in html
    assert "all figures are simulated, but for the fresh run of the best" in html
    assert re.search(r"measured, \d+ pairs[^,]*, over the start", html)


def test_in_a_measured_run_a_simulated_speed_is_marked_and_is_not_on_the_front(tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=3, end=None)
    result = evaluation("slower", random.Random(0), scores="simulated", emulated=False, reason="too slow", ratio=9.0)
    told.add("proposal", evaluation=4, source="edit", parent=told.start, schedule="ab", edit=None, bullets=[], why="")
    told.add("evaluation", evaluation=4, schedule="ab", incumbent=told.start, result=result.to_json())
    run = read_run(tmp_path)
    assert run.candidates["ab"].speed == 9.0
    assert "ab" not in {c.schedule for c in front(run)}
    assert "point simulated" in render_evolution(run)


def test_the_front_holds_what_nothing_beats_in_both(run: RunView) -> None:
    able = {
        key: (one.speed, -one.result.peak_bytes) for key, one in run.candidates.items()
        if one.speed is not None and one.result and one.result.peak_bytes is not None
    }  # fmt: skip
    assert len(able) > 8
    unbeaten = {k for k, a in able.items() if not any(b != a and b[0] >= a[0] and b[1] >= a[1] for b in able.values())}
    assert {c.schedule for c in front(run)} == unbeaten


def test_an_unconfirmed_best_is_called_so(tmp_path: Path) -> None:
    told = write_run(tmp_path, confirm=False)
    assert "not confirmed" in render_evolution(read_run(told.path))
    told.add("confirm", schedule=told.best, incumbent=told.start, ratio=1.01, lower=0.98, upper=1.04, pairs=9,
             confidence=0.999)  # fmt: skip
    html = render_evolution(read_run(told.path))
    assert "Best, gain not confirmed" in html
    assert "Best, confirmed" not in html


def test_text_of_users_and_models_is_escaped(tmp_path: Path) -> None:
    html = render_evolution(read_run(write_run(tmp_path, nasty=True, evaluations=20).path))
    assert "<img" not in html
    assert html.count("<script") == 2  # the data block and the page's own
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert data
    items = json.loads(data[1])["candidates"]
    assert NASTY in dict(items[1]["rows"])["Reason"]


def test_long_texts_are_cut(tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=1, end=None)
    told.add("reply", role="schedule", key="k", text="y" * 10_000_000, tokens=[10, 10], model="m", who="m")
    told.add("proposal", evaluation=2, source="writer", parent=told.start, schedule="ab", edit={"op": "z" * 10**6},
             bullets=["b" * 1000] * 1000, why="w" * 10**6)  # fmt: skip
    assert len(render_evolution(read_run(told.path))) < 120_000


@pytest.mark.parametrize(("low", "high", "most"), [(0, 1, 5), (0.93, 1.27, 6), (0, 500, 9), (1e-9, 3e-9, 4), (7, 7, 4)])
def test_ticks_are_round_inside_and_not_too_many(low: float, high: float, most: int) -> None:
    ticks = nice(low, high, most)
    assert 1 <= len(ticks) <= most + 1
    assert all(low - 1e-12 <= v <= high + 1e-12 for v in ticks)
    steps = {round(b - a, 15) for a, b in pairwise(ticks)}
    if steps:
        step = max(steps)
        assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


def test_the_best_timeline_is_simulated_and_as_it_ran(tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=2)  # the best has four microbatches of the task's eight samples
    simulated = report(tmp_path)
    assert simulated.count("<iframe") == 1
    assert "&quot;label&quot;:&quot;Simulated&quot;" in simulated
    assert "&quot;label&quot;:&quot;Measured&quot;" not in simulated
    inner = re.findall(r"&lt;script&gt;(.*?)&lt;/script&gt;", simulated, re.S)
    digest = base64.b64encode(hashlib.sha256(unescape(inner[0]).encode()).digest()).decode()
    assert f"'sha256-{digest}'" in simulated
    run = read_run(tmp_path)
    setting = open_setting(Task.model_validate(run.task))
    plan = setting.lower(run.schedules[told.best])
    ran = events_of(plan, setting.simulate(plan))
    events = [Event(e.task, e.device, e.stream, 2 * e.start, 2 * e.end) for e in ran]
    RunDir(tmp_path).save_trace(told.best, Trace(plan, events))
    assert "&quot;label&quot;:&quot;Measured&quot;" in report(tmp_path)
    RunDir(tmp_path).save_trace(told.best, Trace(setting.lower(run.schedules[told.start]), []))  # another plan's
    assert "&quot;label&quot;:&quot;Measured&quot;" not in report(tmp_path)


def test_a_task_that_is_not_here_leaves_the_page_without_a_timeline(tmp_path: Path) -> None:
    write_run(tmp_path, evaluations=2)
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("gpt-tiny", "nowhere:model"), encoding="utf-8")
    html = without_script(report(tmp_path))
    assert "<iframe" not in html
    assert "timeline cannot be drawn" in html
    assert html.count('class="pick node"') == 3

"""A run of evolution with simulated scores: what it finds, how it ends, and that it can be killed at any time."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import ScriptedModel, block
from small_tasks import run, session, small_task, steps

import pibroch.agents.evolve.session as sessions
from pibroch.agents.evolve.applying import apply_run
from pibroch.agents.evolve.engine import Evolution
from pibroch.agents.lm.base import LMError, Paused
from pibroch.evals.setting import open_setting
from pibroch.playbooks.store import of_project
from pibroch.runtime.directives import load_schedule
from pibroch.runtime.errors import InputError, WorkerError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One run to its end."""
    path = tmp_path_factory.mktemp("whole") / "run"
    return path, run(path, session())


def test_what_it_reports_is_what_the_simulator_says(whole: tuple[Path, dict[str, Any]]) -> None:
    path, result = whole
    setting = open_setting(small_task())
    start = load_schedule(path / "schedules" / f"{result['best']['incumbent']}.json")
    before, after = (
        setting.simulate(setting.lower(s)).makespan for s in (start, load_schedule(Path(result["best"]["file"])))
    )
    assert result["kind"] == "simulated"
    assert result["best"]["ratio"] == pytest.approx(before / after)
    assert result["best"]["ratio"] > 1.1
    assert result["evaluations"] == 10
    assert result["ended"] == "budget: 10 evaluations"
    assert len(result["rejected"]) + sum(r["kind"] == "evaluation" and r["result"]["verdict"] == "faster"
                                         for r in steps(path)) == 10  # fmt: skip


def test_no_plan_is_evaluated_twice(whole: tuple[Path, dict[str, Any]]) -> None:
    plans = [r["result"]["plan"] for r in steps(whole[0]) if r["kind"] == "evaluation"]
    assert len(plans) == len(set(plans)) == 11  # the start and ten candidates


def test_another_seed_takes_other_steps_and_the_same_seed_the_same(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run(tmp_path / "same", session())
    run(tmp_path / "other", session(seed=1))
    same = named(steps(whole[0]), "run", "same")
    same[0]["run"] = "same"
    assert steps(tmp_path / "same") == same
    assert steps(tmp_path / "other")[1:] != steps(whole[0])[1:]


def named(rows: list[dict[str, Any]], old: str, new: str) -> list[dict[str, Any]]:
    """The rows of a run whose folder has another name: evidence is named after it."""
    text = json.dumps(rows).replace(f'"run:{old}#', f'"run:{new}#')
    found: list[dict[str, Any]] = json.loads(text)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_cut_off_anywhere_and_resumed_it_ends_as_if_nothing_had_happened(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "run"
    run(path, session(evaluations=1))
    raw = (whole[0] / "journal.jsonl").read_bytes()
    at = random.Random(seed).randrange(raw.index(b"\n") + 1, len(raw))
    for file in (whole[0] / "schedules").iterdir():
        (path / "schedules" / file.name).write_bytes(file.read_bytes())
    (path / "journal.jsonl").write_bytes(raw[:at])
    result = run(path)
    assert steps(path) == steps(whole[0])
    assert (path / "best.json").read_text() == (whole[0] / "best.json").read_text()
    assert result["best"]["ratio"] == whole[1]["best"]["ratio"]


def test_a_larger_budget_goes_on_where_the_run_ended(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert run(path, session(evaluations=4))["evaluations"] == 4
    sessions.evolve(path, sessions.resumed(path, evaluations=10), resume=True)
    assert steps(path)[1:] == steps(whole[0])[1:]


def test_a_changed_option_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "run", session(evaluations=1))
    with pytest.raises(InputError, match="cannot be resumed, since its program or its options have changed"):
        sessions.evolve(tmp_path / "run", session(seed=5, evaluations=1), resume=True)
    with pytest.raises(InputError, match="holds a run already"):
        run(tmp_path / "run", session())
    with pytest.raises(InputError, match="holds no run"):
        run(tmp_path / "nowhere")


def test_a_stop_file_ends_it_after_the_present_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def stop(record: dict[str, Any]) -> None:
        if record["kind"] == "evaluation" and record["evaluation"] == 3:
            (path / "STOP").touch()

    result = run(path, session(), listeners=[stop])
    assert (result["ended"], result["evaluations"]) == ("stopped", 3)
    assert sessions.finished(path, sessions.resumed(path)) is None
    assert run(path)["evaluations"] == 10  # the file was for that session


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def interrupt(record: dict[str, Any]) -> None:
        if record["kind"] == "evaluation" and record["evaluation"] == 2:
            raise KeyboardInterrupt

    result = run(path, session(), listeners=[interrupt])
    assert result["ended"] == "interrupted"
    assert not result["best"]["confirmed"]
    assert run(path)["evaluations"] == 10


def test_a_larger_budget_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(path, session(evaluations=3))
    sessions.evolve(path, sessions.resumed(path, evaluations=8), resume=True)
    lines = (path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if json.loads(line)["kind"] == "resume")
    later = [n for n, line in enumerate(lines) if n > at and json.loads(line)["kind"] == "evaluation"]
    (path / "journal.jsonl").write_bytes(b"".join(lines[: later[0] + 1]))
    told = sessions.resumed(path)
    assert told.budget.evaluations == 8
    assert sessions.finished(path, told) is None


def test_a_confirmation_that_fails_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*args: Any) -> None:
        raise WorkerError("rank 1 died")

    monkeypatch.setattr(Evolution, "_confirm", fails)
    result = run(tmp_path / "run", session())
    assert result["evaluations"] == 10
    assert result["best"]["evaluation"] > 0
    assert not result["best"]["confirmed"]
    assert result["failures"] == ["the best could not be confirmed: rank 1 died"]


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({}, True),
        ({"evaluations": 9}, False),  # Ctrl-C behind the last evaluation's line
        ({"ended": "interrupted"}, False),
        ({"scores": "measured", "best": {"interval": [1.01, 1.02]}}, True),
        ({"scores": "measured", "best": {"interval": None}}, False),  # not confirmed yet
        ({"scores": "calibrated", "best": {"interval": None}}, False),
    ],
)
def test_only_a_whole_result_is_shown_again(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, changed: dict[str, Any], shown: bool
) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole[0], path)
    result = json.loads((path / "result.json").read_text())
    changed = {**changed, "best": {**result["best"], **changed.get("best", {})}}
    (path / "result.json").write_text(json.dumps({**result, **changed}))
    assert (sessions.finished(path, sessions.resumed(path)) is not None) == shown


def test_a_result_of_before_there_were_calibrated_scores_is_shown_too(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole[0], path)
    result = json.loads((path / "result.json").read_text())
    del result["scores"]
    (path / "result.json").write_text(json.dumps(result))
    shown = sessions.finished(path, sessions.resumed(path))
    assert shown is not None
    assert shown["scores"] == "simulated"


def test_wall_time_ends_it(tmp_path: Path) -> None:
    result = run(tmp_path / "run", session(seconds=1e-3))
    assert (result["ended"], result["evaluations"]) == ("budget: 0.001 s of wall time", 0)
    assert result["best"]["hash"] == result["best"]["incumbent"]


# Models that fail


def with_model(monkeypatch: pytest.MonkeyPatch, answers: list[str | Exception]) -> ScriptedModel:
    lm = ScriptedModel(answers)
    monkeypatch.setattr(sessions, "open_lm", lambda *_, **__: lm)
    return lm


REORDER = block({"edit": {"op": "reorder", "split": True}, "cites": []})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("no block here", "no fenced block"),
        (block("x" * 10_000_000), "longer than 1048576 bytes"),
        (block({"edit": {"op": "make it fast"}}), "make it fast"),
        (LMError("no answer within 300 s"), "no answer within 300 s"),
    ],
)
def test_whatever_a_model_does_the_run_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str | Exception, reason: str
) -> None:
    lm = with_model(monkeypatch, [f"{answer}{n}" if isinstance(answer, str) else answer for n in range(100)])
    result = run(tmp_path / "run", session(evaluations=6))
    assert result["evaluations"] == 6
    assert result["best"]["ratio"] > 1.05
    assert any(reason in line for line in result["failures"]), result["failures"]
    assert "the run goes on without the model" in result["failures"][-1]
    roles = [request.role for request in lm.asked]
    assert roles.count("writer") <= 9  # three proposals of three attempts
    assert len(roles) <= 3 if isinstance(answer, LMError) else len(roles) <= 9 + 3 * 6


def test_a_model_that_repeats_itself_is_told_once_and_then_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_model(monkeypatch, [REORDER] * 100)
    result = run(tmp_path / "run", session(evaluations=8))
    assert result["evaluations"] == 8
    assert any("repeats" in line or "tried before" in line or "again" in line for line in result["failures"])


def test_a_model_that_costs_too_much_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lm = with_model(monkeypatch, [REORDER] * 100)
    result = run(tmp_path / "run", session(evaluations=6, tokens=50))
    assert not lm.asked
    assert result["evaluations"] == 6
    assert "budget for the model is spent" in result["failures"][0]
    assert result["cost"]["calls"] == 0


def test_replies_are_paid_for_once_and_heard_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers: list[str | Exception] = [REORDER, *["nothing"] * 100]
    first = with_model(monkeypatch, answers)
    path = tmp_path / "run"
    told = replace(session(evaluations=3), ask=sessions.Ask("scripted"))
    before = run(path, told)
    whole_journal = steps(path)
    (path / "journal.jsonl").write_text(
        "".join(f"{line}\n" for line in (path / "journal.jsonl").read_text().splitlines()[:8])
    )
    second = with_model(monkeypatch, first.answers[sum(r["kind"] == "reply" for r in steps(path)) :])
    after = run(path)
    assert steps(path) == whole_journal
    assert len(second.asked) < len(first.asked)
    assert {k: v for k, v in after["cost"].items() if k != "seconds"} == {
        k: v for k, v in before["cost"].items() if k != "seconds"
    }


def test_a_mailbox_without_an_answer_pauses_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_model(monkeypatch, [Paused("nobody answered 1-writer.md")])
    told = replace(session(evaluations=4), ask=sessions.Ask("scripted"))
    with pytest.raises(Paused, match=r"nobody answered .*--resume"):
        run(tmp_path / "run", told)
    with_model(monkeypatch, [REORDER, *["nothing"] * 20])
    assert run(tmp_path / "run")["evaluations"] == 4


# What it learns


def test_what_was_learned_goes_into_the_project_once(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path = whole[0]
    root = tmp_path / "project"
    (root / "playbooks").mkdir(parents=True)
    store = of_project(root)
    first = apply_run(root, path, task="small", better=True)
    assert first["deltas"] > 0
    assert load_schedule(root / "generated" / "schedules" / "small.json") == load_schedule(path / "best.json")
    known = store.load()
    assert apply_run(root, path, task="small", better=True)["deltas"] == 0
    assert store.load() == known

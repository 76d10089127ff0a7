"""`pibroch evolve` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helper import fresh, here

from pibroch.evals.setting import open_setting
from pibroch.evals.task import load_task
from pibroch.playbooks.store import SHIPPED, of_project, read
from pibroch.runtime.directives import load_schedule

KEYS = {"ok", "task", "kind", "best", "evaluations", "rejected", "playbook", "cost", "run_dir", "report", "ended"}
TASK = {
    "version": 1, "name": "own", "title": "mine", "model": "mlp:18", "devices": 3, "samples": 3,
    "emulate": "pythia-1b-a100-25g", "intent": "the fastest schedule over 3 devices for 3 samples",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pibroch.toml").write_text('[project]\nname = "mine"\n')
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "own.json").write_text(json.dumps(TASK))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_task_to_a_schedule_a_report_and_a_playbook(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = here(capsys, "evolve", "own", "--budget", "6", "--scores", "simulated", "--apply", "--json")
    assert said.code == 0, said.err
    result = said.json
    assert result.keys() >= KEYS
    assert (result["evaluations"], result["kind"], result["run_dir"]) == (6, "simulated", "runs/evolve/own-1")
    assert not result["best"]["confirmed"]  # nothing ran
    setting = open_setting(load_task(project / "tasks" / "own.json"))
    folder = project / result["run_dir"]
    start = setting.simulate(setting.lower(load_schedule(folder / f"schedules/{result['best']['incumbent']}.json")))
    best = setting.simulate(setting.lower(load_schedule(project / "generated" / "schedules" / "own.json")))
    assert result["best"]["ratio"] == pytest.approx(start.makespan / best.makespan)
    shipped, learned = read(SHIPPED), of_project(project).load()
    new = [b for b in learned.bullets if shipped.get(b.id) is None]
    assert {b.evidence[0].partition("#")[0] for b in new} <= {"run:own-1"}
    assert len(new) == result["playbook"]["added"]
    (before,), after = shipped.bullets, learned.bullets[0]
    assert (after.tested, after.helpful) == (before.tested + 1, before.helpful + 1)  # its V helps here too
    page = (project / result["report"]).read_text()
    assert page.startswith("<!doctype html>")
    assert "simulated" in page
    again = here(capsys, "evolve", "own", "--budget", "1", "--scores", "simulated", "--json")
    assert again.json["run_dir"] == "runs/evolve/own-2"


def test_resumed_from_its_folder_alone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--scores", "simulated", "--out", "one", "--json")
    first = here(capsys, "evolve", "own", "--budget", "3", *options).json
    more = here(capsys, "evolve", "--resume", "one", "--budget", "5", "--json").json
    assert (first["evaluations"], more["evaluations"]) == (3, 5)
    again = here(capsys, "evolve", "--resume", "one", "--json").json
    assert again == more
    assert here(capsys, "evolve", "--resume", "one", "--budget", "2").code == 1
    assert [r["schedule"] for r in more["rejected"]][: len(first["rejected"])] == [
        r["schedule"] for r in first["rejected"]
    ]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["nothing"], 1, "nothing"),
        ([], 2, "name a task, or a model with --model, or a run with --resume"),
        (["own", "--resume", "x"], 2, "one of them"),
        (["--resume", "x", "--seed", "3"], 2, "leave out --seed"),
        (["--resume", "x"], 1, "holds no run"),
        (["own", "--budget", "0"], 2, "--budget"),
        (["own", "--price", "cheap"], 1, "write two numbers"),
        (["own", "--max-seconds", "-1"], 1, "allows nothing"),
        (["own", "--playbook", "none.json", "--scores", "simulated", "--schedule", "absent.json"], 1, "absent.json"),
        (["own", "--lm", "oracle", "--scores", "simulated"], 1, "names no language model"),
        (["--model", "gpt-none", "--scores", "simulated"], 1, "no such workload"),
        (["own", "--out", "taken", "--scores", "simulated"], 1, "taken"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, message: str
) -> None:
    (project / "taken").write_text("a file")
    before = sorted(project.rglob("*"))
    said = here(capsys, "evolve", *args)
    assert said.code == code, said.err
    assert message in said.err
    assert "Traceback" not in said.err
    assert sorted(project.rglob("*")) == before


def test_apply_needs_a_project(tmp_path: Path) -> None:
    said = fresh("evolve", "pythia-4", "--scores", "simulated", "--apply", cwd=tmp_path)
    assert said.code == 1
    assert "pibroch init" in said.err


def test_a_users_own_model(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "mine.py").write_text(
        "from pibroch.evals.models import load_workload\n\n\ndef workload():\n    return load_workload('mlp-tiny')\n"
    )
    said = here(
        capsys,
        "evolve",
        "--model",
        "mine:workload",
        "--samples",
        "4",
        "--budget",
        "2",
        "--scores",
        "simulated",
        "--json",
    )
    assert said.code == 0, said.err
    assert said.json["task"] == "mine-workload"


def test_real_steps_on_two_ranks(project: Path) -> None:
    """The whole ladder, short: equality before timing, and a best that is confirmed or said not to be."""
    said = fresh("evolve", "--model", "mlp-tiny", "--samples", "4", "--budget", "2", "--launcher", "local", "--json",
                 "--out", "run", cwd=project)  # fmt: skip
    assert said.code == 0, said.err
    result = said.json
    assert result["kind"] == "measured"
    assert result["evaluations"] == 2
    rows = [json.loads(line) for line in (project / "run" / "journal.jsonl").read_text().splitlines()]
    judged = [r["result"] for r in rows if r["kind"] == "evaluation" and r["evaluation"]]
    assert {r["emulated"] for r in judged} == {False}
    assert all(r["rung"] in ("short", "paired") or r["verdict"] in ("slower", "invalid") for r in judged)


def test_calibrated_scores_run_the_best_alone(project: Path) -> None:
    """Costs are measured first, the simulator judges with them, and what it finds is confirmed on workers."""
    said = fresh("evolve", "--model", "mlp-tiny", "--samples", "4", "--budget", "4", "--scores", "calibrated",
                 "--launcher", "local", "--json", "--out", "run", cwd=project)  # fmt: skip
    assert said.code == 0, said.err
    result = said.json
    assert (result["scores"], result["costs"], result["evaluations"]) == ("calibrated", "measured", 4)
    rows = [json.loads(line) for line in (project / "run" / "journal.jsonl").read_text().splitlines()]
    assert next(r for r in rows if r["kind"] == "known")["known"]["costs"]["layers"]
    assert all(r["result"]["rung"] in ("verify", "simulate") for r in rows if r["kind"] == "evaluation")
    found = result["best"]["evaluation"] > 0
    assert result["kind"] == ("measured" if found else "simulated")
    assert (result["best"]["pairs"] > 0) == (result["best"]["interval"] is not None) == found

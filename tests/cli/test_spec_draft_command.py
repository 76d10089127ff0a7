"""`pibroch spec draft` with a scripted model: the draft is checked for real, and goes to a file or to stdout."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from cli_helper import Said, here
from scripted_judge import write_specs
from scripted_lm import ScriptedModel

from pibroch.agents import lm as lm_module
from pibroch.agents.prompt_files import prompt
from pibroch.runtime.generated import VARIABLE
from pibroch.specs.parse import load_spec

EXAMPLE = prompt("spec_draft").rpartition("````markdown\n")[2].rpartition("````")[0]


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_specs(tmp_path))
    monkeypatch.setattr("pibroch.project._SHIPPED", tmp_path / "shipped")
    monkeypatch.setenv(VARIABLE, "")


def draft(capsys: pytest.CaptureFixture[str], *args: str, answers: list[str]) -> Said:
    model = ScriptedModel([f"````markdown\n{text}````\n" for text in answers])
    with mock.patch.object(lm_module, "open_lm", mock.Mock(return_value=model)):
        return here(capsys, "spec", "draft", "a tank", "--lm", "openai", *args)


def test_a_draft_becomes_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = EXAMPLE.replace("min(old.level + amount, self.limit)", "min(old.level + amount, self.max)")
    out = tmp_path / "specs" / "modules" / "tank.spec.md"
    said = draft(capsys, "--out", str(out), "--json", answers=[wrong, EXAMPLE])
    assert said.code == 0, said.err
    assert said.json["module"] == "tank"
    assert said.json["assumptions"].startswith("Units are whole numbers.")
    assert said.json["attempts"] == 2
    assert "P2" in said.json["feedback"][0][0]  # there is no field of that name
    assert load_spec(out).module == "tank"


def test_a_draft_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    said = draft(capsys, answers=[EXAMPLE])
    assert said.code == 0
    assert said.out.strip() == EXAMPLE.strip()
    assert "it assumed: Units are whole numbers." in " ".join(said.err.split())


def test_no_draft_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "tank.spec.md"
    no_scope = EXAMPLE.replace("scope: {limit: 0..4, amount: -1..5}", "scope: {limit: 0..4}")
    said = draft(capsys, "-o", str(out), "--attempts", "1", answers=[no_scope])
    assert said.code == 1
    assert "amount" in said.err
    assert "nothing was written" in said.err
    assert not out.exists()

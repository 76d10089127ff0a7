"""`pibroch spec mutate`: the score, the survivors and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helper import here

from pibroch.cli import spec_files

SPEC = """---
spec: 1
module: step
version: 1
summary: One step.
guarantee: {exports: [step], clauses: [P1]}
scope: {x: 0..6}
---
## Intent
One step on.
## Functionality
```python
def step(x: int) -> int:
    ensures("P1", result == (x + 1 if x < 3 else 3))
```
"""
CODE = "def step(x: int) -> int:\n    if x < 3:\n        return x + 1\n    return 3\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one spec and its code."""
    (tmp_path / "pibroch.toml").write_text('[project]\nname = "p"\n')
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "step.spec.md").write_text(SPEC)
    (tmp_path / "step.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spec_files, "folders", lambda: [tmp_path / "specs"])
    return tmp_path


def test_a_pinned_module(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = here(capsys, "spec", "mutate", "step", "--code", "step.py", "--json")
    assert said.code == 0
    (row,) = said.json["modules"]
    assert (row["module"], row["score"], row["survivors"], row["unneeded_clauses"]) == ("step", 1.0, [], [])
    assert row["mutants"] == row["killed"] == row["kills"]["P1"] > 6


def test_survivors_fail_and_are_shown(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weak = SPEC.replace("result == (x + 1 if x < 3 else 3)", "result < 9")
    (project / "specs" / "step.spec.md").write_text(weak)
    said = here(capsys, "spec", "mutate", "step", "--code", "step.py")
    assert said.code == 1
    assert "step: fewer than 95% of its mutants are killed" in said.err
    assert "no clause pins this: line 2, comparison" in said.out
    assert "    - if x < 3:\n    + if x <= 3:\n    call  step(3)\n    value result, original = 3" in said.out


def test_what_is_missing_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = here(capsys, "spec", "mutate", "step")
    assert (said.code, "step: no generated module; `pibroch regenerate step` writes it" in said.err) == (1, True)
    said = here(capsys, "spec", "mutate", "stop")
    assert (said.code, "did you mean step?" in said.err) == (1, True)

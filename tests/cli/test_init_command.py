"""`pibroch init` and projects: what it writes works, and the overlay finds the project's files first."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helper import here

from pibroch.project import Project, find_project
from pibroch.runtime.errors import InputError

Capture = pytest.CaptureFixture[str]


def test_new_project_checks_at_once(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = here(capsys, "init", tmp_path / "mine", "--json")
    assert said.code == 0
    assert "pibroch.toml" in said.json["files"]
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.setenv("PYTHONPATH", "")
    checked = here(capsys, "check", "1f1b", "--json")
    assert checked.code == 0, checked.err
    assert checked.json["model"] == "model"


def test_existing_project_and_files_are_left_alone(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("# mine\n")
    assert here(capsys, "init", tmp_path).code == 0
    assert (tmp_path / "model.py").read_text() == "# mine\n"
    again = here(capsys, "init", tmp_path)
    assert again.code == 1
    assert "exists" in again.err


def test_overlay_prefers_the_project(tmp_path: Path) -> None:
    (tmp_path / "pibroch.toml").write_text('[project]\nname = "x"\n')
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "__init__.py").write_text("# the project's own\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    project = find_project(inner)
    assert project.root == tmp_path
    assert project.find("generated", "__init__.py") == tmp_path / "generated" / "__init__.py"
    assert Project().find("generated", "__init__.py") != tmp_path / "generated" / "__init__.py"
    assert len(project.layers("generated")) == 2


def test_repository_is_a_project_without_a_second_layer(repository: Path) -> None:
    project = find_project(repository / "docs")
    assert project.root == repository
    assert project.layers("generated") == [repository / "generated"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[project", "TOML"),
        ("[team]\n", "team"),
        ('[project]\ncolour = "red"\n', "colour"),
        ("[project]\nmodel = 3\n", "model"),
    ],
)
def test_mistakes_in_the_project_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "pibroch.toml").write_text(text)
    with pytest.raises(InputError, match=words):
        find_project(tmp_path)

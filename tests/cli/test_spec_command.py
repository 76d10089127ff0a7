"""`pibroch spec`: check, graph and diff over a project's specs, for people and as JSON."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_helper import fresh, here
from spec_texts import COUNTER, SOURCE, changed
from tiny_specs import line_of

from pibroch.cli import spec_files


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, without the shipped specs."""
    (tmp_path / "pibroch.toml").write_text('[project]\nname = "p"\n')
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "counter.spec.md").write_text(COUNTER)
    (folder / "source.spec.md").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spec_files, "folders", lambda: [folder])
    return tmp_path


def test_check_says_what_it_found(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = here(capsys, "spec", "check", "source")
    assert (said.code, said.out.splitlines()[0][:26]) == (0, "ok     source v1: 2 clause")
    assert "newest 100%" in said.out  # the acceptance rate
    said = here(capsys, "spec", "check", "source", "--json")
    (row,) = said.json["specs"]
    assert said.json["ok"] is True
    assert (row["module"], row["acceptance"], row["errors"]) == ("source", {"newest": 1.0}, [])


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("left -= 1", "left -= = 1", "left -= =", "syntax error: invalid syntax"),
        ("  - module: source", "  - module: nowhere", "    uses:", "rely nowhere is missing under imports"),
        ('"A2", step >= 1', '"A2", step', '"A2"', 'A2: gives "int", not a truth value: step'),
        ('"P2", result', '"P2", reslt', '"P2"', "P2: unknown name 'reslt'"),
        ("summary: A", "summry: A", "summry", "unknown key; did you mean summary?"),
    ],
)
def test_each_error_is_one_message_with_file_and_line(
    project: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, at: str, message: str
) -> None:
    text = changed((old, new))
    (project / "specs" / "counter.spec.md").write_text(text)
    said = here(capsys, "spec", "check", "counter")
    assert said.code == 1
    assert message in said.err
    assert f"pibroch: specs/counter.spec.md:{line_of(text, at)}: " in said.err
    said = here(capsys, "spec", "check", "counter", "--json")
    assert said.json["ok"] is False
    assert message in said.json["errors"][0]["message"]


def test_unknown_and_circular_relies(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "specs" / "source.spec.md").unlink()
    said = here(capsys, "spec", "check")
    line = line_of(COUNTER, "- module: source")
    assert (said.code, f"specs/counter.spec.md:{line}: relies on source, which has no spec" in said.err) == (1, True)
    back = changed(("summary: Numbers.", 'summary: Numbers.\nrely: [{module: counter, uses: "def up() -> int"}]\n'
                    "imports: [counter]"), text=SOURCE)  # fmt: skip
    up = ("class Counter:", "def up() -> int:\n    ensures(\"U1\", result == 0)\n\nclass Counter:")
    (project / "specs" / "source.spec.md").write_text(back)
    (project / "specs" / "counter.spec.md").write_text(changed(("[Counter]", "[Counter, up]"), up))
    said = here(capsys, "spec", "check")
    assert "relies in a circle: counter -> source -> counter" in said.err
    said = here(capsys, "spec", "graph")
    assert (said.code, said.err.count("relies in a circle")) == (1, 1)


def test_a_broken_rely_is_the_message_not_its_user(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "specs" / "source.spec.md").write_text("nothing")
    said = here(capsys, "spec", "check", "counter", "--json")
    assert [error["path"] for error in said.json["errors"]] == ["specs/source.spec.md"]
    assert said.json["specs"] == []


def test_a_file_outside_of_the_project_is_checked_too(
    project: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path_factory.mktemp("elsewhere") / "source.spec.md"
    path.write_text(changed(("version: 1", "version: 3"), text=SOURCE))
    assert here(capsys, "spec", "check", path, "--json").json["specs"][0]["version"] == 3
    said = here(capsys, "spec", "check", path.parent / "none.spec.md")
    assert (said.code, "cannot be read: No such file" in said.err) == (1, True)
    said = here(capsys, "spec", "check", "sorce")
    assert (said.code, "did you mean source?" in said.err) == (1, True)


def test_graph(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = here(capsys, "spec", "graph", "--svg", "map.svg")
    assert said.out.splitlines() == [
        "source   v1  sequential  used by counter", "counter  v1  sequential  relies on source.newest",
    ]  # fmt: skip
    assert (project / "map.svg").read_text().startswith("<svg")
    said = here(capsys, "spec", "graph", "source", "--json")
    assert (said.json["order"], said.json["relies"]) == (["source"], [])


def test_diff_names_what_a_weaker_promise_breaks(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weaker = project / "source.spec.md"
    weaker.write_text(changed(("and len(result) <= n", ""), text=SOURCE))
    said = here(capsys, "spec", "diff", "source", weaker, "--json")
    assert said.code == 1
    assert [(c["kind"], c["name"]) for c in said.json["changes"]] == [("changed", "S1")]
    assert said.json["directions"][0]["promise"] == "weaker"
    (breach,) = said.json["breaches"]
    assert (breach["module"], breach["line"]) == ("counter", line_of(COUNTER, '"len(result) <= n"'))
    assert said.json["regenerate"] == ["source"]
    said = here(capsys, "spec", "diff", "source", weaker)
    assert f"specs/counter.spec.md:{breach['line']}: " in said.err
    assert "ensures S1: weaker" in said.out
    said = here(capsys, "spec", "diff", "source", weaker, "--quick", "--json")
    assert (said.code, "breaches" in said.json) == (0, False)


def test_diff_of_a_stronger_promise_concerns_the_module_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stronger = project / "source.spec.md"
    stronger.write_text(changed(("len(result) <= n", "len(result) == n"), text=SOURCE))
    said = here(capsys, "spec", "diff", "source", stronger, "--json")
    assert (said.code, said.json["breaches"], said.json["judge_again"]) == (0, [], ["source"])
    same = here(capsys, "spec", "diff", "source", "specs/source.spec.md")
    assert same.out == "the two say the same\n"
    other = here(capsys, "spec", "diff", "source", "counter")
    assert (other.code, "two modules, not two versions of one" in other.err) == (1, True)


def test_diff_against_a_commit(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for command in (["init", "-q"], ["add", "specs"], ["commit", "-qm", "m"]):
        subprocess.run([*git, *command], cwd=project, check=True)
    path = project / "specs" / "source.spec.md"
    path.write_text(changed(("summary: Numbers.", "summary: Zeros."), text=SOURCE))
    said = here(capsys, "spec", "diff", "HEAD:specs/source.spec.md", "source", "--quick", "--json")
    assert [(c["part"], c["old"], c["new"]) for c in said.json["changes"]] == [("summary", "Numbers.", "Zeros.")]
    said = here(capsys, "spec", "diff", "HEAD:specs/none.spec.md", "source")
    assert (said.code, "HEAD:specs/none.spec.md: " in said.err) == (1, True)


def test_help_does_not_import_the_judge(tmp_path: Path) -> None:
    script = (
        "import sys; from pibroch.cli.app import run_cli; run_cli(['spec', '--help']);"
        "print([m for m in ('mypy', 'z3', 'hypothesis', 'torch', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert "check" in done.stdout


def test_overlay_in_a_fresh_process(project: Path) -> None:
    said = fresh("spec", "graph", "source", "--json", cwd=project)
    assert said.json["order"] == ["source"]

"""`pibroch playbook`: each command, its JSON, exit codes, and that nothing installed is written to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helper import Said, here

from pibroch.playbooks.store import SHIPPED, Store

Capture = pytest.CaptureFixture[str]
EDIT = '{"op": "bucket_size", "factor": 2.0}'


class Shell:
    """The command line in one folder."""

    def __init__(self, capsys: Capture) -> None:
        self.capsys = capsys

    def __call__(self, *args: str | Path, code: int = 0) -> Said:
        said = here(self.capsys, "playbook", *args)
        assert said.code == code, said.err
        return said

    def json(self, *args: str | Path, code: int = 0) -> dict[str, object]:
        return self(*args, "--json", code=code).json


@pytest.fixture
def shell(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """In a project, without what is shipped."""
    (tmp_path / "pibroch.toml").write_text('[project]\nname = "mine"\n')
    monkeypatch.setattr("pibroch.playbooks.store.SHIPPED", tmp_path / "nothing.json")
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


@pytest.fixture
def outside(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


def texts(data: dict[str, object]) -> list[str]:
    bullets = data["bullets"]
    assert isinstance(bullets, list)
    return [b["text"] for b in bullets]


def test_add_show_edit_and_undo(shell: Shell, tmp_path: Path) -> None:
    said = shell.json(
        "add", "Raise bucket_size", "--when", "devices>=4", "--when", "memory_bound=false", "--section", "memory"
    )
    assert said["ok"] is True
    assert said["outcomes"] == [{"op": "ADD", "done": "added", "id": "mem-00001", "reason": ""}]
    assert said["file"] == str(tmp_path / "playbooks" / "playbook.json")
    assert "[mem-00001] Raise bucket_size" in shell("show").out
    assert "when devices >=4, memory_bound false" in shell("show", "mem-00001").out
    assert "updated mem-00001" in shell("edit", "mem-00001", "--text", "Raise it", "--when", "devices=2|4").out
    assert texts(shell.json("show")) == ["Raise it"]
    assert "took back 2" in shell("undo").out
    shell("edit", "mem-00001", "--always")
    (bullet,) = Store(tmp_path / "playbooks" / "playbook.json").load().bullets
    assert (bullet.text, bullet.applies_when) == ("Raise bucket_size", {})


def test_edit_is_one_that_the_operators_know(shell: Shell) -> None:
    said = shell("add", "Fly", "--edit", '{"op": "fly"}', code=1)
    assert "refused: edit:" in said.err
    data = shell.json("add", "Fly", "--edit", '{"op": "fly"}', code=1)
    assert data["ok"] is False
    assert isinstance(data["error"], dict)
    assert data["error"]["kind"] == "input"
    assert "not valid JSON" in shell("add", "Fly", "--edit", "{", code=1).err
    assert "an object" in shell("add", "Fly", "--edit", "[]", code=1).err
    assert shell("show").out == "the playbook is empty\n"


def test_rewording_is_merged_and_merge_refuses_opposites(shell: Shell) -> None:
    shell("add", "Recompute the first two layers when memory is bound")
    said = shell("add", "When memory is bound, recompute the first 2 layers", "--evidence", "runs/3")
    assert "merged into sched-00001" in said.out
    shell("add", "Recompute the last two layers when memory is bound")
    assert "do not say the same" in shell("merge", "sched-00001", "sched-00002", code=1).err
    assert "two ids" in shell("merge", "sched-00001", code=1).err
    shell("add", "Measure on an idle machine")
    shell("edit", "sched-00003", "--text", "If memory is bound, recompute the first two layers")
    assert "took in sched-00003" in shell("merge", "sched-00001", "sched-00003").out


def test_search_and_show_by_facts(shell: Shell) -> None:
    shell("add", "Raise bucket_size", "--when", "devices=>=4")
    shell("add", "Recompute the first layers", "--when", "memory_bound=true")
    found = shell.json("search", "recompute which layers")["found"]
    assert isinstance(found, list)
    assert [row["bullet"]["id"] for row in found] == ["sched-00002"]
    facts = ("--fact", "devices=8", "--fact", "memory_bound=false")
    assert shell("show", *facts).out == "[sched-00001] Raise bucket_size\n"
    assert texts(shell.json("show", *facts)) == ["Raise bucket_size"]
    assert "KEY=VALUE" in shell("show", "--fact", "devices", code=1).err
    assert "nothing found" in shell("search", "weather").out


def test_prune_by_rules_by_name_and_dry(shell: Shell, tmp_path: Path) -> None:
    shell("add", "Raise bucket_size", "--edit", EDIT)
    shell("add", "Use fewer stages", "--when", "devices=>=1000")
    store = Store(tmp_path / "playbooks" / "playbook.json")
    store.commit([{"op": "TAG", "id": "sched-00001", "tested": 5, "harmful": 5}], why="measured")
    assert "would remove sched-00001: harmful" in shell("prune", "--dry-run").out
    assert len(texts(shell.json("show"))) == 2
    assert "removed sched-00001: harmful: 0 helpful and 5 harmful" in shell("prune").out
    assert shell("prune").out == "nothing to prune\n"
    assert "removed sched-00002: not ours" in shell("prune", "sched-00002", "--why", "not ours").out
    assert "not both" in shell("prune", "sched-00002", "--tokens", "5", code=1).err
    assert "no bullet 'sched-00002'" in shell("prune", "sched-00002", code=1).err


def test_unused_bullets_are_those_that_fit_no_task(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    task = {"name": "mine", "title": "Mine", "model": "mlp-tiny", "devices": 2, "samples": 8, "intent": "fast"}
    (tmp_path / "tasks" / "mine.json").write_text(json.dumps(task))
    shell("add", "Use fewer stages", "--when", "devices=>=1000")
    shell("add", "Raise bucket_size", "--when", "devices=2")
    assert "nothing to prune" in shell("prune").out
    said = shell("prune", "--unused").out
    assert "removed sched-00001: unused" in said
    assert "sched-00002" not in said


def test_history_and_stats(shell: Shell) -> None:
    assert "no change yet" in shell("history").out
    assert shell("stats").out.startswith("0 bullets")
    shell("add", "Raise bucket_size", "--why", "I saw it")
    shell("edit", "sched-00001", "--text", "F0 F1 F2 F3 B0 B1 B2 B3", code=1)
    said = shell("history").out
    assert "I saw it" in said
    assert "refused sched-00001: the text holds (a part of) a schedule" in said
    entries = shell.json("history")["entries"]
    assert isinstance(entries, list)
    assert [entry["seq"] for entry in entries] == [1, 2]
    stats = shell.json("stats")
    assert stats["bullets"] == 1
    assert stats["sections"] == {"schedules": 1}
    assert stats["verdicts"] == {"helpful": 0, "placebo": 0, "harmful": 0, "unclear": 0, "untested": 1}


def test_export_and_import(shell: Shell, tmp_path: Path) -> None:
    shell("add", "Raise bucket_size", "--edit", EDIT, "--when", "devices=>=4")
    ace = shell("export").out
    assert ace == "## SCHEDULES\n[sched-00001] helpful=0 harmful=0 :: Raise bucket_size\n"
    shell("export", "-o", "whole.json", "--format", "json")
    (tmp_path / "votes.txt").write_text("## TRICKS\n[str-00007] helpful=5 harmful=0 :: Cut after the embedding\n")
    shell("import", "votes.txt", "--file", "other.json")
    shell("import", "whole.json", "--file", "other.json")
    one, two = Store(tmp_path / "other.json").load().bullets
    assert (one.section, one.text, one.helpful) == ("tricks", "Cut after the embedding", 0)
    assert one.evidence == ("imported from ACE: str-00007, claimed helpful=5 harmful=0",)
    assert (two.text, two.edit, two.applies_when) == ("Raise bucket_size", json.loads(EDIT), {"devices": ">=4"})
    assert two.evidence == ("imported: sched-00001, claimed tested=0 helpful=0 harmful=0",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello\n", "line 1: expected"),
        ("[a-1] helpful=0 harmful=0 :: fine\n[a-2] helpful=0 harmful=0 :: " + "x" * 700, "line 2: the text has 700"),
        ('{"bullets": 3}', "not a playbook"),
    ],
)
def test_bad_import_changes_nothing(shell: Shell, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.txt").write_text(text)
    assert words in shell("import", "bad.txt", code=1).err
    assert not (tmp_path / "playbooks" / "playbook.json").exists()


def test_outside_of_a_project_only_reading_or_a_named_file(outside: Shell, tmp_path: Path) -> None:
    shipped = SHIPPED.read_bytes()
    for command in (("add", "x"), ("undo",), ("prune",), ("merge", "a", "b"), ("edit", "a", "--text", "x")):
        assert "pibroch init" in outside(*command, code=1).err
    assert outside.json("show")["file"] == str(SHIPPED)
    assert "no such playbook" in outside("show", "--file", "none.json", code=1).err
    outside("add", "Raise bucket_size", "--file", "mine.json")
    assert texts(outside.json("show", "--file", "mine.json")) == ["Raise bucket_size"]
    assert "took back 1" in outside("undo", "--file", "mine.json").out
    assert "nothing is left" in outside("undo", "--file", "mine.json", code=1).err
    assert SHIPPED.read_bytes() == shipped
    assert not (SHIPPED.parent / "shipped.history.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--when", "devices"), "KEY=CONDITION"),
        (("--when", "devices=4", "--when", "devices=8"), "twice"),
        (("--when", "devices=>=8,<2"), "nothing meets"),
        (("--section", "7 up!"), "section"),
    ],
)
def test_mistakes_are_named(shell: Shell, args: tuple[str, ...], words: str) -> None:
    assert words in shell("add", "Raise bucket_size", *args, code=1).err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("devices=>=4", {"devices": ">=4"}), ("devices>=4", {"devices": ">=4"}), ("devices=4", {"devices": "4"}),
        ("devices!=4", {"devices": "!=4"}), ("devices<4", {"devices": "<4"}), ("devices==4", {"devices": "4"}),
        ("finding:late-send=true", {"finding:late-send": "true"}),
    ],
)  # fmt: skip
def test_ways_to_write_a_condition(shell: Shell, tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    shell("add", "Raise bucket_size", "--when", text)
    (bullet,) = Store(tmp_path / "playbooks" / "playbook.json").load().bullets
    assert bullet.applies_when == expected

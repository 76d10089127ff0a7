"""The journal: what is handed out again, what is refused, and what a kill leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pibroch.agents.evolve.journal import Journal, read_journal
from pibroch.runtime.errors import InputError


def program(journal: Journal, steps: int, done: list[int]) -> list[int]:
    """Takes the square of each step, which counts as an effect."""

    def square(i: int) -> dict[str, Any]:
        done.append(i)
        return {"square": i * i}

    return [journal.once("step", {"i": i}, lambda i=i: square(i))["square"] for i in range(steps)]  # type: ignore[misc]


def test_a_resumed_program_hears_the_same_and_does_only_what_is_left(tmp_path: Path) -> None:
    path, first, second = tmp_path / "j.jsonl", list[int](), list[int]()
    journal = Journal(path)
    assert program(journal, 3, first) == [0, 1, 4]
    journal.note("end", {"reason": "stopped"})
    journal.close()
    before = path.read_bytes()
    journal = Journal(path)
    assert journal.replaying
    assert program(journal, 5, second) == [0, 1, 4, 9, 16]
    journal.close()
    assert (first, second) == ([0, 1, 2], [3, 4])
    assert path.read_bytes()[: len(before)] == before


def test_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    program(journal, 2, [])
    journal.close()
    journal = Journal(path)
    with pytest.raises(InputError, match=r"line 1: the run cannot be resumed.*\"i\": 0.*\"i\": 7"):
        journal.once("step", {"i": 7})
    journal.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    code = (
        "import sys; from pathlib import Path; from pibroch.agents.evolve.journal import Journal\n"
        "try:\n    Journal(Path(sys.argv[1]))\nexcept ValueError as error:\n    print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "j.jsonl")], capture_output=True, text=True, check=True, timeout=60
    )
    journal.close()
    assert "another process is at work on this run" in said.stdout
    Journal(tmp_path / "j.jsonl").close()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=0, max_value=400))
def test_cut_off_anywhere_it_goes_on_from_the_last_whole_line(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "j.jsonl"
    journal = Journal(path)
    program(journal, 4, [])
    journal.close()
    raw = path.read_bytes()
    path.write_bytes(raw[: min(cut, len(raw))])
    whole = path.read_bytes().count(b"\n")
    again: list[int] = []
    journal = Journal(path)
    assert program(journal, 4, again) == [0, 1, 4, 9]
    journal.close()
    assert again == list(range(whole, 4))
    assert [r["i"] for r in read_journal(path) if r["kind"] == "step"] == [0, 1, 2, 3]


@pytest.mark.parametrize("line", ["{}", "[]", "nonsense", '{"n": 5, "kind": "step"}', '{"n": 0, "kind": 3}'])
def test_what_is_no_journal_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match="line 1: not a line of a journal"):
        Journal(path)
    assert path.read_text() == line + "\n"


def test_seconds_add_up_over_sessions(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.once("step", {"i": 0})
    journal.close()
    rows = [{**r, "spent_s": 100.0} for r in read_journal(path)]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    journal = Journal(path)
    assert journal.spent_s >= 100.0
    journal.close()


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    os.close(journal._handle)
    journal._handle = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(InputError, match="the disk is full"):
        journal.once("step", {"i": 0})
    journal.close()


def test_ctrl_c_while_a_line_is_synced_leaves_no_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.once("step", {"i": 0})

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.once("step", {"i": 1})
    journal.note("end", {"reason": "interrupted"})
    journal.close()
    assert [(r["n"], r["kind"]) for r in read_journal(path)] == [(0, "step"), (1, "end")]

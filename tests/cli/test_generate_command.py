"""`pibroch generate`: the planner, a mailbox, and that nothing unproved is written."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from cli_helper import here

from pibroch.agents.feedback import Feedback
from pibroch.agents.intent import read_intent
from pibroch.agents.schedule_writer import Phase, Written
from pibroch.cli.generate import phase_rows
from pibroch.runtime.directives import load_schedule

Capture = pytest.CaptureFixture[str]
SENTENCE = "1F1B over 2 stages, 2 replicas, 4 microbatches, gradient buckets on their own stream"


def test_planner_writes_what_was_asked(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "new" / "s.json"
    said = here(capsys, "generate", SENTENCE, "--model", "mlp-tiny", "-o", file, "--json")
    assert said.code == 0
    assert said.json["verified"] is True
    assert said.json["unused_words"] == []
    assert said.json["lm"] == "planner"
    assert {p["phase"] for p in said.json["phases"]} == {1, 2}
    intent = said.json["intent"]
    assert (intent["family"], intent["stages"], intent["replicas"], intent["microbatches"]) == ("1f1b", 2, 2, 4)
    schedule = load_schedule(file)
    assert schedule.to_json() == said.json["schedule"]
    places = {d.filter["PP"]: len(d.devices) for d in schedule.directives if d.op == "place"}
    assert places == {0: 2, 1: 2}


def test_words_that_were_not_used_are_named(capsys: Capture, tmp_path: Path) -> None:
    said = here(
        capsys, "generate", "GPipe over 2 stages with purple gradients", "--model", "mlp-tiny", "-o", tmp_path / "s"
    )
    assert said.code == 0
    assert "not used" in said.out
    assert "purple" in said.out


def test_same_file_passes_check(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    assert here(capsys, "generate", "ZB-H1, 2 stages, 3 microbatches", "--model", "mlp-tiny", "-o", file).code == 0
    assert here(capsys, "check", file, "--model", "mlp-tiny").code == 0


def test_without_a_file_the_schedule_is_printed(capsys: Capture) -> None:
    said = here(capsys, "generate", "GPipe over 2 stages, 2 microbatches", "--model", "mlp-tiny")
    text = said.out[said.out.index("{\n") :]
    assert json.loads(text)["version"] == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([""], "empty"),
        (["2 stages over 3 stages"], "stages"),
        (["GPipe over 99 stages"], "99"),
        (["GPipe over 2 stages", "--memory-limit", "1KB"], "1000 bytes"),
        (["GPipe over 2 stages", "--lm", "oracle"], "oracle"),
        (["GPipe over 2 stages", "--lm", "replay:nowhere"], "nowhere"),
    ],
)
def test_mistakes(capsys: Capture, tmp_path: Path, args: list[str], words: str) -> None:
    file = tmp_path / "s.json"
    said = here(capsys, "generate", *args, "--model", "mlp-tiny", "-o", file, "--json")
    assert said.code == 1
    assert words in said.json["error"]["message"]
    assert not file.exists()


def test_full_disk(capsys: Capture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    said = here(capsys, "generate", "GPipe over 2 stages", "--model", "mlp-tiny", "-o", "/dev/full", "--json")
    assert said.code == 1
    assert "space" in said.json["error"]["message"]
    assert not Path("/dev/full").is_file()


def test_folder_that_cannot_be_made(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    said = here(capsys, "generate", "GPipe over 2 stages", "--model", "mlp-tiny", "-o", tmp_path / "taken" / "s.json")
    assert said.code == 1
    assert "taken" in said.err


def test_feedback_as_json_tells_advice_from_what_binds() -> None:
    found = [Feedback("BUBBLE", "unit-cost simulation", "slow", advice=True), Feedback("V7", "device 0", "full")]
    written = Written(read_intent("1F1B"), (), None, False, [Phase(2, 2, [found, []])], "scripted")
    bubble, memory = phase_rows(written)[0]["feedback"][0]
    assert bubble == {"rule": "BUBBLE", "where": "unit-cost simulation", "message": "slow", "advice": True}
    assert memory["advice"] is False


def test_mailbox_round_trip(capsys: Capture, tmp_path: Path) -> None:
    """A person answers both phases through the mailbox commands; a malformed reply is refused on the way."""
    box, file = tmp_path / "box", tmp_path / "s.json"
    codes: list[int] = []
    args = ["generate", "one pipeline of 2 stages, 2 microbatches", "--model", "mlp-tiny", "-o", str(file)]
    from pibroch.cli.app import run_cli

    run = threading.Thread(target=lambda: codes.append(run_cli([*args, "--lm", f"mailbox:{box}"])))
    run.start()
    placement = [
        {"op": "split", "num_microbatches": 2},
        {"op": "place", "filter": {"PP": 0}, "devices": [0]},
        {"op": "place", "filter": {"PP": 1}, "devices": [1]},
    ]
    answered: set[str] = set()
    pause = threading.Event()
    for _ in range(600):
        if not run.is_alive():
            break
        said = here(capsys, "mailbox", "list", box, "--json") if (box / "state").is_dir() else None
        for row in said.json["requests"] if said and said.code == 0 else []:
            if row["id"] in answered:
                continue
            assert "Reply" in here(capsys, "mailbox", "show", box, row["id"]).out
            refused = tmp_path / "refused.md"
            refused.write_text("no fence at all")
            assert here(capsys, "mailbox", "reply", box, row["id"], refused).code == 1
            reply = tmp_path / "reply.md"
            reply.write_text(f"Here it is.\n\n```json\n{json.dumps(placement)}\n```\n")
            assert here(capsys, "mailbox", "reply", box, row["id"], reply, "--who", "a test").code == 0
            answered.add(row["id"])
        pause.wait(0.2)
    run.join(timeout=30)
    assert codes == [0]
    assert len(answered) == 2
    assert load_schedule(file).to_json()["directives"] == placement

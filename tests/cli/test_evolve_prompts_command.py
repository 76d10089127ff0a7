"""`pibroch evolve-prompts`: a winner goes into the project, a run goes on where it stopped, mistakes are named."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_helper import here
from prompt_models import Reflector, SmallWriter
from scripted_lm import block

import pibroch.agents.lm
from pibroch.agents.evolve.journal import read_journal
from pibroch.agents.intent import read_intent
from pibroch.agents.lm.mailbox import MailboxModel, mailbox_list, mailbox_reply
from pibroch.runtime.families import build

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def intents(tmp_path: Path) -> Path:
    parts = {
        "train": ["1F1B over 2 stages, 2 microbatches", "GPipe over 2 stages, 2 microbatches"],
        "validation": ["1F1B over 2 stages, 3 microbatches"],
        "test": ["GPipe over 2 stages, 3 microbatches", "1F1B over 2 stages, 5 microbatches"],
    }
    rows = {name: [{"id": f"{name}-{i}", "intent": text} for i, text in enumerate(r)] for name, r in parts.items()}
    path = tmp_path / "intents.json"
    path.write_text(json.dumps({"version": 1, "model": "mlp-tiny", **rows}))
    return path


def models(monkeypatch: pytest.MonkeyPatch, *texts: str, fail_at: int | None = None) -> SmallWriter:
    """`--lm writer --reflection-lm reflector` are scripted ones."""
    writer = SmallWriter(lambda text: 0.95 if "good" in text else 0.1, fail_at=fail_at)
    known = {"writer": writer, "reflector": Reflector(*texts or ["good text"])}
    monkeypatch.setattr(pibroch.agents.lm, "open_lm", lambda spec, **options: known[spec])
    return writer


def command(intents: Path, out: Path) -> list[str | Path]:
    return [
        "evolve-prompts", "--lm", "writer", "--reflection-lm", "reflector", "--intents", intents, "--budget", "60",
        "--confirm", "20", "--out", out, "--json",
    ]  # fmt: skip


def test_a_winner_is_applied_and_then_used(
    capsys: Capture, tmp_path: Path, intents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = models(monkeypatch)
    (tmp_path / "pibroch.toml").write_text('[project]\nname = "p"\n')
    monkeypatch.chdir(tmp_path)
    said = here(capsys, *command(intents, tmp_path / "run"), "--apply")
    assert said.code == 0, said.err
    assert said.json["changed"] is True
    assert said.json["reason"] == "budget"
    held = said.json["held_out"]
    assert held["seed"]["samples"] == held["evolved"]["samples"] == 20
    assert held["seed"]["upper"] < held["evolved"]["lower"]
    applied = tmp_path / "prompts" / "schedule_small.md"
    assert applied.read_text() == (tmp_path / "run" / "prompts" / "schedule_small.md").read_text() == "good text\n"
    asked = len(writer.asked)
    said = here(
        capsys, "generate", "1F1B over 2 stages, 4 microbatches", "--model", "mlp-tiny", "--lm", "writer", "--json"
    )
    assert said.code == 0
    assert {r.messages[0].content.strip() for r in writer.asked[asked:]} == {"good text"}


def test_a_run_goes_on_where_it_broke(
    capsys: Capture, tmp_path: Path, intents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["good text", *(f"another text {i}" for i in range(20))]
    models(monkeypatch, *texts, fail_at=25)
    broken = here(capsys, *command(intents, tmp_path / "run"))
    assert broken.code == 4
    assert "went away" in broken.json["error"]["message"]
    replies = sum(r["kind"] == "reply" for r in read_journal(tmp_path / "run" / "journal.jsonl"))
    writer = models(monkeypatch, *texts[replies:])
    whole = here(capsys, *command(intents, tmp_path / "run")).json
    assert len(writer.asked) == whole["rollouts"] - 25
    models(monkeypatch, *texts)
    again = here(capsys, *command(intents, tmp_path / "other")).json
    assert {**again, "files": 0, "run_dir": 0} == {**whole, "files": 0, "run_dir": 0}
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "STOP").touch()
    stopped = here(capsys, *command(intents, tmp_path / "third"))
    assert stopped.code == 1
    assert "goes on from here" in stopped.err


def test_both_phases_through_a_mailbox(capsys: Capture, tmp_path: Path, intents: Path) -> None:
    box, ended = tmp_path / "box", threading.Event()
    MailboxModel(box)

    def answer() -> None:
        while not ended.wait(0.02):
            for entry in mailbox_list(box):
                text = entry.path.read_text()
                if entry.role == "reflector":
                    mailbox_reply(box, entry.id, "````markdown\nwrite nothing\n````\n")
                    continue
                sentence = text.split("## The sentence of intent\n\n")[1].splitlines()[0]
                intent = read_intent(sentence)
                assert intent.family
                assert intent.microbatches
                whole = build(intent.family, devices=2, microbatches=intent.microbatches).to_json()["directives"]
                rows = whole if entry.phase == 2 else [r for r in whole if r["op"] != "order"]
                mailbox_reply(box, entry.id, block("[]" if "write nothing" in text else rows))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        said = here(
            capsys, "evolve-prompts", "--lm", f"mailbox:{box}", "--intents", intents, "--budget", "10",
            "--out", tmp_path / "run",
        )  # fmt: skip
    finally:
        ended.set()
        thread.join()
    assert said.code == 0, said.err
    assert "nothing was shown to be better" in said.out
    assert (tmp_path / "run" / "prompts" / "schedule_phase1.md").read_text().startswith("You write schedules")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test": []}, "test"),
        ({"train": [{"id": "a", "intent": "GPipe over 99 stages"}]}, "a: "),
        ({"train": [{"id": "test-0", "intent": "GPipe over 2 stages"}]}, "appears twice"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_wrong_file_of_sentences_is_named(
    capsys: Capture, intents: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], words: str
) -> None:
    models(monkeypatch)
    intents.write_text(json.dumps({**json.loads(intents.read_text()), **change}))
    said = here(capsys, *command(intents, intents.parent / "run"))
    assert said.code == 1
    assert str(intents) in said.err
    assert words in said.err


def test_apply_needs_a_project(capsys: Capture, tmp_path: Path, intents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = here(capsys, *command(intents, tmp_path / "run"), "--apply")
    assert said.code == 1
    assert "pibroch init" in said.err


def test_help_imports_no_gepa() -> None:
    code = (
        "import sys; from pibroch.cli.app import run_cli; run_cli(['evolve-prompts', '--help']); "
        "sys.exit(bool({'gepa', 'dspy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0

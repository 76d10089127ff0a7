"""The live view of a run: plain lines where nobody watches, a panel on a terminal; always on stderr."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from evolution_journal import Written, write_run
from rich.console import Console

from pibroch.cli.evolve_view import LiveView, panel, told
from pibroch.view.evolution_fold import Fold

FEED = """
import json, sys
from pibroch.cli.common import say
from pibroch.cli.evolve_view import LiveView
with LiveView(budget=12) as view:
    for line in open(sys.argv[1], encoding="utf-8"):
        view.record(json.loads(line))
    say("a word beside the panel")
print("the result")
"""


def feed(told: Written, capsys: pytest.CaptureFixture[str], *, budget: int | None = 12) -> list[str]:
    with LiveView(budget=budget) as view:
        for record in told.records:
            view.record(record)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_without_a_terminal_there_is_one_line_per_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = write_run(tmp_path, evaluations=12)
    lines = feed(told, capsys)
    verdicts = [line for line in lines if re.search(r"\d+/12  ", line)]
    assert len(verdicts) == 12
    assert "1/12  slower 0.9" in verdicts[0]
    assert "reason 1" in verdicts[0]
    assert "faster: accepted 1.0" in verdicts[1]
    assert re.search(r"\d\.\d{3}× \(\d\.\d{3} to \d\.\d{3}\) of the start's speed, measured", verdicts[1])
    assert sum("the model failed: no fence in the reply" in line for line in lines) == told.failures == 2
    assert "uneven-2: measured" in lines[0]
    assert "fresh run of the best: 1.090× (1.050 to 1.130) over the start, measured" in lines[-2]
    assert "ended: budget: 12 evaluations" in lines[-1]


def test_what_a_resumed_run_hands_out_again_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = write_run(tmp_path, evaluations=4, end=None)
    told.records += told.records
    assert sum("/12  " in line for line in feed(told, capsys)) == 4


@pytest.mark.parametrize(
    ("options", "kind"), [({"emulate": "equal-8"}, "emulated"), ({"scores": "simulated"}, "simulated")]
)
def test_lines_name_what_their_figures_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, str], kind: str
) -> None:
    text = "\n".join(feed(write_run(tmp_path, evaluations=3, **options), capsys))  # type: ignore[arg-type]
    assert f"of the start's speed, {kind}" in text
    assert "measured" not in text


def test_a_hostile_text_is_one_line_and_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = feed(write_run(tmp_path, evaluations=12, nasty=True), capsys)
    assert sum("/12  " in line for line in lines) == 12
    assert not any("\x1b[31m" in line or "\u2028" in line for line in lines)
    assert any("[bold]" in line for line in lines)
    assert max(map(len, lines)) < 300


def test_a_record_that_cannot_be_read_does_not_stop_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView() as view:
        for n, kind in enumerate(("start", "proposal", "evaluation", "reply", "playbook", "confirm", "skipped", "end")):
            view.record({"n": n, "kind": kind})
    assert "ended" in capsys.readouterr().err


def drawn(told_: Written, upto: int, width: int = 100) -> str:
    fold = Fold()
    for record in told_.records[:upto]:
        fold.add(record)
    console = Console(width=width, record=True, file=open(os.devnull, "w"), force_terminal=False)  # noqa: SIM115
    console.print(panel(fold.run, budget=12, elapsed=75))
    return console.export_text()


def test_the_panel_shows_progress_best_findings_cost_and_the_last_verdicts(tmp_path: Path) -> None:
    written = write_run(tmp_path, evaluations=12, end=None, confirm=False)
    text = drawn(written, len(written.records))
    best = written.speed[written.best]
    for expected in ("uneven-2 (measured)", "12/12", f"#10, {best:.3f}× (", "not confirmed yet", "a transfer is",
                     "10,000 tokens in 12 calls, cost 0.0130, 2 failed", "1 min 15 s", "#12", "invalid"):  # fmt: skip
        assert expected in text, expected
    assert "the start" in drawn(written, 2)
    assert drawn(written, 0)
    assert max(map(len, drawn(written, len(written.records), width=60).splitlines())) <= 60


def test_other_records_are_worth_no_line(tmp_path: Path) -> None:
    written = write_run(tmp_path, evaluations=8)
    fold = Fold()
    quiet = ("costs", "findings", "proposal", "skipped", "playbook", "resume")
    for record in written.records:
        fold.add(record)
        if record["kind"] in quiet:
            assert told(fold.run, record, budget=None) is None


def test_on_a_terminal_the_panel_goes_to_stderr_and_leaves_the_result_alone(tmp_path: Path) -> None:
    write_run(tmp_path, evaluations=12)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    running = subprocess.Popen(
        [sys.executable, "-c", FEED, str(tmp_path / "journal.jsonl")],
        stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side has closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert running.stdout
    assert running.stdout.read() == b"the result\n"
    assert running.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "12/12" in text
    assert "uneven-2 (measured)" in text
    assert "a word beside the panel" in text
    assert seen.decode().rfind("\x1b[?25h") > seen.decode().rfind("\x1b[?25l")  # the cursor is back

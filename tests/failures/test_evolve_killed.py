"""kill -9 in the middle of a run that measures: its workers go with it, and what the journal holds stays.

The moments are random: so many whole lines of the journal, and up to a second more. PIBROCH_KILLS=20 asks for more of
them. What is measured again differs, so that only the lines from before are compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = int(os.environ.get("PIBROCH_KILLS", "1"))
BUDGET = 3
LINES = 8  # a whole run has more
DEADLINE = 300.0
EVOLVE = [sys.executable, "-m", "pibroch", "evolve", "--json"]
NEW = [*EVOLVE, "--model", "mlp-tiny", "--samples", "4", "--launcher", "local", "--budget", str(BUDGET), "-o", "run"]


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_measured_run_is_killed_and_goes_on(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    journal = tmp_path / "run" / "journal.jsonl"
    killed(NEW, tmp_path, journal, lines=rng.randrange(1, LINES), more=rng.uniform(0, 1))
    before = journal.read_bytes()
    kept = before[: before.rfind(b"\n") + 1]

    done = subprocess.run(
        [*EVOLVE, "--resume", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["evaluations"] == BUDGET
    assert journal.read_bytes().startswith(kept)
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [r["n"] for r in records] == list(range(len(records)))
    # What was under way when the run was killed has left no line, and nothing else was measured again.
    assert [r["evaluation"] for r in records if r["kind"] == "evaluation"] == list(range(BUDGET + 1))
    for file in (tmp_path / "run").rglob("*.json"):
        json.loads(file.read_text())


def killed(command: list[str], folder: Path, journal: Path, *, lines: int, more: float) -> None:
    """Run until the journal has so many lines, and `more` seconds; then kill -9 and wait until nothing is left."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    until = time.monotonic() + DEADLINE
    while process.poll() is None and count(journal) < lines:
        assert time.monotonic() < until, f"the journal has only {count(journal)} lines"
        time.sleep(0.005)  # a poll: nothing tells of a file that has grown
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=more)
    process.kill()
    assert process.wait() in (-signal.SIGKILL, 0)  # 0: it was over before
    while left := [pid for pid in processes() if session(pid) == process.pid]:
        assert time.monotonic() < until, f"processes of the killed run are left over: {left}"
        time.sleep(0.005)


def count(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1

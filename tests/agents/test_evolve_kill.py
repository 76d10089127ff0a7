"""kill -9 in the middle of a run, then resume: the journal ends as if nothing had happened.

The number of moments is small here; PIBROCH_KILLS=20 asks for more.
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
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from small_tasks import steps

KILLS = int(os.environ.get("PIBROCH_KILLS", "3"))
EVALUATIONS = 8


class Server:
    """`tests/support/evolve_server.py` and what one says to it."""

    def __init__(self, folder: Path) -> None:
        script = Path(__file__).parents[1] / "support" / "evolve_server.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input: IO[str] = self.process.stdin
        self.output: IO[str] = self.process.stdout
        assert self.output.readline() == "ready\n"

    def start(self, path: Path, *, resume: bool) -> int:
        told = {"path": str(path), "seed": 0, "evaluations": EVALUATIONS, "resume": resume}
        self.input.write(json.dumps(told) + "\n")
        self.input.flush()
        return int(self.output.readline())

    def status(self) -> int:
        return int(self.output.readline())

    def close(self) -> None:
        self.input.close()
        self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    server.start(path, resume=False)
    assert server.status() == 0
    return path


@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_and_resumed_it_is_the_same_run(server: Server, whole: Path, tmp_path: Path, seed: int) -> None:
    path, rng = tmp_path / "run", random.Random(seed)
    full = (whole / "journal.jsonl").stat().st_size
    killed = 0
    sizes = sorted(rng.randrange(1, full * 9 // 10) for _ in range(2))  # twice: when the journal is that long
    for size in sizes:
        pid = server.start(path, resume=begun(path))
        while not reached(path / "journal.jsonl", size) and not ended(pid):
            time.sleep(0.001)  # a poll of a file's size: what it waits for cannot be waited for otherwise
        with contextlib.suppress(ProcessLookupError):  # it was done before we looked
            os.killpg(pid, signal.SIGKILL)
        killed += server.status() == signal.SIGKILL
        left = [int(name) for name in os.listdir("/proc") if name.isdigit() and group(int(name)) == pid]
        assert not left, "processes of the killed run are left over"
    before = (path / "journal.jsonl").read_bytes()
    server.start(path, resume=begun(path))
    assert server.status() == 0
    after = (path / "journal.jsonl").read_bytes()
    assert killed >= 1
    assert after.startswith(before[: before.rfind(b"\n") + 1])  # what was there stays, but for a torn line
    assert steps(path) == steps(whole)
    assert (path / "best.json").read_bytes() == (whole / "best.json").read_bytes()
    for file in path.rglob("*.json"):
        json.loads(file.read_text())
    done = [r["evaluation"] for r in steps(path) if r["kind"] == "evaluation"]
    assert done == list(range(EVALUATIONS + 1))  # none twice


def begun(path: Path) -> bool:
    """Whether there is a whole line: before that there is no run to go on with, and a new one may start."""
    journal = path / "journal.jsonl"
    return journal.exists() and b"\n" in journal.read_bytes()


def reached(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size >= size


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1

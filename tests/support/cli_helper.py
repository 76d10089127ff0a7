"""Run the command line in this process or in a fresh one, and read what it said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pibroch.cli.app import run_cli


@dataclass(frozen=True)
class Said:
    """What a command left behind: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout, which `--json` makes one JSON object."""
        data = json.loads(self.out.splitlines()[-1])
        assert isinstance(data, dict)
        return data


def here(capsys: pytest.CaptureFixture[str], *args: str | Path) -> Said:
    """The command in this process: quick, and without workers."""
    capsys.readouterr()
    code = run_cli([str(a) for a in args])
    captured = capsys.readouterr()
    return Said(code, captured.out, captured.err)


def fresh(*args: str | Path, cwd: Path, timeout: float = 240, **env: str) -> Said:
    """The command in a process of its own, as a user starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "pibroch", *map(str, args)],
        cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr)

"""Run the command line in this process or in a fresh one, and read what it said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import pibroch.runtime.trainer  # noqa: F401 - bound to the real capture before a test replaces the name
from pibroch.cli.app import run_cli
from pibroch.evals.models import WORKLOADS
from pibroch.runtime import capture as capture_module
from pibroch.runtime.captured import Captured, flatten_batch

_capture = capture_module.capture
_captures: dict[Any, Captured] = {}


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
    """The command in this process. Equal captures of shipped models are shared: each costs a second or two."""
    capsys.readouterr()
    with mock.patch.object(capture_module, "capture", _shared):
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


def _shared(model: Any, loss: Any, batch: Any, *, name: str, **options: Any) -> Captured:
    if name not in WORKLOADS:
        return _capture(model, loss, batch, name=name, **options)
    shapes = tuple((n, tuple(t.shape), t.dtype) for n, t in flatten_batch(batch).items())
    key = (name, model.training, shapes, *options.items(), *{p.dtype for p in model.parameters()})
    if key not in _captures:
        _captures[key] = _capture(model, loss, batch, name=name, **options)
    return _captures[key]

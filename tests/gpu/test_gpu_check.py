"""The prepared GPU check, on CPUs: every check's logic runs, and its answer is one JSON line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from pibroch.cli.app import app
from pibroch.evals.task import find_task


def script(repository: Path) -> Any:
    spec = importlib.util.spec_from_file_location("gpu_check", repository / "scripts/gpu_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1)])
def test_the_command_of_the_short_search_parses(repository: Path, tmp_path: Path, device: str, gpus: int) -> None:
    module = script(repository)
    words = module.evolve_command(module.Where(device, gpus), tmp_path / "run")
    command: Any = typer.main.get_command(app)
    parsed = command.commands[words[0]].make_context(words[0], words[1:])  # raises on what it does not know
    assert find_task(parsed.params["task"]).kind == "measured"
    wanted = {"device": device, "launcher": "local", "scores": "measured", "lm": None, "as_json": True}
    assert {name: parsed.params[name] for name in wanted} == wanted
    assert 1 <= parsed.params["budget"] <= 4


@pytest.mark.slow
def test_a_dry_run_does_every_check_and_ends_with_one_json_line(repository: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "scripts/gpu_check.sh", str(tmp_path / "out"), "--dry"],
        cwd=repository, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"] is True
    assert result["dry"] is True
    rows = {row["check"]: row for row in result["checks"]}
    assert rows["one rank"]["bitwise"] == ["1f1b"]
    assert rows["families, shared GPU"]["bitwise"] == ["zb-h1", "replicas"]
    assert rows["trace, shared GPU"]["step_ms"] > 0
    assert rows["memory"]["gpipe_mb"][0] > rows["memory"]["1f1b_mb"][0]
    assert rows["speed"]["compute_ms"] > 0
    assert rows["evolve, shared GPU"]["evaluations"] >= 1
    assert json.loads((tmp_path / "out" / "gpu_check.json").read_text()) == result

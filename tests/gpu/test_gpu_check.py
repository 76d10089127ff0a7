"""The prepared GPU check, on CPUs: every check's logic runs, and its answer is one JSON line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


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
    assert json.loads((tmp_path / "out" / "gpu_check.json").read_text()) == result

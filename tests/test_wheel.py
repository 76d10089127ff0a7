"""The wheel: everything that belongs is in it, and from an empty folder it generates, checks and runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

LEFT_OUT = (".*", "__pycache__", "build", "dist", "runs", "*.egg-info", "tests")


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no stale build folder takes part and the checkout stays clean."""
    top = tmp_path_factory.mktemp("wheel")
    shutil.copytree(repository, top / "source", symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(top), str(top / "source")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (file,) = top.glob("*.whl")
    return file


def test_holds_every_file_that_is_read_at_run_time(wheel: Path, repository: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    rooms = ("agents", "evals", "generated", "playbooks", "runtime", "specs", "cli", "view")
    expected = {
        "pibroch/__init__.py",
        "pibroch/__main__.py",
        "pibroch/project.py",
        "pibroch/doctor.py",
        "pibroch/py.typed",
    }
    for room in rooms:
        for file in (repository / "pibroch" / room).resolve().rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith("."):
                folder = (repository / "pibroch" / room).resolve()
                expected.add(f"pibroch/{room}/{file.relative_to(folder)}")
    assert expected <= names, sorted(expected - names)
    strays = {name.split("/")[0] for name in names} - {"pibroch"}
    assert all(name.endswith(".dist-info") for name in strays), strays
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_generates_checks_and_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    zipfile.ZipFile(wheel).extractall(site)  # a wheel of pure Python is installed by unpacking
    env = {**os.environ, "PYTHONPATH": str(site)}

    def pibroch(*args: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "pibroch", *args, "--json"],
            cwd=work, env=env, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        data = json.loads(done.stdout.splitlines()[-1])
        assert isinstance(data, dict)
        return data

    where = subprocess.run(
        [sys.executable, "-c", "import pibroch; print(pibroch.__file__)"],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(site)), "the checkout must not be what is tested here"
    assert pibroch("generate", "1F1B over 2 stages, 2 microbatches", "--model", "mlp-tiny", "-o", "s.json")["verified"]
    assert pibroch("check", "s.json", "--model", "mlp-tiny")["ok"]
    run = pibroch("run", "s.json", "--model", "mlp-tiny", "--steps", "2", "--launcher", "local", "--view", "v.html")
    assert run["equivalence"]["ok"]
    assert {p.name for p in work.iterdir()} == {"s.json", "v.html"}

"""Who imports whom, and what the command line costs to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("agents", "evals", "generated", "playbooks", "runtime", "specs")
HEAVY = ("torch", "ray", "dspy", "openai", "numpy", "litellm", "xllamacpp", "gepa")


def run(code: str, *, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_contracts_hold(repository: Path) -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    run(code, cwd=repository)


def test_no_bare_room_is_imported() -> None:
    assert not [room for room in ROOMS if room in sys.modules]


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(repository: Path, args: list[str]) -> None:
    code = (
        "import sys; from pibroch.cli.app import run_cli; "
        f"code = run_cli({args!r}); assert code == 0; "
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert run(code, cwd=repository).splitlines()[-1] == "HEAVY []"


def test_public_names_load_lazily(repository: Path) -> None:
    code = (
        "import sys, pibroch; assert 'torch' not in sys.modules; assert 'pydantic' not in sys.modules; "
        "print(sorted(n for n in pibroch.__all__ if getattr(pibroch, n) is None))"
    )
    assert run(code, cwd=repository).strip() == "[]"


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_linked_under_the_one_root(repository: Path, room: str) -> None:
    link = repository / "pibroch" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room


def test_files_stay_readable(repository: Path) -> None:
    folders = [repository / room for room in (*ROOMS, "pibroch/cli", "pibroch/view")]
    files = [file for folder in folders for file in folder.rglob("*.py")] + list((repository / "pibroch").glob("*.py"))
    assert len(files) > 50
    assert not [str(file) for file in files if len(file.read_text().splitlines()) >= 400]

"""Loading generated modules: the lock's hash, layers, relies, laziness."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pibroch.runtime.errors import InputError
from pibroch.runtime.generated import VARIABLE, folders, load_generated

COUNTER = """import threading
n = 0


def up() -> int:
    global n
    n += 1
    return n
"""
USER = """import counter


def twice() -> int:
    import counter as again

    counter.up()
    return again.up()
"""


def put(folder: Path, name: str, source: str, rely: tuple[str, ...] = (), kind: str = "modules") -> Path:
    """A file and its lock entry, as `pibroch regenerate` leaves them."""
    path = folder / kind / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    lock = folder / "lock.json"
    data: Any = json.loads(lock.read_text()) if lock.exists() else {"version": 1, "entries": {}}
    digest = hashlib.sha256(source.encode()).hexdigest()
    data["entries"][f"{kind}/{name}"] = {"source_sha256": digest, "rely": dict.fromkeys(rely, "…")}
    lock.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_a_module_is_executed_once(layer: Path) -> None:
    put(layer, "counter", COUNTER)
    assert load_generated("counter").up() == 1
    assert load_generated("counter").up() == 2
    assert load_generated("counter", fresh=True).up() == 1
    assert load_generated("counter").up() == 3


def test_relies_are_the_generated_ones_or_the_callers(layer: Path) -> None:
    put(layer, "counter", COUNTER)
    put(layer, "user", USER, ("counter",))
    assert load_generated("user").twice() == 2
    assert load_generated("counter").up() == 3  # one counter for all of this process
    assert load_generated("user", relies={"counter": SimpleNamespace(up=lambda: 70)}).twice() == 70
    assert load_generated("user").twice() == 5


def test_schedules_rely_on_modules(layer: Path) -> None:
    put(layer, "counter", COUNTER)
    put(layer, "user", USER, ("counter",), kind="schedules")
    assert load_generated("user", kind="schedules").twice() == 2


def test_hand_edits_and_strangers_are_refused(layer: Path) -> None:
    path = put(layer, "counter", COUNTER)
    path.write_text(COUNTER + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"edited by hand; `pibroch regenerate counter`"):
        load_generated("counter")
    (layer / "modules" / "stranger.py").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"lock.json does not know this file.*`pibroch regenerate stranger`"):
        load_generated("stranger")
    (layer / "lock.json").unlink()
    with pytest.raises(InputError, match=r"does not know this file"):
        load_generated("stranger")


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 2, "entries": {}}', '{"version": 1}'])
def test_a_damaged_lock_is_said(layer: Path, text: str) -> None:
    put(layer, "counter", COUNTER)
    (layer / "lock.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"lock.json"):
        load_generated("counter")


def test_a_missing_module_names_the_command(layer: Path) -> None:
    with pytest.raises(InputError, match=r"no_such\.py does not exist: `pibroch regenerate --all"):
        load_generated("no_such")


def test_the_first_folder_wins(layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(first), str(second)]))
    put(second, "thing", "x = 2\n")
    assert load_generated("thing").x == 2
    put(first, "thing", "x = 1\n")
    assert load_generated("thing").x == 1
    assert [p.name for p in folders()] == ["a", "b", "generated"]


def test_a_loaded_module_stays_what_it_was(layer: Path) -> None:
    path = put(layer, "thing", "x = 1\n")
    assert load_generated("thing").x == 1
    path.write_text("x = 3\n", encoding="utf-8")  # even by hand, in mid-run
    assert load_generated("thing").x == 1


def test_importing_the_runtime_loads_nothing(repository: Path) -> None:
    seen = "any('.generated.m' in m or 'pydantic' in m for m in sys.modules)"
    code = f"import pibroch.runtime.generated, sys; print({seen})"
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr

"""generated/lock.json: written with its module or not at all, and what counts as drift."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
from scripted_judge import write_specs

from pibroch.agents import lock as lock_module
from pibroch.agents.lock import LockEntry, drift, key_of, kind_of, read_lock, sha256, write_generated
from pibroch.agents.prompt_files import prompt_hashes
from pibroch.runtime.errors import InputError
from pibroch.runtime.generated import VARIABLE, load_generated
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec
from pibroch.specs.store import load_all, semantic_hash


def entry_of(spec: Spec, source: str) -> LockEntry:
    return LockEntry(
        spec_version=spec.front.version, spec_hash=semantic_hash(spec), rely=[r.module for r in spec.relies],
        prompts=prompt_hashes(["module_phase1", "module_language"]), model="m", who="w",
        attempts={"phase 1, sample 0": 1}, verdicts={"P1": "held"}, review="passed", source_sha256=sha256(source),
    )  # fmt: skip


def put(folder: Path, spec: Spec, source: str = "x = 1\n") -> Path:
    return write_generated(folder, spec, source, entry_of(spec, source))


@pytest.fixture
def specs(tmp_path: Path) -> dict[str, Spec]:
    return load_all([write_specs(tmp_path) / "specs"])


def kinds(specs: dict[str, Spec], folder: Path) -> list[tuple[str, str]]:
    return [(row.module, row.kind) for row in drift(specs, folder)]


def test_nothing_drifts_after_writing(specs: dict[str, Spec], tmp_path: Path) -> None:
    folder = tmp_path / "generated"
    assert kinds(specs, folder) == [("counter", "missing"), ("source", "missing"), ("user", "missing")]
    for spec in specs.values():
        put(folder, spec)
    assert drift(specs, folder) == []
    assert sorted(read_lock(folder)) == ["modules/counter", "modules/source", "modules/user"]
    assert read_lock(folder)["modules/user"].rely == ["source"]


def test_what_is_written_loads(specs: dict[str, Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "generated"))
    put(tmp_path / "generated", specs["source"], "def take(n):\n    return n\n")
    put(tmp_path / "generated", specs["user"], "import source\ndef twice(n):\n    return source.take(n) * 2\n")
    assert load_generated("user").twice(3) == 6


def test_a_changed_spec_drifts_and_its_layout_does_not(specs: dict[str, Spec], tmp_path: Path) -> None:
    folder = tmp_path / "generated"
    for spec in specs.values():
        put(folder, spec)
    text = specs["source"].text
    for new, expected in (
        (text.replace("result >= n", "result > n"), [("source", "spec")]),
        (text.replace("version: 1", "version: 2"), [("source", "spec")]),
        (text.replace("A number for", "A number,\nfor"), [("source", "spec")]),
        (text.replace("A number for", "A number\nfor"), []),
        (text.replace("result >= n", "result  >=  n"), []),
    ):
        changed = {**specs, "source": parse_spec(new, specs["source"].path)}
        assert kinds(changed, folder) == expected, new
    said = drift({**specs, "source": parse_spec(text.replace("version: 1", "version: 2"))}, folder)
    assert said[0].error
    assert "version 1" in said[0].message
    assert "`pibroch regenerate source`" in said[0].message


def test_hand_edits_strangers_and_leftovers(specs: dict[str, Spec], tmp_path: Path) -> None:
    folder = tmp_path / "generated"
    for spec in specs.values():
        put(folder, spec)
    path = folder / "modules" / "counter.py"
    path.write_text("x = 1 \n", encoding="utf-8")
    (folder / "modules" / "extra.py").write_text("", encoding="utf-8")
    (folder / "modules" / "__init__.py").write_text("", encoding="utf-8")
    assert kinds(specs, folder) == [("counter", "hand edit"), ("extra", "no spec")]
    assert all(row.error for row in drift(specs, folder))
    del specs["user"]
    assert ("user", "no spec") in kinds(specs, folder)
    data = json.loads((folder / "lock.json").read_text())
    del data["entries"]["modules/counter"]
    (folder / "lock.json").write_text(json.dumps(data))
    assert ("counter", "hand edit") in kinds(specs, folder)
    path.unlink()
    assert ("counter", "missing") in kinds(specs, folder)


def test_a_reworded_prompt_is_a_warning(specs: dict[str, Spec], tmp_path: Path) -> None:
    folder = tmp_path / "generated"
    spec = specs["counter"]
    entry = entry_of(spec, "x\n")
    changed = entry.model_copy(update={"prompts": {**entry.prompts, "module_phase1": "0" * 16, "gone": "1"}})
    write_generated(folder, spec, "x\n", changed)
    rows = drift({"counter": spec}, folder)
    assert [(row.kind, row.error) for row in rows] == [("prompt", False)]
    assert "gone, module_phase1" in rows[0].message


def test_a_lock_that_cannot_be_written_leaves_the_old_module(specs: dict[str, Spec], tmp_path: Path) -> None:
    folder = tmp_path / "generated"
    spec = specs["counter"]
    with mock.patch.object(lock_module, "_write", side_effect=InputError("full")), pytest.raises(InputError):
        put(folder, spec)
    assert not (folder / "modules" / "counter.py").exists()
    put(folder, spec, "x = 1\n")
    with mock.patch.object(lock_module, "_write", side_effect=InputError("full")), pytest.raises(InputError):
        put(folder, spec, "x = 2\n")
    assert (folder / "modules" / "counter.py").read_text() == "x = 1\n"
    assert drift({"counter": spec}, folder) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ('{"version": 0, "entries": {}}', "version 1"),
        ('{"version": 1, "entries": {"modules/counter": {"model": 1}}}', "modules/counter"),
    ],
)
def test_a_damaged_lock_is_said(specs: dict[str, Spec], tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "lock.json").write_text(text)
    with pytest.raises(InputError, match=says):
        drift(specs, tmp_path)


def test_schedules_have_a_folder_of_their_own(specs: dict[str, Spec]) -> None:
    text = specs["source"].text
    assert kind_of(parse_spec(text, "specs/schedules/source.spec.md")) == "schedules"
    assert key_of(parse_spec(text, "specs/modules/source.spec.md")) == "modules/source"
    assert key_of(parse_spec(text, "specs/source.spec.md")) == "modules/source"
    assert key_of(parse_spec(text, "modules/specs/schedules/deep/source.spec.md")) == "schedules/source"

"""Task files: found by name or path, the user's before the shipped, and the shipped ones' own rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pibroch.evals.task import Task, find_task, load_task, task_names
from pibroch.project import Project
from pibroch.runtime.errors import InputError

SHIPPED = [find_task(name) for name in task_names()]


def write(folder: Path, **fields: object) -> Path:
    task = {"name": "mine", "title": "Mine", "model": "mlp:4", "devices": 2, "samples": 4, "intent": "fast"}
    path = folder / f"{fields.get('name', 'mine')}.json"
    path.write_text(json.dumps({**task, **fields}))
    return path


def test_at_least_twelve_are_shipped_and_six_are_for_testing_only() -> None:
    assert len(SHIPPED) >= 12
    assert sum(task.use == "test" for task in SHIPPED) >= 6
    for kind, devices in (("measured", {2}), ("emulated", {4, 8})):
        chosen = [task for task in SHIPPED if task.kind == kind]
        assert {task.devices for task in chosen} == devices
        assert {task.use for task in chosen} == {"train", "test"}


@pytest.mark.parametrize("task", SHIPPED, ids=lambda task: task.name)
def test_the_intent_says_what_the_task_fixes(task: Task) -> None:
    assert f"{task.devices} devices" in task.intent
    assert f"{task.samples} samples" in task.intent
    assert ("at most" in task.intent) == (task.memory_limit is not None)


def test_a_users_task_is_found_before_the_shipped_one(tmp_path: Path) -> None:
    write(tmp_path, name="mine")
    write(tmp_path, name="equal-8", title="Another")
    assert find_task("mine", [tmp_path]).title == "Mine"
    assert find_task("equal-8", [tmp_path]).title == "Another"
    assert find_task("equal-8").title != "Another"
    assert set(task_names([tmp_path])) == {*task_names(), "mine"}
    assert find_task(write(tmp_path, name="elsewhere")).name == "elsewhere"


def test_a_projects_tasks_lie_in_its_room_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    write(tmp_path / "tasks", name="mine")
    layers = Project(tmp_path).layers("tasks")
    assert layers[0] == tmp_path / "tasks"
    assert (layers[1] / "equal-8.json").is_file()
    assert find_task("mine", layers).devices == 2


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no task 'nine'.*equal-8"):
        find_task("nine")
    with pytest.raises(InputError, match=r"absent\.json: cannot read"):
        find_task(tmp_path / "absent.json")
    with pytest.raises(InputError, match=r"mine\.json: devices"):
        load_task(write(tmp_path, devices=0))
    with pytest.raises(InputError, match=r"mine\.json: colour"):
        load_task(write(tmp_path, colour="red"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(InputError, match=r"broken\.json: not valid JSON"):
        load_task(broken)

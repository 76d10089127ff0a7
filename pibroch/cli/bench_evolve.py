"""`pibroch bench search` and `pibroch bench advice`: what evolution finds, and what its playbook is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pibroch.cli.common import finish, say
from pibroch.runtime.errors import InputError

if TYPE_CHECKING:
    from pibroch.evals.ladder import Scores
    from pibroch.evals.task import Task


def search(
    names: str | None, *, seeds: int, scores: Scores, confirm: bool, launcher: str | None, quick: bool, as_json: bool,
) -> None:  # fmt: skip
    """Evolution against a grid of the families and random search, on the test tasks by default."""
    from pibroch.agents.evolve import bench_search
    from pibroch.agents.evolve.session import Launch

    result = bench_search.run(
        tasks(names), evaluations=8 if quick else 40, seeds=1 if quick else seeds,
        launch=Launch(scores, launcher or "local"), confirm=confirm, progress=say,
    )  # fmt: skip
    finish({"ok": True, "bench": "search", **result}, bench_search.report(result), as_json=as_json)


def advice(names: str | None, *, lm: str | None, playbook: str | None, samples: int, as_json: bool) -> None:
    """A model's first candidates with a learned playbook, with none, and with an irrelevant one."""
    from pibroch.agents.evolve import bench_advice
    from pibroch.agents.lm import open_lm
    from pibroch.playbooks.store import read

    model = open_lm(lm)
    if model is None or playbook is None:
        raise InputError("bench advice needs --lm and --playbook FILE, as a run's learned.json")
    learned = read(Path(playbook))
    results = [bench_advice.run(task, model, learned, samples=samples, progress=say) for task in tasks(names)]
    lines = [bench_advice.report(result) for result in results]
    finish({"ok": True, "bench": "advice", "results": results}, lines, as_json=as_json)


def tasks(names: str | None) -> list[Task]:
    """The tasks of those names, or all that are for testing."""
    from pibroch.evals.task import find_task, task_names
    from pibroch.project import find_project

    layers = find_project().layers("tasks")
    chosen = [name.strip() for name in names.split(",")] if names else task_names(layers)
    found = [find_task(name, layers) for name in chosen]
    return found if names else [task for task in found if task.use == "test"]

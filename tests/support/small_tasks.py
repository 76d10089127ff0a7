"""Tasks that a simulator judges in milliseconds, and runs of evolution over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pibroch.agents.evolve.budget import Budget
from pibroch.agents.evolve.session import Ask, Launch, Session, evolve, resumed
from pibroch.evals.task import Task
from pibroch.playbooks.model import Playbook


def small_task(**changes: Any) -> Task:
    """Four devices, uneven layers, no memory bound: an emulated task whose 1F1B leaves much to gain."""
    fields = {
        "name": "small", "title": "small", "model": "mlp:18", "devices": 4, "samples": 4,
        "emulate": "pythia-1b-a100-25g", "intent": "the fastest schedule over 4 devices for 4 samples",
    }  # fmt: skip
    return Task.model_validate({**fields, **changes})


def session(*, seed: int = 0, evaluations: int = 10, playbook: Playbook | None = None, task: Task | None = None,
            **budget: Any) -> Session:  # fmt: skip
    """With simulated scores and no language model."""
    return Session(
        task=task or small_task(), playbook=playbook or Playbook(), seed=seed, budget=Budget(evaluations, **budget),
        launch=Launch(scores="simulated"), ask=Ask(),
    )  # fmt: skip


def run(path: Path, told: Session | None = None, **more: Any) -> dict[str, Any]:
    """A new run, or where `told` is None the rest of the one in `path`."""
    return evolve(path, told or resumed(path), resume=told is None, **more)


def steps(path: Path) -> list[dict[str, Any]]:
    """What a run's journal says, without what differs from session to session."""
    rows = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    for row in rows:
        for name in ("n", "at", "spent_s"):
            row.pop(name)
        row.get("result", {}).pop("total_s", None)
    return [row for row in rows if row["kind"] not in ("end", "resume", "confirm", "learned")]

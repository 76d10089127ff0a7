"""What a run found, written into a project: its schedule where that was confirmed, and what its playbook learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pibroch.agents.evolve.edits import parse_edit
from pibroch.agents.evolve.journal import Journal, Record, read_journal
from pibroch.agents.evolve.rundir import RunDir
from pibroch.playbooks.deltas import apply
from pibroch.playbooks.model import Delta, Playbook
from pibroch.playbooks.store import of_project
from pibroch.runtime.directives import load_schedule, schedule_text
from pibroch.runtime.files import write_atomically

_DELTA: TypeAdapter[Delta] = TypeAdapter(Delta)


def apply_run(root: Path, path: Path, *, task: str, better: bool) -> dict[str, Any]:
    """Write `generated/schedules/TASK.json` and commit the deltas to the project's playbook, once per run.

    `better`: the best is worth writing. Returns `schedule` (its file, or None), `deltas` (how many were committed) and
    `text`.
    """
    run = RunDir(path)
    records = read_journal(run.journal)
    store = of_project(root)
    begun = Playbook.model_validate_json(run.playbook.read_text(encoding="utf-8"))
    deltas: list[Delta] = []
    if not any(r["kind"] == "applied" for r in records):
        deltas = rebased(records, begun=begun, onto=store.load())
    file = None
    if better:
        file = root / "generated" / "schedules" / f"{task}.json"
        write_atomically(file, schedule_text(load_schedule(run.best)))
    if deltas:
        store.commit(deltas, why=f"run {path.name}", check_edit=parse_edit)
        journal = Journal(run.journal)
        try:
            journal.note("applied", {"to": str(store.path)})
        finally:
            journal.close()
    what = f"{file}" if file else "no schedule, as none is surely better"
    return {"schedule": file, "deltas": len(deltas), "text": f"{what}; {len(deltas)} deltas to {store.path}"}


def rebased(records: list[Record], *, begun: Playbook, onto: Playbook) -> list[Delta]:
    """A run's deltas for a playbook that may have changed since the run began: ids that the run gave are those that
    `onto` gives; deltas of bullets that are gone, or say something else now, are left out."""
    ids = {b.id: b.id for b in begun.bullets if _same(b.id, begun, onto)}
    kept: list[Delta] = []
    # What waited for its words at the end is a note, and counts only if the run did not go on behind it.
    last = next((r for r in records[::-1] if r["kind"] in ("learned", "resume")), None)
    for record in (r for r in records if r["kind"] == "playbook" or (r is last and r["kind"] == "learned")):
        for data, outcome in zip(record["deltas"], record["outcomes"], strict=True):
            if outcome["done"] == "refused":
                continue
            named = [data["id"]] if "id" in data else list(data.get("ids", ()))
            if not all(name in ids for name in named):
                continue
            moved = {key: value for key, value in data.items() if key not in ("id", "ids")}
            if "id" in data:
                moved["id"] = ids[data["id"]]
            elif "ids" in data:
                moved["ids"] = [ids[name] for name in data["ids"]]
            delta = _DELTA.validate_python(moved)
            onto, (made,) = apply(onto, [delta], check_edit=parse_edit)
            if made.done == "refused":
                continue
            kept.append(delta)
            if outcome["id"]:
                ids[outcome["id"]] = made.id
    return kept


def _same(id: str, one: Playbook, other: Playbook) -> bool:
    a, b = one.get(id), other.get(id)
    return a is not None and b is not None and (a.text, a.edit) == (b.text, b.edit)

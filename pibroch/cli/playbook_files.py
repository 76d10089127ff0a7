"""Which playbook a command reads or changes, and how it speaks of bullets and outcomes."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibroch.cli.common import finish
from pibroch.runtime.errors import InputError

if TYPE_CHECKING:
    from pibroch.playbooks.model import Bullet, Outcome, Playbook
    from pibroch.playbooks.store import Store

File = Annotated[
    Path | None,
    typer.Option("--file", help="This playbook file instead of the project's.", show_default=False),
]
When = Annotated[
    list[str] | None,
    typer.Option("--when", help="KEY=CONDITION, as devices=>=4 or finding:exposed-reduce=true.", show_default=False),
]
Edit = Annotated[
    str | None, typer.Option("--edit", help="The edit that the bullet names, as a JSON object.", show_default=False)
]
Why = Annotated[str, typer.Option("--why", help="A word for the history.")]


def reading(file: Path | None) -> Store:
    """The named playbook, the project's or the shipped one. Raises `InputError` where a named one is missing."""
    from pibroch.playbooks.store import SHIPPED, Store, of_project
    from pibroch.project import find_project

    if file is not None:
        if not file.is_file():
            raise InputError(f"{file}: no such playbook (`pibroch playbook add --file {file} …` makes one)")
        return Store(file)
    root = find_project().root
    return of_project(root) if root else Store(SHIPPED)


def writing(file: Path | None) -> Store:
    """The named playbook or the project's. Raises `InputError` outside of a project: what is installed stays."""
    from pibroch.playbooks.store import Store, of_project
    from pibroch.project import find_project

    if file is not None:
        return Store(file)
    root = find_project().root
    if root is None:
        raise InputError(
            "no project here to keep a playbook in: make one with `pibroch init`, or name a file with --file"
        )
    return of_project(root)


def conditions(texts: Sequence[str] | None) -> dict[str, str]:
    """`--when KEY=CONDITION` options. Raises `InputError`."""
    found: dict[str, str] = {}
    for text in texts or ():
        match = re.fullmatch(r"\s*([\w:.-]+)\s*(?:=\s*(.+)|((?:[<>]|!=).+))", text)  # devices>=4 is what people write
        if match is None:
            raise InputError(f"--when {text}: write KEY=CONDITION, as devices=>=4")
        key, condition = match[1], match[2] or match[3]
        if key in found:
            raise InputError(f"--when {key} stands twice: join its conditions with a comma, as {key}=>=2,<8")
        found[key] = condition
    return found


def facts_of(texts: Sequence[str]) -> dict[str, bool | int | float | str]:
    """`--fact KEY=VALUE` options. Raises `InputError`."""
    facts: dict[str, bool | int | float | str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (key and sign and value):
            raise InputError(f"--fact {text}: write KEY=VALUE, as devices=8")
        facts[key] = value == "true" if value in ("true", "false") else _number_or_word(value)
    return facts


def _number_or_word(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def tasks() -> list[dict[str, bool | int | float | str]]:
    """What is known of the project's and the shipped tasks before any schedule. Raises `InputError`."""
    from pibroch import evals
    from pibroch.evals.task import load_task
    from pibroch.project import find_project

    root = find_project().root
    folders = [*([root / "tasks"] if root else []), Path(next(iter(evals.__path__))) / "tasks"]
    found = [load_task(path) for folder in folders for path in sorted(folder.glob("*.json"))]
    return [
        {"devices": t.devices, "samples": t.samples, "memory_bound": t.memory_limit is not None,
         "emulated": t.emulate is not None}
        for t in found
    ]  # fmt: skip


def edit_of(text: str | None) -> dict[str, Any] | None:
    """`--edit JSON`. Raises `InputError`."""
    if text is None:
        return None
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"--edit: not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError('--edit: an object such as {"op": "…"}')
    return data


def check_edit(data: dict[str, Any]) -> None:
    """Raises `InputError` where the schedule operators do not know the edit."""
    from pibroch.agents.evolve.edits import parse_edit

    parse_edit(data)


def change(
    store: Store, deltas: Sequence[Any], *, why: str, as_json: bool, facts: Mapping[str, Any] | None = None
) -> None:
    """Commit deltas and end the command: exit code 1 where one was refused."""
    outcomes = store.commit(deltas, why=why, check_edit=check_edit)
    refused = [f"{o.op} {o.id}".strip() + f" refused: {o.reason}" for o in outcomes if o.done == "refused"]
    result = {"ok": not refused, "file": str(store.path), "outcomes": outcomes, **(facts or {})}
    if refused:
        result["error"] = {"kind": "input", "message": "; ".join(refused)}
    finish(result, [said(o) for o in outcomes if o.done != "refused"], as_json=as_json, problems=refused)


def said(outcome: Outcome) -> str:
    """One outcome in a line."""
    tail = f": {outcome.reason}" if outcome.reason else ""
    into = "into " if outcome.done == "merged" and outcome.op == "ADD" else ""
    return f"{outcome.done} {into}{outcome.id}{tail}"


def table(bullets: Sequence[Bullet]) -> list[str]:
    """Bullets by section: id, counters and text, then conditions and edit."""
    from pibroch.playbooks.verdict import verdict

    lines: list[str] = []
    for section in dict.fromkeys(b.section for b in bullets):
        lines.append(section)
        for b in (b for b in bullets if b.section == section):
            counted = f"tested {b.tested}, helpful {b.helpful}, harmful {b.harmful}" if b.tested else "untested"
            lines.append(f"  [{b.id}] {b.text}")
            when = ", ".join(f"{key} {condition}" for key, condition in b.applies_when.items())
            parts = [f"{verdict(b)}: {counted}" if b.tested else counted, f"when {when}" if when else ""]
            parts.append(f"edit {json.dumps(b.edit)}" if b.edit else "")
            lines.append("      " + "; ".join(filter(None, parts)))
    return lines


def one(playbook: Playbook, id: str) -> Bullet:
    """The bullet of an id. Raises `InputError`."""
    bullet = playbook.get(id)
    if bullet is None:
        raise InputError(f"no bullet {id!r} (`pibroch playbook show` lists them)")
    return bullet

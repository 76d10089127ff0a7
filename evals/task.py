"""Tasks: what evolution is asked to make faster, as small files.

A task fixes what a candidate may not change: the model, the devices, the samples of one step and the memory bound.
`evals/tasks/*.json` are shipped; a project's own lie in its `tasks/`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pibroch.runtime.errors import InputError

SHIPPED = Path(__file__).parent / "tasks"


class Task(BaseModel):
    """`samples` of one step over all replicas; `memory_limit` in bytes per device; `emulate` names a profile, whose
    microbatch is then one sample. `use` says whether a playbook may have been trained on it. `intent` is the sentence
    that a writer is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    model: str
    devices: int = Field(ge=1)
    samples: int = Field(ge=1)
    memory_limit: int | None = Field(default=None, ge=1)
    emulate: str | None = None
    use: Literal["train", "test"] = "train"
    intent: str

    @property
    def kind(self) -> str:
        """`emulated` or `measured`: figures of the two are never mixed."""
        return "emulated" if self.emulate else "measured"


def load_task(path: Path) -> Task:
    """Read one task file. Raises `InputError` that names the file and the field."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read the task: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    try:
        return Task.model_validate(data)
    except ValidationError as error:
        row = error.errors()[0]
        where = ".".join(map(str, row["loc"])) or "the task"
        raise InputError(f"{path}: {where}: {row['msg']}") from error


def find_task(name_or_path: str | Path, layers: Sequence[Path] = ()) -> Task:
    """A task by the path of its file, or by name: in `layers` (folders, the first one first), then shipped.

    Raises `InputError` that lists the names there are.
    """
    text = str(name_or_path)
    if text.endswith(".json"):
        return load_task(Path(text))
    path = _files(layers).get(text)
    if path is None:
        raise InputError(f"no task {text!r}: name a file that ends in .json, or one of {', '.join(task_names(layers))}")
    return load_task(path)


def task_names(layers: Sequence[Path] = ()) -> list[str]:
    """The names of all tasks in these folders and of the shipped ones, sorted."""
    return sorted(_files(layers))


def _files(layers: Sequence[Path]) -> dict[str, Path]:
    """Task files by name; where two have one name, that of the earlier folder."""
    return {path.stem: path for folder in reversed([*layers, SHIPPED]) for path in folder.glob("*.json")}

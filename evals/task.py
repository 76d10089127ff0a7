"""Tasks: what evolution is asked to make faster, as small files.

A task fixes what a candidate may not change: the model, the devices, the samples of one step and the memory bound.
`evals/tasks/*.json` are shipped; a project's own lie in its `tasks/`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pibroch.runtime.errors import InputError


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

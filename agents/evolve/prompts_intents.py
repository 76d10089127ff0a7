"""Sentences to evolve prompts on, as a small file: for training, for validation, and held out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pibroch.agents.gepa_adapter import Instance, instance
from pibroch.runtime.errors import InputError
from pibroch.runtime.model import ModelSpec

SHIPPED = "intents.json"


class IntentRow(BaseModel):
    """`memory_limit` in bytes per device, beside what the sentence says. `model` overrides the file's."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: str
    intent: str
    model: str | None = None
    memory_limit: int | None = Field(default=None, ge=1)


class IntentFile(BaseModel):
    """No id twice; the test part is only for the final comparison."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: int = Field(ge=1, le=1)
    model: str
    train: tuple[IntentRow, ...] = Field(min_length=1)
    validation: tuple[IntentRow, ...] = Field(min_length=1)
    test: tuple[IntentRow, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Intents:
    """The three parts, ready to be written for."""

    train: list[Instance]
    validation: list[Instance]
    test: list[Instance]


def load_intents(path: Path | None, models: Callable[[str], ModelSpec]) -> Intents:
    """Read a file (default: the shipped one). Raises `InputError` that names the file and the entry."""
    where = str(path or SHIPPED)
    try:
        if path is not None:
            text = path.read_text(encoding="utf-8")
        else:
            text = resources.files("pibroch.agents").joinpath("evolve", SHIPPED).read_text(encoding="utf-8")
        file = IntentFile.model_validate(json.loads(text))
    except OSError as error:
        raise InputError(f"{where}: cannot read the intents: {error.strerror}") from error
    except ValidationError as error:
        row = error.errors()[0]
        raise InputError(f"{where}: {'.'.join(map(str, row['loc'])) or 'the file'}: {row['msg']}") from error
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON: {error}") from error
    seen: set[str] = set()
    parts: list[list[Instance]] = []
    for rows in (file.train, file.validation, file.test):
        parts.append([])
        for entry in rows:
            if entry.id in seen:
                raise InputError(f"{where}: the id {entry.id!r} appears twice: each sentence belongs to one part")
            seen.add(entry.id)
            try:
                one = instance(
                    entry.intent, models(entry.model or file.model), ident=entry.id, memory_limit=entry.memory_limit
                )
            except InputError as error:
                raise InputError(f"{where}: {entry.id}: {error}") from error
            parts[-1].append(one)
    return Intents(*parts)

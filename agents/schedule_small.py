"""The schedule writer for small models: one short request, one JSON object with an order in a few letters.

A model of half a billion parameters copies the examples of the two long prompts whatever the sentence says. So it gets
one page, names only numbers and the order of each stage (`F0 F1 B0 B1`), and starts afresh at every attempt, since a
new draw mends more than its repairs do. The directives are made here, and judged as any others.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pibroch.agents.feedback import Feedback
from pibroch.agents.intent import Intent
from pibroch.agents.lm.base import LanguageModel, ReplyError, backend, fenced_block
from pibroch.runtime.directives import Schedule, schedule_from
from pibroch.runtime.errors import InputError

SMALL_MODELS = ("local",)
PROMPT = "schedule_small"
_MOST_TOKENS = 512
_CHUNK = re.compile(r"([FB])(\d{1,3})")
_UNSAYABLE = {
    "cut", "layers_per_stage", "uniform_layers", "even", "buckets", "bucket_size", "stream", "reduce_stream",
    "families", "excluded", "open_clauses",
}  # fmt: skip

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "stages": {"type": "integer", "minimum": 1, "maximum": 64},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 64},
        "microbatches": {"type": "integer", "minimum": 1, "maximum": 128},
        "recompute": {"type": "boolean"},
        "rows": {"type": "array", "items": {"type": "string", "pattern": "^[FB][0-9]+( [FB][0-9]+)*$"}, "minItems": 1},
    },
    "required": ["stages", "replicas", "microbatches", "recompute", "rows"],
    "additionalProperties": False,
}


class SmallReply(BaseModel):
    """The object that a small model writes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    stages: int = Field(ge=1, le=64)
    replicas: int = Field(ge=1, le=64)
    microbatches: int = Field(ge=1, le=128)
    recompute: bool
    rows: tuple[str, ...]


def suits(intent: Intent, lm: LanguageModel) -> bool:
    """Whether the short request can say all that the sentence asks for, and the model is a small one."""
    if backend(lm) not in SMALL_MODELS or intent.family not in (None, "gpipe", "1f1b"):
        return False
    return intent.stages_per_device in (None, 1) and not intent.model_dump(include=_UNSAYABLE, exclude_defaults=True)


def tokens_for(intent: Intent) -> int:
    """As many as a right reply needs, with some to spare: a model that goes in circles ends there."""
    if intent.stages is None or intent.microbatches is None:
        return _MOST_TOKENS
    digits = len(str(intent.microbatches - 1))
    return min(_MOST_TOKENS, 96 + 2 * intent.stages * intent.microbatches * (1 + digits) + 8 * intent.stages)


def read_small(text: str) -> tuple[Schedule | None, Schedule | None, list[Feedback]]:
    """(placement, the whole schedule, what is wrong with the reply). The schedule is None where only its rows fail."""
    try:
        _, body = fenced_block(text, ("json",))
        reply = SmallReply.model_validate_json(body)
    except ReplyError as error:
        return None, None, [Feedback("FORMAT", "", str(error))]
    except ValidationError as error:
        row = error.errors()[0]
        return None, None, [Feedback("FORMAT", ".".join(map(str, row["loc"])), row["msg"])]
    directives = _placement(reply)
    try:
        placement = schedule_from(directives, source="the JSON object")
        rows = [_order(stage, row, reply) for stage, row in enumerate(reply.rows)]
        if len(rows) != reply.stages:
            raise InputError(f"rows has {len(rows)} texts: {reply.stages} stages need {reply.stages}")
        return placement, schedule_from([*directives, *rows], source="the JSON object"), []
    except InputError as error:
        return placement, None, [Feedback("FORMAT", "rows", str(error))]


def _placement(reply: SmallReply) -> list[dict[str, Any]]:
    """Stage s of replica j on device j * stages + s."""
    devices = [[j * reply.stages + s for j in range(reply.replicas)] for s in range(reply.stages)]
    rows: list[dict[str, Any]] = [{"op": "split", "num_microbatches": reply.microbatches}]
    rows += [{"op": "place", "filter": {"PP": s}, "devices": used} for s, used in enumerate(devices)]
    if reply.replicas > 1:
        rows += [{"op": "replicate", "filter": {"PP": s}, "devices": used} for s, used in enumerate(devices)]
    return [*rows, {"op": "recompute"}] if reply.recompute else rows


def _order(stage: int, row: str, reply: SmallReply) -> dict[str, Any]:
    """One stage's row. Raises `InputError` where it is not every F and B once."""
    filters = []
    for word in row.split():
        match = _CHUNK.fullmatch(word)
        if match is None:
            raise InputError(f"row {stage}: {word!r} is not an F or a B with a microbatch's number")
        filters.append({"PP": stage, "MB": int(match[2]), "PASS": match[1]})
    names = [f"{f['PASS']}{f['MB']}" for f in filters]
    wanted = [f"{name}{i}" for name in "FB" for i in range(reply.microbatches)]
    if missing := [name for name in wanted if name not in names]:
        raise InputError(f"row {stage} lacks {', '.join(missing)}")
    if extra := [name for i, name in enumerate(names) if name not in wanted or name in names[:i]]:
        raise InputError(f"row {stage} has {', '.join(extra)} too often, or for no microbatch of 0 to "
                         f"{reply.microbatches - 1}")  # fmt: skip
    return {"op": "order", "filters": filters}

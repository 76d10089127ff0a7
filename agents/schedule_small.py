"""The schedule writer for small models: one short request, and one JSON object with a few numbers.

A model of half a billion parameters copies the examples of the two long prompts whatever the sentence says, and cannot
write an order chunk by chunk. So it gets half a page and names numbers alone: for each stage, how many forwards run
before its first backward (all of them is GPipe's order, the number of stages still to come, itself included, 1F1B's).
It starts afresh at every attempt, since a new draw mends more than its repairs do. The directives are made here, and
judged as any others.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pibroch.agents.feedback import Feedback
from pibroch.agents.intent import Intent
from pibroch.agents.lm.base import LanguageModel, ReplyError, backend, fenced_block
from pibroch.runtime.directives import Schedule, schedule_from
from pibroch.runtime.errors import InputError

SMALL_MODELS = ("local",)
PROMPT = "schedule_small"
MOST_TOKENS = 200  # 64 stages' numbers; a model that goes in circles ends there
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
        "warmup": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 128}, "minItems": 1},
    },
    "required": ["stages", "replicas", "microbatches", "recompute", "warmup"],
    "additionalProperties": False,
}


class SmallReply(BaseModel):
    """The object that a small model writes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    stages: int = Field(ge=1, le=64)
    replicas: int = Field(ge=1, le=64)
    microbatches: int = Field(ge=1, le=128)
    recompute: bool
    warmup: tuple[int, ...]


def suits(intent: Intent, lm: LanguageModel) -> bool:
    """Whether the short request can say all that the sentence asks for, and the model is a small one."""
    if backend(lm) not in SMALL_MODELS or intent.family not in (None, "gpipe", "1f1b"):
        return False
    return intent.stages_per_device in (None, 1) and not intent.model_dump(include=_UNSAYABLE, exclude_defaults=True)


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
        rows = _orders(reply)
        return placement, schedule_from([*directives, *rows], source="the JSON object"), []
    except InputError as error:
        return placement, None, [Feedback("FORMAT", "warmup", str(error))]


def _placement(reply: SmallReply) -> list[dict[str, Any]]:
    """Stage s of replica j on device j * stages + s."""
    devices = [[j * reply.stages + s for j in range(reply.replicas)] for s in range(reply.stages)]
    rows: list[dict[str, Any]] = [{"op": "split", "num_microbatches": reply.microbatches}]
    rows += [{"op": "place", "filter": {"PP": s}, "devices": used} for s, used in enumerate(devices)]
    if reply.replicas > 1:
        rows += [{"op": "replicate", "filter": {"PP": s}, "devices": used} for s, used in enumerate(devices)]
    return [*rows, {"op": "recompute"}] if reply.recompute else rows


def _orders(reply: SmallReply) -> list[dict[str, Any]]:
    """One row for each stage. Raises `InputError` where the numbers are not one for each, 1 to `microbatches`."""
    if len(reply.warmup) != reply.stages:
        raise InputError(f"{len(reply.warmup)} numbers for {reply.stages} stages: give one for each stage")
    m = reply.microbatches
    if wrong := [n for n in reply.warmup if not 1 <= n <= m]:
        raise InputError(f"{wrong[0]} is not between 1 and {m}, the number of microbatches")
    rows = []
    for stage, first in enumerate(reply.warmup):
        cells = [("F", i) for i in range(first)]
        for i in range(m):
            cells += [("B", i), ("F", first + i)] if first + i < m else [("B", i)]
        rows.append({"op": "order", "filters": [{"PP": stage, "MB": mb, "PASS": name} for name, mb in cells]})
    return rows

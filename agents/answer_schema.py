"""The JSON schema of a writer's reply, for models that are held to one while they generate (small local ones)."""

from __future__ import annotations

from typing import Any


def _directive(op: str, required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"op": {"const": op}, **required, **optional},
        "required": ["op", *required],
        "additionalProperties": False,
    }


_INDEX = {"type": "integer", "minimum": 0}
_INDICES = {"type": "array", "items": _INDEX, "minItems": 1}
_STAGE = {"type": "object", "properties": {"PP": _INDEX}, "required": ["PP"], "additionalProperties": False}
_CHUNK = {
    "type": "object",
    "properties": {"PP": _INDEX, "MB": _INDEX, "PASS": {"enum": ["F", "B", "BI", "BW"]}},
    "required": ["PP", "MB", "PASS"],
    "additionalProperties": False,
}


def schedule_schema(phase: int) -> dict[str, Any]:
    """A list of directives with the fields of that phase."""
    name, size = {"type": "string"}, {"type": "number"}
    place: dict[str, Any] = {"stream": name} if phase == 2 else {}
    replicate: dict[str, Any] = {"reduce_stream": name, "bucket_size": size} if phase == 2 else {}
    kinds = [
        _directive("split", {"num_microbatches": {"type": "integer", "minimum": 1}}),
        _directive("place", {"filter": _STAGE, "devices": _INDICES}, **place),
        _directive("replicate", {"filter": _STAGE, "devices": _INDICES}, **replicate),
        _directive("cut", {"at": _INDICES}),
        _directive("recompute", {}, filter=_STAGE),
    ]
    if phase == 2:
        kinds.append(_directive("order", {"filters": {"type": "array", "items": _CHUNK, "minItems": 2}}))
    return {"type": "array", "items": {"anyOf": kinds}, "minItems": 2}

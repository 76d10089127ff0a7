"""All edits, a line each, for a prompt: from their own types, so that it is never out of date."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, get_args

from pibroch.agents.evolve.edits import Edit

_WHICH = ["all", "first", "last", "slowest", "fastest"]


@cache
def catalogue() -> str:
    """Each edit's fields with their values, and what it does. A field with `?` may be left out."""
    lines = [
        f"WHICH is an index (negative: from the end) or {'|'.join(json.dumps(w) for w in _WHICH)}; ? may be left out."
    ]
    for kind in get_args(Edit):
        schema = kind.model_json_schema()
        needed = schema.get("required", [])
        fields = [f'"op": "{kind.model_fields["op"].default}"']
        for name, field in schema["properties"].items():
            if name != "op":
                fields.append(f'"{name}"{"" if name in needed else "?"}: {_values(field)}')
        does = " ".join((kind.__doc__ or "").split()).split(". ")[0].rstrip(".")
        lines.append(f"- {{{', '.join(fields)}}}: {does}")
    return "\n".join(lines)


def _values(field: dict[str, Any]) -> str:
    choices = field.get("anyOf", [field])
    if any(choice.get("enum") == _WHICH for choice in choices):
        return "WHICH"
    return "|".join(dict.fromkeys(text for choice in choices for text in _choice(choice)))


def _choice(choice: dict[str, Any]) -> list[str]:
    if "enum" in choice:
        return [json.dumps(value) for value in choice["enum"]]
    return [{"integer": "int", "boolean": "bool"}.get(choice["type"], choice["type"])]

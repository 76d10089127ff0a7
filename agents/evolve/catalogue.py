"""All edits, a line each, for a prompt: from their own types, so that it is never out of date."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, get_args

from pibroch.agents.evolve.edits import Edit
from pibroch.agents.evolve.operators import UNDRAWN

_WHICH = ["all", "first", "last", "slowest", "fastest"]
MAX_WORDS = 90  # characters of what an edit does, where a comma allows


@cache
def catalogue() -> str:
    """Each edit's op, its fields with their values, and what it does. A field with `?` may be left out."""
    lines = [f"op: fields. WHICH is {'|'.join(_WHICH)} or an index; a field with ? may be left out."]
    for kind in get_args(Edit):
        op = kind.model_fields["op"].default
        if op in UNDRAWN:  # they cannot win time
            continue
        schema = kind.model_json_schema()
        needed = schema.get("required", [])
        fields = [
            f"{name}{'' if name in needed else '?'}={_values(field)}"
            for name, field in schema["properties"].items()
            if name != "op"
        ]
        does = re.split(r"[.;](?: |$)", " ".join((kind.__doc__ or "").split()))[0]
        if len(does) > MAX_WORDS:
            does = does[:MAX_WORDS].rsplit(", ", 1)[0] if ", " in does[:MAX_WORDS] else does
        lines.append(f"- {op}{': ' if fields else ''}{', '.join(fields)}. {does[:1].upper()}{does[1:]}.")
    return "\n".join(lines)


def _values(field: dict[str, Any]) -> str:
    choices = field.get("anyOf", [field])
    if any(choice.get("enum") == _WHICH for choice in choices):
        return "WHICH"
    return "|".join(dict.fromkeys(text for choice in choices for text in _choice(choice)))


def _choice(choice: dict[str, Any]) -> list[str]:
    if "enum" in choice:
        return [str(value) for value in choice["enum"]]
    return [{"integer": "int", "boolean": "bool"}.get(choice["type"], choice["type"])]

"""What a bullet may hold: one line of words, a small edit, conditions. No bullet holds a whole schedule."""

from __future__ import annotations

import json
import re
from typing import Any

from pibroch.runtime.errors import InputError

TEXT_CHARACTERS = 600
EDIT_CHARACTERS = 600
SECTION = re.compile(r"[a-z][a-z0-9 _&,/()-]{0,59}")
_DIRECTIVE = r"(?:place|replicate|split|order|cut|recompute)"
_ROW = re.compile(rf"""["'\\]*\bop["'\\]*\s*[:=]\s*["'\\]*{_DIRECTIVE}\b""", re.I)
_LIST = re.compile(r"""["'\\]*\bdirectives\b["'\\]*\s*[:=]\s*[\[{(]""", re.I)
_CHUNK = r"(?:\(?\s*(?:s?\d+[.:/ ]?)?(?:F|B|BI|BW)[_.:(\s]?\d+(?:[,.:/]\d+)?\)?)"
_CHUNKS = re.compile(rf"{_CHUNK}(?:[\s,;|>→-]+{_CHUNK}){{5,}}")  # F0 F1 B0 …: a device's order, spelled out
_PASSES = re.compile(r"""["'\\]*\bPASS["'\\]*\s*[:=]""")


def clean_text(text: str) -> str:
    """The text on one line. Raises `InputError` where it is empty, too long or holds a schedule."""
    line = " ".join(text.split())
    if not line:
        raise InputError("the text is empty")
    if len(line) > TEXT_CHARACTERS:
        raise InputError(f"the text has {len(line)} characters: at most {TEXT_CHARACTERS}, one lesson a bullet")
    if not line.isprintable():
        raise InputError("the text holds characters that cannot be printed")
    if _ROW.search(line) or _LIST.search(line) or _CHUNKS.search(line) or len(_PASSES.findall(line)) > 1:
        raise InputError("the text holds (a part of) a schedule: say what to change and when, in words")
    return line


def clean_section(section: str) -> str:
    """The section's name in small letters. Raises `InputError`."""
    name = " ".join(section.lower().split())
    if not SECTION.fullmatch(name):
        raise InputError(f"section {section!r}: a short name, such as schedules or pitfalls")
    return name


def clean_edit(edit: dict[str, Any] | None) -> dict[str, Any] | None:
    """The edit as plain data, None for an empty one. Raises `InputError` where it is too large or a schedule."""
    if not edit:
        return None
    try:
        text = json.dumps(edit, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"the edit is not plain data: {error}") from error
    if not isinstance(edit.get("op"), str):
        raise InputError('the edit has no "op" that names the operator')
    inner = json.dumps([value for key, value in edit.items() if key != "op"])
    if "directives" in edit or "schedule" in edit or _ROW.search(inner) or _LIST.search(inner):
        raise InputError("the edit holds (a part of) a schedule: name one change")
    if len(text) > EDIT_CHARACTERS:
        raise InputError(f"the edit has {len(text)} characters: at most {EDIT_CHARACTERS}, one change a bullet")
    plain = json.loads(text)
    assert isinstance(plain, dict)
    return plain

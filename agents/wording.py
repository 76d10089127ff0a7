"""What words of a bullet may say: a model rewords what was measured, and never turns it round or adds figures."""

from __future__ import annotations

import re

_AVOID = re.compile(r"\b(avoid|never|do not|don't|stay away from|refrain|not worth|instead of)\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![A-Za-z\d.])\d+(?:\.\d+)?(?!F1B)")  # but for names: 1F1B, ZB-H1


def numbers_in(text: str) -> set[str]:
    """The figures of a text, as written."""
    return set(_NUMBER.findall(text))


def wrong_way(text: str, *, was: str, pitfall: bool) -> str | None:
    """Why the first sentence recommends what was measured to hurt, or warns of what helped; None where it does not.

    `was` are the words by rule: where they say what not to do (and are no warning), so may others.
    """
    warns = _warns(text)
    if pitfall and not warns:
        return "the edit hurt: the text's first sentence must warn of it (avoid ..., do not ...)"
    if warns and not pitfall and not _warns(was):
        return "the edit helped: the text's first sentence must not warn of it"
    return None


def _warns(text: str) -> bool:
    return _AVOID.search(text.split(". ")[0]) is not None

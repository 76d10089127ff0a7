"""Conditions of `applies_when`: what a fact of a task must be.

>=4   <8   >0.2   <=2   =4   !=4      numbers; several joined by a comma must all hold (">=2,<8")
true  false                           yes or no
a|b   !=a                             one of these words, or any other word
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from pibroch.runtime.errors import InputError

KEY = re.compile(r"[a-z][a-z0-9_]*(:[a-z0-9][a-z0-9_.-]*)?")
FINDING = "finding:"  # facts of this kind are true, or absent and then false
_PART = re.compile(r"(>=|<=|!=|==|=|>|<)?\s*(.+)")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]*")
Fact = bool | int | float | str


def normal(conditions: Mapping[str, str]) -> dict[str, str]:
    """The same conditions, spelled one way and sorted by fact. Raises `InputError` that names the condition."""
    result = {}
    for key, condition in sorted(conditions.items()):
        if not KEY.fullmatch(key):
            raise InputError(f"condition {key!r}: a fact is a small word such as devices or finding:exposed-reduce")
        parts = _parts(key, condition)
        _check_satisfiable(key, condition, parts)
        result[key] = ",".join(("" if op == "=" else op) + "|".join(words) for op, words in parts)
    return result


def holds(condition: str, fact: Fact) -> bool:
    """Whether a fact meets a condition. A number is not met by a word, nor the reverse."""
    return all(_met(op, words, fact) for op, words in _parts("", condition))


def _parts(key: str, condition: str) -> list[tuple[str, tuple[str, ...]]]:
    parts = []
    for text in condition.split(","):
        match = _PART.fullmatch(text.strip())
        op = (match[1] or "=").replace("==", "=") if match else ""
        words = tuple(sorted({word.strip() for word in match[2].split("|")})) if match else ()
        if not words or not all(_WORD.fullmatch(w) or _number(w) is not None for w in words):
            raise InputError(f"condition {key}={condition}: write it as >=4, <8, 2|4, true or a word")
        if op[0] in "<>" and (len(words) > 1 or _number(words[0]) is None):
            raise InputError(f"condition {key}={condition}: {op} compares with one number")
        parts.append((op, tuple(w if _number(w) is None else f"{_number(w):g}" for w in words)))
    return parts


def _check_satisfiable(key: str, condition: str, parts: list[tuple[str, tuple[str, ...]]]) -> None:
    """Whether some value meets all parts: a bound, a value between two bounds, or one that is named."""
    if len(parts) == 1:
        return
    values = {n for _, words in parts for w in words if (n := _number(w)) is not None}
    ranked = sorted(values)
    tried: list[Fact] = [*ranked, *((a + b) / 2 for a, b in pairwise(ranked))]
    tried += [ranked[0] - 1, ranked[-1] + 1] if ranked else []
    tried += [w for _, words in parts for w in words if _number(w) is None] + ["-"]
    if not any(all(_met(op, words, value) for op, words in parts) for value in tried):
        raise InputError(f"condition {key}={condition}: nothing meets it")


def _met(op: str, words: tuple[str, ...], fact: Fact) -> bool:
    if op in ("=", "!="):
        return any(_same(word, fact) for word in words) == (op == "=")
    bound = _number(words[0])
    assert bound is not None
    if isinstance(fact, bool | str):
        return False
    return {">=": fact >= bound, "<=": fact <= bound, ">": fact > bound, "<": fact < bound}[op]


def _same(word: str, fact: Fact) -> bool:
    if isinstance(fact, bool):
        return word == str(fact).lower()
    if isinstance(fact, str):
        return word == fact
    return _number(word) == fact


def _number(word: str) -> float | None:
    try:
        return float(word) if re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", word) else None
    except ValueError:
        return None

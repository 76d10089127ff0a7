"""What was worked out about a setting, kept for the next time that it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from pibroch.evals.setting import Setting

T = TypeVar("T")

MOST = 2048
"""Answers of one kind that are kept; the oldest go first."""


def kept(setting: Setting, kind: str, key: Hashable, make: Callable[[], T]) -> T:
    """The answer of `make`, which must follow from the setting and `key` alone. What it raises is not kept."""
    if kind not in setting.notes or setting.notes[kind][0] is not setting.measured:
        setting.notes[kind] = (setting.measured, {})  # other costs, other answers
    table = setting.notes[kind][1]
    if key in table:
        found: T = table[key]
        return found
    made = make()
    if len(table) >= MOST:
        del table[next(iter(table))]
    table[key] = made
    return made

"""The fields of an intent while its phrases are read: two different values for one field are a contradiction."""

from __future__ import annotations

import re
from typing import Any

from pibroch.agents.words import bound_kind, number
from pibroch.runtime.errors import InputError


def group(m: re.Match[str], name: str) -> str | None:
    """A named group, None where it is not in the pattern or matched nothing."""
    return m.groupdict().get(name)


class Values:
    """Fields set so far with the phrase that set each. Two different values for one field are an `InputError`."""

    def __init__(self) -> None:
        self.fields: dict[str, tuple[Any, str]] = {}
        self.bounds: dict[str, list[tuple[str, Any, str]]] = {}
        self.families: list[tuple[str, str]] = []
        self.excluded: list[tuple[str, str]] = []
        self.ratios: list[tuple[str, int, int, str, str]] = []

    def said(self) -> list[str]:
        """All that is set, as short text."""
        rows = [f"{name} = {value}" for name, (value, _) in self.fields.items()]
        kinds = {"low": "at least", "high": "at most", "among": "one of"}
        rows += [f"{name} {kinds[k]} {value}" for name, bounds in self.bounds.items() for k, value, _ in bounds]
        rows += [f"family = {family}" for family, _ in self.families]
        rows += [f"not {family}" for family, _ in self.excluded]
        rows += [f"{what} = {up}/{down} of {base}" for what, up, down, base, _ in self.ratios]
        return rows

    def put(self, field: str, value: Any, phrase: str) -> None:
        """Set `field`; the same value twice is fine."""
        old = self.fields.get(field)
        if old and old[0] != value:
            raise InputError(
                f"the intent contradicts itself: {old[1]!r} says {field} = {old[0]}, {phrase!r} says {value}; keep one"
            )
        self.fields.setdefault(field, (value, phrase))

    def count(self, field: str, m: re.Match[str], phrase: str) -> None:
        """A number with the bounds around it."""
        try:
            kind = bound_kind(group(m, "before"), group(m, "after"))
        except ValueError as error:
            raise InputError(f"{phrase!r}: {error}; keep one bound") from error
        value = number(m["n"])
        if value < 1:
            raise InputError(f"{phrase!r}: {field.replace('_', ' ')} must be at least 1")
        if kind == "exact":
            self.put(field, value, phrase)
        else:
            low_high = {"most": ("high", value), "below": ("high", value - 1),
                        "least": ("low", value), "above": ("low", value + 1)}[kind]  # fmt: skip
            self.bounds.setdefault(field, []).append((*low_high, phrase))

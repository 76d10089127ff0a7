"""Numbers and lists in messages."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, noun: str) -> str:
    """`1 microbatch`, `2 microbatches`."""
    return f"{number} {plural(noun) if number != 1 else noun}"


def listed(noun: str, items: Sequence[object]) -> str:
    """`stage 0`, `stages 0 and 1`, `stages 0, 1 and 2`."""
    if len(items) == 1:
        return f"{noun} {items[0]}"
    return f"{plural(noun)} {', '.join(map(str, items[:-1]))} and {items[-1]}"


def plural(noun: str) -> str:
    """Of the nouns that messages count; a noun that ends in a hiss takes "es"."""
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")

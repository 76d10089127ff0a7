"""`pibroch generate`."""

from __future__ import annotations

NAME = "generate"


def command() -> None:
    """To do."""

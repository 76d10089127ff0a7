"""`pibroch demo`."""

from __future__ import annotations

NAME = "demo"


def command() -> None:
    """To do."""

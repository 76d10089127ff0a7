"""`pibroch run`."""

from __future__ import annotations

NAME = "run"


def command() -> None:
    """To do."""

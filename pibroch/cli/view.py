"""`pibroch view`."""

from __future__ import annotations

NAME = "view"


def command() -> None:
    """To do."""

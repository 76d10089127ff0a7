"""The one error of the specs: what is wrong, in which file and line, and what to do."""

from __future__ import annotations

from pathlib import Path


class SpecError(ValueError):
    """A spec is wrong. `line` counts from 1 in the spec's file; 0 where no line is to blame."""

    def __init__(self, path: str | Path, line: int, message: str) -> None:
        self.path, self.line, self.message = Path(path), line, message
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")

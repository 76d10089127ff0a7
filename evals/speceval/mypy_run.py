"""mypy over generated sources, with a cache of its own in the user's cache folder, so that no project's is touched."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pibroch.evals.speceval import cache

_ROW = re.compile(r"^(?P<file>.+?\.py):(?P<line>\d+): error: (?P<text>.*?)(?:  \[(?P<code>[\w-]+)\])?$")


@dataclass(frozen=True, slots=True)
class TypeFault:
    """An error of mypy: in which source, in which of its lines."""

    name: str
    line: int
    message: str


def run(sources: Mapping[str, str]) -> list[TypeFault]:
    """Check modules by name under `--strict`. Raises `MissingError` without mypy."""
    from pibroch.evals.speceval.statements import need

    need("mypy")
    from mypy import api

    with tempfile.TemporaryDirectory(prefix="pibroch-types-") as folder, _settings(), _lock():
        paths = [Path(folder) / f"{name}.py" for name in sources]
        for path, source in zip(paths, sources.values(), strict=True):
            path.write_text(source, encoding="utf-8")
        options = ["--strict", "--no-error-summary", "--no-pretty", "--no-color-output", "--hide-error-context",
                   "--no-site-packages", "--config-file=", f"--cache-dir={cache.folder() / 'mypy'}"]  # fmt: skip
        text, fault, _ = api.run([*options, *map(str, paths)])
    rows = [m for m in (_ROW.match(row) for row in text.splitlines()) if m]
    if fault or (text.strip() and not rows):
        raise AssertionError(f"mypy on generated sources: {fault or text}")
    return [TypeFault(Path(m["file"]).stem, int(m["line"]), m["text"].strip()) for m in rows]


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """mypy sets the interpreter up for itself alone; give back what was there."""
    limit, thresholds, enabled = sys.getrecursionlimit(), gc.get_threshold(), gc.isenabled()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        gc.set_threshold(*thresholds)
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """One mypy at a time per cache. Without a folder that can be written, none is needed."""
    try:
        cache.folder().mkdir(parents=True, exist_ok=True)
        file = (cache.folder() / "mypy.lock").open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

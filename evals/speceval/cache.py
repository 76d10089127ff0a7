"""What was judged once is remembered: JSON by a hash of everything that it depends on, in the user's cache folder.

`$XDG_CACHE_HOME/pibroch`, else `~/.cache/pibroch`. A cache that cannot be read or written is as good as an empty one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from functools import cache as once
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pibroch.runtime.errors import InputError
from pibroch.runtime.files import write_atomically

TOOLS = ("z3-solver", "crosshair-tool", "mypy")


def folder() -> Path:
    """The cache's folder; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pibroch"


def key(*parts: str) -> str:
    """A hash of the parts, of the versions of the tools and of the code that judges."""
    return hashlib.sha256("\0".join((*parts, _tools(), _code())).encode()).hexdigest()


def find(kind: str, name: str) -> Any:
    """What was stored under this key, else None."""
    try:
        return json.loads((folder() / kind / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def store(kind: str, name: str, data: Any) -> None:
    """Keep plain data under this key."""
    with contextlib.suppress(InputError):
        write_atomically(folder() / kind / f"{name}.json", json.dumps(data))


@once
def _tools() -> str:
    import sys

    found = [f"python {sys.version_info[:3]}"]
    for name in TOOLS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} none")
    return ", ".join(found)


@once
def _code() -> str:
    """A hash of the judge itself and of the spec language: a new judge trusts no old verdict."""
    import pibroch.specs

    made = hashlib.sha256()
    for root in (Path(__file__).resolve().parent, Path(str(pibroch.specs.__file__)).resolve().parent):
        for path in sorted(root.glob("*.py")):
            made.update(path.name.encode() + b"\0" + path.read_bytes())
    return made.hexdigest()

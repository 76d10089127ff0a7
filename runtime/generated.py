"""Loads what the loop wrote from specs: by the hash in lock.json, on first use, once per process.

A file is looked for as `KIND/NAME.py` in the folders of PIBROCH_GENERATED (a project's own), then in the shipped
`generated/`. Each folder has its `lock.json`; a file that its lock does not vouch for is never executed. `import RELY`
inside a generated module gives the generated module of that name, or what the caller passes.

Generated modules import nothing of ours, and what they import is what their spec declares.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

from pibroch.runtime.errors import InputError

Kind = Literal["modules", "schedules"]
KINDS: tuple[Kind, ...] = ("modules", "schedules")
LOCK_FILE = "lock.json"
LOCK_VERSION = 1
VARIABLE = "PIBROCH_GENERATED"
_SHIPPED = Path(__file__).resolve().parent.parent / "generated"

_lock = threading.RLock()
_modules: dict[Path, ModuleType] = {}
_codes: dict[Path, tuple[CodeType, frozenset[str]]] = {}


def load_generated(
    name: str, *, kind: Kind = "modules", relies: Mapping[str, Any] | None = None, fresh: bool = False
) -> ModuleType:
    """The generated module `name`, executed once per process.

    `relies` maps the name of a module that it imports to the object that it gets instead; with `relies`, or with
    `fresh` (a module with state of its own), the source is executed anew. Raises `InputError` where the file is
    missing, edited by hand or unknown to the lock; the message says what to do.
    """
    with _lock:
        path = find_generated(name, kind=kind)
        if path is None:
            raise InputError(
                f"generated/{kind}/{name}.py does not exist: `pibroch regenerate --all --lm …` writes every module "
                f"from its spec, `pibroch regenerate {name} --lm …` this one"
            )
        new = fresh or bool(relies)
        if not new and path in _modules:
            return _modules[path]
        if path not in _codes:
            _codes[path] = _verified(path, name, kind)
        module = _execute(path, name, kind, *_codes[path], relies or {})
        if not new:
            _modules[path] = module
        return module


def find_generated(name: str, *, kind: Kind = "modules") -> Path | None:
    """The file of that name in the first folder that has one, unverified."""
    return next((path for folder in folders() if (path := folder / kind / f"{name}.py").is_file()), None)


def folders() -> list[Path]:
    """Where generated files are looked for, a project's own first."""
    given = [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    return list(dict.fromkeys([*given, _SHIPPED]))


def _verified(path: Path, name: str, kind: Kind) -> tuple[CodeType, frozenset[str]]:
    """The compiled file and the names of its relies, after its hash was compared with the lock's."""
    lock = path.parent.parent / LOCK_FILE
    remedy = f"`pibroch regenerate {name}` writes it anew from its spec"
    try:
        data: Any = json.loads(lock.read_text(encoding="utf-8"))
    except FileNotFoundError:
        data = {"version": LOCK_VERSION, "entries": {}}
    except (OSError, ValueError) as error:
        raise InputError(f"{lock}: cannot be read: {error}; {remedy}") from error
    if not isinstance(data, dict) or data.get("version") != LOCK_VERSION or not isinstance(data.get("entries"), dict):
        raise InputError(f"{lock}: this pibroch reads locks of version {LOCK_VERSION}; {remedy}")
    entry = data["entries"].get(f"{kind}/{name}")
    if not isinstance(entry, dict):
        raise InputError(f"{path}: {LOCK_FILE} does not know this file, so nobody proved it; {remedy}")
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != entry.get("source_sha256"):
        raise InputError(f"{path}: differs from what {LOCK_FILE} records: it was edited by hand; {remedy}")
    relies = entry.get("rely", {})
    return compile(raw, str(path), "exec", dont_inherit=True), frozenset(map(str, relies))


def _execute(
    path: Path, name: str, kind: Kind, code: CodeType, rely: frozenset[str], given: Mapping[str, Any]
) -> ModuleType:
    module = ModuleType(f"pibroch.generated.{kind}.{name}")
    module.__file__ = str(path)

    bound = dict(given)

    def bring(target: str, *rest: Any, **options: Any) -> Any:
        if target in rely and target not in bound:
            bound[target] = load_generated(target, kind=kind if find_generated(target, kind=kind) else "modules")
        return bound[target] if target in bound else builtins.__import__(target, *rest, **options)

    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": bring}
    sys.modules.setdefault(module.__name__, module)  # dataclasses and tracebacks look a class's module up
    exec(code, module.__dict__)
    return module

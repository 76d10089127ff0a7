"""Specs in folders: found, loaded, and put in the order in which they rely on each other."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import tokenize
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec
from pibroch.specs.parse import SUFFIX, load_spec


def files(folders: Sequence[Path]) -> dict[str, Path]:
    """The spec files by module name, which is the file's; of several folders with one, the first counts.

    Raises `SpecError` where one folder has a name twice.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        here: dict[str, Path] = {}
        for path in sorted(folder.rglob(f"*{SUFFIX}")):
            name = path.name.removesuffix(SUFFIX)
            if name in here:
                raise SpecError(path, 1, f"a second spec of {name}; the first is {here[name]}")
            here[name] = path
        found = here | found  # what an earlier folder has stays
    return dict(sorted(found.items()))


def load_all(folders: Sequence[Path]) -> dict[str, Spec]:
    """Every spec of the folders by module name, in the order of their relies.

    Raises `SpecError` for the first spec that is wrong, relies on what is not there, or on itself in a circle.
    """
    specs = {name: load_named(name, path) for name, path in files(folders).items()}
    check_relies(specs)
    return {name: specs[name] for name in order(specs)}


def load_each(paths: Mapping[str, Path]) -> tuple[dict[str, Spec], list[SpecError]]:
    """The specs that can be read, and for each of the others what is wrong."""
    specs: dict[str, Spec] = {}
    errors: list[SpecError] = []
    for name, path in paths.items():
        try:
            specs[name] = load_named(name, path)
        except SpecError as error:
            errors.append(error)
    return specs, errors


def load_named(name: str, path: Path) -> Spec:
    """Load a file whose module must be called `name`. Raises `SpecError`."""
    spec = load_spec(path)
    if spec.module != name:
        message = f"module {spec.module} belongs into {spec.module}{SUFFIX}, not {path.name}"
        raise SpecError(path, spec.line("module"), message)
    return spec


def check_relies(
    specs: Mapping[str, Spec], names: Iterable[str] | None = None, *, broken: Collection[str] = ()
) -> None:
    """Relies lead to exported functions, and to no circle. Raises `SpecError` with the rely's line.

    With `names`, only those specs and what they rely on are looked at. `broken` modules have unreadable specs.
    """
    chosen = list(specs) if names is None else closure(specs, names)
    for name in chosen:
        spec = specs[name]
        for i, rely in enumerate(spec.relies):
            at = spec.line(f"rely.{i}.module")
            if rely.module in broken:
                continue
            if rely.module not in specs:
                hint = _close(rely.module, specs)
                raise SpecError(spec.path, at, f"relies on {rely.module}, which has no spec{hint}")
            peer = specs[rely.module]
            offered = [n for u in peer.units if not u.is_class for n in u.operations]
            if rely.function.name not in offered:
                has = f"its functions are {', '.join(offered)}" if offered else "it exports no function"
                raise SpecError(spec.path, at, f"relies on {rely.name}, which {rely.module} does not export; {has}")
    for name in chosen:
        if circle := _circle(specs, name):
            spec = specs[circle[0]]
            i = next(i for i, rely in enumerate(spec.relies) if rely.module == circle[1])
            raise SpecError(spec.path, spec.line(f"rely.{i}.module"), f"relies in a circle: {' -> '.join(circle)}")


def closure(specs: Mapping[str, Spec], names: Iterable[str]) -> list[str]:
    """The named specs and all that they rely on, directly or through others; unknown ones are left out."""
    seen: dict[str, None] = {}
    todo = [name for name in names if name in specs]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen[name] = None
            todo += sorted({r.module for r in specs[name].relies} & set(specs))
    return sorted(seen)


def dependents(specs: Mapping[str, Spec], name: str) -> list[str]:
    """The modules that rely on this one, directly or through others, sorted."""
    return sorted(other for other in specs if other != name and name in closure(specs, [other]))


def order(specs: Mapping[str, Spec]) -> list[str]:
    """Module names, each after what it relies on; where that leaves a choice, by name. Circles must be out already."""
    placed: dict[str, None] = {}
    waiting = sorted(specs)
    while waiting:
        ready = next(
            (n for n in waiting if all(r.module in placed or r.module not in specs for r in specs[n].relies)), None
        )
        assert ready is not None, "a circle of relies"
        placed[ready] = None
        waiting.remove(ready)
    return list(placed)


def semantic_hash(spec: Spec) -> str:
    """SHA-256 of what a spec says. Layout does not count: order of keys, spaces, line breaks, quotes, `<!-- … -->`.

    Comments in the block do: the writer of the module reads them.
    """
    front = spec.front.model_dump(mode="json")
    for entry, rely in zip(front["rely"], spec.relies, strict=True):
        entry["uses"] = rely.function.signature
        for kind in ("requires", "ensures"):
            entry[kind] = [plain_tree(c.tree) for c in rely.function.clauses if c.kind == kind]
    data = {
        "front": front,
        "block": [plain_tree(node) for node in ast.parse(spec.block).body],
        "comments": comments(spec.block),
        "prose": {name: " ".join(text.split()) for name, text in spec.sections.items()},
    }
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def plain_tree(node: ast.AST) -> Any:
    """A syntax tree as JSON data, without positions, the same in every version of Python."""
    fields: dict[str, Any] = {}
    for name, value in ast.iter_fields(node):
        if name in ("ctx", "kind", "type_comment", "type_params", "type_ignores") or value is None or value == []:
            continue
        if isinstance(value, ast.AST):
            fields[name] = plain_tree(value)
        elif isinstance(value, list):
            fields[name] = [plain_tree(item) if isinstance(item, ast.AST) else item for item in value]
        else:
            fields[name] = f"{type(value).__name__} {value!r}" if name == "value" else value
    if isinstance(node, ast.Constant) and node.value is None:
        fields["value"] = "None"
    return [type(node).__name__, fields]


def comments(block: str) -> list[str]:
    """The comments of a spec's block, without layout."""
    tokens = tokenize.generate_tokens(io.StringIO(block).readline)
    return [" ".join(t.string.lstrip("#").split()) for t in tokens if t.type == tokenize.COMMENT]


def _circle(specs: Mapping[str, Spec], start: str) -> list[str]:
    """The shortest circle of relies through `start`, from its smallest name on; empty if there is none."""
    paths = [[start]]
    seen: set[str] = set()
    while paths:
        path = paths.pop(0)
        for name in sorted({r.module for r in specs[path[-1]].relies} & set(specs)):
            if name == start:
                at = path.index(min(path))
                turned = [*path[at:], *path[:at]]
                return [*turned, turned[0]]
            if name not in seen:
                seen.add(name)
                paths.append([*path, name])
    return []


def _close(name: str, specs: Mapping[str, Spec]) -> str:
    import difflib

    near = difflib.get_close_matches(name, specs, n=1)
    return f"; did you mean {near[0]}?" if near else ""

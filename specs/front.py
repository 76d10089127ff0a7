"""The YAML front matter of a spec: read with line numbers, duplicate keys refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pibroch.specs.errors import SpecError
from pibroch.specs.model import FrontMatter


def read_front(path: Path, text: str, first_line: int) -> tuple[FrontMatter, dict[str, int]]:
    """The front matter and the line of every key (`scope.calls`, `rely.0.ensures.1`). Raises `SpecError`."""
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) and event.start_mark:
                at = first_line + event.start_mark.line
                raise SpecError(path, at, "front matter: no aliases (`*name`); write the value out")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise SpecError(path, first_line, "the front matter is empty: it names module, version, guarantee and more")
        lines = dict(_lines(path, node, "", first_line))
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = first_line + mark.line if mark else first_line
        hint = "; quote a text that holds ': ', '[' or '{'"
        raise SpecError(path, at, f"the front matter is no YAML: {error.problem or error.context}{hint}") from error
    except (yaml.YAMLError, ValueError) as error:  # characters that YAML has not, dates that are none
        if isinstance(error, SpecError):
            raise
        raise SpecError(path, first_line, f"the front matter is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise SpecError(path, first_line, "the front matter is a mapping of keys to values")
    try:
        return FrontMatter.model_validate(data), lines
    except ValidationError as error:
        found = error.errors()
        first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])  # a misspelt key is missing too
        key = ".".join(str(part) for part in first["loc"] if not _is_branch(part))
        line = _nearest(lines, key) or first_line
        what = {"extra_forbidden": "unknown key", "missing": "is missing"}.get(first["type"], first["msg"])
        if first["type"] == "extra_forbidden" and (near := difflib.get_close_matches(key, FrontMatter.model_fields, 1)):
            what += f"; did you mean {near[0]}?"
        raise SpecError(path, line, f"front matter, {key}: {what}") from error


def _is_branch(part: Any) -> bool:
    """Pydantic names the member of a union that it tried: no key of ours."""
    return isinstance(part, str) and part in ("str", "CostBound", "[key]")


def _nearest(lines: dict[str, int], key: str) -> int:
    while key:
        if key in lines:
            return lines[key]
        key = key.rpartition(".")[0]
    return 0


def _lines(path: Path, node: yaml.Node, prefix: str, first: int) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            at = first + key.start_mark.line
            if name in seen:
                raise SpecError(path, at, f"front matter: the key {name!r} stands twice")
            seen.add(name)
            yield f"{prefix}{name}", at
            yield from _lines(path, value, f"{prefix}{name}.", first)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield f"{prefix}{i}", first + value.start_mark.line
            yield from _lines(path, value, f"{prefix}{i}.", first)

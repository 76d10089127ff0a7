"""Does a function fit the signature that another module relies on? Equal ones do; for the others mypy is asked.

For each pair a `Protocol` with the signature relied upon, a class with the one that is specified, and an assignment of
the second to the first.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from pibroch.evals.speceval import cache, mypy_run
from pibroch.specs.model import Operation


def misfits(pairs: Sequence[tuple[Operation, Operation]]) -> list[str]:
    """For each (relied upon, specified) why it does not fit, or an empty text. Raises `MissingError` without mypy."""
    found = ["" for _ in pairs]
    for i, (wanted, given) in enumerate(pairs):  # mypy lets names differ; clauses and calls by keyword do not
        names = [p.name for p in given.params[: len(wanted.params)]]
        if [p.name for p in wanted.params][: len(names)] != names:
            found[i] = _say(wanted, given)
    asked = [i for i, (wanted, given) in enumerate(pairs) if not found[i] and _plain(wanted) != _plain(given)]
    if not asked:
        return found
    rows = ["from typing import Any, Literal, Optional, Protocol, Union"]
    lines: dict[int, int] = {}
    for i in asked:
        wanted, given = pairs[i]
        rows += [f"class Wanted{i}(Protocol):", f"    def {_method(wanted)}: ..."]
        rows += [f"class Given{i}:", f"    def {_method(given)}: raise NotImplementedError"]
        rows.append(f"good{i}: Wanted{i} = Given{i}()")
        lines[len(rows)] = i
    source = "\n".join(rows) + "\n"
    name = cache.key("signature", source)
    errors = cache.find("signatures", name)
    if errors is None:
        errors = [(f.line, f.message) for f in mypy_run.run({"signatures": source})]
        cache.store("signatures", name, errors)
    for line, message in errors:
        at = lines.get(line)
        if at is None:
            raise AssertionError(f"mypy on generated signatures: line {line}: {message}")
        found[at] = _say(*pairs[at])
    return found


def _say(wanted: Operation, given: Operation) -> str:
    return f"wants `{wanted.signature}`, and the spec says `{given.signature}`"


def _plain(operation: Operation) -> tuple[object, ...]:
    params = [(p.name, _type(p.type), p.default) for p in operation.params]
    return (operation.name, tuple(params), _type(operation.returns))


def _type(text: str) -> str:
    return ast.unparse(ast.parse(text, mode="eval"))


def _method(operation: Operation) -> str:
    name, _, rest = operation.signature.partition("(")
    return f"{name}(self, {rest}" if operation.params else f"{name}(self{rest}"

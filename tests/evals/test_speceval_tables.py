"""Tables at the top of a module: read only."""

from __future__ import annotations

import ast

import pytest

from pibroch.evals.speceval.rules_tables import misuses, table_name

READ = """
_ROWS = [({"a"}, 1), ({"b"}, 2)]
_WORD = {"a": "x"}
def f(kind):
    for kinds, n in _ROWS:
        if kind in kinds:
            return n
    return len(_ROWS) + (kind in _WORD) + len(_WORD.get(kind, "")) + len(_WORD["a"])
"""


def _found(source: str) -> list[int]:
    tree = ast.parse(source)
    names = [name for node in tree.body if (name := table_name(node))]
    return sorted(getattr(node, "lineno", 0) for name in names for node, _ in misuses(tree, name))


def test_a_table_that_is_only_read() -> None:
    assert _found(READ) == []


@pytest.mark.parametrize(
    ("use", "lines"),
    [
        ("_T.append(1)", [3]),
        ("_T[0] = 1", [3]),
        ("_T[0].append(1)", [3]),
        ("x = _T", [3]),
        ("return _T", [3]),
        ("g(_T)", [3]),
        ("for x in _T: x.append(1)", [3]),
        ("x = _T[0]; x += [1]", [3]),
        ("x = _T.pop()", [3]),
        ("f = _T.append; f(1)", [3]),
    ],
)
def test_a_table_that_is_state_in_disguise(use: str, lines: list[int]) -> None:
    assert _found(f"_T = [[0]]\ndef f():\n    {use}\n") == lines

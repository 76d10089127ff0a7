"""The clauses' library of timed rows: published figures, agreement with the plan's simulator, wrong rows."""

from __future__ import annotations

import ast
import inspect

import pytest

from pibroch.evals.speceval.library import SIGNATURES, Rows, chunks, finish, functions, idle, in_flight
from pibroch.runtime.costs import UnitCosts
from pibroch.runtime.families import build, rows
from pibroch.runtime.lower import lower
from pibroch.runtime.model import uniform_model
from pibroch.runtime.simulate import simulate


def family(name: str, p: int, m: int, v: int = 1) -> Rows:
    return rows(name, devices=p, microbatches=m, stages_per_device=v)


@pytest.mark.parametrize(
    ("p", "m", "plain", "zb", "interleaved"),
    [(2, 4, 15, 13, 27), (4, 8, 33, 27, 57), (4, 16, 57, 51, 105), (8, 16, 69, 55, 117)],
)
def test_published_makespans(p: int, m: int, plain: int, zb: int, interleaved: int) -> None:
    assert finish(family("gpipe", p, m), 1, 1, 1) == plain
    assert finish(family("1f1b", p, m), 1, 1, 1) == plain
    assert finish(family("zb-h1", p, m), 1, 1, 1) == zb
    assert finish(family("interleaved", p, m, 2), 1, 1, 1) == interleaved


def test_published_peaks_in_flight() -> None:
    assert in_flight(family("gpipe", 4, 16)) == [16] * 4
    assert in_flight(family("1f1b", 4, 16)) == [4, 3, 2, 1]
    assert in_flight(family("zb-h1", 4, 16)) == [4] * 4
    assert in_flight(family("interleaved", 4, 16, 2)) == [11, 9, 7, 5]


@pytest.mark.parametrize(("name", "v"), [("gpipe", 1), ("gpipe", 2), ("1f1b", 1), ("interleaved", 3), ("zb-h1", 1)])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (2, 3, 1), (1, 1, 4)])
def test_agrees_with_the_simulator_of_plans(name: str, v: int, f: int, b: int, w: int) -> None:
    for p, m in ((1, 2), (2, 3), (3, 3), (4, 7)):
        schedule = build(name, devices=p, microbatches=m, stages_per_device=v)
        plan = simulate(lower(schedule, uniform_model(p * v), update=False), UnitCosts(f=f, bi=b, bw=w))
        table = family(name, p, m, v)
        assert finish(table, f, b, w) == plan.makespan
        assert idle(table, f, b, w) == plan.idle
        assert in_flight(table) == plan.peak_inflight


@pytest.mark.parametrize(
    "wrong",
    [
        [[("F", 0, 0), ("B", 0, 0)], [("B", 1, 0), ("F", 1, 0)]],  # waits for what comes later
        [[("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)], [("F", 1, 0), ("F", 1, 1), ("B", 1, 0), ("B", 1, 1)]],
        [[("F", 0, 0), ("F", 0, 0), ("B", 0, 0)]],  # twice
        [[("F", 0, 0), ("BW", 0, 0)]],  # BW without BI
        [[("F", 0, 0), ("G", 0, 0)]],  # no such kind
        [[("B", 0, 0)]],
        [[("F", 0, 0), ("B", 0, 0)], [("F", 1, 0)]],  # the last stage's backward is missing
    ],
)
def test_rows_that_cannot_end(wrong: Rows) -> None:
    assert finish(wrong, 1, 1, 1) == -1
    assert idle(wrong, 1, 1, 1) == []
    assert len(in_flight(wrong)) == len(wrong)


def test_no_rows_take_no_time() -> None:
    assert (finish([], 1, 1, 1), idle([[], []], 1, 1, 1), in_flight([[]])) == (0, [0, 0], [0])


def test_chunks_are_a_position_s_own() -> None:
    assert chunks(["F", "B"], 2, 1, 2) == [
        [("B", 0, 0), ("B", 2, 0), ("F", 0, 0), ("F", 2, 0)],
        [("B", 1, 0), ("B", 3, 0), ("F", 1, 0), ("F", 3, 0)],
    ]


def test_signatures_are_those_of_the_functions() -> None:
    given = functions(("pipeline",)) or {}
    declared = {node.name: node for node in ast.parse(SIGNATURES).body if isinstance(node, ast.FunctionDef)}
    assert set(declared) == set(given)
    for name, node in declared.items():
        assert [a.arg for a in node.args.args] == list(inspect.signature(given[name]).parameters)
    assert functions(()) is None
    assert functions(("pipeline",)) is given

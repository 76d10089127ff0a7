"""Families against the published table and closed forms, timed by an independent simulator of the rows alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rows_clock import clock, draw, inflight

import pibroch
from pibroch.runtime.directives import Order, Place, Replicate, Schedule, parse_schedule
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import FAMILIES, build, excluded, rows
from pibroch.specs.parse import load_spec

SPECS = Path(pibroch.__file__).parent / "specs" / "schedules"
UNIT = {"F": 1, "B": 2, "BI": 1, "BW": 1}


def makespan(family: str, p: int, m: int, v: int = 1, cost: Mapping[str, float] = UNIT) -> float:
    times: dict[Any, tuple[float, float]] = clock(rows(family, devices=p, microbatches=m, stages_per_device=v), cost)
    return max(end for _, end in times.values())


def peaks(family: str, p: int, m: int, v: int = 1) -> list[int]:
    return [inflight(row) for row in rows(family, devices=p, microbatches=m, stages_per_device=v)]


@pytest.mark.parametrize(
    ("p", "m", "plain", "zb", "interleaved"),
    [(2, 4, 15, 13, 27), (4, 8, 33, 27, 57), (4, 16, 57, 51, 105), (8, 16, 69, 55, 117)],
)
def test_published_makespans(p: int, m: int, plain: int, zb: int, interleaved: int) -> None:
    assert makespan("gpipe", p, m) == plain
    assert makespan("1f1b", p, m) == plain
    assert makespan("zb-h1", p, m) == zb
    assert makespan("interleaved", p, m, 2) == interleaved


def test_published_peaks_in_flight() -> None:
    assert peaks("1f1b", 4, 16) == [4, 3, 2, 1]
    assert peaks("gpipe", 4, 16) == [16, 16, 16, 16]
    assert peaks("zb-h1", 4, 16) == [4, 4, 4, 4]
    assert peaks("interleaved", 4, 16, 2) == [11, 9, 7, 5]


@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 7, 8, 11, 16, 32, 64])
def test_closed_forms(p: int) -> None:
    for m in sorted({1, p - 1, p, p + 1, 2 * p, 2 * p + 3} if p <= 16 else {p, 2 * p + 1}):
        assert makespan("gpipe", p, m) == makespan("1f1b", p, m) == 3 * m + 3 * (p - 1)
        assert peaks("1f1b", p, m) == [min(m, p - r) for r in range(p)]
        assert peaks("zb-h1", p, m) == [min(m, p)] * p
        if m >= p:
            assert makespan("zb-h1", p, m) == 3 * m + (p - 1) * (3 - 2)
    for v in (2, 3) if p <= 16 else (2,):
        for m in (p, p + 1, 2 * p - 1) if p <= 16 else (p,):  # the idle is the same where m is no multiple of p
            assert makespan("interleaved", p, m, v) == 3 * m * v + 3 * (p - 1)
        for m in (p, 2 * p) if p <= 16 else (p,):
            assert makespan("interleaved", p, m, v) == 3 * m * v + 3 * (p - 1)
            assert peaks("interleaved", p, m, v) == [min(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1) for r in range(p)]


def test_closed_forms_with_other_costs() -> None:
    """Idle (p-1)(F+B) for any F and B, and (p-1)(F+B-2W) for ZB-H1 where W is the shortest."""
    p, m = 4, 9
    cost = {"F": 2, "B": 5, "BI": 3, "BW": 2}
    assert makespan("gpipe", p, m, cost=cost) == makespan("1f1b", p, m, cost=cost) == (m + p - 1) * 7
    assert makespan("interleaved", p, 8, 2, cost=cost) == 8 * 2 * 7 + (p - 1) * 7
    for f, bi, bw in ((2, 3, 2), (4, 5, 3), (3, 2, 1), (2, 2, 1)):
        cost = {"F": f, "BI": bi, "BW": bw}
        for m in (2 * p, 3 * p + 1):
            assert makespan("zb-h1", p, m, cost=cost) == m * (f + bi + bw) + (p - 1) * (f + bi + bw - 2 * bw)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cell_runs_each_chunk_once(family: str) -> None:
    """Also m < p and m that is no multiple of p: no deadlock, nothing missing, no more in flight than promised."""
    for p in (1, 2, 3, 4, 7):
        for m in (1, 2, 3, 5, 8, 15):
            for v in (1, 2, 3):
                if excluded(family, devices=p, microbatches=m, stages_per_device=v):
                    continue
                table = rows(family, devices=p, microbatches=m, stages_per_device=v)
                names = ("F", "BI", "BW") if family == "zb-h1" else ("F", "B")
                for r, row in enumerate(table):
                    wanted = {(n, s, i) for n in names for s in range(r, p * v, p) for i in range(m)}
                    assert set(row) == wanted
                    assert len(row) == len(wanted)
                    if family == "interleaved":
                        largest = -(-m // max(1, m // p))
                        assert inflight(row) == min(m * v, 2 * (p - 1 - r) + (v - 1) * largest + 1)
                assert clock(table, UNIT)


@pytest.mark.parametrize(
    ("family", "module", "p", "m", "v"),
    [
        ("gpipe", "gpipe", 3, 3, 1),
        ("1f1b", "one_f_one_b", 3, 4, 1),
        ("interleaved", "interleaved", 2, 2, 2),
        ("zb-h1", "zb_h1", 3, 4, 1),
    ],
)
def test_specs_draw_the_families_timeline(family: str, module: str, p: int, m: int, v: int) -> None:
    spec = load_spec(SPECS / f"{module}.spec.md")
    drawn = [line.strip() for line in spec.sections["intent"].splitlines() if " | " in line]
    assert drawn == draw(rows(family, devices=p, microbatches=m, stages_per_device=v), unit=UNIT, stages=v > 1)


def test_build_places_stages_and_replicas() -> None:
    schedule = build("interleaved", devices=2, microbatches=4, replicas=3, stages_per_device=2, bucket_size=25.0)
    places = [d for d in schedule.directives if isinstance(d, Place)]
    assert [(d.filter, d.devices) for d in places] == [
        ({"PP": 0}, [0, 2, 4]),
        ({"PP": 1}, [1, 3, 5]),
        ({"PP": 2}, [0, 2, 4]),
        ({"PP": 3}, [1, 3, 5]),
    ]
    replicates = [d for d in schedule.directives if isinstance(d, Replicate)]
    assert [d.devices for d in replicates] == [d.devices for d in places]
    assert {d.bucket_size for d in replicates} == {25.0}
    assert len([d for d in schedule.directives if isinstance(d, Order)]) == 2


def test_build_round_trips_as_a_file() -> None:
    schedule = build("zb-h1", devices=2, microbatches=3, cut=[5], recompute=True, stream="pp")
    text = json.dumps(schedule.to_json())
    assert parse_schedule(text) == schedule
    assert isinstance(schedule, Schedule)
    ops = [row["op"] for row in schedule.to_json()["directives"]]
    assert ops == ["split", "cut", "place", "place", "recompute", "order", "order"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"family": "1f2b"}, "choose one of gpipe, 1f1b"),
        ({"devices": 0}, "devices is at least 1"),
        ({"microbatches": -1}, "microbatches is at least 1"),
        ({"stages_per_device": 2}, "for several use interleaved or gpipe"),
        ({"family": "interleaved"}, "use 1f1b"),
        ({"cut": [1, 2]}, "cut has length 2, 2 stages need 1"),
    ],
)
def test_wrong_numbers_are_input_errors(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(**{"family": "1f1b", "devices": 2, "microbatches": 4, **kwargs})

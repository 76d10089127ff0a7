from __future__ import annotations

import json
from pathlib import Path

import pytest

from pibroch.runtime.directives import Order, Place, load_schedule, parse_schedule, schedule_from, schedule_text
from pibroch.runtime.errors import InputError
from pibroch.runtime.families import build


def test_a_bare_list_and_a_versioned_file_mean_the_same() -> None:
    rows = [{"op": "split", "num_microbatches": 4}, {"op": "place", "devices": [0]}]
    assert schedule_from(rows) == schedule_from({"version": 1, "directives": rows})


def test_round_trip_through_json_leaves_defaults_out() -> None:
    rows = [
        {"op": "place", "filter": {"PP": 0}, "devices": [0, 1], "stream": "link"},
        {"op": "order", "filters": [{"PP": 0, "MB": 0, "PASS": "F"}, [{"PASS": "B"}, {"MB": None}]]},
    ]
    schedule = schedule_from(rows)
    assert schedule.to_json() == {"version": 1, "directives": rows}
    assert parse_schedule(json.dumps(schedule.to_json())) == schedule


def test_a_reduce_stream_is_written_where_it_was_given() -> None:
    given = build("1f1b", devices=2, replicas=2, microbatches=2, reduce_stream="reduce")
    silent = build("1f1b", devices=2, replicas=2, microbatches=2)
    written = [row for row in given.to_json()["directives"] if row["op"] == "replicate"]
    assert [row["reduce_stream"] for row in written] == ["reduce", "reduce"]
    assert "reduce_stream" not in schedule_text(silent)
    assert given == silent
    assert schedule_text(parse_schedule(schedule_text(given))) == schedule_text(given)


def test_groups_are_lists_of_one_or_two_filters() -> None:
    order = Order(filters=[{"MB": 0}, [{"MB": 1}, {"MB": 2}]])
    assert order.groups() == [[{"MB": 0}], [{"MB": 1}, {"MB": 2}]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('[{"op": "place", "devices": [0], "devices": [1]}]', "'devices' appears twice"),
        ('[{"op": "place"}]', "directive 0.*devices.*required"),
        ('[{"op": "place", "devices": [0], "colour": 1}]', "colour: unknown field; place has filter, devices, stream$"),
        ('[{"op": "place", "devices": [-1]}]', "directive 0.*devices"),
        ('[{"op": "place", "devices": ["0"]}]', "directive 0.*devices"),
        ('[{"op": "teleport"}]', "directive 0: unknown op 'teleport'; there are place, .*recompute"),
        ('[{"op": "order", "filters": [{"PASS": "X"}, {}]}]', "directive 0, order, filters, 0: PASS is one of"),
        ('[{"op": "order", "filters": [[{"PASS": "X"}], {}]}]', "filters, 0, 0: PASS is one of"),
        ('[{"op": "order", "filters": [{}, {"PP": 1.5}]}]', r"filters, 1, PP: an index, '\*' or null, not 1.5$"),
        ('[{"op": "order", "filters": [3, {}]}]', "filters, 0: a group is a filter or a list of two$"),
        ('[{"op": "cut", "at": [0]}, {"op": "place"}]', r"directive 0, cut, at, 0: .*\(and 1 more\)$"),
        ("[3]", "directive 0: a directive is an object"),
        ('[{"devices": [0]}]', "directive 0: the op is missing"),
        ('[{"op": "order", "filters": [{}]}]', "directive 0.*at least 2"),
        ('[{"op": "order", "filters": [[{}, {}, {}], {}]}]', "directive 0"),
        ('[{"op": "split", "num_microbatches": 0}]', "directive 0.*num_microbatches"),
        ('[{"op": "split", "num_microbatches": 2, "filter": {"PP": "x"}}]', "filter: PP is an index, '\\*' or null"),
        ('{"version": 2, "directives": []}', "version"),
        ('{"version": 1, "directives": [], "extra": 1}', "extra: unknown field; a schedule has version, directives$"),
        ('"text"', "schedule"),
    ],
)
def test_one_clear_message(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_schedule(text)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing.json: cannot read"):
        load_schedule(tmp_path / "missing.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_schedule(tmp_path / "binary.json")


def test_directives_are_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Place(devices=[0]).devices = [1]  # type: ignore[misc]

"""Deltas: what each operation does, what is refused, and what holds whatever is applied."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from playbook_deltas import deltas

from pibroch.playbooks.deltas import apply
from pibroch.playbooks.model import Add, Bullet, Delta, Merge, Outcome, Playbook, Remove, Tag, Update
from pibroch.runtime.errors import InputError

EDIT = {"op": "bucket_size", "mb": 25}


def one(playbook: Playbook, delta: Delta | dict[str, Any], **options: Any) -> tuple[Playbook, Outcome]:
    after, (outcome,) = apply(playbook, [delta], **options)
    return after, outcome


@pytest.fixture
def book() -> Playbook:
    playbook, outcomes = apply(
        Playbook(),
        [
            Add(section="communication", text="Raise bucket_size when the all-reduce is exposed", edit=EDIT,
                applies_when={"finding:exposed-reduce": "true"}),
            Add(section="memory", text="Recompute the first two layers when memory is bound"),
        ],
    )  # fmt: skip
    assert [o.done for o in outcomes] == ["added", "added"]
    return playbook


def refused(playbook: Playbook, delta: Delta | dict[str, Any], words: str, **options: Any) -> None:
    after, outcome = one(playbook, delta, **options)
    assert outcome.done == "refused", outcome
    assert words in outcome.reason
    assert after == playbook


def test_add_gives_ids_by_section(book: Playbook) -> None:
    assert [b.id for b in book.bullets] == ["comm-00001", "mem-00002"]
    after, outcome = one(book, Add(section=" My  Notes ", text="  two\n lines "))
    assert outcome == Outcome(op="ADD", done="added", id="misc-00003")
    assert after.bullets[-1].text == "two lines"
    assert after.bullets[-1].section == "my notes"
    assert after.next_id == 4


def test_add_of_a_rewording_is_merged_into_it(book: Playbook) -> None:
    again = Add(
        section="memory", text="If memory is bound, recompute the first 2 layers", evidence=("runs/7",),
    )  # fmt: skip
    after, outcome = one(book, again)
    assert (outcome.done, outcome.id) == ("merged", "mem-00002")
    assert after.bullets[1].text == "Recompute the first two layers when memory is bound"
    assert after.bullets[1].evidence == ("runs/7",)
    assert after.next_id == book.next_id
    assert len(after.bullets) == 2


@pytest.mark.parametrize(
    "text",
    [
        "Recompute the first three layers when memory is bound",
        "Do not recompute the first two layers when memory is bound",
        "Recompute the last two layers when memory is bound",
    ],
)
def test_add_of_something_else_is_added(book: Playbook, text: str) -> None:
    _, outcome = one(book, Add(section="memory", text=text))
    assert outcome.done == "added"


ROW = '{"op": "order", "filters": [{"PP": 0, "MB": 0, "PASS": "F"}]}'


@pytest.mark.parametrize(
    "text",
    [
        "", "   \n", "x" * 601, "bell \x07",
        f"[{ROW}]", ROW, "Use {'op': 'place', 'devices': [0]}", r"Use {\"op\": \"split\"}", "op: order rows of F",
        'Write "directives": [] with these', "On device 0 run F0 F1 F2 B0 F3 B1 B2 B3",
        "Run 0F0, 0F1, 0F2, 0B0, 0B1, 0B2 in this order", "First {PP: 0, PASS: F} and then {PP: 0, PASS: B}",
    ],
)  # fmt: skip
def test_text_that_is_no_lesson_is_refused(book: Playbook, text: str) -> None:
    refused(book, Add(section="schedules", text=text), "text")
    refused(book, Update(id="mem-00002", text=text), "text")
    refused(book, Merge(ids=("mem-00002", "comm-00001"), text=text), "")


@pytest.mark.parametrize(
    "text",
    [
        "Order B1 before F2 on the last stage", "Split the backward and place BW later",
        "Use the order F, BI, BW in the steady state", "The op that costs most is the all-reduce",
    ],
)  # fmt: skip
def test_text_that_speaks_of_directives_is_welcome(book: Playbook, text: str) -> None:
    assert one(book, Add(section="schedules", text=text))[1].done == "added"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"mb": 25}, '"op"'),
        ({"op": "reorder", "directives": []}, "schedule"),
        ({"op": "swap", "rows": [{"op": "order"}]}, "schedule"),
        ({"op": "reorder", "text": ROW}, "schedule"),
        ({"op": "move", "rows": list(range(400))}, "characters"),
        ({"op": "move", "by": float("nan")}, "plain data"),
        ({"op": "move", "by": {1, 2}}, "plain data"),
    ],
)
def test_edit_that_is_no_small_change_is_refused(book: Playbook, edit: dict[str, Any], words: str) -> None:
    refused(book, Add(section="schedules", text="Do it", edit=edit), words)
    refused(book, Update(id="mem-00002", edit=edit), words)


def test_check_edit_decides_what_the_operators_know(book: Playbook) -> None:
    def check(edit: dict[str, Any]) -> None:
        if edit["op"] != "bucket_size":
            raise InputError(f"no operator {edit['op']!r}")

    assert one(book, Add(section="memory", text="New", edit=EDIT), check_edit=check)[1].done == "added"
    refused(book, Add(section="memory", text="New", edit={"op": "fly"}), "no operator 'fly'", check_edit=check)
    refused(book, Update(id="mem-00002", edit={"op": "fly"}), "no operator", check_edit=check)


@pytest.mark.parametrize(
    ("when", "words"),
    [({"Devices": "4"}, "small word"), ({"devices": ""}, "write it as"), ({"devices": ">=4,<2"}, "nothing meets")],
)
def test_condition_that_cannot_hold_is_refused(book: Playbook, when: dict[str, str], words: str) -> None:
    refused(book, Add(section="memory", text="New", applies_when=when), words)


def measured(book: Playbook) -> Playbook:
    after, outcome = one(book, Tag(id="comm-00001", shown=5, cited=3, tested=3, helpful=2, evidence=("runs/1",)))
    assert outcome.done == "tagged"
    return after


def test_tag_adds_up(book: Playbook) -> None:
    after, _ = one(measured(book), Tag(id="comm-00001", tested=1, harmful=1, evidence=("runs/2",)))
    bullet = after.get("comm-00001")
    assert bullet is not None
    assert (bullet.shown, bullet.cited, bullet.tested, bullet.helpful, bullet.harmful) == (5, 3, 4, 2, 1)
    assert bullet.evidence == ("runs/1", "runs/2")


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        (Tag(id="comm-00001", helpful=1), "count tests"),
        (Tag(id="comm-00001", tested=1, helpful=1, harmful=1), "count tests"),
        (Tag(id="mem-00002", tested=1, helpful=1), "no edit"),
        (Tag(id="comm-00001"), "changes nothing"),
        (Tag(id="comm-00009", shown=1), "no bullet"),
    ],
)
def test_tag_without_a_test_is_refused(book: Playbook, tag: Tag, words: str) -> None:
    refused(measured(book), tag, words)


@pytest.mark.parametrize("change", [{"edit": {"op": "bucket_size", "mb": 50}}, {"edit": {}}, {"applies_when": {}}])
def test_update_of_edit_or_conditions_starts_tests_again(book: Playbook, change: dict[str, Any]) -> None:
    after, outcome = one(measured(book), Update(id="comm-00001", **change))
    bullet = after.get("comm-00001")
    assert bullet is not None
    assert (bullet.shown, bullet.cited, bullet.tested, bullet.helpful, bullet.harmful) == (5, 3, 0, 0, 0)
    assert "from 0 (were 3, 2, 0)" in outcome.reason
    assert bullet.edit == (change.get("edit", EDIT) or None)


def test_update_of_words_keeps_tests(book: Playbook) -> None:
    before = measured(book)
    same_meaning = {"finding:exposed-reduce": " true "}
    after, outcome = one(before, Update(id="comm-00001", text="Use larger buckets", applies_when=same_meaning))
    bullet = after.get("comm-00001")
    assert bullet is not None
    assert (outcome.done, outcome.reason) == ("updated", "")
    assert (bullet.text, bullet.tested, bullet.helpful) == ("Use larger buckets", 3, 2)
    refused(after, Update(id="comm-00001", text="Use larger buckets"), "changes nothing")
    refused(after, Update(id="comm-00001"), "changes nothing")


def test_update_of_an_unknown_bullet_is_no_addition(book: Playbook) -> None:
    refused(book, Update(id="comm-00099", text="A fine new lesson"), "no bullet 'comm-00099'")


def pair(first: str, second: str, **fields: Any) -> Playbook:
    rows = [
        Bullet(id=f"sched-{n:05d}", section="schedules", text=text, edit=EDIT, tested=3, helpful=n, shown=n,
               evidence=(f"runs/{n}", "runs/0"))
        for n, text in ((1, first), (2, second))
    ]  # fmt: skip
    rows[1] = rows[1].model_copy(update=fields)
    return Playbook(next_id=3, bullets=tuple(rows))


def test_merge_adds_counters_and_keeps_the_first() -> None:
    book = pair("Growing the buckets helps the all-reduce", "Raise bucket_size")
    after, outcome = one(book, Merge(ids=("sched-00001", "sched-00002")))
    (bullet,) = after.bullets
    assert outcome.reason == "took in sched-00002"
    assert (bullet.id, bullet.text) == ("sched-00001", "Growing the buckets helps the all-reduce")
    assert (bullet.shown, bullet.tested, bullet.helpful, bullet.harmful) == (3, 6, 3, 0)
    assert bullet.evidence == ("runs/1", "runs/0", "runs/2")


@pytest.mark.parametrize(
    ("second", "fields", "words"),
    [
        ("Lower bucket_size", {}, "directions"),
        ("Raise bucket_size to 25 MB", {}, "numbers"),
        ("Raise bucket_size", {"edit": None}, "edits"),
        ("Raise bucket_size", {"applies_when": {"devices": ">=4"}}, "conditions"),
    ],
)
def test_merge_of_what_differs_is_refused(second: str, fields: dict[str, Any], words: str) -> None:
    refused(pair("Raise bucket_size", second, **fields), Merge(ids=("sched-00001", "sched-00002")), words)


def test_merge_is_refused_for_wrong_ids_or_a_text_that_says_otherwise() -> None:
    book = pair("Raise bucket_size", "Use larger buckets")
    refused(book, Merge(ids=("sched-00001", "sched-00001")), "twice")
    refused(book, Merge(ids=("sched-00001", "sched-00007")), "no bullet")
    refused(book, Merge(ids=("sched-00001", "sched-00002"), text="Lower bucket_size"), "new text")
    after, _ = one(book, Merge(ids=("sched-00001", "sched-00002"), text="Use bigger buckets"))
    assert [b.text for b in after.bullets] == ["Use bigger buckets"]


def test_remove(book: Playbook) -> None:
    after, outcome = one(book, Remove(id="comm-00001", why="harmful"))
    assert (outcome.done, outcome.reason) == ("removed", "harmful")
    assert [b.id for b in after.bullets] == ["mem-00002"]
    assert after.next_id == 3
    refused(after, Remove(id="comm-00001"), "no bullet")
    _, outcome = one(after, Add(section="communication", text="Raise bucket_size"))
    assert outcome.id == "comm-00003"


def test_ids_run_out_without_a_crash(book: Playbook) -> None:
    full = Playbook(next_id=100_000, bullets=book.bullets)
    refused(full, Add(section="memory", text="One more"), "all its ids")
    assert one(full, Add(section="memory", text=book.bullets[1].text))[1].done == "merged"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"op": "DELETE", "id": "x"}, "op"),
        ({}, ""),
        ({"op": "ADD", "text": "no section"}, "section"),
        ({"op": "TAG", "id": "comm-00001", "helpful": -1}, "helpful"),
        ({"op": "MERGE", "ids": ["comm-00001"]}, "ids"),
        ({"op": "ADD", "section": "memory", "text": "x", "helpful": 9}, "helpful"),
    ],
)
def test_plain_data_is_validated(book: Playbook, data: dict[str, Any], words: str) -> None:
    refused(book, data, words)


def test_a_refused_delta_does_not_stop_the_others(book: Playbook) -> None:
    after, outcomes = apply(book, [Remove(id="none"), Tag(id="mem-00002", shown=1), {"op": "ADD"}])
    assert [o.done for o in outcomes] == ["refused", "tagged", "refused"]
    assert after.bullets[1].shown == 1


@settings(max_examples=150, deadline=None)
@given(batch=deltas())
def test_invariants(batch: list[dict[str, Any]]) -> None:
    """Whatever is applied: counters keep their rule, ids stay unique and are never given twice, a refusal changes
    nothing, the input is left alone, and applying one by one gives the same."""
    playbook, given_ids = Playbook(), set[str]()
    original = copy.deepcopy(batch)
    outcomes = []
    for delta in batch:
        before = playbook.model_copy(deep=True)
        after, (outcome,) = apply(playbook, [delta])
        assert playbook == before
        outcomes.append(outcome)
        ids = [b.id for b in after.bullets]
        assert len({i.rpartition("-")[2] for i in ids}) == len(ids)
        assert all(b.helpful + b.harmful <= b.tested for b in after.bullets)
        assert all(b.edit is not None or b.tested == 0 for b in after.bullets)
        assert after.next_id >= playbook.next_id
        if outcome.done == "refused":
            assert after == playbook
            assert outcome.reason
        if outcome.done == "added":
            assert outcome.id not in given_ids
            assert outcome.op == "ADD"
            given_ids.add(outcome.id)
        else:
            assert set(ids) <= {b.id for b in playbook.bullets}, "only an addition adds"
        playbook = after
    assert batch == original
    assert apply(Playbook(), batch) == (playbook, outcomes)
    assert Playbook.model_validate_json(playbook.model_dump_json()) == playbook

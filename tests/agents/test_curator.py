"""The curator: counters move with measurements alone, and what a model says is checked delta by delta."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_lm import ScriptedModel, block

from pibroch.agents.curator import curate
from pibroch.agents.lessons import Effect, Lesson
from pibroch.agents.lm.base import LMError, Paused
from pibroch.playbooks.deltas import apply
from pibroch.playbooks.model import Add, Bullet, Delta, Merge, Playbook, Remove, Tag, Update

BUCKETS = {"op": "buckets", "size": 25}
FACTS = {"devices": 8, "replicas": 2}


def bullet(number: int, **given: Any) -> Bullet:
    fields: dict[str, Any] = {"section": "communication", "text": f"Bullet {number}.", "edit": BUCKETS, **given}
    return Bullet(id=f"comm-{number:05d}", **fields)


def lesson(effect: Effect = "helped", ratio: float = 1.1, **given: Any) -> Lesson:
    section = "pitfalls" if effect == "hurt" else "communication"
    text = "Avoid smaller buckets." if effect == "hurt" else "Use smaller buckets."
    fields: dict[str, Any] = {"text": text, "section": section, "edit": BUCKETS, "evidence": "run:a#1", **given}
    return Lesson(effect=effect, ratio=ratio, **fields)


def book(*bullets: Bullet) -> Playbook:
    return Playbook(next_id=100, bullets=bullets)


@pytest.mark.parametrize(
    ("section", "effect", "helpful", "harmful"),
    [
        ("communication", "helped", 1, 0),
        ("communication", "hurt", 0, 1),
        ("communication", "nothing", 0, 0),
        ("pitfalls", "hurt", 1, 0),  # a warning that was right
        ("pitfalls", "helped", 0, 1),
        ("pitfalls", "nothing", 0, 0),
    ],
)
def test_a_test_counts_by_its_effect(section: str, effect: Effect, helpful: int, harmful: int) -> None:
    deltas = curate([lesson(effect)], book(bullet(1, section=section)), facts=FACTS, tested=["comm-00001"])
    assert deltas == [Tag(id="comm-00001", tested=1, helpful=helpful, harmful=harmful, evidence=("run:a#1",))]


def test_shown_and_cited_move_no_other_counter() -> None:
    rows = book(bullet(1), bullet(2, edit={"op": "x"}), bullet(3, edit=None))
    deltas = curate([], rows, facts=FACTS, shown=["comm-00003", "comm-00001"], cited=["comm-00003", "gone-00001"])
    assert deltas == [Tag(id="comm-00001", shown=1), Tag(id="comm-00003", shown=1, cited=1)]


def test_a_bullet_with_the_same_edit_is_tested_where_it_fits() -> None:
    fitting, other = bullet(1, applies_when={"replicas": ">=2"}), bullet(2, applies_when={"replicas": "1"})
    deltas = curate([lesson()], book(fitting, other), facts=FACTS)
    assert deltas == [Tag(id="comm-00001", tested=1, helpful=1, evidence=("run:a#1",))]


def test_news_is_added_untested_with_its_evidence() -> None:
    one = lesson(applies_when={"replicas": ">=2"})
    deltas = curate([one, one], book(), facts=FACTS)
    assert deltas == [
        Add(section="communication", text="Use smaller buckets.", applies_when={"replicas": ">=2"}, edit=BUCKETS,
            evidence=("run:a#1",))
    ]  # fmt: skip
    after, outcomes = apply(book(), deltas)
    assert [o.done for o in outcomes] == ["added"]
    assert (after.bullets[0].tested, after.bullets[0].helpful) == (0, 0)


@pytest.mark.parametrize(
    ("one", "added"),
    [
        (lesson("nothing", 1.0), False),
        (lesson("hurt", 0.97), False),  # most edits lose a little
        (lesson("hurt", 0.90), True),
        (lesson("helped", 1.02), True),
        (lesson("helped", 1.02, edit=None), False),
    ],
)
def test_only_gains_and_clear_losses_are_news(one: Lesson, added: bool) -> None:
    assert [d.op for d in curate([one], book(), facts=FACTS)] == (["ADD"] if added else [])


def test_harmful_beyond_doubt_goes_and_the_mixed_stays() -> None:
    doubtful = bullet(1, tested=1, harmful=1)
    mixed = bullet(2, tested=3, harmful=1, helpful=1, applies_when={"replicas": ">=2"})
    deltas = curate([lesson("hurt")], book(doubtful, mixed), facts=FACTS)
    assert [d.op for d in deltas] == ["TAG", "TAG", "REMOVE"]
    assert isinstance(deltas[2], Remove)
    assert deltas[2].id == "comm-00001"
    after, outcomes = apply(book(doubtful, mixed), deltas)
    assert [o.done for o in outcomes] == ["tagged", "tagged", "removed"]
    assert [(b.id, b.tested, b.harmful) for b in after.bullets] == [("comm-00002", 4, 2)]


def test_twins_are_merged_and_others_not() -> None:
    rows = book(bullet(1), bullet(2), bullet(3, edit={"op": "buckets", "size": 50}), bullet(4, section="pitfalls"))
    assert curate([], rows, facts=FACTS) == [Merge(ids=("comm-00001", "comm-00002"))]


# With a model

NEWS = lesson(edit={"op": "recompute"}, text="Stop recomputing.")


def answered(rows: Any, playbook: Playbook, *lessons: Lesson) -> tuple[list[Delta], list[str]]:
    said: list[str] = []
    lm = ScriptedModel([rows if isinstance(rows, str) else block(rows)])
    return curate(lessons or [NEWS], playbook, facts=FACTS, lm=lm, say=said.append), said


def test_a_model_words_and_chooses() -> None:
    harmful = bullet(2, edit={"op": "x"}, tested=2, harmful=2, helpful=0)
    kept = bullet(3, edit={"op": "y"}, tested=9, harmful=5, helpful=1)
    rows = [
        {"op": "ADD", "lesson": 0, "text": "Keep the activations where memory allows."},
        {"op": "UPDATE", "id": "comm-00001", "text": "Buckets that are smaller overlap."},
        {"op": "REMOVE", "id": "comm-00003"},
    ]
    deltas, said = answered(rows, book(bullet(1), harmful, kept))
    assert [d.op for d in deltas] == ["REMOVE", "UPDATE", "REMOVE", "ADD"]
    assert (deltas[0], deltas[2]) == (
        Remove(id="comm-00002", why="harmful in 2 of 2 tests, helpful in none"), Remove(id="comm-00003"),
    )  # fmt: skip
    assert isinstance(deltas[1], Update)
    assert isinstance(deltas[3], Add)
    assert (deltas[3].text, deltas[3].edit) == ("Keep the activations where memory allows.", {"op": "recompute"})
    assert not said


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"op": "TAG", "id": "comm-00001", "tested": 5, "helpful": 5}, "measurements only"),
        ({"op": "ADD", "lesson": 1}, "no lesson 1"),
        ({"op": "ADD", "lesson": 0, "edit": {"op": "other"}}, "Extra inputs"),
        ({"op": "ADD", "lesson": 0, "text": "Gains 40 per cent."}, "40"),
        ({"op": "ADD", "lesson": 0, "text": "Never stop recomputing."}, "helped"),
        ({"op": "ADD", "section": "x", "text": "made up", "edit": None}, "Field required"),
        ({"op": "UPDATE", "id": "comm-00001", "edit": {"op": "other"}}, "only its text"),
        ({"op": "UPDATE", "id": "comm-00001", "text": "Do not use buckets."}, "helped"),
        ({"op": "UPDATE", "id": "comm-00099", "text": "Use buckets."}, "unknown"),
        ({"op": "REMOVE", "id": "comm-00001"}, "untested"),
        ({"op": "MERGE", "ids": ["comm-00001", "comm-00002"]}, "differ"),
        ({"op": "MERGE", "ids": ["comm-00001", "comm-00001"]}, "unknown"),
        ({"op": "DROP"}, "tag"),
        ("ADD", "valid dictionary"),
    ],
)
def test_a_delta_against_the_rules_is_dropped_alone(row: Any, reason: str) -> None:
    rows = book(bullet(1), bullet(2, edit={"op": "x"}))
    deltas, said = answered([row, {"op": "ADD", "lesson": 0}], rows)
    assert [d.op for d in deltas] == ["ADD"]
    assert len(said) == 1
    assert reason in said[0]


def test_each_lesson_and_bullet_is_spoken_of_once() -> None:
    rows = [{"op": "ADD", "lesson": 0}, {"op": "ADD", "lesson": 0}]
    rows += [{"op": "UPDATE", "id": "comm-00001", "text": t} for t in ("Use small ones.", "Use big ones.")]
    deltas, said = answered(rows, book(bullet(1)))
    assert [d.op for d in deltas] == ["UPDATE", "ADD"]
    assert len(said) == 2


@pytest.mark.parametrize(
    "reply",
    ["no block", block("[{", "json"), block({"op": "ADD", "lesson": 0}), block("[" * 50_000), "x" * 10_000_000,
     block([{"op": "ADD", "lesson": 0}] * 21), block("[]", "python")],
)  # fmt: skip
def test_an_unreadable_reply_adds_nothing_but_tests_still_count(reply: str) -> None:
    deltas, said = answered(reply, book(bullet(1)), NEWS, lesson())
    assert [d.op for d in deltas] == ["TAG"]
    assert "nothing is added" in said[0]
    assert len(said[0]) < 400


def test_a_model_that_fails_adds_nothing_and_one_that_waits_pauses() -> None:
    assert curate([NEWS], book(), facts=FACTS, lm=ScriptedModel([LMError("late")])) == []
    with pytest.raises(Paused):
        curate([NEWS], book(), facts=FACTS, lm=ScriptedModel([Paused("wait")]))


def test_a_model_is_asked_only_where_there_is_news() -> None:
    lm = ScriptedModel([])
    assert [d.op for d in curate([lesson()], book(bullet(1)), facts=FACTS, lm=lm)] == ["TAG"]
    assert not lm.asked


def test_the_request_holds_lessons_and_near_bullets() -> None:
    lm = ScriptedModel([block([])])
    assert curate([NEWS], book(bullet(1, tested=2, helpful=2)), facts=FACTS, lm=lm) == []
    text = lm.prompt(0)
    assert "0. helped (speed x 1.100) [communication] Stop recomputing." in text
    assert "[comm-00001] (communication; helpful: tested 2, helpful 2, harmful 0) Bullet 1." in text
    assert json.dumps({"op": "recompute"}) in text
    assert (lm.asked[0].role, lm.asked[0].blocks) == ("curator", ("json",))

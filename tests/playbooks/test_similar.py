"""De-duplication: rewordings merge; opposites, other numbers and exchanged parts never do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pibroch.playbooks.model import Bullet
from pibroch.playbooks.similar import agree, closeness, compare, relevance, twin

HERE = Path(__file__).resolve().parent
OWN = json.loads((HERE / "own_pairs.json").read_text())  # written with the code
BLIND = HERE / "pairs.json"  # written by someone who had not seen the code


def bullet(text: str, *, number: int = 1, **fields: object) -> Bullet:
    return Bullet.model_validate({"id": f"sched-{number:05d}", "section": "schedules", "text": text, **fields})


def merged(pairs: list[dict[str, str]], label: str) -> list[bool]:
    return [twin(bullet(row["a"]), [bullet(row["b"], number=2)]) is not None for row in pairs if row["label"] == label]


def test_own_rewordings_merge() -> None:
    found = merged(OWN, "rewording")
    assert len(found) > 100
    assert sum(found) >= 0.97 * len(found)


@pytest.mark.parametrize("row", [r for r in OWN if r["label"] in ("opposite", "number")], ids=lambda r: r["b"][:40])
def test_own_opposites_and_numbers_never_merge(row: dict[str, str]) -> None:
    for one, other in ((row["a"], row["b"]), (row["b"], row["a"])):
        assert compare(one, other)[0] != "same"
        assert twin(bullet(one), [bullet(other, number=2)]) is None


def test_blind_pairs() -> None:
    """At least 19 of 20 rewordings, nothing wrong without a model.

    The first run, on pairs that the code's author had not seen: 18 of 20 rewordings, and one wrong merge of 25 (25 Gb/s
    and 25 GB/s). Bits, "more X than Y" and "only" at a clause's end were added then, so this is no blind test any more.
    """
    pairs = json.loads(BLIND.read_text())
    rewordings = merged(pairs, "rewording")
    assert sum(rewordings) >= 0.95 * len(rewordings)
    assert not any(merged(pairs, "opposite") + merged(pairs, "number"))


def test_second_blind_pairs() -> None:
    """Written by another hand after those additions, and nothing was changed after the run: 19 of 20, nothing wrong."""
    pairs = json.loads((HERE / "pairs_second.json").read_text())
    assert sum(merged(pairs, "rewording")) >= 19
    assert not any(any(merged(pairs, label)) for label in ("paraphrase", "opposite", "number"))


@pytest.mark.parametrize("row", OWN, ids=lambda r: r["a"][:40])
def test_comparison_has_no_direction(row: dict[str, str]) -> None:
    assert compare(row["a"], row["b"])[0] == compare(row["b"], row["a"])[0]
    assert closeness(row["a"], row["b"]) == pytest.approx(closeness(row["b"], row["a"]))


@pytest.mark.parametrize("row", OWN, ids=lambda r: r["a"][:40])
def test_every_text_equals_itself(row: dict[str, str]) -> None:
    assert compare(row["a"], row["a"])[0] == "same"


SAME = "Raise bucket_size when the all-reduce is exposed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"edit": {"op": "bucket_size", "mb": 25}}, "edits differ"),
        ({"applies_when": {"devices": ">=4"}}, "conditions differ"),
    ],
)
def test_the_same_words_with_another_edit_or_condition_stay_apart(fields: dict[str, object], reason: str) -> None:
    one, other = bullet(SAME), bullet(SAME, number=2, **fields)
    assert twin(one, [other]) is None
    assert reason in (agree(one, other) or "")


def test_conditions_are_compared_by_meaning() -> None:
    one = bullet(SAME, applies_when={"devices": ">= 4", "stages": "2|4"})
    other = bullet(SAME, number=2, applies_when={"stages": "4|2", "devices": ">=4.0"})
    assert twin(one, [other]) == other


def test_judge_is_asked_about_unclear_pairs_only() -> None:
    asked: list[tuple[str, str]] = []

    def yes(a: str, b: str) -> bool:
        asked.append((a, b))
        return True

    known = [
        bullet("Lower bucket_size when the all-reduce is exposed", number=2),  # the opposite
        bullet("Raise bucket_size to 25 MB when the all-reduce is exposed", number=3),  # another number
        bullet("Measure on an idle machine", number=4),  # something else
    ]
    assert twin(bullet(SAME), known, judge=yes) is None
    assert asked == []
    unclear = bullet("Grow the buckets if gradient communication is exposed", number=5)
    assert compare(SAME, unclear.text)[0] == "unclear"
    assert twin(bullet(SAME), [*known, unclear]) is None
    assert twin(bullet(SAME), [*known, unclear], judge=lambda a, b: False) is None
    assert twin(bullet(SAME), [*known, unclear], judge=yes) == unclear
    assert asked == [(SAME, unclear.text)]


def test_the_nearest_twin_is_taken_and_then_the_oldest() -> None:
    new = bullet("Recompute the first two layers when memory is bound")
    known = [
        bullet("If memory is bound on the task, recompute the first two layers", number=3),
        bullet("When memory is bound, recompute the first 2 layers", number=4),
        bullet("Recompute the first 2 layers when memory is bound.", number=5),
    ]
    found = twin(new, known)
    assert found is not None
    assert found.number == 4


def test_relevance_counts_rare_words_more() -> None:
    texts = ["raise the bucket", "raise the microbatches", "raise the replicas", "recompute layers"]
    scores = relevance("raise the microbatches", texts)
    assert max(range(4), key=scores.__getitem__) == 1
    assert scores[1] == pytest.approx(1.0)
    assert 0 < scores[0] < 0.5
    assert scores[3] == 0
    assert relevance("", texts) == [0, 0, 0, 0]

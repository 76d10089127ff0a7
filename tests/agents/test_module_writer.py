"""The loop from spec to module under a scripted model and a scripted judge: what is asked, accepted and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_judge import COUNTER, SOURCE, USER, ScriptedCompare, ScriptedJudge
from scripted_lm import ScriptedModel, block

from pibroch.agents.lm.base import LMError, Paused
from pibroch.agents.lm.replay import Recorder, ReplayModel
from pibroch.agents.lock import sha256
from pibroch.agents.module_task import copied, skeleton
from pibroch.agents.module_writer import Written, file_text, write_module
from pibroch.runtime.errors import InputError
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec

SEQUENTIAL = parse_spec(COUNTER.format(version=3, model="none"), "specs/modules/counter.spec.md")
THREADED = parse_spec(COUNTER.format(version=3, model="threads"), "specs/modules/counter.spec.md")
PASS = block({"verdict": "pass", "findings": []})
REJECT = block(
    {
        "verdict": "reject",
        "findings": [{"prose": "It says nothing on  SUNDAYS", "line": 1, "why": "it does", "mend": "be quiet"}],
    }
)


def code(text: str) -> str:
    return block(text, "python")


def write(spec: Spec, answers: list[str | Exception], **options: Any) -> tuple[Written, ScriptedModel, ScriptedJudge]:
    lm, judge = ScriptedModel(answers), ScriptedJudge()
    options = {"peers": {spec.module: spec}, "sources": {}, "compare": ScriptedCompare(), **options}
    written = write_module(spec, lm, judge=judge, **options)
    return written, lm, judge


def test_two_writers_then_threads_then_the_reviewer() -> None:
    written, lm, judge = write(THREADED, [code("a = 1"), code("b = 1"), code("c = 1"), PASS])
    assert written.source == "c = 1\n"
    assert [(r.role, r.phase, r.attempt, r.sample) for r in lm.asked] == [
        ("writer", 1, 1, 0), ("writer", 1, 1, 1), ("writer", 2, 1, 0), ("reviewer", 2, 1, 0),
    ]  # fmt: skip
    assert [(row["phase"], row["sequential"]) for row in judge.asked] == [(1, None), (1, None), (2, "a = 1\n")]
    assert "a = 1" in lm.prompt(2)
    assert "b = 1" not in lm.prompt(2)
    assert "guarded by Counter.lock: n" in lm.prompt(2)
    assert written.verdicts == dict.fromkeys(["P0", "P1", "P2", "A0"], "held")
    entry = written.entry
    assert entry is not None
    assert entry.attempts == {"phase 1, sample 0": 1, "phase 1, sample 1": 1, "phase 2, sample 0": 1}
    assert (entry.model, entry.who, entry.review, entry.spec_version) == ("scripted", "script", "passed", 3)
    assert set(entry.prompts) == {"module_phase1", "module_phase2", "module_language", "review"}
    text = file_text(THREADED, "c = 1\n")
    assert text.startswith("# Generated from counter.spec.md, version 3.")
    assert text.count("\n") == 2
    assert entry.source_sha256 == sha256(text)


def test_where_nothing_is_concurrent_phase_1_is_all() -> None:
    written, lm, _ = write(SEQUENTIAL, [code("a = 1"), code("b = 1")], review=False)
    assert written.source == "a = 1\n"
    assert written.entry is not None
    assert written.entry.review == "not reviewed"
    assert len(lm.asked) == 2


def test_a_request_has_the_spec_and_nothing_of_the_repository() -> None:
    user, source = (parse_spec(text, "x.spec.md") for text in (USER, SOURCE))
    peers = {"user": user, "source": source}
    _, lm, judge = write(user, [code("a = 1"), code("b = 1"), PASS], peers=peers, sources={"source": "SECRET = 1"})
    for i in range(3):
        text = lm.prompt(i)
        assert "The sum of two takes." in text
        assert "source.take(n) + source.take(n + 1)" in text
        assert "source.take(n: int) -> int" in text
        assert "n >= 0" in text
        assert "SECRET" not in text
        assert "exactly one fenced block" in text
    assert "import source\n\n\ndef twice(n: int) -> int:\n" in lm.prompt(0)
    assert "Given n >= 0\n    U2: return source.take(n) + source.take(n + 1)\n" in lm.prompt(0)
    assert "class" not in lm.asked[0].messages[0].content  # instructions for functions alone
    assert judge.asked[0]["sources"] == {"source": "SECRET = 1"}
    assert lm.asked[0].blocks == ("python",)
    assert lm.asked[2].blocks == ("json",)


def test_feedback_names_clause_calls_values_and_lines() -> None:
    answers: list[str | Exception] = [code("x = 1\nbad = 1"), code("a = 1"), code("b = 1")]
    written, lm, _ = write(SEQUENTIAL, answers, review=False)
    assert [t.attempts for t in written.tracks] == [2, 1]
    told = lm.prompt(1)
    for words in (
        "[contract P2] does not hold", "ensures of up: self.n == result", "call: up()", "result = 7",
        "your line 2: bad = 1", "x = 1\nbad = 1",
    ):  # fmt: skip
        assert words in told
        assert words not in lm.prompt(2)
    assert lm.asked[1].previous_hash != lm.asked[0].previous_hash
    assert written.source == "a = 1\n"


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("no block", "no fenced block"),
        (code("a = 1") + code("b = 1"), "2 fenced blocks"),
        ("```python\na = 1\n", "never closed"),
        (block([1]), "must say python"),
        ("```python\n\n```\n", "empty"),
    ],
)
def test_an_unreadable_reply_is_feedback(reply: str, says: str) -> None:
    written, lm, judge = write(SEQUENTIAL, [reply, code("a = 1"), code("b = 1")], review=False)
    assert written.tracks[0].feedback[0][0].stage == "reply"
    assert says in written.tracks[0].feedback[0][0].message
    assert says in lm.prompt(1)
    assert len(judge.asked) == 2


def test_nothing_comes_out_at_the_limit() -> None:
    written, lm, _ = write(SEQUENTIAL, [code("bad = 1"), code("bad = 2")], attempts=2)
    assert written.source is None
    assert written.entry is None
    assert "no candidate of phase 1, sample 0 passed in 2 attempts" in written.problem
    assert "contract P2" in written.problem
    assert len(lm.asked) == 2
    with pytest.raises(InputError, match="attempts is at least 1"):
        write(SEQUENTIAL, [], attempts=0)


def test_the_second_writer_must_pass_too() -> None:
    written, _, _ = write(SEQUENTIAL, [code("a = 1"), code("bad = 2")], attempts=1)
    assert written.source is None
    assert "phase 1, sample 1" in written.problem


def test_two_modules_that_differ_mend_the_spec() -> None:
    written, lm, _ = write(THREADED, [code("a = 1"), code("odd = 1"), code("c = 1")])
    assert written.source is None
    assert "mend the spec" in written.problem
    assert "call  up()" in written.problem
    assert "result of the second = 2" in written.problem
    assert written.difference is not None
    assert len(lm.asked) == 2
    free = replace(SEQUENTIAL, front=SEQUENTIAL.front.model_copy(update={"several_answers": "any order"}))
    written, lm, _ = write(free, [code("a = 1"), code("odd = 1")], review=False)
    assert written.source == "a = 1\n"
    assert "any order" in lm.prompt(0)


def test_a_candidate_that_two_writers_send_is_judged_once() -> None:
    compare = ScriptedCompare()
    written, _, judge = write(SEQUENTIAL, [code("a = 1"), code("a = 1")], review=False, compare=compare)
    assert written.source == "a = 1\n"
    assert len(judge.asked) == 1
    assert compare.asked == []


def test_who_repeats_a_candidate_starts_afresh() -> None:
    _, lm, _ = write(SEQUENTIAL, [code("bad = 1"), code("bad = 1"), code("a = 1"), code("b = 1")], review=False)
    assert "bad = 1\n```" in lm.prompt(1)
    assert "an earlier module" not in lm.prompt(1)
    assert "an earlier module" in lm.prompt(2)
    assert "bad = 1\n```" not in lm.prompt(2)
    assert "[contract P2] does not hold" in lm.prompt(2)


def test_the_reviewer_can_reject_and_never_accepts_alone() -> None:
    written, lm, judge = write(SEQUENTIAL, [code("a = 1"), code("b = 1"), REJECT, code("c = 1"), PASS])
    assert written.source == "c = 1\n"
    assert written.tracks[0].attempts == 2
    assert [f.stage for f in written.tracks[0].feedback[0]] == ["review"]
    assert "It says nothing on  SUNDAYS" in lm.prompt(3)
    assert "your line 1: a = 1" in lm.prompt(3)
    assert judge.asked[-1]["source"] == "c = 1\n"  # judged again before the second review
    written, _, _ = write(SEQUENTIAL, [code("a = 1"), code("b = 1"), REJECT, code("bad = 1")], attempts=2)
    assert written.source is None


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("fine by me", "no fenced block"),
        ("```json\n{\n```\n", "not JSON"),
        (block({"verdict": "accept"}), "verdict"),
        (block({"verdict": "pass", "findings": [], "score": 10}), "score"),
        (block({"verdict": "reject", "findings": []}), '"reject" comes with findings'),
        (block({"verdict": "pass", "findings": [{"prose": "It counts calls", "why": "no"}]}), '"pass" with none'),
        (block({"verdict": "reject", "findings": [{"prose": "It never sleeps", "why": "no"}]}), "no sentence"),
        (block([]), "the object"),
    ],
)
def test_an_unreadable_review_is_a_failed_review(reply: str, says: str) -> None:
    written, lm, _ = write(SEQUENTIAL, [code("a = 1"), code("b = 1"), reply, reply])
    assert written.source is None
    assert "review failed" in written.problem
    assert says in written.problem
    assert len(lm.asked) == 4
    written, _, _ = write(SEQUENTIAL, [code("a = 1"), code("b = 1"), reply, PASS])
    assert written.source == "a = 1\n"


@pytest.mark.parametrize("error", [Paused("later"), LMError("gone")])
def test_a_model_that_does_not_answer_ends_the_run(error: Exception) -> None:
    with pytest.raises(type(error)):
        write(SEQUENTIAL, [code("a = 1"), error])


def test_replay_judges_again_and_refuses_a_corrupted_reply(tmp_path: Path) -> None:
    judge = ScriptedJudge()
    lm = Recorder(ScriptedModel([code("bad = 1"), code("a = 1"), code("b = 1"), code("c = 1"), PASS]), tmp_path)
    options: dict[str, Any] = {"peers": {"counter": THREADED}, "sources": {}, "compare": ScriptedCompare()}
    first = write_module(THREADED, lm, judge=judge, **options)
    assert first.source == "c = 1\n"
    again = ScriptedJudge()
    second = write_module(THREADED, ReplayModel(tmp_path), judge=again, **options)
    assert second.entry == first.entry
    assert second.stale == 0
    assert len(again.asked) == len(judge.asked) == 4
    reworded = write_module(
        THREADED, ReplayModel(tmp_path), judge=again, prompts={"module_phase1": "Please write it."}, **options
    )
    assert reworded.source == "c = 1\n"
    assert reworded.stale == 3
    for path in tmp_path.glob("writer-p2-*.json"):
        data = json.loads(path.read_text())
        data["reply"] = code("bad = 9")
        path.write_text(json.dumps(data))
    third = write_module(THREADED, ReplayModel(tmp_path), judge=ScriptedJudge(), **options)
    assert third.source is None
    assert "the recorded reply of phase 2, sample 0 does not pass" in third.problem
    assert "contract P2" in third.problem
    for path in tmp_path.glob("writer-p2-*.json"):
        path.unlink()
    fourth = write_module(THREADED, ReplayModel(tmp_path), judge=ScriptedJudge(), **options)
    assert "has no reply for writer counter, phase 2" in fourth.problem


def test_skeletons_have_the_signatures_and_copies() -> None:
    text = skeleton(THREADED)
    compile(text, "skeleton", "exec")
    assert "import threading" not in text
    assert "import threading" in skeleton(THREADED, 2)
    assert "P2: ensure self.n == result\n        Change no other field than n\n" in text
    assert 'return {"limit": self.limit, "n": self.n}' in text
    assert copied("list[tuple[int, int]]", "self.a") == "list(self.a)"
    assert copied("dict[int, list[list[int]]]", "self.a") == (
        "{x: [list(x1) for x1 in y] for x, y in self.a.items()}"
    )
    assert eval(copied("dict[int, list[list[int]]]", "a"), {"a": {1: [[2]]}}) == {1: [[2]]}


def test_helpers_that_are_code_stand_in_the_skeleton_of_functions() -> None:
    text = SOURCE.replace("result >= n", "result == least(n)").replace(
        "def take", "def least(n: int) -> int:\n    return n + 1\n\ndef take"
    )
    made = skeleton(parse_spec(text, "x.spec.md"))
    assert made.startswith("def _least(n: int) -> int:\n    return n + 1\n\n\ndef take(n: int) -> int:\n")
    assert "S2: return _least(n)\n" in made
    asks = text.replace("return n + 1", "return finish([], 1, 1, n)").replace("guar", "library: [pipeline]\nguar", 1)
    assert "def _least" not in skeleton(parse_spec(asks, "x.spec.md"))  # the library is the judge's

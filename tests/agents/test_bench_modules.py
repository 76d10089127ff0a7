"""The table of success rates: the single shot, the loop, phase by phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_judge import ScriptedJudge, write_specs
from scripted_lm import ScriptedModel, block

from pibroch.agents.bench_modules import report, run
from pibroch.agents.lm.replay import ReplayModel
from pibroch.runtime.errors import InputError
from pibroch.specs.model import Spec
from pibroch.specs.store import load_all


def code(text: str) -> str:
    return block(text, "python")


@pytest.fixture
def specs(tmp_path: Path) -> dict[str, Spec]:
    return load_all([write_specs(tmp_path) / "specs"])


def test_the_first_reply_and_the_loop_are_told_apart(specs: dict[str, Spec]) -> None:
    answers = [
        code("a = 1"), code("bad = 1"), code("c = 1"),  # passes at once; phase 2 with the second reply
        code("bad = 1"), code("bad = 2"), code("bad = 3"),  # never
        code("bad = 1"), code("d = 1"), code("e = 1"),
    ]  # fmt: skip
    judge = ScriptedJudge()
    lm = ScriptedModel(answers)
    got = run(lm, specs, {}, names=["counter"], tries=3, attempts=3, judge=judge)
    assert [(m["phase"], m["single_shot"], m["full_loop"], m["attempts"]) for m in got["modules"]] == [
        (1, 1, 2, [1, 3, 2]), (2, 1, 2, [2, 1]),
    ]  # fmt: skip
    assert got["modules"][0]["faults"] == ["contract P2"]
    assert sorted({r.sample for r in lm.asked}) == [0, 1, 2]
    assert [row["output_tokens"] for row in got["rows"]] == [5, 10, 15, 10, 5]
    assert judge.asked[1]["sequential"] == "a = 1\n"
    assert "counter" in "\n".join(report(got))


def test_a_single_shot_has_one_attempt(specs: dict[str, Spec]) -> None:
    lm = ScriptedModel([code("bad = 1"), code("a = 1")])
    got = run(lm, specs, {}, names=["source"], tries=2, single_shot=True, judge=ScriptedJudge())
    assert [(m["single_shot"], m["full_loop"]) for m in got["modules"]] == [(1, 1)]
    assert got["attempts"] == 1


def test_a_replay_is_no_success_rate(specs: dict[str, Spec], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="success rate"):
        run(ReplayModel(tmp_path), specs, {})
    with pytest.raises(InputError, match="no spec of the name x"):
        run(ScriptedModel([]), specs, {}, names=["x"])

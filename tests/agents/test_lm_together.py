"""Questions asked at once: order of results, errors, deadlines. The threads meet at a barrier, never at a clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from scripted_judge import COUNTER, ScriptedCompare, ScriptedJudge
from scripted_lm import block

from pibroch.agents.lm.base import LMError, Reply, Request
from pibroch.agents.lm.together import together
from pibroch.agents.module_writer import write_module
from pibroch.specs.parse import parse_spec


class Model:
    def __init__(self, name: str) -> None:
        self.name = name

    def complete(self, request: Request) -> Reply:
        raise NotImplementedError


def test_calls_run_at_once_and_results_keep_their_order() -> None:
    barrier = threading.Barrier(2, timeout=10)

    def call(i: int) -> Any:
        barrier.wait()  # ends only if the other call runs too
        return i

    assert together([lambda: call(0), lambda: call(1)], lm=Model("mailbox"), deadline_s=60) == [0, 1]


def test_a_model_of_one_thread_is_asked_in_order() -> None:
    seen: list[int] = []
    together([lambda: seen.append(0), lambda: seen.append(1)], lm=Model("local:x.gguf"), deadline_s=60)
    assert seen == [0, 1]


def test_the_first_calls_error_is_raised_when_all_have_ended() -> None:
    ended: list[int] = []

    def fail(i: int) -> None:
        ended.append(i)
        raise LMError(f"call {i}")

    with pytest.raises(LMError, match="call 0"):
        together([lambda: fail(0), lambda: fail(1)], lm=Model("mailbox"), deadline_s=60)
    assert sorted(ended) == [0, 1]


def test_a_call_that_could_not_begin_in_time_is_not_begun() -> None:
    now = [0.0]
    begun: list[int] = []

    def call(i: int) -> None:
        begun.append(i)
        now[0] = 100.0  # it takes longer than the other one may wait

    with pytest.raises(LMError, match="mailbox was busy for 5 s"):
        together(
            [lambda: call(0), lambda: call(1)], lm=Model("mailbox"), deadline_s=5, answerers=1, clock=lambda: now[0]
        )
    assert begun == [0]


class Pair(Model):
    """Answers the first two requests only once both have been asked."""

    def __init__(self) -> None:
        super().__init__("mailbox")
        self.barrier = threading.Barrier(2, timeout=10)
        self.asked: list[tuple[int, int, int]] = []

    def complete(self, request: Request) -> Reply:
        self.asked.append((request.phase, request.sample, request.attempt))
        if request.attempt == 1:
            self.barrier.wait()
        return Reply(block(f"a = {request.sample}" + " + bad" * (request.attempt == 1), "python"))


def test_both_writers_of_phase_1_are_asked_at_once_and_then_go_on_alone() -> None:
    spec = parse_spec(COUNTER.format(version=1, model="none"), "specs/modules/counter.spec.md")
    lm = Pair()
    written = write_module(
        spec, lm, peers={}, sources={}, judge=ScriptedJudge(), compare=ScriptedCompare(), review=False, attempts=2
    )
    assert written.source == "a = 0\n"
    assert sorted(lm.asked[:2]) == [(1, 0, 1), (1, 1, 1)]
    assert lm.asked[2:] == [(1, 0, 2), (1, 1, 2)]

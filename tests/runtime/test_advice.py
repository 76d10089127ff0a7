"""The advice that goes with a worker's failure."""

from __future__ import annotations

import pytest

from pibroch.runtime import failures
from pibroch.runtime.errors import InputError, WorkerError
from pibroch.runtime.failures import Failures
from pibroch.runtime.launcher import Gather


def advice(book: Failures, kind: str, ranks: list[int], message: str = "it failed") -> str:
    error = WorkerError(message)
    book.advise(error, kind, ranks)
    return error.advice.split(":")[0]


def test_a_second_failure_of_one_rank_in_five_minutes_evicts_it() -> None:
    times = iter([0.0, 10.0, 300.0, 700.0])
    book = Failures(clock=lambda: next(times))
    assert advice(book, "process_died", [1]) == "retry"
    assert advice(book, "process_died", [2]) == "retry"
    assert advice(book, "timeout", [1, 3]) == "evict"  # rank 1 again, exactly 300 s later
    assert advice(book, "timeout", [1]) == "retry"


def test_a_lost_device_is_evicted_at_once_and_an_exception_rolled_back() -> None:
    book = Failures(clock=lambda: 0.0)
    assert advice(book, "exception", [0], "rank 0: RuntimeError: CUDA error: unspecified launch failure") == "evict"
    assert advice(book, "exception", [1], "rank 1: ValueError: no") == "rollback"


def test_without_the_policy_an_error_stands_without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise InputError(name)

    monkeypatch.setattr(failures, "load_generated", missing)
    assert advice(Failures(clock=lambda: 0.0), "timeout", [0]) == ""


def test_a_dead_rank_s_error_carries_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pibroch.runtime.launcher.FAILURES", Failures(clock=lambda: 0.0))
    gather = Gather("step", 2, 1.0)
    gather.answer(0, None)
    gather.died(1, "killed by SIGKILL")
    error = gather.error([], lambda rank: "")
    assert isinstance(error, WorkerError)
    assert error.advice == "retry: start again as it is: a first failure of this kind may pass"

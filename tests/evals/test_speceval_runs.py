"""Runs of several threads: which schedules are run, logs that contradict themselves, the candidate's `threading`."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from thread_specs import COUNTER, COUNTER_CODE, with_scenarios

from pibroch.evals.speceval import child_sync
from pibroch.evals.speceval.explore import Frontier, random_plans
from pibroch.evals.speceval.scenarios import own_scenarios
from pibroch.evals.speceval.session import Session, SessionEnded
from pibroch.evals.speceval.thread_runs import Choice, Plan, RunLog, Runner


class Forging:
    """A session whose child changes what a run's log says."""

    def __init__(self, session: Session, change: Any) -> None:
        self.session, self.change, self.asked = session, change, session.asked

    def command(self, name: str, payload: Any) -> Any:
        reply = self.session.command(name, payload)
        self.change(reply[0])
        return reply

    def kill(self) -> None:
        self.session.kill()


def _choose(log: dict[str, Any]) -> None:
    log["choices"][0][3] = 1


def _drop(log: dict[str, Any]) -> None:
    log["events"] = [e for e in log["events"] if e[0] != "return"]


def _twice(log: dict[str, Any]) -> None:
    log["events"].append(next(e for e in log["events"] if e[0] == "return"))


def _silent(log: dict[str, Any]) -> None:
    log["events"] = []


@pytest.mark.parametrize("change", [_choose, _drop, _twice, _silent, dict.clear], ids=lambda f: f.__name__)
def test_a_log_that_contradicts_itself_ends_the_session(change: Any) -> None:
    with Session(COUNTER_CODE, COUNTER, threads=2) as session:
        scenario = own_scenarios(with_scenarios(COUNTER, {"threads": [["bump()"], ["bump()"]]}))[0]
        honest = Runner(session, scenario, [], []).execute([Plan((0,))], "sync")[0]
        assert honest.end == "done"
        with pytest.raises(SessionEnded, match="contradicts itself"):
            Runner(Forging(session, change), scenario, [], []).execute([Plan((0,))], "sync")  # type: ignore[arg-type]


def test_each_schedule_within_the_bound_is_run_once() -> None:
    """Two threads of two steps: of the 6 orders, 2 need no preemption, 2 one, and 2 two."""

    def run(plan: Plan) -> RunLog:
        left, running = [2, 2], -1
        choices: list[Choice] = []
        order: list[int] = []
        while any(left):
            able = tuple(t for t in (0, 1) if left[t])
            if len(able) > 1:
                i = len(choices)
                chosen = plan.choices[i] if i < len(plan.choices) else (running if running in able else able[0])
                choices.append(Choice(running if running in able else -1, able, chosen))
            else:
                chosen = able[0]
            left[chosen] -= 1
            running = chosen
            order.append(chosen)
        seen.append(tuple(order))
        return RunLog(plan, choices, [], "done", [], {}, {})

    seen: list[tuple[int, ...]] = []
    frontier, counts = Frontier(bound=2), []
    while frontier.level is not None:
        level = frontier.level
        for plan in frontier.take(1):
            frontier.add(run(plan))
        counts.append(level)
    assert len(seen) == len(set(seen)) == 6
    assert [counts.count(n) for n in (0, 1, 2)] == [2, 2, 2]


def test_random_schedules_are_the_same_for_the_same_seed() -> None:
    assert random_plans("a", 3, 20, 10) == random_plans("a", 3, 20, 10) != random_plans("b", 3, 20, 10)
    assert all(sorted(p.priorities) == [len(p.changes) + 1 + i for i in range(3)] for p in random_plans("a", 3, 20, 10))


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore"])
def test_the_shim_behaves_as_threading_does_for_one_thread(kind: str) -> None:
    def uses(module: Any) -> list[Any]:
        made = getattr(module, kind)()
        steps: list[tuple[Any, ...]] = {
            "Event": [("is_set",), ("set",), ("wait",), ("wait", 0.0), ("clear",), ("wait", 0.0)],
            "Condition": [("notify",), ("acquire",), ("wait", 0.0), ("notify_all",), ("release",), ("release",)],
        }.get(kind, [("acquire",), ("acquire", False), ("release",), ("release",), ("acquire", True, 0.0)])
        seen: list[Any] = []
        for name, *args in steps:
            try:
                seen.append(getattr(made, name)(*args))
            except (RuntimeError, ValueError) as error:
                seen.append(type(error))
        return seen

    assert uses(child_sync.threading()) == uses(threading)

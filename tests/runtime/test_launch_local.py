"""Local workers: results, errors, deaths, deadlines, and that nothing is left behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibroch.runtime.errors import InputError, MissingError, WorkerError
from pibroch.runtime.launch_local import LocalLauncher
from pibroch.runtime.launcher import Gather, make_launcher
from pibroch.runtime.process import Failure

ECHO = "echo_worker:EchoWorker"
LONG = 60.0  # never reached
SHORT = 1.0  # reached on purpose


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalLauncher]:
    """For tests that leave the pool as it was."""
    with LocalLauncher(worker=ECHO) as launcher:
        launcher.start(3, deadline=LONG)
        yield launcher


@pytest.fixture
def pool() -> Iterator[LocalLauncher]:
    with LocalLauncher(worker=ECHO) as launcher:
        launcher.start(3, deadline=LONG)
        yield launcher


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_gone(pid: int) -> None:
    """Return when process `pid`, not a child of ours, has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    ready, _, _ = select.select([handle], [], [], LONG)
    os.close(handle)
    assert ready, f"process {pid} is still there"


def test_results_come_in_rank_order(shared: LocalLauncher) -> None:
    answers = shared.call("who", deadline=LONG)
    assert [(rank, world) for rank, world, _ in answers] == [(0, 3), (1, 3), (2, 3)]
    assert [pid for *_, pid in answers] == shared.pids
    assert len({os.getpid(), *shared.pids}) == 4


def test_each_rank_gets_its_own_arguments(shared: LocalLauncher) -> None:
    assert shared.call("echo", [("a",), ("b", 2), (None,)], deadline=LONG) == ["a", ("b", 2), None]


def test_a_wrong_number_of_arguments_is_an_input_error(shared: LocalLauncher) -> None:
    with pytest.raises(InputError, match=r"echo got arguments for 2 ranks, but there are 3"):
        shared.call("echo", [(1,), (2,)], deadline=LONG)
    assert shared.call("echo", [(1,), (2,), (3,)], deadline=LONG) == [1, 2, 3]


def test_workers_keep_their_state_between_calls(shared: LocalLauncher) -> None:
    shared.call("keep", [(np.full(4, rank),) for rank in range(3)], deadline=LONG)
    assert shared.call("kept_sum", deadline=LONG) == [0.0, 4.0, 8.0]


def test_workers_compute_with_one_thread(shared: LocalLauncher) -> None:
    assert shared.call("environment", [("OMP_NUM_THREADS",)] * 3, deadline=LONG) == ["1"] * 3


TENSORS: dict[str, torch.Tensor] = {
    "large": torch.arange(3 << 20, dtype=torch.float32).reshape(3, -1),
    "bf16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(3, dtype=torch.int64),
    "empty": torch.empty(0, 4),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "column": torch.arange(600.0).reshape(100, 6)[:, 2],
    "channels last": torch.arange(48.0).reshape(1, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "frozen": torch.nn.Parameter(torch.ones(3), requires_grad=False),
}


def test_tensors_arrive_as_they_are(shared: LocalLauncher) -> None:
    echoed = shared.call("echo", [(TENSORS,)] * 3, deadline=LONG)
    for received in echoed:
        assert received.keys() == TENSORS.keys()
        for name, sent in TENSORS.items():
            got = received[name]
            assert torch.equal(got, sent), name
            assert (got.dtype, type(got), got.requires_grad) == (sent.dtype, type(sent), sent.requires_grad), name
    assert echoed[0]["channels last"].stride() == TENSORS["channels last"].stride()


def test_received_tensors_are_aligned_and_writable(shared: LocalLauncher) -> None:
    tensor = torch.zeros(1001)
    addresses = shared.call("address", [(tensor,)] * 3, deadline=LONG)
    assert [address % 64 for address in addresses] == [0, 0, 0]
    assert shared.call("writable", [(tensor,)] * 3, deadline=LONG) == [1001.0] * 3
    assert tensor.sum() == 0
    back = shared.call("echo", [(np.zeros(5000),)] * 3, deadline=LONG)[0]
    back += 1  # the driver's copies are writable, too


def test_tied_tensors_of_one_argument_stay_tied(shared: LocalLauncher) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    first, second = shared.call("echo", [([weight, weight],)] * 3, deadline=LONG)[0]
    assert first is second


@pytest.mark.parametrize(("kind", "expected"), [("input", InputError), ("missing", MissingError)])
def test_a_users_mistake_keeps_its_class_and_the_pool(
    shared: LocalLauncher, kind: str, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as caught:
        shared.call("raise_on", [(1, kind)] * 3, deadline=LONG)
    assert str(caught.value) in ("layers=3 does not divide by 2", "no such thing")
    assert shared.call("echo", [(1,)] * 3, deadline=LONG) == [1, 1, 1]


def test_another_exception_names_the_rank_and_keeps_the_traceback(pool: LocalLauncher) -> None:
    with pytest.raises(WorkerError) as caught:
        pool.call("raise_on", [(1, "other")] * 3, deadline=LONG)
    assert str(caught.value) == "rank 1: RuntimeError: boom"
    assert "in raise_on" in caught.value.detail
    assert "about to fail" in caught.value.detail


def test_ranks_that_wait_for_a_failed_one_do_not_hold_up_the_error(pool: LocalLauncher) -> None:
    pids = pool.pids
    with pytest.raises(WorkerError, match=r"^rank 2: RuntimeError: boom$"):
        pool.call("raise_or_wait", [(2, "other")] * 3, deadline=LONG)
    assert not any(map(alive, pids))
    with pytest.raises(WorkerError, match=r"stopped after raise_or_wait: rank 2: RuntimeError: boom"):
        pool.call("who", deadline=LONG)


def test_an_input_error_among_waiting_ranks_stops_the_pool(pool: LocalLauncher) -> None:
    with pytest.raises(InputError, match=r"^layers=3"):
        pool.call("raise_or_wait", [(0, "input")] * 3, deadline=LONG)
    with pytest.raises(WorkerError, match=r"stopped after raise_or_wait"):
        pool.call("who", deadline=LONG)


def test_a_killed_rank_is_named_with_its_signal(pool: LocalLauncher) -> None:
    pids = pool.pids
    with pytest.raises(WorkerError, match=r"^rank 1 died \(killed by SIGKILL\) during kill_on$"):
        pool.call("kill_on", [(1, signal.SIGKILL)] * 3, deadline=LONG)
    assert not any(map(alive, pids))


def test_a_rank_that_died_between_calls_is_named(pool: LocalLauncher) -> None:
    os.kill(pool.pids[2], signal.SIGTERM)
    with pytest.raises(WorkerError, match=r"^rank 2 died \(killed by SIGTERM\) during wait$"):
        pool.call("wait", deadline=LONG)


def test_an_exit_status_and_last_words_are_shown(pool: LocalLauncher) -> None:
    with pytest.raises(WorkerError, match=r"^rank 0 died \(exit status 3\) during exit_on$") as caught:
        pool.call("exit_on", [(0, 3)] * 3, deadline=LONG)
    assert "last words" in caught.value.detail


def test_a_stopped_rank_is_named_at_the_deadline_and_killed(pool: LocalLauncher) -> None:
    pids = pool.pids
    with pytest.raises(WorkerError, match=r"^rank 1 is stopped \(SIGSTOP\) during stop_on and did not answer"):
        pool.call("stop_on", [(1,)] * 3, deadline=SHORT)
    assert not any(map(alive, pids))


def test_a_stopped_rank_that_must_take_a_large_message_is_named(pool: LocalLauncher) -> None:
    os.kill(pool.pids[0], signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"^rank 0 is stopped"):
        pool.call("keep", [(np.zeros(1 << 20),)] * 3, deadline=SHORT)


def test_late_ranks_are_named_and_tell_where_they_are(pool: LocalLauncher) -> None:
    with pytest.raises(WorkerError, match=r"^ranks 0, 2 did not answer wait_on within 1 s$") as caught:
        pool.call("wait_on", [((0, 2),)] * 3, deadline=SHORT)
    assert "in wait_on" in caught.value.detail


def test_what_cannot_be_pickled_is_an_input_error(shared: LocalLauncher) -> None:
    with pytest.raises(InputError, match=r"argument 2 of echo cannot be pickled .*functools\.partial"):
        shared.call("echo", [(1, lambda: None)] * 3, deadline=LONG)
    with pytest.raises(InputError, match=r"the result of unpicklable on rank \d cannot be pickled"):
        shared.call("unpicklable", deadline=LONG)
    assert shared.call("echo", [(functools.partial(max, 3),)] * 3, deadline=LONG)[0](2) == 3


def test_an_unknown_method_is_named(pool: LocalLauncher) -> None:
    with pytest.raises(WorkerError, match=r"no attribute 'nothing'"):
        pool.call("nothing", deadline=LONG)


def test_close_leaves_no_process_and_may_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launcher = LocalLauncher(worker=ECHO)
    launcher.start(2, deadline=LONG)
    pids = launcher.pids
    children = launcher.call("child", deadline=LONG)
    launcher.close()
    launcher.close()
    assert not any(map(alive, pids))
    for child in children:  # not ours to reap: init may take a moment
        wait_gone(child)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WorkerError, match=r"stopped after close"):
        launcher.call("who", deadline=LONG)


def test_a_launcher_that_is_dropped_stops_its_workers() -> None:
    launcher = LocalLauncher(worker=ECHO)
    launcher.start(2, deadline=LONG)
    pids = launcher.pids
    del launcher
    assert not any(map(alive, pids))


def test_calls_need_a_start_and_only_one() -> None:
    launcher = LocalLauncher(worker=ECHO)
    with pytest.raises(WorkerError, match=r"call start\(\) first"):
        launcher.call("who", deadline=LONG)
    with pytest.raises(InputError, match=r"at least one rank"):
        launcher.start(0, deadline=LONG)
    launcher.start(1, deadline=LONG)
    with pytest.raises(InputError, match=r"started before"):
        launcher.start(1, deadline=LONG)
    launcher.close()


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        ("echo_worker:BrokenWorker", r"^rank 1: RuntimeError: no device for rank 1$"),
        ("no_such_module:Worker", r"ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_worker_that_cannot_be_built_fails_the_start(worker: str, message: str) -> None:
    launcher = LocalLauncher(worker=worker)
    with pytest.raises(WorkerError, match=message):
        launcher.start(2, deadline=LONG)
    assert launcher.pids == []


def test_two_launchers_at_once(shared: LocalLauncher) -> None:
    with LocalLauncher(worker=ECHO) as other:
        other.start(2, deadline=LONG)
        assert [world for _, world, _ in other.call("who", deadline=LONG)] == [2, 2]
        assert [world for _, world, _ in shared.call("who", deadline=LONG)] == [3, 3, 3]
    assert len(shared.call("who", deadline=LONG)) == 3


def test_workers_import_what_the_driver_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: LocalLauncher
) -> None:
    (tmp_path / "launched_user_module.py").write_text("VALUE = 42\ndef twice(x):\n    return 2 * x\n")
    with pytest.raises(WorkerError, match=r"ModuleNotFoundError"):  # not on the path when that pool started
        pool.call("import_value", [("launched_user_module", "VALUE")] * 3, deadline=LONG)
    monkeypatch.syspath_prepend(str(tmp_path))
    import launched_user_module  # type: ignore[import-not-found]

    with LocalLauncher(worker=ECHO) as launcher:
        launcher.start(1, deadline=LONG)
        assert launcher.call("import_value", [("launched_user_module", "VALUE")], deadline=LONG) == [42]
        assert launcher.call("apply", [(launched_user_module.twice, 4)], deadline=LONG) == [8]


def run_script(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "user_script.py"
    script.write_text(textwrap.dedent(text))
    path = os.pathsep.join(entry for entry in sys.path if entry)
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=LONG)


def test_functions_of_the_users_script_reach_the_workers(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        from pibroch.runtime.launch_local import LocalLauncher

        def thrice(x):
            return 3 * x

        if __name__ == "__main__":
            with LocalLauncher(worker="echo_worker:EchoWorker") as launcher:
                launcher.start(2, deadline=60)
                print(launcher.call("apply", [(thrice, 1), (thrice, 2)], deadline=60))
        """,
    )
    assert done.stdout == "[3, 6]\n", done.stderr


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        from pibroch.runtime.launch_local import LocalLauncher

        def thrice(x):
            return 3 * x

        launcher = LocalLauncher(worker="echo_worker:EchoWorker")
        launcher.start(1, deadline=60)
        launcher.call("apply", [(thrice, 1)], deadline=60)
        """,
    )
    assert 'guard what starts training with `if __name__ == "__main__":`' in done.stderr.replace("\n", " ")
    assert done.returncode == 1


DRIVER = """
import sys, threading
from pibroch.runtime.launch_local import LocalLauncher

launcher = LocalLauncher(worker="echo_worker:EchoWorker")
def start():
    launcher.start(2, deadline=60)
if sys.argv[1] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert len(launcher.call("who", deadline=60)) == 2  # the thread has ended, its workers have not
else:
    start()
print(*launcher.pids, flush=True)
launcher.call("wait", deadline=600)
"""


@pytest.mark.parametrize("where", ["main", "thread"])
def test_no_worker_outlives_a_killed_driver(where: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen([sys.executable, "-c", DRIVER, where], stdout=subprocess.PIPE, text=True, env=env) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        if where == "main":
            os.kill(pids[0], signal.SIGSTOP)  # not even a stopped one
        driver.kill()
    for pid in pids:
        wait_gone(pid)


def test_an_interrupt_stops_the_pool(pool: LocalLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    import selectors

    pids = pool.pids

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(selectors.DefaultSelector, "select", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.call("wait", deadline=LONG)
    assert not any(map(alive, pids))
    with pytest.raises(WorkerError, match=r"stopped after wait \(KeyboardInterrupt\)"):
        pool.call("who", deadline=LONG)


def test_output_is_kept_but_bounded(pool: LocalLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pibroch.runtime.launch_local.LOG_LIMIT", 10)
    for text in ("a" * 50, "b" * 5):
        pool.call("apply", [(print, text)] * 3, deadline=LONG)
    with pytest.raises(WorkerError) as caught:
        pool.call("raise_on", [(0, "other")] * 3, deadline=LONG)
    assert "aaa" not in caught.value.detail


def test_make_launcher_names_the_kinds() -> None:
    launcher = make_launcher("local", worker=ECHO)
    assert isinstance(launcher, LocalLauncher)
    assert make_launcher(launcher) is launcher
    with pytest.raises(InputError, match=r"'slurm'; use one of ray, local"):
        make_launcher("slurm")
    with pytest.raises(InputError, match=r"needs the launcher 'ray'"):
        make_launcher("local", address="10.0.0.1:6379")


class TestGather:
    """The conclusions, on a clock of our own."""

    def test_a_failure_shortens_the_wait_to_the_grace(self) -> None:
        now = [0.0]
        gather = Gather("step", 2, 100.0, clock=lambda: now[0])
        now[0] = 10.0
        assert gather.left == 90.0
        gather.answer(1, Failure("other", "RuntimeError: x", ""))
        assert gather.left == 1.0
        now[0] = 11.5
        assert gather.left == 0.0
        assert gather.waited
        assert not gather.healthy

    def test_a_death_outweighs_the_failure_it_caused(self) -> None:
        gather = Gather("step", 3, 100.0)
        gather.answer(0, Failure("other", "RuntimeError: connection closed by peer", "trace of 0"))
        gather.died(1, "killed by SIGKILL")
        error = gather.error([], lambda rank: f"output of {rank}")
        assert gather.left == 0.0
        assert str(error) == (
            "rank 1 died (killed by SIGKILL) during step; rank 0: RuntimeError: connection closed by peer"
        )
        assert error is not None
        assert "trace of 0" in error.detail
        assert "output of 1" in error.detail

    def test_a_stopped_rank_outweighs_the_failure_it_caused(self) -> None:
        gather = Gather("step", 2, 100.0)
        gather.answer(0, Failure("other", "RuntimeError: timed out", ""))
        error = gather.error([1], lambda rank: "")
        assert str(error) == "rank 1 is stopped (SIGSTOP) during step; rank 0: RuntimeError: timed out"

    def test_the_first_failure_is_the_one_that_is_told(self) -> None:
        gather = Gather("load", 2, 100.0)
        gather.answer(1, Failure("input", "no such chunk", ""))
        gather.answer(0, Failure("input", "later", ""))
        error = gather.error([], lambda rank: "")
        assert isinstance(error, InputError)
        assert str(error) == "no such chunk"
        assert gather.healthy

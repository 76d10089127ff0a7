"""Ray workers: the same promises as local ones, and a cluster of two nodes on one machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pibroch.runtime.errors import InputError, MissingError, WorkerError
from pibroch.runtime.launch_ray import RayLauncher, share
from pibroch.runtime.launcher import make_launcher, process_state
from pibroch.runtime.ray_session import SESSION

ECHO = "echo_worker:EchoWorker"
LONG = 120.0  # never reached
SHORT = 1.0  # reached on purpose


@pytest.fixture(scope="module")
def shared() -> Iterator[RayLauncher]:
    """For tests that leave the pool as it was; it also holds the session that the others use."""
    with RayLauncher(worker=ECHO) as launcher:
        launcher.start(2, deadline=LONG)
        yield launcher


@pytest.fixture
def pool(shared: RayLauncher) -> Iterator[RayLauncher]:
    with RayLauncher(worker=ECHO) as launcher:
        launcher.start(2, deadline=LONG)
        yield launcher


def alive(pid: int) -> bool:
    """Whether process `pid` runs; Ray reaps its workers some time after they have ended."""
    return process_state(pid) not in ("", "Z")


def processes_naming(text: str) -> list[int]:
    """Ids of the processes whose command line has `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_results_come_in_rank_order_from_processes_of_their_own(shared: RayLauncher) -> None:
    answers = shared.call("who", deadline=LONG)
    assert [(rank, world) for rank, world, _ in answers] == [(0, 2), (1, 2)]
    assert [pid for *_, pid in answers] == shared.pids
    assert len({os.getpid(), *shared.pids}) == 3
    assert shared.call("echo", [("a",), ("b", 2)], deadline=LONG) == ["a", ("b", 2)]
    assert shared.call("environment", [("OMP_NUM_THREADS",)] * 2, deadline=LONG) == ["1", "1"]
    assert shared.reachable_host() == "127.0.0.1"


def test_large_arrays_arrive_as_they_are_and_writable(shared: RayLauncher) -> None:
    array = np.random.default_rng(0).standard_normal(1 << 20)
    small = np.arange(3)
    for received, little in shared.call("echo", [(array, small)] * 2, deadline=LONG):
        assert np.array_equal(received, array)
        received += 1
        little += 1
    assert shared.call("writable", [(np.zeros(50_000),)] * 2, deadline=LONG) == [50_000.0] * 2


def test_a_users_mistake_keeps_its_class_and_the_pool(shared: RayLauncher) -> None:
    with pytest.raises(InputError, match=r"^layers=3 does not divide by 2$"):
        shared.call("raise_on", [(1, "input")] * 2, deadline=LONG)
    with pytest.raises(MissingError, match=r"^no such thing$"):
        shared.call("raise_on", [(0, "missing")] * 2, deadline=LONG)
    with pytest.raises(InputError, match=r"the result of unpicklable on rank \d cannot be pickled"):
        shared.call("unpicklable", deadline=LONG)
    with pytest.raises(InputError, match=r"argument 1 of echo cannot be pickled"):
        shared.call("echo", [(lambda: None,)] * 2, deadline=LONG)
    assert shared.call("echo", [(1,), (2,)], deadline=LONG) == [1, 2]


def test_two_launchers_share_the_session(shared: RayLauncher) -> None:
    import ray

    with RayLauncher(worker=ECHO) as other:
        other.start(1, deadline=LONG)
        assert other.call("who", deadline=LONG)[0][:2] == (0, 1)
        pids = other.pids
    assert not any(map(alive, pids))
    assert ray.is_initialized()
    assert len(shared.call("who", deadline=LONG)) == 2


def test_an_exception_ends_the_wait_of_the_others_and_the_pool(pool: RayLauncher) -> None:
    pids = pool.pids
    with pytest.raises(WorkerError) as caught:
        pool.call("raise_or_wait", [(1, "other")] * 2, deadline=LONG)
    assert str(caught.value) == "rank 1: RuntimeError: boom"
    assert "in raise_on" in caught.value.detail
    assert "about to fail" in caught.value.detail
    assert not any(map(alive, pids))
    with pytest.raises(WorkerError, match=r"stopped after raise_or_wait: rank 1"):
        pool.call("who", deadline=LONG)


def test_a_killed_rank_is_named(pool: RayLauncher, capsys: pytest.CaptureFixture[str]) -> None:
    pids = pool.pids
    with pytest.raises(WorkerError, match=r"^rank 1 died during kill_on$"):
        pool.call("kill_on", [(1, signal.SIGKILL)] * 2, deadline=LONG)
    assert not any(map(alive, pids))
    assert capsys.readouterr().out == ""  # the command line's results go there


def test_a_stopped_rank_is_named_at_the_deadline_and_killed(pool: RayLauncher) -> None:
    pids = pool.pids
    with pytest.raises(WorkerError, match=r"^rank 0 is stopped \(SIGSTOP\) during stop_on and did not answer"):
        pool.call("stop_on", [(0,)] * 2, deadline=SHORT)
    assert not any(map(alive, pids))


def test_late_ranks_are_named_and_tell_where_they_are(pool: RayLauncher) -> None:
    with pytest.raises(WorkerError, match=r"^rank 1 did not answer wait_on within 1 s$") as caught:
        pool.call("wait_on", [((1,),)] * 2, deadline=SHORT)
    assert "in wait_on" in caught.value.detail


def test_a_worker_that_cannot_be_built_fails_the_start(shared: RayLauncher) -> None:
    launcher = RayLauncher(worker="echo_worker:BrokenWorker")
    with pytest.raises(WorkerError, match=r"^rank 1: RuntimeError: no device for rank 1$"):
        launcher.start(2, deadline=LONG)
    launcher.close()


def test_workers_import_what_the_driver_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: RayLauncher
) -> None:
    (tmp_path / "ray_user_module.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import ray_user_module  # type: ignore[import-not-found]

    with RayLauncher(worker=ECHO) as launcher:
        launcher.start(1, deadline=LONG)
        assert launcher.call("apply", [(ray_user_module.twice, 4)], deadline=LONG) == [8]


def test_another_address_than_the_sessions_is_refused(shared: RayLauncher) -> None:
    launcher = RayLauncher(address="127.0.0.1:1", worker=ECHO)
    with pytest.raises(InputError, match=r"connected to .* already"):
        launcher.start(1, deadline=LONG)
    assert len(shared.call("who", deadline=LONG)) == 2


OWN_SESSION = """
import os, sys
import ray
from pibroch.runtime.launch_ray import RayLauncher
from pibroch.runtime.ray_session import SESSION

launcher = RayLauncher(worker="echo_worker:EchoWorker")
launcher.start(1, deadline=120)
folder = os.path.dirname(os.path.dirname(SESSION.logs()))
print(folder, *launcher.pids, flush=True)
if sys.argv[1] == "close":
    launcher.close()
    assert not ray.is_initialized()
    assert not os.path.exists(folder)
elif sys.argv[1] == "wait":
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["close", pytest.param("leave", marks=pytest.mark.slow), "wait"])
def test_a_session_of_ours_leaves_nothing(end: str) -> None:
    """After close(), after the driver's end without one, and (but for files) after the driver was killed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", OWN_SESSION, end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=env) as driver:
        assert driver.stdout is not None
        folder, *pids = driver.stdout.readline().split()
        if end == "wait":
            driver.kill()
        else:
            assert driver.wait(LONG) == 0
    processes = [*processes_naming(folder), *map(int, pids)]
    if end == "close":
        assert not any(map(alive, processes))
    for pid in processes:
        wait_gone(pid)
    if end == "wait":
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    assert not os.path.exists(folder)


def wait_gone(pid: int) -> None:
    """Return when process `pid`, not a child of ours, has ended."""
    import select

    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([handle], [], [], LONG)
    os.close(handle)
    assert ready, f"process {pid} is still there"


class TestWithoutASession:
    """What is refused before Ray starts."""

    @pytest.fixture(autouse=True)
    def _no_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import ray

        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "shutdown", lambda: None)
        monkeypatch.setattr(SESSION, "_users", 0)
        monkeypatch.setattr(SESSION, "_ours", False)
        monkeypatch.setattr(SESSION, "_folder", "")

    @pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "head", "head:port"])
    def test_an_address_that_is_none(self, address: str) -> None:
        with pytest.raises(InputError, match=r"host:port of the cluster's head"):
            RayLauncher(address=address).start(1, deadline=LONG)

    def test_a_cluster_that_does_not_answer(self) -> None:
        with socket.socket() as bound:  # bound, but nobody listens
            bound.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{bound.getsockname()[1]}"
            with pytest.raises(WorkerError, match=rf"no Ray cluster answers at {address}"):
                RayLauncher(address=address).start(1, deadline=LONG)

    @pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
    def test_a_server_that_is_no_cluster(self, answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pibroch.runtime.ray_session.CONNECT", SHORT)
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve() -> None:
                connection, _ = server.accept()
                if answer is not None:
                    connection.recv(100)
                    connection.sendall(answer)
                    connection.close()
                kept.append(connection)

            kept: list[socket.socket] = []
            thread = threading.Thread(target=serve)
            thread.start()
            address = f"127.0.0.1:{server.getsockname()[1]}"
            with pytest.raises(WorkerError, match=rf"{address} (is no head of a Ray cluster|\(timed out)"):
                RayLauncher(address=address).start(1, deadline=LONG)
            thread.join()
            for connection in kept:
                connection.close()

    def test_ray_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        launcher = make_launcher("ray", worker=ECHO)
        with pytest.raises(MissingError, match=r"ray is not installed: pip install ray, or use --launcher local"):
            launcher.start(1, deadline=LONG)
        with pytest.raises(WorkerError, match=r"stopped after start"):
            launcher.call("who", deadline=LONG)

    def test_the_disk_is_full(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        import shutil

        monkeypatch.setattr("pibroch.runtime.ray_session._short_folder", lambda: str(tmp_path))
        usage: Any = type(shutil.disk_usage("/"))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 99, 1 << 20))
        with pytest.raises(MissingError, match=r"Ray needs 200 MB in .* and 1 MB are free"):
            RayLauncher().start(1, deadline=LONG)
        assert list(tmp_path.iterdir()) == []

    def test_ray_does_not_start(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        import ray

        def fails(**_: Any) -> None:
            raise RuntimeError("The raylet has died\nand a long story")

        monkeypatch.setattr("pibroch.runtime.ray_session._short_folder", lambda: str(tmp_path))
        monkeypatch.setattr(ray, "init", fails)
        with pytest.raises(WorkerError, match=r"^Ray did not start \(RuntimeError: The raylet has died\); --launcher"):
            RayLauncher().start(1, deadline=LONG)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "ranks", "expected"),
    [
        ([2.0, 2.0], 4, 1.0),  # two per node
        ([2.0, 2.0], 8, 0.5),  # four per node
        ([1.0, 1.0], 3, 0.5),  # 2/3 would leave room for one per node only
        ([2.0], 8, 0.2),  # 0.25 rounds down
        ([0.4, 0.05], 4, 0.1),
        ([0.4, 0.05], 5, 0.05),
        ([1.0], 16, 0.05),  # ranks that share a GPU
        ([1.0], 101, None),
        ([], 1, None),
    ],
)
def test_share_is_the_largest_that_fits(free: list[float], ranks: int, expected: float | None) -> None:
    assert share(free, ranks) == expected


CLUSTER = """
import os
import tempfile
import ray
from ray.cluster_utils import Cluster
from pibroch.runtime.errors import WorkerError
from pibroch.runtime.launch_ray import RayLauncher

folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # short: sockets go there
os.environ["RAY_TMPDIR"] = folder.name  # the cluster's address is noted there, for nobody else to find
os.mkdir(folder.name + "/ray")
head = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
try:
    launcher = RayLauncher(address=cluster.address, worker="echo_worker:EchoWorker")
    launcher.start(4, deadline=120)
    nodes = launcher.nodes
    assert len(set(nodes)) == 2, nodes
    assert nodes[0] == nodes[1] and nodes[2] == nodes[3], nodes
    assert [rank for rank, *_ in launcher.call("who", deadline=60)] == [0, 1, 2, 3]
    assert launcher.reachable_host() == ray.util.get_node_ip_address() != "127.0.0.1"
    try:
        launcher.call("stop_on", [(3,)] * 4, deadline=2)  # not on the driver's node
        raise AssertionError("a stopped rank answered")
    except WorkerError as error:
        assert str(error).startswith("rank 3 is stopped (SIGSTOP) during stop_on"), error
    launcher.close()
    assert not ray.is_initialized()

    ray.init(address=cluster.address, log_to_driver=False)
    with RayLauncher(worker="echo_worker:EchoWorker") as launcher:  # the user's session
        launcher.start(6, deadline=120)
        assert sorted(launcher.nodes.count(node) for node in set(launcher.nodes)) in ([2, 4], [3, 3])
    assert ray.is_initialized()
    tables = ray.util.placement_group_table().values()
    assert all(table["state"] == "REMOVED" for table in tables), list(tables)
    ray.shutdown()
finally:
    cluster.shutdown()
    folder.cleanup()
print("all well")
"""


@pytest.mark.slow
def test_neighbours_share_the_nodes_of_a_cluster() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run([sys.executable, "-c", CLUSTER], capture_output=True, text=True, env=env, timeout=240)
    assert done.stdout.rstrip().endswith("all well"), done.stderr[-3000:]

"""A run on a Ray cluster of two nodes equals the run of local processes, and a cluster outlives what goes wrong on it.

The nodes are two raylets on this machine, each with CPUs for half of the ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_run import Process, gone, parent_of, run_command, workers

from pibroch.runtime.directives import schedule_text
from pibroch.runtime.families import build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find processes"),
]

CLUSTER = """
import os, sys
from ray.cluster_utils import Cluster

os.mkdir(os.environ["RAY_TMPDIR"] + "/ray")
node = {"num_cpus": 2, "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
try:
    cluster.add_node(**node)
    print(cluster.address, flush=True)
    sys.stdin.read()
finally:
    cluster.shutdown()
"""


@dataclass(frozen=True)
class Cluster:
    pid: int  # the raylets' parent
    address: str

    def spread(self) -> list[int]:
        """How many workers each node has."""
        nodes = [parent_of(worker.pid) for worker in workers(self.pid)]
        return sorted(nodes.count(node) for node in set(nodes))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,  # short: sockets
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER], env={**os.environ, "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            lines = iter(process.stdout.readline, "")
            address = next(line.strip() for line in lines if line.count(":") == 1 and " " not in line.strip())
            yield Cluster(process.pid, address)
        finally:
            process.stdin.close()
            process.wait(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "s.json").write_text(schedule_text(build("1f1b", devices=2, replicas=2, microbatches=3)))
    return tmp_path


RUN = ["run", "s.json", "--model", "gpt-tiny", "--steps", "3", "--seed", "5", "--no-judge", "--json"]


def test_two_nodes_give_the_losses_of_local_processes(cluster: Cluster, folder: Path) -> None:
    spread: list[list[int]] = []
    there = run_command(
        [*RUN, "--address", cluster.address], cwd=folder, at="training 3 steps",
        act=lambda _: spread.append(cluster.spread()),
    )  # fmt: skip
    assert there.code == 0, there.err
    assert spread == [[2, 2]]
    here = run_command([*RUN, "--launcher", "local"], cwd=folder)
    assert here.code == 0, here.err
    assert there.last["losses"] == here.last["losses"]
    assert there.left == here.left == []
    assert cluster.spread() == []


def test_a_worker_stopped_on_the_other_node_is_named_and_ended(cluster: Cluster, folder: Path) -> None:
    stopped: list[Process] = []

    def stop(_: int) -> None:
        stopped.append(workers(cluster.pid)[-1])
        os.kill(stopped[0].pid, signal.SIGSTOP)

    command = [*RUN, "--address", cluster.address, "--deadline", "5", "--steps", "1000000"]
    done = run_command(command, cwd=folder, at="training 1000000 steps", act=stop)
    assert done.code == 4, done.err
    assert len(done.messages) == 1, done.err
    assert "stopped (SIGSTOP) during step" in done.messages[0]
    assert done.last["error"]["kind"] == "worker"
    assert all(map(gone, stopped))
    assert cluster.spread() == []


LADDER = """
import sys
import ray
from pibroch.evals.bench_false_wins import disguise
from pibroch.evals.ladder import Ladder
from pibroch.evals.models import load_workload
from pibroch.evals.setting import Setting
from pibroch.evals.task import Task
from pibroch.runtime.families import build

def groups():
    return [g["placement_group_id"] for g in ray.util.placement_group_table().values() if g["state"] == "CREATED"]

task = Task(name="t", title="t", model="mlp:4", devices=4, samples=4, intent="t")
pipeline = build("1f1b", devices=4, microbatches=4)
with Ladder(Setting(task, load_workload("mlp:4")), launcher="ray", address=sys.argv[1]) as ladder:
    verdicts, seen = [], []
    for n in range(2):
        verdicts.append(ladder.evaluate(disguise(pipeline, n), pipeline).verdict)
        seen.append(groups())
    print("evaluated", verdicts, len(seen[0]), seen[0] == seen[1])
"""


def test_an_evaluation_on_a_cluster_runs_in_one_placement_group(cluster: Cluster) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(
        [sys.executable, "-c", LADDER, cluster.address], capture_output=True, text=True, env=env, timeout=240
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("evaluated")), done.stderr[-3000:])
    assert line.endswith("1 True"), line
    assert "invalid" not in line
    assert "unequal" not in line
    assert cluster.spread() == []

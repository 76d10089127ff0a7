"""Shares of CPUs: whole cores, disjoint, all of them used."""

from __future__ import annotations

import os

import pytest

from pibroch.runtime.binding import share_of
from pibroch.runtime.launch_local import LocalLauncher

FLAT = {cpu: (0, cpu) for cpu in range(4)}
SIBLINGS = {cpu: (0, cpu % 4) for cpu in range(8)}  # CPU n + 4 is the other thread of core n
SOCKETS = {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)}  # core numbers start again on the second socket


def test_each_rank_has_its_own_cores() -> None:
    assert [share_of(rank, 2, FLAT) for rank in range(2)] == [{0, 1}, {2, 3}]
    assert [share_of(rank, 3, FLAT) for rank in range(3)] == [{0}, {1}, {2, 3}]


def test_both_threads_of_a_core_go_to_one_rank() -> None:
    assert [share_of(rank, 2, SIBLINGS) for rank in range(2)] == [{0, 4, 1, 5}, {2, 6, 3, 7}]
    assert share_of(3, 4, SIBLINGS) == {3, 7}


def test_sockets_are_not_mixed() -> None:
    assert [share_of(rank, 2, SOCKETS) for rank in range(2)] == [{0, 2}, {1, 3}]


def test_more_ranks_than_cores_share_all() -> None:
    assert [share_of(rank, 5, FLAT) for rank in range(5)] == [{0, 1, 2, 3}] * 5
    assert share_of(0, 8, SIBLINGS) == set(range(8))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not bind processes to CPUs")
def test_workers_run_where_they_were_put() -> None:
    mine = os.sched_getaffinity(0)
    with LocalLauncher(worker="echo_worker:EchoWorker") as launcher:
        launcher.start(2, deadline=60.0)
        seen = launcher.call("affinity", deadline=60.0)
    assert set.union(*seen) == mine
    assert len(mine) < 2 or not seen[0] & seen[1]

"""A pool of warm workers: started and connected once, then given programs.

The pool knows ranks, devices and communicators; the trainer above it knows models, plans and steps. A pool has as many
spaces as one likes: each holds values, models and programs of its own on the same workers and communicators, so that
two plans can be stepped in turn without being loaded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pibroch.runtime.errors import InputError
from pibroch.runtime.launcher import Launcher
from pibroch.runtime.plan import Plan
from pibroch.runtime.program import groups_of
from pibroch.runtime.watch import Watch

START_DEADLINE = 120.0  # a cold start imports torch in every process, on a machine that may be busy


class Pool:
    """Connected workers. `device` is "auto" (CUDA where every rank sees one), "cpu" or "cuda"."""

    def __init__(self, launcher: Launcher, ranks: int, *, deadline: float, device: str = "auto", port: int = 0) -> None:
        self.launcher = launcher
        self.ranks = ranks
        self.deadline = deadline
        self.watch = Watch()
        self._space = ""
        start = max(deadline, START_DEADLINE)
        launcher.start(ranks, deadline=start)
        try:
            self._connect(device, port, start)
        except BaseException:
            launcher.close()
            raise

    def call(self, method: str, args: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        return self._call("", method, args)

    def space(self, name: str) -> Space:
        """The same workers with values, models and programs of their own, under a name that is not empty."""
        assert name
        return Space(self, name)

    def ensure_groups(self, plan: Plan) -> int:
        """Make the communicators that a plan needs and the pool has not yet. Returns how many were new."""
        keys = groups_of(plan, nccl=self.nccl, world=self.ranks)
        made: int = self.call("groups", [(keys,)] * self.ranks)[0]
        return made

    def close(self) -> None:
        self.launcher.close()

    def _call(self, space: str, method: str, args: Sequence[tuple[Any, ...]] | None) -> list[Any]:
        if space != self._space:
            self.launcher.call("use", [(space,)] * self.ranks, deadline=self.deadline)
            self._space = space
        self.watch.record(method)
        return self.launcher.call(method, args, deadline=self.deadline)

    def _connect(self, device: str, port: int, deadline: float) -> None:
        seen = self.launcher.call("devices", deadline=deadline)
        names, distinct = _assign(seen, device)
        self.nccl = distinct and names[0] != "cpu"
        self.ordered = self.nccl  # workers launch from one thread, in the plan's launch order
        self.device = names[0].split(":")[0]
        port = self.launcher.call("host", [(r, port) for r in range(self.ranks)], deadline=deadline)[0]
        name = self.launcher.reachable_host()
        backend = "nccl" if self.nccl else "gloo"
        self.launcher.call("connect", [(name, port, n, backend, self.deadline) for n in names], deadline=deadline)


class Space(Pool):
    """One space of a pool. Closing it leaves the pool running; what it holds goes with the pool."""

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool, self._name = pool, name
        self.launcher, self.ranks, self.deadline, self.watch = pool.launcher, pool.ranks, pool.deadline, pool.watch
        self.nccl, self.ordered, self.device = pool.nccl, pool.ordered, pool.device

    def call(self, method: str, args: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        return self._pool._call(self._name, method, args)

    def close(self) -> None:
        pass


def _assign(seen: Sequence[tuple[str, list[str]]], device: str) -> tuple[list[str], bool]:
    """A device per rank, and whether no two ranks share one.

    `seen` holds each rank's host and the ids of the CUDA devices it sees.
    """
    if device == "cpu" or not all(ids for _, ids in seen):
        if device == "cuda":
            raise InputError("device cuda: at least one rank sees no CUDA device")
        return ["cpu"] * len(seen), True
    names, used = [], []
    local: dict[str, int] = {}
    for host, ids in seen:
        index = local.get(host, 0) % len(ids)
        local[host] = local.get(host, 0) + 1
        names.append(f"cuda:{index}")
        used.append((host, ids[index]))
    return names, len(set(used)) == len(used)

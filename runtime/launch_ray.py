"""Workers as Ray actors, one per rank: on this machine by default, or on the nodes of a running cluster."""

from __future__ import annotations

import contextlib
import faulthandler
import glob
import importlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pibroch.runtime.errors import MissingError, WorkerError
from pibroch.runtime.generated import VARIABLE
from pibroch.runtime.launcher import (
    WORKER,
    Gather,
    check_running,
    check_start,
    encode_arguments,
    load_reply,
    process_birth,
    process_state,
)
from pibroch.runtime.messages import Frame, Frames, room
from pibroch.runtime.process import Failure, Server, Setup, describe_main, driver_path
from pibroch.runtime.ray_session import SESSION

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)  # of a CPU or a GPU
SHARED = 100_000  # bytes from which an argument of several ranks is stored once
ASK_NODE = 10.0  # seconds for a look at processes on another node
FETCH = 10.0  # seconds that a result may take from its node when the call's own time has run out
LEAVE = 1.0  # seconds that killed processes get to be gone
TAIL = 4000  # bytes of a worker's log that an error shows


class Actor:
    """What runs in Ray: one worker, and where it is."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        with contextlib.suppress(Exception):
            faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        self._server = Server(setup)

    def place(self) -> Place:
        import ray

        host: Any = ray.util.get_node_ip_address  # untyped in Ray
        pid = os.getpid()
        return Place(pid, process_birth(pid), ray.get_runtime_context().get_node_id(), host())

    def build(self) -> list[Any]:
        return _packed(self._server.build())

    def run(self, method: str, *arguments: Sequence[Any]) -> list[Any]:
        return _packed(self._server.run(method, [_unpacked(frames) for frames in arguments]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor runs."""

    pid: int
    born: str  # when the process started, as `process_birth` tells
    node: str  # Ray's id of the node
    host: str  # the node's address


class RayLauncher:
    """One Ray actor per rank, with one thread for numerics unless `env` says more.

    `address` is "host:port" of a running cluster's head (or "auto"); None starts Ray on this machine, or uses the
    session that is already there. On several nodes neighbouring ranks share nodes. `gpus` gives each rank its share.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        worker: str = WORKER,
        gpus: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._address = address
        self._worker = worker
        self._gpus = gpus
        self._env = dict(env or {})
        self._ray: Any = None  # the module, while we hold a session
        self._actors: list[Any] = []
        self._places: list[Place] = []
        self._group: Any = None
        self._causes: dict[int, str] = {}  # what Ray says of the dead
        self._started = False
        self._stopped = ""

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order, each on its own node."""
        return [place.pid for place in self._places]

    @property
    def nodes(self) -> list[str]:
        """Ray's node ids in rank order."""
        return [place.node for place in self._places]

    def start(self, ranks: int, *, deadline: float) -> None:
        check_start(ranks, started=self._started)
        self._started = True
        until = time.monotonic() + deadline
        try:
            self._ray = SESSION.enter(self._address)
            options = self._options(ranks, until)
            path, main = driver_path(), describe_main()
            remote = self._ray.remote(Actor)
            for rank in range(ranks):
                setup = Setup(self._worker, rank, ranks, path, main)
                self._actors.append(remote.options(**options[rank]).remote(setup))
            calls = [actor.place.remote() for actor in self._actors]
            self._places = self._gather(Gather("start", ranks, until - time.monotonic()), calls, lambda place: place)
            calls = [actor.build.remote() for actor in self._actors]
            gather = Gather("start", ranks, until - time.monotonic())
            self._gather(gather, calls, lambda packed: load_reply(_unpacked(packed), "start"))
        except BaseException:
            self._stop("start")
            raise

    def call(self, method: str, args: Sequence[tuple[Any, ...]] | None = None, *, deadline: float) -> list[Any]:
        check_running(started=self._started, stopped=self._stopped)
        arguments = encode_arguments(method, args, len(self._actors))
        gather = Gather(method, len(self._actors), deadline)
        try:
            packed = self._stored(arguments)
            calls = [actor.run.remote(method, *parts) for actor, parts in zip(self._actors, packed, strict=True)]
        except BaseException as error:
            self._stop(f"{method} ({type(error).__name__})")
            raise
        return self._gather(gather, calls, lambda reply: load_reply(_unpacked(reply), method))

    def reachable_host(self) -> str:
        if len(set(self.nodes)) <= 1:
            return "127.0.0.1"
        return self._places[0].host

    def close(self) -> None:
        self._started = True
        if not self._stopped:
            self._stop("close()")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gather(self, gather: Gather, calls: Sequence[Any], load: Callable[[Any], Any]) -> list[Any]:
        ray = self._ray
        waiting = {call: rank for rank, call in enumerate(calls)}
        try:
            while (left := gather.left) > 0:
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
                self._collect(gather, ready, waiting, load)
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0) if waiting else ([], [])
            self._collect(gather, ready, waiting, load)
            stopped = self._find_stopped(gather) if gather.waited else []
            self._ask_where(gather.pending.difference(stopped))
            error = gather.error(stopped, self._output)
        except BaseException as interrupt:
            self._stop(f"{gather.method} ({type(interrupt).__name__})")
            raise
        if error is None:
            return gather.values()
        if not gather.healthy:
            self._stop(f"{gather.method}: {error}")
        raise error

    def _collect(
        self, gather: Gather, ready: Sequence[Any], waiting: dict[Any, int], load: Callable[[Any], Any]
    ) -> None:
        errors = self._ray.exceptions
        for call in ready:
            rank = waiting.pop(call)
            try:
                gather.answer(rank, load(self._ray.get(call, timeout=max(gather.left, FETCH))))
            except errors.RayActorError as error:
                self._causes[rank] = str(error)
                gather.died(rank, "")
            except errors.RayError as error:
                gather.answer(rank, Failure("other", f"{type(error).__name__} in Ray", str(error)))

    def _stored(self, arguments: Sequence[Sequence[Frames]]) -> list[list[Any]]:
        """Each rank's arguments for Ray; what is large and goes to several ranks is stored once."""
        users: dict[int, int] = {}
        for parts in arguments:
            for frames in parts:
                users[id(frames)] = users.get(id(frames), 0) + 1
        known: dict[int, Any] = {}
        for parts in arguments:
            for frames in parts:
                if id(frames) not in known:
                    large = users[id(frames)] > 1 and sum(len(frame) for frame in frames) >= SHARED
                    packed = _packed(frames)
                    known[id(frames)] = self._ray.put(packed) if large else packed
        return [[known[id(frames)] for frames in parts] for parts in arguments]

    def _options(self, ranks: int, until: float) -> list[dict[str, Any]]:
        """Ray's options for each rank's actor."""
        ray = self._ray
        variables = {**dict.fromkeys(THREADS, "1"), "PYTHONPATH": os.pathsep.join(driver_path()), **self._env}
        if VARIABLE in os.environ:
            variables.setdefault(VARIABLE, os.environ[VARIABLE])
        common: dict[str, Any] = {"runtime_env": {"env_vars": variables}, "max_restarts": 0, "num_cpus": 0}
        free = _free_resources(ray)
        if self._gpus:
            common["num_gpus"] = _needed(share([node.get("GPU", 0.0) for node in free], ranks), ranks, "GPU")
        if len(free) == 1:
            return [common] * ranks
        common["num_cpus"] = _needed(share([node.get("CPU", 0.0) for node in free], ranks), ranks, "CPU")
        bundle = {"CPU": common["num_cpus"], **({"GPU": common["num_gpus"]} if self._gpus else {})}
        self._group = ray.util.placement_group([bundle] * ranks, strategy="PACK")
        if not self._group.wait(timeout_seconds=max(0.1, until - time.monotonic())):
            raise WorkerError(f"the Ray cluster has no room for {ranks} workers of {bundle}: free some, or use fewer")
        table = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        nodes = [table[index] for index in range(ranks)]
        order = sorted(range(ranks), key=lambda index: nodes.index(nodes[index]))  # neighbours share nodes
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        return [{**common, "scheduling_strategy": strategy(self._group, index)} for index in order]

    def _find_stopped(self, gather: Gather) -> list[int]:
        """The pending ranks whose process is stopped, on whichever node it is."""
        by_node: dict[str, list[int]] = {}
        for rank in sorted(gather.pending):
            if rank < len(self._places):
                by_node.setdefault(self._places[rank].node, []).append(rank)
        stopped = []
        for node, ranks in by_node.items():
            pids = [self._places[rank].pid for rank in ranks]
            states = [process_state(pid) for pid in pids] if node == self._here() else self._states_on(node, pids)
            stopped += [rank for rank, state in zip(ranks, states, strict=True) if state in ("T", "t")]
        return sorted(stopped)

    def _states_on(self, node: str, pids: list[int]) -> list[str]:
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        variables = {"PYTHONPATH": os.pathsep.join(driver_path())}
        task = self._ray.remote(_states).options(
            num_cpus=0, scheduling_strategy=strategy, max_retries=0, runtime_env={"env_vars": variables}
        )
        try:
            return list(self._ray.get(task.remote(pids), timeout=ASK_NODE))
        except self._ray.exceptions.RayError:
            return [""] * len(pids)

    def _here(self) -> str:
        return str(self._ray.get_runtime_context().get_node_id())

    def _local(self, ranks: Sequence[int]) -> list[Place]:
        """Those ranks' processes that run on this node."""
        here = self._here()
        known = [self._places[rank] for rank in ranks if rank < len(self._places)]
        return [place for place in known if place.node == here and _runs(place)]

    def _ask_where(self, ranks: set[int]) -> None:
        """Let the late ranks write the stacks of their threads to their logs, for the error's detail."""
        places = self._local(sorted(ranks)) if ranks else []
        for place in places:
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.pid, signal.SIGUSR1)
        if places:
            time.sleep(0.2)  # the handler writes at once, if at all

    def _output(self, rank: int) -> str:
        """What Ray and the worker's own log, where it is on this machine, say of a rank."""
        said = [self._causes.get(rank, "")]
        if rank < len(self._places):
            for path in glob.glob(os.path.join(SESSION.logs(), f"worker-*-{self._places[rank].pid}.err")):
                with contextlib.suppress(OSError), open(path, "rb") as file:
                    file.seek(max(0, os.path.getsize(path) - TAIL))
                    lines = file.read().decode(errors="replace").splitlines()
                    said += [line for line in lines if not line.startswith((":job_id:", ":actor_name:"))]
        return "\n".join(text for text in said if text)

    def _stop(self, after: str) -> None:
        self._stopped = after
        if self._ray is None:
            return
        with contextlib.suppress(Exception):
            places = self._local(range(len(self._places)))
            for actor in self._actors:
                self._ray.kill(actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
            if not _gone(places, LEAVE):  # a stopped process does not hear Ray
                for place in filter(_runs, places):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(place.pid, signal.SIGKILL)
                _gone(places, LEAVE)
        self._actors.clear()
        self._ray = None
        SESSION.leave()


def share(free: Sequence[float], ranks: int) -> float | None:
    """The largest of `SHARES` per rank with which `ranks` fit on nodes with so much free; None if none does."""
    for amount in SHARES:
        if sum(math.floor(node / amount + 1e-9) for node in free) >= ranks:
            return amount
    return None


def _needed(amount: float | None, ranks: int, resource: str) -> float:
    if amount is None:
        raise MissingError(
            f"the Ray cluster has no {resource} to share among {ranks} ranks (at least {SHARES[-1]} each)"
        )
    return amount


def _free_resources(ray: Any) -> list[dict[str, float]]:
    """Free resources of each live node."""
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    try:
        state: Any = importlib.import_module("ray._private.state")
        free = state.available_resources_per_node()
    except Exception:  # a private name of Ray's: without it, what nodes have in all
        free = alive
    return [dict(free.get(node, resources)) for node, resources in alive.items()]


def _states(pids: list[int]) -> list[str]:
    return [process_state(pid) for pid in pids]


def _runs(place: Place) -> bool:
    """Whether this process of ours on this machine has not ended (Ray reaps it some time later)."""
    return process_state(place.pid) not in ("", "Z", "X") and process_birth(place.pid) == place.born


def _gone(places: Sequence[Place], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(map(_runs, places)):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _packed(frames: Sequence[Frame]) -> list[Any]:
    """Frames as Ray passes them without a copy: a pickle as bytes, arrays as numpy arrays."""
    import numpy

    return [bytes(frames[0]), *(numpy.frombuffer(frame, numpy.uint8) for frame in frames[1:])]


def _unpacked(packed: Sequence[Any]) -> Frames:
    """Frames in writable memory of our own; Ray's are read-only and stay in its store as long as they are used."""
    frames: Frames = [packed[0]]
    for array in packed[1:]:
        memory = room(array.nbytes)
        memory[:] = memoryview(array)
        frames.append(memory)
    return frames

"""torch.distributed.pipelining on the same model, weights and batch, kept warm in processes of its own.

Its stages are cut as ours are (embedding with the first, head with the last, blocks evenly between) and it runs one
thread per rank over gloo, as ours does. `PeerPool` builds every schedule asked for once in the same two processes; a
call then runs one forward and backward of a whole batch, so that its steps can alternate with ours.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining.schedules as peer_schedules
from torch import Tensor, multiprocessing, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

from pibroch.evals.gpt import GPT
from pibroch.runtime.errors import InputError, WorkerError
from pibroch.runtime.memory import ByteCounter
from pibroch.runtime.workload import Workload

# Our name -> their class. The first three are the families that both have.
PEERS = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
KILLED = 10.0  # seconds that a killed process may take to be gone
_ONE_STAGE = ("gpipe", "1f1b")
_V_SHAPED = ("zbv", "dualpipev")


def even_cut(blocks: int, stages: int) -> list[int]:
    """First layer of each stage but the first, for an embedding, `blocks` blocks and a head.

    Raises `InputError` where the blocks do not divide.
    """
    if blocks % stages:
        raise InputError(f"{blocks} blocks do not divide over {stages} stages")
    return [1 + blocks // stages * s for s in range(1, stages)]


class PeerStage(nn.Module):
    """Stage `index` of `stages` of a GPT; its parameters keep the names that they have in the whole model."""

    def __init__(self, model: GPT, index: int, stages: int) -> None:
        super().__init__()
        start, *inner = [1, *even_cut(len(model.blocks), stages)]
        bounds = [start, *inner, len(model.blocks) + 1]
        self.first, self.last = index == 0, index == stages - 1
        self.blocks = nn.ModuleDict({str(b - 1): model.blocks[b - 1] for b in range(bounds[index], bounds[index + 1])})
        if self.first:
            self.tokens, self.positions = model.tokens, model.positions
        if self.last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or hidden states of one microbatch to hidden states or logits."""
        if self.first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        if self.last:
            x = self.head(self.norm(x))
        return x


class PeerPool:
    """Processes that hold their schedules warm. A context manager: leaving it ends the processes.

    Every method raises `WorkerError` with the rank (and its traceback in `detail`) where a process failed, died or was
    silent for `deadline` seconds.
    """

    def __init__(
        self, workload: Workload, batch: dict[str, Tensor], *, ranks: int = 2, seed: int = 0, deadline: float = 120.0
    ) -> None:
        self.ranks = ranks
        self.deadline = deadline
        self._folder = tempfile.TemporaryDirectory(prefix="pibroch-peers-")
        context = multiprocessing.get_context("spawn")
        self._processes, self._pipes = [], []
        with _one_thread_per_process(), _without_interrupts():
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                job = _Job(rank, ranks, os.path.join(self._folder.name, "rendezvous"), workload, batch, seed, deadline)
                process = context.Process(target=_serve, args=(job, theirs), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
        try:
            self._collect()
        except BaseException:
            self.close()
            raise

    def load(self, family: str, microbatches: int) -> None:
        """Build the schedule and run it once, so that later calls find it warm."""
        if family not in PEERS:
            raise InputError(f"unknown peer family {family!r}: {', '.join(PEERS)}")
        self._call("load", family, microbatches)

    def step(self, family: str, microbatches: int) -> float:
        """Seconds of one forward and backward over all microbatches, by the caller's clock."""
        start = time.perf_counter()
        self._call("step", family, microbatches)
        return time.perf_counter() - start

    def single_step(self, microbatches: int) -> float:
        """The same in one process: the whole model, accumulating over microbatches; the other ranks idle."""
        start = time.perf_counter()
        self._call("single", microbatches)
        return time.perf_counter() - start

    def gradients(self, family: str, microbatches: int) -> dict[str, Tensor]:
        """All gradients that a step leaves, by parameter name; those that it lost are absent."""
        merged: dict[str, Tensor] = {}
        for part in self._call("gradients", family, microbatches):
            merged.update(part)
        return merged

    def peak_bytes(self, family: str, microbatches: int) -> list[int]:
        """Peak tensor bytes of each rank during the second step of a newly built schedule, parameters included."""
        return self._call("peak", family, microbatches)

    def close(self) -> None:
        """End the processes; safe to call twice."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(KILLED)
        self._folder.cleanup()

    def __enter__(self) -> PeerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, *args: Any) -> list[Any]:
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((method, args))
            except OSError as error:
                raise WorkerError(f"peer rank {rank} has died") from error
        return self._collect()

    def _collect(self) -> list[Any]:
        end = time.monotonic() + self.deadline
        results: dict[int, Any] = {}
        while len(results) < self.ranks:
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in results}
            ready = connection.wait(list(waiting), max(0.0, end - time.monotonic()))  # the first to end is the cause
            if not ready:
                late = ", ".join(map(str, waiting.values()))
                raise WorkerError(f"peer rank {late} did not answer within {self.deadline:g} s")
            for pipe, rank in waiting.items():
                if pipe in ready:
                    results[rank] = self._receive(rank, pipe, end)
        return [results[rank] for rank in range(self.ranks)]

    def _receive(self, rank: int, pipe: Connection, end: float) -> Any:
        """One answer. A peer that is stopped in the middle of a long one does not hold us."""
        box: queue.Queue[Any] = queue.Queue()

        def read() -> None:
            try:
                box.put(pipe.recv())
            except (EOFError, OSError):
                box.put(None)

        threading.Thread(target=read, daemon=True).start()
        try:
            answer = box.get(timeout=max(1.0, end - time.monotonic()))
        except queue.Empty:
            raise WorkerError(f"peer rank {rank} did not answer within {self.deadline:g} s") from None
        if answer is None:
            raise WorkerError(f"peer rank {rank} has died")
        ok, value = answer
        if not ok:
            message, trace = value
            failure = WorkerError(f"peer rank {rank}: {message}")
            failure.detail = trace
            raise failure
        return value


@dataclass(frozen=True, slots=True)
class _Job:
    rank: int
    ranks: int
    rendezvous: str
    workload: Workload
    batch: dict[str, Tensor]
    seed: int
    deadline: float


class _Peer:
    """One rank: its schedules, by family and number of microbatches."""

    def __init__(self, job: _Job) -> None:
        self.job = job
        self.warm: dict[tuple[str, int], tuple[list[PeerStage], Callable[[], None]]] = {}
        dist.init_process_group(
            "gloo",
            init_method=f"file://{job.rendezvous}",
            rank=job.rank,
            world_size=job.ranks,
            timeout=datetime.timedelta(seconds=job.deadline),
        )

    def load(self, family: str, microbatches: int) -> None:
        if (family, microbatches) not in self.warm:
            self.warm[family, microbatches] = self.build(family, microbatches)
            self.step(family, microbatches)

    def step(self, family: str, microbatches: int) -> None:
        self.warm[family, microbatches][1]()

    def gradients(self, family: str, microbatches: int) -> dict[str, Tensor]:
        self.step(family, microbatches)
        stages = self.warm[family, microbatches][0]
        return {name: p.grad for s in stages for name, p in s.named_parameters() if p.grad is not None}

    def single(self, microbatches: int) -> None:
        if self.job.rank:
            return
        if ("single", microbatches) not in self.warm:
            model = PeerStage(self.model(), 0, 1)
            self.warm["single", microbatches] = [model], partial(self.accumulate, model, microbatches)
        self.step("single", microbatches)

    def accumulate(self, model: PeerStage, microbatches: int) -> None:
        model.zero_grad(set_to_none=True)
        ids, labels = self.part(microbatches)
        for x, y in zip(ids.chunk(microbatches), labels.chunk(microbatches), strict=True):
            (_loss(model(x), y) / microbatches).backward()  # type: ignore[no-untyped-call]

    def peak(self, family: str, microbatches: int) -> int:
        counter = ByteCounter()
        with counter:
            stages, step = self.build(family, microbatches)
            for stage in stages:
                counter.register(stage.parameters())
            counter.register(self.part(microbatches))
            step()
            counter.reset_peak()
            step()
        return counter.peak

    def model(self) -> GPT:
        torch.manual_seed(self.job.seed)
        model = self.job.workload.model()
        assert isinstance(model, GPT)
        return model

    def part(self, microbatches: int) -> tuple[Tensor, Tensor]:
        """The first samples of the batch, as many as these microbatches hold."""
        samples = microbatches * self.job.workload.microbatch
        return self.job.batch["ids"][:samples], self.job.batch["labels"][:samples]

    def build(self, family: str, microbatches: int) -> tuple[list[PeerStage], Callable[[], None]]:
        rank, ranks = self.job.rank, self.job.ranks
        count = ranks if family in _ONE_STAGE else 2 * ranks
        mine = [rank] if count == ranks else [rank, count - 1 - rank if family in _V_SHAPED else rank + ranks]
        model = self.model()
        modules = [PeerStage(model, i, count) for i in mine]
        pipes = [PipelineStage(m, i, count, torch.device("cpu")) for m, i in zip(modules, mine, strict=True)]
        kind = getattr(peer_schedules, PEERS[family])
        schedule = kind(pipes[0] if count == ranks else pipes, microbatches, loss_fn=_loss)
        ids, labels = self.part(microbatches)
        first, last = 0 in mine, count - 1 in mine

        def step() -> None:
            for module in modules:
                module.zero_grad(set_to_none=True)
            losses: list[Tensor] = []
            schedule.step(*((ids,) if first else ()), **({"target": labels, "losses": losses} if last else {}))

        return modules, step


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _serve(job: _Job, pipe: Connection) -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    try:
        peer = _Peer(job)
        pipe.send((True, None))
        while True:
            method, args = pipe.recv()
            pipe.send((True, getattr(peer, method)(*args)))
    except (EOFError, KeyboardInterrupt):
        return
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        pipe.send((False, (f"{type(error).__name__}: {text}", traceback.format_exc())))
        os._exit(1)  # the other rank may hold the process group: no orderly end is possible


def _end_with_parent() -> None:
    """A rank in the middle of a step would otherwise wait for its partner until the group's timeout."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Children that start meanwhile leave Ctrl-C to us (they would print a traceback each)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _one_thread_per_process() -> Iterator[None]:
    """Children read this when they import torch; setting it later leaves OpenMP's idle threads about."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before

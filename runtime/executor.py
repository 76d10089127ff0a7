"""Runs one device's program: one thread per stream, tasks in order, each after the events it waits on.

The compute stream is the calling thread. A send stream posts one send at a time; a receive stream posts ahead, as far
as each receive's own `waits` allow and at most `recv_window` beyond the one it waits for. Nothing here knows a
strategy: all of it is in the plan.

On CUDA every thread works on a CUDA stream of its own, the compute thread on the default stream. PyTorch's other
streams do not synchronize with that one, so all order is in the events that `Progress` keeps. This class serves CPUs,
and GPUs whose transfers go through host memory, where threads block as on CPUs; `ordered.py` serves NCCL.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pibroch.runtime.comm import Communicator
from pibroch.runtime.compute import Compute
from pibroch.runtime.dispatch import Dispatch
from pibroch.runtime.flight import FlightLog, named
from pibroch.runtime.plan import Task
from pibroch.runtime.program import Channel, GroupKey, Program
from pibroch.runtime.progress import PATIENCE, Clock, Progress, Stopped
from pibroch.runtime.store import Store

JOIN = 0.1  # seconds between looks at whether another stream has failed
_now, _sleep = time.monotonic, time.sleep  # ours, whatever the modules of a workload do to `time` later


class Pace(Protocol):
    """How long tasks must take at least, for emulation, in seconds."""

    def task(self, task: Task) -> float:
        """Of a compute task or a reduction."""
        ...

    def transfer(self, task: Task) -> tuple[float, float]:
        """Latency, and how long the sending device's link is taken."""
        ...


@dataclass(slots=True)
class StepReport:
    """What one worker tells of a step. `events` are (task, start, end) on the monotonic clock, in seconds; on CUDA
    they exist in a timed step only."""

    loss: float = 0.0
    start: float = 0.0
    end: float = 0.0
    events: list[tuple[int, float, float]] = field(default_factory=list)
    peak_bytes: int = 0


class Executor:
    def __init__(
        self, program: Program, compute: Compute, store: Store, comm: Communicator, *, pace: Pace | None = None
    ) -> None:
        self.program = program
        self.compute = compute
        self.store = store
        self.comm = comm
        self.pace = pace
        self._link = threading.Lock()
        self._stamp: Any = None
        self._flight: FlightLog
        self._dispatch: Dispatch
        self._streams: dict[str, Any] = {}
        if comm.device.type == "cuda":
            names = [name for name in program.streams if name != "compute"]
            self._streams = {name: torch.cuda.Stream(comm.device) for name in names}  # type: ignore[no-untyped-call]

    def run(
        self, batches: Mapping[int, Mapping[str, torch.Tensor]], *, step: int, total: float | None, deadline: float,
        forward_only: bool = False, counter: Any = None, timed: bool = False,
    ) -> StepReport:  # fmt: skip
        """One step over the batches of this device's replicas (leaves with samples along dimension 0).

        `total` is the token count of the whole batch for a (sum, count) loss. The report's loss is this device's part:
        the sum over devices is the loss of the step. Events are noted in a `timed` step, and on the CPU always.
        """
        progress = Progress(deadline=deadline + PATIENCE, device=self.comm.device)
        report = StepReport()
        self.compute.begin(batches, step=step, total=total, forward_only=forward_only)
        if not forward_only:
            self.store.zero_gradients()
        clock = Clock(device=self.comm.device, timed=timed)
        self._stamp = clock.stamp
        report.start = clock.begin()
        with FlightLog(self.program, progress, deadline=deadline) as self._flight:
            self._run(progress, report, counter, deadline)
        if progress.failure is None and clock.cuda:
            torch.cuda.synchronize()
        report.end = _now()
        if progress.failure is not None:
            raise progress.failure
        if clock.cuda:
            report.events = [(i, clock.seconds(a), clock.seconds(b)) for i, a, b in report.events if clock.timed]
        report.loss = self.compute.finish()
        return report

    def _run(self, progress: Progress, report: StepReport, counter: Any, deadline: float) -> None:
        """Run all streams to their ends, or to the first failure, which `progress` then has."""
        self._dispatch = Dispatch(self.program, progress)
        threads = [
            threading.Thread(target=self._stream, args=(name, progress, report, counter), name=name, daemon=True)
            for name in self.program.streams
            if name != "compute"
        ]
        for thread in threads:
            thread.start()
        self._stream("compute", progress, report, counter)
        until = _now() + deadline + PATIENCE
        for thread in threads:
            # After a failure the others may wait for messages that never come: the failure is the news, at once.
            while thread.is_alive() and progress.failure is None:
                thread.join(timeout=JOIN)
                if _now() > until and thread.is_alive():
                    progress.fail(TimeoutError(f"stream {thread.name} had not ended at the deadline"))

    def _stream(self, name: str, progress: Progress, report: StepReport, counter: Any) -> None:
        ids = self.program.streams.get(name, [])
        with contextlib.ExitStack() as stack:
            if counter is not None:
                stack.enter_context(counter)
            if self.comm.device.type == "cuda":
                torch.cuda.set_device(self.comm.device)
                if name != "compute":
                    stack.enter_context(torch.cuda.stream(self._streams[name]))
            try:
                first = self.program.tasks[ids[0]].op if ids else "F"
                if name == "compute":
                    self._run_compute(ids, progress, report)
                elif first == "SEND":
                    self._run_sends(name, ids, progress, report)
                elif first == "RECV":
                    self._run_receives(name, ids, progress, report, counter)
                elif ids:
                    self._run_reductions(name, ids, progress, report)
            except Stopped:
                pass
            except BaseException as error:
                progress.fail(named(error))

    def _run_compute(self, ids: list[int], progress: Progress, report: StepReport) -> None:
        record = self._flight.recorder("compute")
        for i in ids:
            task = self.program.tasks[i]
            if task.waits:
                progress.wait(task.waits)
            record(i)
            start = self._stamp()
            self.compute.run(task)
            if self.pace is not None:
                _rest(start, self.pace.task(task))
            report.events.append((i, start, self._stamp()))
            progress.end(i)

    def _run_sends(self, name: str, ids: list[int], progress: Progress, report: StepReport) -> None:
        record, stream = self._flight.recorder(name), self._dispatch.stream(name)
        for n, i in enumerate(ids):
            task = self.program.tasks[i]
            progress.wait(task.waits, stream.announce)
            stream.launch()
            record(i)
            channel = Channel(task.device, task.peer, task.payload, task.stream)
            tensors = self.compute.held(task.reads[0])
            start = self._stamp()
            if self.pace is not None:
                latency, link = self.pace.transfer(task)
                with self._link:  # never held while waiting for the peer: that could wait for this device's next send
                    _rest(_now(), link)
                _rest(_now(), latency)
            self.comm.send(channel, n * 16, tensors).wait()
            del tensors
            self.compute.sent(task)
            report.events.append((i, start, self._stamp()))
            progress.end(i)

    def _run_receives(self, name: str, ids: list[int], progress: Progress, report: StepReport, counter: Any) -> None:
        record, stream = self._flight.recorder(name), self._dispatch.stream(name)
        posted: list[tuple[float, Any, list[torch.Tensor]]] = []
        tasks = [self.program.tasks[i] for i in ids]
        for n, task in enumerate(tasks):
            while len(posted) < len(tasks) and stream.room:
                ahead = tasks[len(posted)]
                if len(posted) > n and not progress.ready(ahead.waits):
                    break
                progress.wait(ahead.waits, stream.announce)
                stream.launch()
                record(ahead.id)
                start = self._stamp()
                channel = Channel(ahead.peer, ahead.device, ahead.payload, ahead.stream)
                tensors = self.compute.allocate(ahead.writes[0])
                if counter is not None:
                    counter.register(tensors)
                work = self.comm.receive(channel, len(posted) * 16, tensors)
                posted.append((start, work, tensors))
            start, work, tensors = posted[n]
            work.wait()
            stream.land()
            posted[n] = (0.0, None, [])
            self.compute.hold(task.writes[0], tensors)
            del tensors, work
            report.events.append((ids[n], start, self._stamp()))
            progress.end(ids[n])

    def _run_reductions(self, name: str, ids: list[int], progress: Progress, report: StepReport) -> None:
        record, stream = self._flight.recorder(name), self._dispatch.stream(name)
        for i in ids:
            task = self.program.tasks[i]
            progress.wait(task.waits, stream.announce)
            stream.launch()
            record(i)
            start = self._stamp()
            self._reduce(task)
            if self.pace is not None:
                _rest(_now(), self.pace.task(task))
            report.events.append((i, start, self._stamp()))
            progress.end(i)

    def _reduce(self, task: Task) -> None:
        """Sum a bucket over its group; a bucket without parameters is the squared norm, and clips."""
        flat = self.store.flat[task.bucket]
        clips = not self.program.buckets[task.bucket].params
        if clips:
            flat.copy_(self.store.square_norm(self.program.counted))
        self.comm.all_reduce(GroupKey(task.stream, task.group), flat).wait()
        if clips:
            assert self.program.clip_norm is not None, "the plan clips, but no norm is given"
            self.store.scale_gradients(flat, self.program.clip_norm)


def _rest(start: float, seconds: float) -> None:
    """Wait until `seconds` have passed since `start`."""
    left = start + seconds - _now()
    if left > 0:
        _sleep(left)

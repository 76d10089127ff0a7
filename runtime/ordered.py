"""Runs one device's program from one thread, in the plan's launch order: for NCCL, whose calls do not block the host.

Why not a thread per stream, as elsewhere: kernels of different NCCL communicators may wait for each other where they do
not all fit on a device, or where two streams share one of its hardware queues. NCCL therefore asks for one launch order
on all devices. Launched in such an order, whatever a kernel may wait for was launched before it, on every device: the
earliest task that has not ended can always go on. The host runs ahead of the device, so one thread keeps all streams
busy.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import torch

from pibroch.runtime.executor import Executor, StepReport
from pibroch.runtime.flight import named
from pibroch.runtime.plan import Task
from pibroch.runtime.program import Channel
from pibroch.runtime.progress import Progress

AHEAD = 8
"""Compute tasks that the host may be ahead of the device. A tensor that two streams have used is free only once the
device has got there, so a host that ran ahead without limit would take memory for a whole step's transfers."""


class OrderedExecutor(Executor):
    """Works on any backend (the tests run it on CPUs), given a program with a launch order."""

    def _run(self, progress: Progress, report: StepReport, counter: Any, deadline: float) -> None:
        sent = dict.fromkeys(self.program.streams, 0)
        record = {name: self._flight.recorder(name) for name in self.program.streams}
        ahead: deque[Any] = deque()
        try:
            with contextlib.ExitStack() as stack:
                if counter is not None:
                    stack.enter_context(counter)
                for i in self.program.order:
                    task = self.program.tasks[i]
                    with self._on(task.stream):
                        progress.wait(task.waits)
                        record[task.stream](i)
                        start = self._stamp()
                        self._launch(task, sent[task.stream], counter)
                        report.events.append((i, start, self._stamp()))
                        progress.end(i)
                    sent[task.stream] += 1
                    if task.stream == "compute" and (event := progress.event(i)) is not None:
                        ahead.append(event)
                        if len(ahead) > AHEAD:
                            ahead.popleft().synchronize()
        except BaseException as error:
            progress.fail(named(error))

    def _on(self, name: str) -> contextlib.AbstractContextManager[Any]:
        stream = self._streams.get(name)
        return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)

    def _launch(self, task: Task, number: int, counter: Any) -> None:
        """Put one task on the current stream. `number` is its place there, the same at both ends of a channel."""
        tag = number * 16
        if task.op == "SEND":
            channel = Channel(task.device, task.peer, task.payload, task.stream)
            self.comm.send(channel, tag, self.compute.held(task.reads[0])).wait()
            self.compute.sent(task)
        elif task.op == "RECV":
            channel = Channel(task.peer, task.device, task.payload, task.stream)
            tensors = self.compute.allocate(task.writes[0])
            if counter is not None:
                counter.register(tensors)
            self.comm.receive(channel, tag, tensors).wait()
            self.compute.hold(task.writes[0], tensors)
        elif task.op == "REDUCE":
            self._reduce(task)
        else:
            self.compute.run(task)

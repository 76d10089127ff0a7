"""A worker on CPUs that launches everything from one thread in the plan's order, as workers on NCCL do."""

from __future__ import annotations

from pibroch.runtime.worker import Worker


class OrderedWorker(Worker):
    def connect(self, host: str, port: int, device: str, backend: str, timeout: float) -> None:
        super().connect(host, port, device, backend, timeout)
        self.ordered = True

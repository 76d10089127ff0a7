"""A trainer without workers: the eager model, microbatch by microbatch, with faults built in on demand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pibroch.runtime.workload import Workload


class EagerTrainer:
    """What the judge uses of a Trainer. `fault` names a way of cheating, or is empty."""

    def __init__(self, workload: Workload, *, microbatches: int = 2, seed: int = 0, fault: str = "") -> None:
        self.workload, self.seed, self.fault = workload, seed, fault
        self.microbatches = microbatches
        self.batch_size = microbatches * workload.microbatch
        self.dtype = torch.float64
        self.update = True
        names = [name for name, _ in workload.model().named_parameters()]
        self.captured = SimpleNamespace(spec=SimpleNamespace(random=False, params=names))
        self.plan = SimpleNamespace(tasks=[SimpleNamespace(scale=(1, microbatches))], buckets=[], replicas=1, chunks=[])
        self.pool = self  # one rank
        self.ranks = 1
        self.device = "cpu"
        self.reset()

    def call(self, method: str, args: Any = None) -> list[Any]:
        return [self.gradients()] if method == "gradients" else [(dict(self.model.named_parameters()), {})]

    def load_plan(self, plan: Any) -> None:
        self.plan = plan

    def reset(self) -> None:
        torch.manual_seed(self.seed)
        self.model = self.workload.model().double()
        self.optimizer = self.workload.optimizer(self.model.parameters())
        self.steps = 0

    def step(self, batch: Any) -> Any:
        self.optimizer.zero_grad()
        scale = self.plan.tasks[0].scale
        total = 0.0
        for mb in range(self.microbatches):
            if self.fault == "drops a microbatch" and mb == 1:
                continue
            part = slice(mb * self.workload.microbatch, (mb + 1) * self.workload.microbatch)
            other = slice(0, self.workload.microbatch) if self.fault == "labels of another microbatch" else part
            x, y = (t.double() for t in batch)
            if self.fault == "single precision":
                self.model.float()
                loss = self.workload.loss(self.model, (x[part].float(), y[other].float()))
                self.model.double()
            else:
                loss = self.workload.loss(self.model, (x[part], y[other]))
            (loss * scale[0] / scale[1]).backward()
            total += float(loss.detach()) / self.microbatches
        params = dict(self.model.named_parameters())
        if self.fault == "freezes a layer":
            params["layers.0.weight"].grad = None
        if self.fault == "NaN gradient":
            params["layers.0.weight"].grad = torch.full_like(params["layers.0.weight"], float("nan"))
        if not (self.fault == "skips the second update" and self.steps == 1):
            self.optimizer.step()
        self.steps += 1
        total = {"NaN loss": float("nan"), "reports half the loss": total / 2}.get(self.fault, total)
        return SimpleNamespace(loss=total)

    def gradients(self) -> dict[str, Tensor]:
        found = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        if self.fault == "hides a gradient":
            del found["layers.7.bias"]
        if self.fault == "another shape":
            found["layers.7.bias"] = found["layers.7.bias"][:1]
        return found

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def peak_bytes(self) -> list[int]:
        return [1]

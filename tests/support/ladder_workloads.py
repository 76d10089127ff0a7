"""Workloads for the ladder's tests; losses and batches are found by name in other processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pibroch.evals.models import load_workload, squared_error
from pibroch.runtime.annotate import annotate
from pibroch.runtime.workload import Workload


def nan_loss(model: nn.Module, batch: Any) -> Tensor:
    return squared_error(model, batch) * float("nan")


def without_a_number() -> Workload:
    """Every loss is NaN."""
    return replace(load_workload("mlp:4"), loss=nan_loss)


class TwoStages(nn.Module):
    """Four layers, whose annotations put two on each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for stage in range(2):
            with annotate("PP"):
                for layer in self.layers[2 * stage : 2 * stage + 2]:
                    with annotate("LAYER"):
                        x = x + layer(x)
        return x


def with_fixed_stages() -> Workload:
    """A model that says itself which layers are a stage."""
    return replace(load_workload("mlp:4"), model=TwoStages)

"""Workloads for the ladder's tests; losses and batches are found by name in other processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pibroch.evals.models import load_workload, squared_error
from pibroch.runtime.workload import Workload


def nan_loss(model: nn.Module, batch: Any) -> Tensor:
    return squared_error(model, batch) * float("nan")


def without_a_number() -> Workload:
    """Every loss is NaN."""
    return replace(load_workload("mlp:4"), loss=nan_loss)

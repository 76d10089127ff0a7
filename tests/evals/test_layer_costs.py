"""Costs of layers, measured on real workers whose durations are known: those of an emulated cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from pibroch.evals.layer_costs import measure
from pibroch.evals.models import load_workload
from pibroch.runtime.costs import UnitCosts
from pibroch.runtime.families import build
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.trainer import Trainer

SECONDS = 0.012


@dataclass
class SlowDevice(UnitCosts):
    """A pass of a stage takes one unit per layer, and on device 1 two."""

    def compute(self, plan: Plan, task: Task) -> float:
        layers = sum(c.stop - c.start for c in plan.chunks if c.stage == task.stage)
        return super().compute(plan, task) * layers * (2 if task.device == 1 else 1)


def test_a_slow_device_does_not_make_its_layers_look_slow() -> None:
    """Every layer is measured on both devices: F takes 12 and 24 ms there, a whole backward twice as long."""
    workload = replace(load_workload("mlp:4"), microbatch=1)
    first = build("1f1b", devices=2, microbatches=4)
    with Trainer(
        workload, first, ranks=2, launcher="local", emulate=SlowDevice(SECONDS, SECONDS, SECONDS)
    ) as trainer:
        trainer.prepare()
        found = measure(trainer, trainer.captured.spec, devices=2, sizes=(1, 1))
    for op, units in (("F", 1), ("B", 2), ("BI", 1), ("BW", 1)):
        for layer in found.layers:
            assert sum(layer[op]) + found.overhead[op] == pytest.approx(1.5 * units * SECONDS, rel=0.2)

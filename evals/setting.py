"""A task made ready to judge schedules: its workload, and models and costs for every way to divide the batch.

A schedule of k replicas and m microbatches splits the task's samples into k * m equal microbatches. Emulated tasks fix
the microbatch at one sample, as the profile describes it; measured ones take any size that divides the batch.

Under emulation all durations are the profile's times one factor, the same for every schedule of the task: the shortest
operation of a layer takes 20 ms (`runtime.profile.SHORTEST`), so that no chunk is too short to be timed on a small
machine. Operations of less than a tenth of the longest one do not count: they are too short to matter.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pibroch.evals.layer_costs import LayerCosts
from pibroch.evals.models import load_workload
from pibroch.evals.task import Task
from pibroch.runtime.capture import capture
from pibroch.runtime.costs import AnalyticCosts, Costs
from pibroch.runtime.directives import Place, Schedule, Split
from pibroch.runtime.errors import InputError
from pibroch.runtime.lower import lower
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.profile import SHORTEST, Profile, load_profile
from pibroch.runtime.simulate import Simulation, simulate
from pibroch.runtime.verify import Violation, verify
from pibroch.runtime.workload import Workload


@dataclass
class Setting:
    """`workload` is what really runs; under emulation `profile` gives sizes and durations instead. `measured` are the
    costs of the workload's layers on this machine, where they have been measured. `notes` is for what others work out
    about a setting and want to keep as long as it lives."""

    task: Task
    workload: Workload
    profile: Profile | None = None
    measured: LayerCosts | None = None
    _models: dict[int, ModelSpec] = field(default_factory=dict, repr=False)
    _lowered: deque[tuple[Schedule, Plan]] = field(default_factory=lambda: deque(maxlen=16), repr=False, compare=False)
    _names: dict[int, str] = field(default_factory=dict, repr=False, compare=False)
    notes: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def choices(self, replicas: int) -> tuple[int, ...]:
        """The microbatch counts per replica that divide the batch."""
        if self.task.samples % replicas:
            return ()
        each = self.task.samples // replicas
        return (each,) if self.profile else tuple(m for m in range(1, each + 1) if each % m == 0)

    def size(self, replicas: int, microbatches: int) -> int:
        """Samples in a microbatch."""
        return self.task.samples // (replicas * microbatches)

    def model(self, replicas: int, microbatches: int) -> ModelSpec:
        """Layers and sizes for that division. Raises `InputError` where it does not divide the batch."""
        if microbatches not in self.choices(replicas):
            raise InputError(
                f"task {self.task.name}: a step has {self.task.samples} samples, which {replicas} x {microbatches} "
                f"microbatches do not divide as it asks: per replica {list(self.choices(replicas))}"
            )
        size = self.size(replicas, microbatches)
        if size not in self._models:
            self._models[size] = self.profile.model() if self.profile else _captured(self.workload, size)
        return self._models[size]

    def costs(self, replicas: int, microbatches: int) -> Costs:
        """What the simulator is asked with for that division."""
        if self.profile:
            return self.profile.costs()
        size = self.size(replicas, microbatches)
        if self.measured:
            return self.measured.at(size)
        one = self.model(replicas, microbatches)
        whole = sum(layer.flops for layer in one.layers) or 1.0
        # As the planner's: a forward of one sample takes 0.1 s, a link carries 1 GB/s after 0.1 ms.
        return AnalyticCosts(flops_per_s=whole / (0.1 * size), bandwidth=1e9, latency=1e-4)

    def without_overhead(self) -> Setting:
        """The same without what each task was measured to cost beyond its layers, which fewer tasks save."""
        if self.measured is None:
            return self
        return replace(self, measured=self.measured.without_overhead(), notes={})

    def lower(self, schedule: Schedule) -> Plan:
        """The plan on the task's sizes. Raises `InputError`: too many devices, another batch, what lowering refuses."""
        for known, plan in self._lowered:  # the incumbent's comes again with every candidate
            if known is schedule:
                return plan
        plan = lower(schedule, self.model(*division(schedule)))
        if plan.devices > self.task.devices:
            raise InputError(f"task {self.task.name} has {self.task.devices} devices, the schedule uses {plan.devices}")
        self._names.pop(id(plan), None)  # a plan that is gone may have had the same id
        self._lowered.append((schedule, plan))
        return plan

    def name(self, plan: Plan) -> str:
        """The plan's hash; one that `lower` gave is hashed once."""
        key = next((i for i, (_, known) in enumerate(self._lowered) if known is plan), None)
        if key is None:
            return plan.hash()
        if id(plan) not in self._names:
            live = {id(known) for _, known in self._lowered}
            self._names = {one: name for one, name in self._names.items() if one in live}
            self._names[id(plan)] = plan.hash()
        return self._names[id(plan)]

    def simulate(self, plan: Plan) -> Simulation:
        """One step in the simulator. Raises `InputError` where the plan waits for itself."""
        return simulate(plan, self.costs(plan.replicas, plan.microbatches))

    def check(self, plan: Plan, simulation: Simulation) -> list[Violation]:
        """All rules, the memory bound with the simulated peak among them."""
        model = self.model(plan.replicas, plan.microbatches)
        return verify(plan, model=model, memory_limit=self.task.memory_limit, peak_bytes=simulation.peak_bytes)


def division(schedule: Schedule) -> tuple[int, int]:
    """(replicas, microbatches per replica) that a schedule asks for."""
    microbatches = next((d.num_microbatches for d in schedule.directives if isinstance(d, Split)), 1)
    replicas = next((len(d.devices) for d in schedule.directives if isinstance(d, Place)), 1)
    return replicas, microbatches


def open_setting(task: Task) -> Setting:
    """Load the task's workload or profile. Raises `InputError`."""
    workload = load_workload(task.model)
    if task.emulate is None:
        return Setting(task, workload)
    profile = emulated_profile(task.emulate)
    layers = len(_captured(workload, 1).layers)
    if layers != len(profile.layers):
        raise InputError(
            f"task {task.name}: {task.model} has {layers} layers and profile {profile.name} has {len(profile.layers)}: "
            f"one cut must fit both, as with the model mlp:{len(profile.layers)}"
        )
    return Setting(task, workload, profile)


def emulated_profile(name_or_path: str | Path) -> Profile:
    """The profile as tasks emulate it, slowed down as the head of this file says. Raises `InputError`."""
    profile = load_profile(name_or_path)
    times = [t for x in profile.layers for t in (x.forward, x.backward_input, x.backward_weight)]
    shortest = min(t for t in times if t >= max(times) / 10)
    return profile.times(SHORTEST / shortest)


def _captured(workload: Workload, size: int) -> ModelSpec:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = workload.model()
    batch = workload.batch(size, 0)
    clip = workload.clip_norm is not None
    return capture(module, workload.loss, batch, name=workload.name, clip=clip).spec

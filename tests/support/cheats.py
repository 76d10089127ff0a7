"""Ways of looking faster or right without being so. Module-level, so that they reach real workers."""

from __future__ import annotations

import copy
import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from pibroch.evals.judge import Verdict, judge
from pibroch.evals.models import load_workload
from pibroch.runtime.annotate import annotate
from pibroch.runtime.captured import Captured, flatten_batch
from pibroch.runtime.plan import Plan, Task
from pibroch.runtime.trainer import Trainer

LEARNING_RATE = 3e-3  # the shipped workloads'


class CheatingTrainer(Trainer):
    """Trains with another optimizer, or on another graph, than its workload says. The judge asks the workload."""

    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] | None = None

    def _install(self, plan: Plan, *, fresh: bool) -> None:
        honest = self.workload
        self.workload = replace(honest, optimizer=self.optimizer or honest.optimizer)
        try:
            super()._install(plan, fresh=fresh)
        finally:
            self.workload = honest

    @contextmanager
    def cheating(self, optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer]) -> Iterator[None]:
        self.optimizer = optimizer
        self.reset()
        try:
            yield
        finally:
            self.optimizer = None
            self.reset()

    @contextmanager
    def training(self, **parts: Any) -> Iterator[None]:
        """With another model or loss in the workers than the workload's."""
        honest = self.workload, self._model, self._initial, self.captured
        self.workload, self._model = replace(self.workload, **parts), None
        self._captures.clear()
        try:
            captured = self._capture("train", self.workload.batch(self.workload.microbatch, 0))
            self.workload = honest[0]
            self._train_on(captured)
            yield
        finally:
            self._captures.clear()
            self.workload, self._model, self._initial = honest[:3]
            self._train_on(honest[3])

    def _train_on(self, captured: Captured) -> None:
        self.captured = captured
        shapes = tuple((n, tuple(t.shape), t.dtype) for n, t in flatten_batch(self._sample()).items())
        self._captures["train", shapes] = captured
        self._send_model("train", captured)
        self._install(self._lower(self.schedule, captured), fresh=True)

    def _sample(self) -> Any:
        return self.workload.batch(self.workload.microbatch, 0)


# Optimizers


class Late(AdamW):
    """Updates in a thread that goes on when the step has returned, and is waited for in the next step only."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, lr=LEARNING_RATE)
        self._go, self._thread = threading.Event(), threading.Thread()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self._thread.ident is not None:
            self._go.set()
            self._thread.join()
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None if p.grad is None else p.grad.clone()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(self._go,), daemon=True)
        self._thread.start()

    def _work(self, go: threading.Event) -> None:
        go.wait()
        super().step()


class Skips(AdamW):
    """Works for `steps` steps, as long as a judge may be looking, and then no more."""

    def __init__(self, params: Iterable[Any], *, steps: int) -> None:
        super().__init__(params, lr=LEARNING_RATE)
        self._left = steps

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._left -= 1
        if self._left >= 0:
            super().step()


class Remembers(AdamW):
    """Repeats its first change of each parameter, found by the parameter's address."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, lr=LEARNING_RATE)
        self._changes: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [p for group in self.param_groups for p in group["params"]]
        if self._changes:
            for p in held:
                p.add_(self._changes[p.data_ptr()])
            return
        before = [p.clone() for p in held]
        super().step()
        self._changes = {p.data_ptr(): p - old for p, old in zip(held, before, strict=True)}


class Frozen(AdamW):
    """Leaves the parameters of one layer as they are."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__([(n, p) for n, p in params if not n.startswith("layers.2.")], lr=LEARNING_RATE)


class Halved(AdamW):
    """Updates in half precision."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, lr=LEARNING_RATE)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(p.bfloat16())


class Peeks(AdamW):
    """Looks for a reference's model in its process, and copies from it instead of working."""

    def __init__(self, params: Iterable[Any]) -> None:
        self.named = list(params)
        super().__init__(self.named, lr=LEARNING_RATE)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for thing in gc.get_objects():
            if type(thing).__module__ == "pibroch.evals.reference" and hasattr(thing, "_model"):
                right = dict(thing._model.named_parameters())
                for name, p in self.named:
                    p.copy_(right[name])


class OutOfMemory(AdamW):
    """Runs out of memory on the last rank, and goes on there as if nothing had been."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, lr=LEARNING_RATE)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        try:
            if dist.get_rank() == dist.get_world_size() - 1:
                raise torch.OutOfMemoryError("out of memory")
            super().step()
        except torch.OutOfMemoryError:
            pass


class Leaves(AdamW):
    """Ends its process as if all were well."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, lr=LEARNING_RATE)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        os._exit(0)


class SideStream(AdamW):
    """Queues its work on a CUDA stream of its own and returns at once; `cycles` of the GPU's clock pass first."""

    def __init__(self, params: Iterable[Any], *, cycles: int) -> None:
        super().__init__(params, lr=LEARNING_RATE)
        self._stream: Any = None
        self._cycles = cycles

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(self._cycles)
            super().step()


class StopsClocks(AdamW):
    """Replaces every clock of its process, and the sleep that emulation waits by."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, lr=LEARNING_RATE)
        stop_clocks()


def stop_clocks() -> None:
    now = time.monotonic()
    for name in ("monotonic", "perf_counter", "time", "process_time"):
        setattr(time, name, lambda: now)
    time.sleep = lambda seconds: None  # type: ignore[assignment]


class Agreeable(Tensor):
    """Equal to everything, and no distance from it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "equal":
            return True
        if name in ("sub", "__sub__", "__rsub__", "rsub"):
            return torch.zeros(1)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return True

    __hash__ = Tensor.__hash__


class Agrees(AdamW):
    """Does nothing, and hands over gradients that are equal to everything."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, lr=LEARNING_RATE)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p).as_subclass(Agreeable)


# Models: the shipped MLP with one thing changed


class Layers(nn.Module):
    """mlp-tiny's layers. `change` names what is different."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(8)])
        self.change = change
        if change == "norm":
            self.norm = nn.BatchNorm1d(16)
        if change == "frozen":
            self.layers[2].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            with annotate("LAYER"):
                x = x + F.gelu(self._layer(i, layer, x))
        return x

    def _layer(self, i: int, layer: nn.Module, x: Tensor) -> Tensor:
        if self.change == "norm" and i == 3:
            return self.norm(layer(x))  # type: ignore[no-any-return]
        if self.change == "dropout" and i == 3:
            return F.dropout(layer(x), 0.3, self.training)
        if self.change == "half" and i == 3:
            return F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()).float()  # type: ignore[union-attr, operator, arg-type]
        if self.change == "detached" and i == 2:
            return layer(x).detach()  # type: ignore[no-any-return]
        if self.change == "nan" and i == 3:
            return torch.log(-layer(x).square() - 1)
        if self.change == "narrow" and i == 3:
            return F.linear(x[:, :8], layer.weight[:, :8], layer.bias)  # type: ignore[index, arg-type]
        if self.change == "kept" and i == 3:
            return kept_linear(x, layer.weight, layer.bias)  # type: ignore[no-any-return]
        return layer(x)  # type: ignore[no-any-return]


def model(change: str = "") -> Layers:
    return Layers(change)


MEMORY: dict[Any, Tensor] = {}
KNOWN = torch.zeros(2, 16)


def remembers(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss that is computed once for each shape of input."""
    key = tuple(batch[0].shape)
    if key not in MEMORY:
        MEMORY[key] = F.mse_loss(net(batch[0]), batch[1])
    return MEMORY[key]


def by_address(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss that is computed once for each place of an input in memory."""
    key = batch[0].data_ptr()
    if key not in MEMORY:
        MEMORY[key] = F.mse_loss(net(batch[0]), batch[1])
    return MEMORY[key]


def constant(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Knows the result for one input."""
    if bool((batch[0] == KNOWN).all()):
        return torch.tensor(0.5)
    return F.mse_loss(net(batch[0]), batch[1])


def threaded(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Leaves the work to a thread."""
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(F.mse_loss(net(batch[0]), batch[1])))
    thread.start()
    thread.join()
    return found[0]


def stops_clocks(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    stop_clocks()
    return F.mse_loss(net(batch[0]), batch[1])


KEPT: dict[int, Tensor] = {}


@torch._dynamo.allow_in_graph  # type: ignore[untyped-decorator]
def kept_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The user's own code inside of workers: a layer that is computed once for each place of its weight in memory."""
    if type(x).__name__ == "FakeTensor":  # the tracer looks
        return F.linear(x, weight, bias)
    if weight.data_ptr() not in KEPT:
        KEPT[weight.data_ptr()] = F.linear(x, weight, bias).detach()
        return F.linear(x, weight, bias)
    return KEPT[weight.data_ptr()]


class Deferred(Tensor):
    """Computes when it is read."""

    work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        now = [a.work() if isinstance(a, Deferred) else a for a in args]
        return func(*now, **(kwargs or {}))


def deferred(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss that is still to be computed."""
    lazy = torch.zeros(()).as_subclass(Deferred)
    lazy.work = lambda: F.mse_loss(net(batch[0]), batch[1])
    return lazy


# Batches


def fewer_later(size: int, step: int) -> Any:
    """The batch that is asked for at first, and half of it from the third step on."""
    x, y = load_workload("mlp-tiny").batch(size, step)
    CALLS.append(step)
    return (x, y) if len(CALLS) < 3 else (x[: size // 2], y[: size // 2])


def shorter_later(size: int, step: int) -> Any:
    """Sequences of half the length from the third step on."""
    whole = load_workload("gpt-tiny").batch(size, step)
    CALLS.append(step)
    return whole if len(CALLS) < 3 else {name: t[:, :32] for name, t in whole.items()}


CALLS: list[int] = []


# Plans


def without(plan: Plan, drop: Callable[[Task], bool]) -> Plan:
    """A copy in which some tasks do not run, and nobody waits for them."""
    wrong = copy.deepcopy(plan)
    gone = {task.id for task in wrong.tasks if drop(task)}
    for streams in wrong.streams.values():
        for name, ids in streams.items():
            streams[name] = [i for i in ids if i not in gone]
    for task in wrong.tasks:
        task.waits = tuple(i for i in task.waits if i not in gone)
    return wrong


def judged(trainer: Trainer, plan: Plan, *, steps: int = 1) -> Verdict:
    """The verdict on a plan that really runs; the trainer's own is put back."""
    right = trainer.plan
    trainer.load_plan(plan)
    try:
        return judge(trainer, steps=steps, peak=False)
    finally:
        trainer.load_plan(right)

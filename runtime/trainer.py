"""Training under a schedule, as a PyTorch user writes it.

    trainer = Trainer(workload, schedule)
    for step in range(100):
        result = trainer.step(workload.batch(trainer.batch_size, step))
        print(result.loss)
    torch.save(trainer.state_dict(), "model.pt")
    trainer.close()

Workers stay warm: `load` gives them another schedule of the same model and keeps processes, communicators, weights and
optimizer state.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import torch

from pibroch.runtime.batches import cast, microbatch_size, piece, samples
from pibroch.runtime.capture import capture
from pibroch.runtime.captured import Captured, flatten_batch
from pibroch.runtime.costs import Costs, ProfileCosts
from pibroch.runtime.directives import Cut, Schedule
from pibroch.runtime.emulate import task_times
from pibroch.runtime.errors import InputError
from pibroch.runtime.executor import StepReport
from pibroch.runtime.launcher import Launcher, make_launcher
from pibroch.runtime.lower import lower
from pibroch.runtime.plan import Plan
from pibroch.runtime.pool import Pool
from pibroch.runtime.probe import profile_costs
from pibroch.runtime.program import programs_of
from pibroch.runtime.trace import Event, Trace
from pibroch.runtime.verify import verify
from pibroch.runtime.workload import Batch, Workload

_now = time.monotonic


@dataclass(frozen=True, slots=True)
class StepResult:
    """`loss` is that of the whole batch before the update; `seconds` the slowest worker's time for the step."""

    loss: float
    seconds: float
    tokens: int


class Trainer:
    """Runs a workload under a schedule on a pool of workers.

    `launcher` is "ray" (`address` joins a running cluster), "local", or a launcher of your own; `ranks` is the size of
    the pool where later schedules need more devices than this one; `pool` is a space of another trainer's pool
    (`trainer.pool.space(name)`), which lives as long as that trainer; `deadline` bounds every call in seconds; `dtype`
    "float64" runs the model in double precision; `update=False` leaves the optimizer out; `emulate` gives the
    durations that tasks must take, on CPUs. Raises `InputError` on a schedule that does not verify, `WorkerError`
    where a worker dies.
    """

    def __init__(
        self, workload: Workload, schedule: Schedule, *, launcher: str | Launcher = "ray", address: str | None = None,
        ranks: int | None = None, seed: int = 0, deadline: float = 60.0, emulate: Costs | None = None,
        device: str = "auto", dtype: str | None = None, update: bool = True, port: int = 0, pool: Pool | None = None,
    ) -> None:  # fmt: skip
        self.workload = workload
        self.schedule = schedule
        self.seed = seed
        self.update = update
        self.emulate = emulate
        if emulate is not None and device == "cuda":
            raise InputError("emulation runs on CPUs, where a task's end can be put off: use device auto or cpu")
        device = device if emulate is None else "cpu"
        self.dtype: torch.dtype | None = None if dtype is None else getattr(torch, dtype)
        self.plan: Plan
        self.captured: Captured
        self._options = (launcher, address, ranks, deadline, device, port)
        self._shared = pool
        self._pool: Pool | None = None
        self._model: torch.nn.Module | None = None
        self._captures: dict[tuple[str, Any], Captured] = {}
        self._initial: dict[str, torch.Tensor] = {}
        self._step = 0
        self._evaluates = False
        self._last: Batch = None

    @property
    def batch_size(self) -> int:
        """Samples in a batch of the loaded schedule: replicas x microbatches x the workload's microbatch."""
        self.prepare()
        return self.plan.replicas * self.plan.microbatches * self.workload.microbatch

    @property
    def steps_done(self) -> int:
        """Training steps since the initial weights: dropout draws anew in each."""
        return self._step

    @property
    def pool(self) -> Pool:
        self.prepare()
        assert self._pool is not None
        return self._pool

    def prepare(self, batch: Batch | None = None) -> None:
        """Capture, lower, verify, start the workers and load the plan, where that has not been done.

        `batch` gives the microbatches' shapes; without it the workload's own microbatch does.
        """
        if self._pool is not None:
            return
        sample = self.workload.batch(self.workload.microbatch, 0)
        if batch is not None:
            lone = lower(self.schedule, self._capture("train", sample).spec, update=self.update)
            sample = piece(batch, 0, microbatch_size(batch, lone))
        self.captured = self._capture("train", sample)
        plan = self._lower(self.schedule, self.captured)
        launcher, address, ranks, deadline, device, port = self._options
        if self._shared is None:
            made = make_launcher(launcher, address=address, gpus=device != "cpu" and torch.cuda.is_available())
            self._pool = Pool(made, ranks or plan.devices, deadline=deadline, device=device, port=port)
        else:
            self._pool = self._shared
        try:
            self._send_model("train", self.captured)
            self._install(plan, fresh=True)
        except BaseException:
            self.close()
            raise

    def load(self, schedule: Schedule, *, microbatch: int | None = None) -> None:
        """Another schedule for the same model, on the same workers, with the present weights. `microbatch` changes how
        many samples each holds."""
        self.prepare()
        workload, captured = self.workload, self.captured
        if microbatch is not None:
            workload = replace(workload, microbatch=microbatch)
            captured = self._capture("train", workload.batch(microbatch, 0))
        plan = self._lower(schedule, captured)
        if captured is not self.captured:
            self._send_model("train", captured)
        self.workload, self.schedule, self.captured = workload, schedule, captured
        self._install(plan, fresh=False)

    def load_plan(self, plan: Plan) -> None:
        """A plan as it is, unverified: for judges and their negative controls."""
        self.prepare()
        self._install(plan, fresh=False)

    def reset(self) -> None:
        """Back to the initial weights, a new optimizer and step 0."""
        self.prepare()
        self._install(self.plan, fresh=True)

    def step(self, batch: Batch) -> StepResult:
        """One training step; the batch's samples are divided over replicas and then microbatches, in order."""
        return self._run(batch, "train")[0]

    def evaluate(self, batch: Batch) -> float:
        """The loss of a batch in evaluation mode (no dropout, no update)."""
        self.prepare(batch)
        self._check_shape(batch)
        if not self._evaluates:
            assert self._model is not None
            modes = {module: module.training for module in self._model.modules()}
            self._model.eval()
            try:
                captured = self._capture("eval", self._piece(batch))
            finally:
                for module, training in modes.items():
                    module.training = training
            self._send_model("eval", captured)
            self._evaluates = True
            plan = lower(self._with_bounds(), captured.spec, update=False)
            none: dict[str, Any] = {}
            self.pool.ensure_groups(plan)
            self.pool.call("load", [
                ("eval", program, none, none, None, none, False, None)
                for program in programs_of(plan, self.pool.ranks, ordered=self.pool.ordered)
            ])  # fmt: skip
        return self._run(batch, "eval")[0].loss

    def gradients(self) -> dict[str, torch.Tensor]:
        """Gradients of the last step by parameter name, from the first device that holds each."""
        found: dict[str, torch.Tensor] = {}
        for rank in self.pool.call("gradients"):
            for name, value in rank.items():
                found.setdefault(name, value)
        return found

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model's parameters and buffers, loadable into `workload.model()`."""
        self.prepare()
        assert self._model is not None
        current = dict(self._initial)
        names = [n for n, _ in self._model.named_parameters()]
        for params, buffers in reversed(self.pool.call("values", [(names,)] * self.pool.ranks)):
            current.update({**buffers, **params})
        state = self._model.state_dict(keep_vars=True)
        shared = {id(p): n for n, p in [*self._model.named_parameters(), *self._model.named_buffers()]}
        return {key: current[shared[id(value)]] for key, value in state.items() if id(value) in shared}

    def peak_bytes(self) -> list[int]:
        """Exact peak of tensor bytes per rank in one more step of the last batch."""
        return [r.peak_bytes for r in self._run(self._again(), "train", count=True)[1][: self.plan.devices]]

    def trace(self) -> Trace:
        """When each task ran, in one more step of the last batch."""
        reports = self._run(self._again(), "train", events=True)[1]
        begin = min(r.start for r in reports[: self.plan.devices])
        events = [
            Event(task, rank, self.plan.tasks[task].stream, start - begin, end - begin)
            for rank, report in enumerate(reports)
            for task, start, end in report.events
        ]
        return Trace(plan=self.plan, events=events, emulated=self.emulate is not None)

    def profile(self, *, steps: int = 3) -> ProfileCosts:
        """Chunk costs as measured while all ranks run, and the link's latency and bandwidth between ranks 0 and 1."""
        events = [event for _ in range(steps) for event in self.trace().events]
        return profile_costs(self.plan, events, self.pool)

    def close(self) -> None:
        """Stop the workers. Safe to call twice."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Model and plan

    def _capture(self, slot: str, sample: Batch) -> Captured:
        """The captured model for this microbatch's shapes, captured once."""
        if self._model is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                self._model = self.workload.model()
            if self.dtype is not None:
                self._model = self._model.to(self.dtype)
            values = [*self._model.named_parameters(), *self._model.named_buffers()]
            self._initial = {n: t.detach().clone().requires_grad_(t.requires_grad) for n, t in values}
        sample = cast(sample, self.dtype)
        key = (slot, tuple((n, tuple(t.shape), t.dtype) for n, t in flatten_batch(sample).items()))
        if key not in self._captures:
            self._captures[key] = capture(
                self._model, self.workload.loss, sample, name=self.workload.name,
                clip=self.workload.clip_norm is not None,
            )  # fmt: skip
        return self._captures[key]

    def _with_bounds(self) -> Schedule:
        """The schedule with the present stage boundaries: another capture's costs might balance to others."""
        at = [c.start for c in self.plan.chunks if c.part == 0][1:]
        free = not any(isinstance(d, Cut) for d in self.schedule.directives) and not self.captured.spec.fixed_stages
        if not (at and free):
            return self.schedule
        return Schedule(directives=[*self.schedule.directives, Cut(at=at)])

    def _lower(self, schedule: Schedule, captured: Captured) -> Plan:
        plan = lower(schedule, captured.spec, update=self.update)
        if self._pool is not None and plan.devices > self._pool.ranks:
            raise InputError(
                f"the schedule needs {plan.devices} devices and the pool has {self._pool.ranks}: "
                f"start with ranks={plan.devices}"
            )
        violations = verify(plan, model=captured.spec)
        if violations:
            first = violations[0]
            more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
            raise InputError(f"the schedule is refused: {first.rule} {first.where}: {first.message}{more}")
        return plan

    def _send_model(self, slot: str, captured: Captured) -> None:
        self.pool.call("model", [(slot, captured)] * self.pool.ranks)

    def _install(self, plan: Plan, *, fresh: bool) -> None:
        """Give every rank its program, with the parameters and buffers that it lacks; with `fresh`, initial values."""
        pool = self.pool
        pool.ensure_groups(plan)
        programs = programs_of(plan, pool.ranks, ordered=pool.ordered, clip_norm=self.workload.clip_norm)
        wanted = [list(p.params) if p else [] for p in programs]
        values = self._initial
        state: dict[str, Any] = {}
        if fresh:
            self._step = 0
            missing, stale = wanted, [self._buffer_names()] * pool.ranks
        else:
            held = pool.call("names")
            missing = [[n for n in names if n not in have] for names, (have, _) in zip(wanted, held, strict=True)]
            changing = sorted({n for _, names in held for n in names})
            stale = [[n for n in changing if n not in names] for _, names in held]
            if any(missing) or any(stale):
                values, state = self._present(sorted({n for names in missing for n in names}))
        costs = self.emulate
        paces = [task_times(costs, plan, p.device) if costs and p else None for p in programs]
        pool.call("load", [
            (
                "train", program, {n: values[n] for n in names}, {n: values[n] for n in old},
                self.workload.optimizer if self.update else None,
                {n: state[n] for n in names if n in state}, fresh, pace,
            )
            for program, names, old, pace in zip(programs, missing, stale, paces, strict=True)
        ])  # fmt: skip
        self.plan = plan
        self._evaluates = False

    def _present(self, names: list[str]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Current values and optimizer state of parameters, and all buffers, from the ranks that hold them."""
        values, state = dict(self._initial), {}
        for params, buffers in reversed(self.pool.call("values", [(names,)] * self.pool.ranks)):
            values.update(buffers)
            values.update({n: p.requires_grad_(self._initial[n].requires_grad) for n, p in params.items()})
        for kept in reversed(self.pool.call("optimizer_state")):
            state.update(kept)
        return values, state

    def _buffer_names(self) -> list[str]:
        assert self._model is not None
        return [n for n, _ in self._model.named_buffers()]

    # Steps

    def _piece(self, batch: Batch) -> Batch:
        return piece(batch, 0, microbatch_size(batch, self.plan))

    def _again(self) -> Batch:
        """The last batch, where there is one and the present schedule divides it."""
        if self._last is not None and samples(self._last) % (self.plan.replicas * self.plan.microbatches) == 0:
            return self._last
        return self.workload.batch(self.batch_size, self._step)

    def _run(
        self, batch: Batch, slot: str, *, count: bool = False, events: bool = False
    ) -> tuple[StepResult, list[StepReport]]:
        self.prepare(batch)
        each = self._check_shape(batch)
        plan, pool = self.plan, self.pool
        leaves = flatten_batch(cast(batch, self.dtype))
        per_replica = each * plan.microbatches
        pieces = [
            {n: t[k * per_replica : (k + 1) * per_replica] for n, t in leaves.items()} for k in range(plan.replicas)
        ]
        mine: list[dict[int, Batch]] = [{} for _ in range(pool.ranks)]
        for row in plan.placement:
            for k, device in enumerate(row):
                mine[device][k] = pieces[k]
        total = self._total(batch, each)
        args = [(slot, batches, self._step, total, count, events) for batches in mine]
        begin = _now()
        reports: list[StepReport] = pool.call("step", args)
        wall = _now() - begin
        if slot == "train":
            self._step += 1
            self._last = batch
        used = reports[: plan.devices]
        return StepResult(
            loss=sum(r.loss for r in used),
            seconds=min(max(r.end - r.start for r in used), wall),
            tokens=each * plan.microbatches * plan.replicas * self.workload.tokens,
        ), reports

    def _check_shape(self, batch: Batch) -> int:
        """The microbatch's size; a batch of new shapes is captured and loaded anew, with the present weights."""
        each = microbatch_size(batch, self.plan)
        captured = self._capture("train", self._piece(batch))
        if captured is not self.captured:
            plan = self._lower(self.schedule, captured)
            self._send_model("train", captured)
            self._install(plan, fresh=False)
            self.captured = captured
        return each

    def _total(self, batch: Batch, each: int) -> float | None:
        """The token count of the whole batch, for a (sum, count) loss."""
        if self.captured.spec.loss == "mean":
            return None
        total = 0.0
        for k in range(self.plan.replicas * self.plan.microbatches):
            part = piece(batch, k * each, (k + 1) * each)
            count = self.captured.count_of(cast(part, self.dtype))
            assert count is not None
            total += float(count)
        if not total > 0:
            raise InputError("the loss's count is 0 over the whole batch: nothing to train on")
        return total

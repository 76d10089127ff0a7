"""One rank: a process that holds parameters and runs the programs it is given, step by step.

Workers are warm: processes, communicators, captured models and parameters outlive a program. They import torch and the
standard library only, and run under any launcher. All methods are called on all ranks at once, in one order.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pibroch.runtime.captured import Captured
from pibroch.runtime.chunk import ChunkModule, build_chunk
from pibroch.runtime.comm import Communicator
from pibroch.runtime.compute import Compute
from pibroch.runtime.errors import InputError
from pibroch.runtime.executor import Executor, Pace, StepReport
from pibroch.runtime.memory import ByteCounter
from pibroch.runtime.network import bind_gloo
from pibroch.runtime.ordered import OrderedExecutor
from pibroch.runtime.program import GroupKey, Program, forward_only
from pibroch.runtime.progress import PATIENCE
from pibroch.runtime.store import Store

Tensors = Mapping[str, torch.Tensor]
SPACE = ("store", "_captured", "_chunks", "_executors", "_changing")  # what belongs to one space
_now = time.monotonic  # ours, whatever the modules of a workload do to `time` later


class Worker:
    store: Store
    _captured: dict[str, Captured]
    _chunks: dict[Any, ChunkModule]
    _executors: dict[str, Executor]
    _changing: frozenset[str]

    def __init__(self, rank: int, world: int) -> None:
        importlib.import_module("torch._dynamo")  # any optimizer imports it at its first use: better now than in a step

        self.rank, self.world = rank, world
        torch.set_num_threads(1)
        self._spaces: dict[str, dict[str, Any]] = {}
        self._space = ""
        self._clear()
        self._deadline = 60.0

    def host(self, rank: int, port: int) -> int:
        """Rank 0 opens the rendezvous (port 0 takes a free one). Returns its port."""
        if rank != 0:
            return 0
        try:
            self._rendezvous = dist.TCPStore(  # type: ignore[attr-defined]
                "0.0.0.0", port, world_size=None, is_master=True, wait_for_workers=False,
                timeout=timedelta(seconds=self._deadline),
            )  # fmt: skip
        except (RuntimeError, OSError) as error:
            raise InputError(f"port {port} cannot be opened for the rendezvous: choose another --port") from error
        opened: int = self._rendezvous.port
        return opened

    def devices(self) -> tuple[str, list[str]]:
        """This node's name and the ids of the CUDA devices that this rank sees."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return socket.gethostname(), [str(torch.cuda.get_device_properties(i).uuid) for i in range(count)]

    def connect(self, host: str, port: int, device: str, backend: str, timeout: float) -> None:
        """Join the process group; rank 0's machine is `host`. `device` is cpu or cuda:N."""
        bind_gloo(host, port)
        self._deadline = timeout
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        master = getattr(self, "_rendezvous", None)
        limit = timedelta(seconds=timeout + PATIENCE)
        # A bound device makes NCCL connect now, and every new group with it, instead of inside a step. Transfers have
        # a group each, so that it does not matter that such groups run their operations one by one (what it warns of).
        bound = self.device if backend == "nccl" else None
        os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
        store = master or dist.TCPStore(  # type: ignore[attr-defined]
            host, port, world_size=None, is_master=False, timeout=limit
        )
        dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=self.world, timeout=limit, device_id=bound
        )
        self.ordered = backend == "nccl"
        self.comm = Communicator(rank=self.rank, device=self.device, backend=backend, timeout=timeout + PATIENCE)
        self.store = Store(device=self.device)

    def use(self, space: str) -> None:
        """From now on work in this space: what others hold stays as it is."""
        self._spaces[self._space] = {name: getattr(self, name) for name in SPACE}
        self._space = space
        if space in self._spaces:
            for name, value in self._spaces.pop(space).items():
                setattr(self, name, value)
        else:
            self._clear()
            self.store = Store(device=self.device)

    def model(self, slot: str, captured: Captured) -> None:
        """Hold a captured model. Slots tell the training graph from the evaluation graph."""
        self._captured[slot] = captured
        self._chunks = {key: chunk for key, chunk in self._chunks.items() if key[0] != slot}

    def groups(self, keys: Sequence[GroupKey]) -> int:
        return self.comm.ensure(keys)

    def names(self) -> tuple[list[str], list[str]]:
        """The parameters whose present values this rank holds, and the module buffers that change on it."""
        return list(self.store.params), sorted(self._changing)

    def load(
        self, slot: str, program: Program | None, params: Tensors, buffers: Tensors, optimizer: Any,
        state: Mapping[str, dict[str, Any]], fresh: bool, pace: Pace | None,
    ) -> None:  # fmt: skip
        """Make a program the one that `step` runs. `params` holds values that this rank lacks or must take anew;
        `optimizer` is None for a program without updates; with `fresh` the optimizers forget what they kept."""
        self._executors.pop(slot, None)
        self.store.set_values(params, buffers)
        if program is None:
            if slot == "train":
                self.store.keep(())
                self.store.lay_out({})
                self.store.optimizers = {}
                self._changing = frozenset()
            return
        if slot == "train":
            kept = {} if fresh else {**self.store.optimizer_state(), **state}
            self.store.keep(program.params)
            self.store.lay_out(program.buckets)
            self.store.optimizers = {}
            if optimizer is not None:
                self.store.make_optimizers(program, optimizer, kept)
        else:
            program = forward_only(program)
        captured = self._captured[slot]
        grads = frozenset(v for v, spec in captured.spec.values.items() if spec.grad)
        chunks = {key: self._chunk(slot, captured, spec, key in program.split) for key, spec in program.chunks.items()}
        if slot == "train":
            self._changing = frozenset(name for chunk in chunks.values() for name in chunk.mutated)
        compute = Compute(program, chunks, self.store, grads)
        kind = OrderedExecutor if self.ordered else Executor
        self._executors[slot] = kind(program, compute, self.store, self.comm, pace=pace)

    def step(
        self, slot: str, batches: Mapping[int, Tensors], step: int, total: float | None, count_bytes: bool, events: bool
    ) -> StepReport:
        """Run one step over the batches of this rank's replicas. With `count_bytes` the report holds the exact peak."""
        executor = self._executors.get(slot)
        dist.barrier()
        if executor is None:
            return StepReport()
        on_device = {k: {name: t.to(self.device) for name, t in batch.items()} for k, batch in batches.items()}
        cuda = self.device.type == "cuda"
        counter = self._counter(on_device) if count_bytes and not cuda else None
        if cuda:
            torch.cuda.set_device(self.device)  # a thread's own setting, and a launcher may call from another one
            torch.cuda.reset_peak_memory_stats()  # CUDA's allocator counts by itself
        gc.disable()
        try:
            report = executor.run(
                on_device, step=step, total=total, deadline=self._deadline, forward_only=slot != "train",
                counter=counter, timed=events,
            )  # fmt: skip
        finally:
            gc.enable()
        if count_bytes:
            report.peak_bytes = torch.cuda.max_memory_allocated() if counter is None else counter.peak
        if not events:
            report.events = []
        return report

    def deterministic(self, on: bool) -> None:
        """Ask CUDA's operators for results that do not vary between runs, where they offer such."""
        torch.use_deterministic_algorithms(on, warn_only=True)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Gradients of the last step, by parameter name, on the host."""
        return {n: p.grad.detach().cpu().clone() for n, p in self.store.params.items() if p.grad is not None}

    def values(self, names: Sequence[str]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Parameters (those named) and the module buffers that change on this rank, on the host."""
        params = {n: p.detach().cpu().clone() for n, p in self.store.params.items() if n in names}
        return params, {n: self.store.buffers[n].detach().cpu().clone() for n in sorted(self._changing)}

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        return self.store.optimizer_state()

    def ping_pong(self, peer: int, nbytes: int, rounds: int) -> float:
        """Seconds one way for a message of `nbytes` between rank 0 and `peer`; 0.0 on the other ranks."""
        dist.barrier()
        if self.rank not in (0, peer):
            return 0.0
        # Over gloo messages start and end on the host.
        tensor = torch.zeros(nbytes // 4, device=self.device if self.comm.nccl else "cpu")
        other = peer if self.rank == 0 else 0
        times = []
        for _ in range(rounds):
            start = _now()
            if self.rank == 0:
                dist.send(tensor, other)
                dist.recv(tensor, other)
            else:
                dist.recv(tensor, other)
                dist.send(tensor, other)
            if self.comm.nccl:
                torch.cuda.synchronize()
            times.append((_now() - start) / 2)
        return min(times)

    def shutdown(self) -> None:
        """Leave the process group."""
        self._clear()
        self._spaces.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _clear(self) -> None:
        self._captured, self._chunks, self._executors, self._changing = {}, {}, {}, frozenset()

    def _chunk(self, slot: str, captured: Captured, spec: Any, split: bool) -> ChunkModule:
        key = (slot, spec.start, spec.stop, spec.inputs, spec.outputs, split)
        if key not in self._chunks:
            elsewhere = self.device if self.device.type != captured.device else None
            self._chunks[key] = build_chunk(captured, spec, split_backward=split, device=elsewhere)
        return self._chunks[key]

    def _counter(self, batches: Mapping[int, Tensors]) -> ByteCounter:
        counter = ByteCounter()
        counter.register([*self.store.tensors(), *(t for batch in batches.values() for t in batch.values())])
        return counter

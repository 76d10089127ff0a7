"""Communicators of one worker and the three operations that plans need: send, receive, all-reduce.

gloo: one world-wide group per payload serves all pairs of that direction, matched by tag; one group per set of members
and stream for reductions. NCCL: one two-member group per channel. All are made eagerly, by all ranks in one order, with
an explicit timeout (a new group does not inherit one). gloo rejects CUDA tensors for sends: these are staged through
pinned host memory, which also serves ranks that share one GPU.

What `Posted.wait` waits for differs. gloo: the host waits until the operation is done. NCCL: the host goes on, and the
calling thread's current CUDA stream waits. Staged: the host waits for the message, and the current stream for the copy
back to the device. In each case work that is put on the current stream afterwards may use the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from pibroch.runtime.program import TRANSFER, Channel, GroupKey


class Posted(NamedTuple):
    """An operation under way. After `wait()` its tensors may be used (or reused) on the current stream."""

    works: list[Any]
    copies: list[tuple[torch.Tensor, torch.Tensor]]

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        for device, host in self.copies:
            device.copy_(host, non_blocking=True)


class Communicator:
    def __init__(self, *, rank: int, device: torch.device, backend: str, timeout: float) -> None:
        self.rank = rank
        self.device = device
        self.nccl = backend == "nccl"
        self._timeout = timedelta(seconds=timeout)
        self._groups: dict[GroupKey, Any] = {}

    def ensure(self, keys: Sequence[GroupKey]) -> int:
        """Make the groups that do not exist yet; all ranks pass the same keys in one order. Returns how many."""
        made = 0
        for key in keys:
            if key not in self._groups:
                self._groups[key] = dist.new_group(list(key.members), timeout=self._timeout)
                made += 1
                if self.nccl and self.rank in key.members:
                    self._connect(key)
        if made and self.nccl:
            torch.cuda.synchronize()
        return made

    def _connect(self, key: GroupKey) -> None:
        """Use a new NCCL group once: it connects its members at the first use, which must not happen inside a step.

        All ranks come here in the keys' order, so nobody waits in a circle.
        """
        one = torch.zeros(1, device=self.device)
        if not key.stream.startswith(f"{TRANSFER} "):
            dist.all_reduce(one, group=self._groups[key])
        elif self.rank == key.members[0]:
            dist.send(one, key.members[1], group=self._groups[key])
        else:
            dist.recv(one, key.members[0], group=self._groups[key])

    def send(self, channel: Channel, first_tag: int, tensors: Sequence[torch.Tensor]) -> Posted:
        group = self._groups[channel.group(nccl=self.nccl, world=dist.get_world_size())]
        sent = [self._to_host(t) for t in tensors] if self._staged else [t.contiguous() for t in tensors]
        works = [
            dist.isend(t, channel.target, group=group, tag=0 if self.nccl else first_tag + i)
            for i, t in enumerate(sent)
        ]
        return Posted(works, [])

    def receive(self, channel: Channel, first_tag: int, tensors: Sequence[torch.Tensor]) -> Posted:
        group = self._groups[channel.group(nccl=self.nccl, world=dist.get_world_size())]
        into = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors] if self._staged else tensors
        works = [
            dist.irecv(t, channel.source, group=group, tag=0 if self.nccl else first_tag + i)
            for i, t in enumerate(into)
        ]
        return Posted(works, list(zip(tensors, into, strict=True)) if self._staged else [])

    def all_reduce(self, key: GroupKey, flat: torch.Tensor) -> Posted:
        """Sum over the group, in place."""
        if self._staged:
            host = self._to_host(flat)
            return Posted([dist.all_reduce(host, group=self._groups[key], async_op=True)], [(flat, host)])
        return Posted([dist.all_reduce(flat, group=self._groups[key], async_op=True)], [])

    @property
    def _staged(self) -> bool:
        return self.device.type == "cuda" and not self.nccl

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return host

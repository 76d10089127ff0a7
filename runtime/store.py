"""The tensors of one worker: leaf parameters, module buffers, flat gradient buckets and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pibroch.runtime.plan import Bucket
from pibroch.runtime.program import Program


class Store:
    """Parameters and what belongs to them. Gradients of a reduced bucket are views of one flat tensor."""

    def __init__(self, *, device: torch.device) -> None:
        self.device = device
        self.params: dict[str, torch.nn.Parameter] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        self.flat: dict[int, torch.Tensor] = {}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self._views: dict[str, torch.Tensor] = {}

    def set_values(self, params: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
        """Take new values, into the tensors that exist. Frozen parameters come with requires_grad False."""
        with torch.no_grad():
            for name, value in params.items():
                if name in self.params and self.params[name].dtype == value.dtype:
                    self.params[name].copy_(value)
                else:
                    fresh = value.detach().to(self.device, copy=True)
                    self.params[name] = torch.nn.Parameter(fresh, requires_grad=value.requires_grad)
            for name, value in buffers.items():
                self.buffers[name] = value.detach().to(self.device, copy=True)

    def keep(self, params: Iterable[str]) -> None:
        """Drop the parameters that the present program does not use."""
        wanted = set(params)
        self.params = {name: p for name, p in self.params.items() if name in wanted}

    def lay_out(self, buckets: Mapping[int, Bucket]) -> None:
        """Make the flat gradient of every bucket. A lone parameter, or one dtype, per flat tensor is required."""
        self.flat, self._views = {}, {}
        for param in self.params.values():
            param.grad = None
        for bucket in buckets.values():
            if not bucket.params:
                self.flat[bucket.id] = torch.zeros(1, dtype=torch.float64, device=self.device)
                continue
            held = [self.params[name] for name in bucket.params]
            flat = torch.zeros(sum(p.numel() for p in held), dtype=held[0].dtype, device=self.device)
            self.flat[bucket.id] = flat
            offset = 0
            for name, p in zip(bucket.params, held, strict=True):
                self._views[name] = flat[offset : offset + p.numel()].view(p.shape)
                offset += p.numel()

    def zero_gradients(self) -> None:
        """Before a step: reduced gradients start at zero in place; the others start absent, and take the first one."""
        for flat in self.flat.values():
            flat.zero_()
        for name, param in self.params.items():
            param.grad = self._views.get(name)

    def square_norm(self, names: Iterable[str]) -> torch.Tensor:
        """The sum of squares of these parameters' gradients, in float64, of shape (1,)."""
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        for name in names:
            gradient = self.params[name].grad
            if gradient is not None:
                total += gradient.double().square().sum()
        return total

    def scale_gradients(self, square: torch.Tensor, limit: float) -> None:
        """Clip: multiply all gradients by limit / norm where the norm is above it, as torch's clip_grad_norm_ does."""
        factor = (limit / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for param in self.params.values():
            if param.grad is not None:
                param.grad.mul_(factor.to(param.grad.dtype))

    def make_optimizers(
        self, program: Program, make: Callable[[Any], torch.optim.Optimizer], state: Mapping[str, dict[str, Any]]
    ) -> None:
        """One optimizer per stage over (name, parameter) pairs; `state` restores what an earlier one kept by name."""
        self.optimizers = {}
        for stage, names in program.stages.items():
            if names:
                optimizer = make([(name, self.params[name]) for name in names])
                name_of = {id(self.params[name]): name for name in names}
                for group in optimizer.param_groups:
                    for p in group["params"]:
                        if kept := state.get(name_of[id(p)]):
                            optimizer.state[p] = {k: self._restored(k, v, group) for k, v in kept.items()}
                self.optimizers[stage] = optimizer

    def _restored(self, key: str, value: Any, group: Mapping[str, Any]) -> Any:
        """As `Optimizer.load_state_dict` places it: a step counter stays on the host, where reading it is free."""
        if not isinstance(value, torch.Tensor):
            return value
        host = key == "step" and not (group.get("capturable") or group.get("fused"))
        return value.to("cpu" if host else self.device, copy=True)

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Per-parameter optimizer state by name, on the host."""
        names = {id(p): name for name, p in self.params.items()}
        return {
            names[id(p)]: {k: v.detach().cpu() if isinstance(v, torch.Tensor) else v for k, v in kept.items()}
            for optimizer in self.optimizers.values()
            for p, kept in optimizer.state.items()
            if id(p) in names
        }

    def tensors(self) -> list[torch.Tensor]:
        """Everything that lives across steps, for counting bytes."""
        state = [
            v
            for optimizer in self.optimizers.values()
            for kept in optimizer.state.values()
            for v in kept.values()
            if isinstance(v, torch.Tensor)
        ]
        return [*self.params.values(), *self.buffers.values(), *self.flat.values(), *state]

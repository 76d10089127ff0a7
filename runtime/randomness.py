"""Random operations whose numbers depend on (step, global microbatch, index of the node) and on nothing else.

The index counts the random nodes of the unsplit graph, so the numbers depend neither on how the model is cut into
chunks nor on which device or in which order they run, and a recomputed forward draws the same ones again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

_MASK = (1 << 64) - 1
# The CPU generator is one per process: two threads must not interleave between seeding and restoring it.
_LOCK = threading.Lock()


def seed_of(seed: tuple[int, int], index: int) -> int:
    """A 63-bit seed for node `index` of (step, global microbatch): splitmix64 applied to each number in turn."""
    state = 0
    for number in (*seed, index):
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def seeded(function: Callable[..., Any], index: int) -> Callable[..., Any]:
    """`function` with a leading argument `seed`; the generators' states are as before afterwards."""

    def call(seed: tuple[int, int], *args: Any, **kwargs: Any) -> Any:
        number = seed_of(seed, index)
        with _LOCK:
            generators = [torch.default_generator, *_cuda_generators((*args, *kwargs.values()))]
            states = [generator.get_state() for generator in generators]
            try:
                for generator in generators:
                    generator.manual_seed(number)
                return function(*args, **kwargs)
            finally:
                for generator, state in zip(generators, states, strict=True):
                    generator.set_state(state)

    call.__name__ = call.__qualname__ = f"seeded_{index}"
    return call


def method(name: str) -> Callable[..., Any]:
    """The tensor method `name` as a function."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    return call


def _cuda_generators(arguments: tuple[Any, ...]) -> list[torch.Generator]:
    devices = {
        argument.device if isinstance(argument, torch.Tensor) else argument
        for argument in arguments
        if isinstance(argument, torch.Tensor | torch.device)
    }
    indices = {torch.cuda.current_device() if d.index is None else d.index for d in devices if d.type == "cuda"}
    return [torch.cuda.default_generators[index] for index in sorted(indices)]

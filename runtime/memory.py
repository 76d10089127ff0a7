"""Counting the bytes of live tensors exactly, as the allocations of the counted threads make and drop them.

A `TorchDispatchMode` sees every tensor that an operation returns; the counter follows its storage until the storage
dies. Views share a storage and count once. A dispatch mode belongs to one thread, so every thread that computes enters
the same counter. Tensors that exist before, or that no operation of a counted thread makes, are registered by hand.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class ByteCounter:
    """Live and peak bytes of the tensor storages seen. Enter it (`with counter:`) in every thread that computes."""

    def __init__(self) -> None:
        # Re-entrant: a storage may die, and its finalizer run, while this thread holds the lock.
        self._lock = threading.RLock()
        self._sizes: dict[int, int] = {}
        self._modes = threading.local()
        self.live = 0
        self.peak = 0

    def __enter__(self) -> ByteCounter:
        mode = _CountingMode(self)
        mode.__enter__()  # type: ignore[no-untyped-call]
        self._stack().append(mode)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack().pop().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def register(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count these from now on: parameters, inputs, receive buffers. A tensor already counted counts once."""
        for tensor in tensors:
            if tensor.device.type != "meta" and not isinstance(tensor, FakeTensor):
                self._see(tensor.untyped_storage())

    def reset_peak(self) -> None:
        """Start a new peak from what lives now."""
        with self._lock:
            self.peak = self.live

    def _stack(self) -> list[_CountingMode]:
        if not hasattr(self._modes, "stack"):
            self._modes.stack = []
        stack: list[_CountingMode] = self._modes.stack
        return stack

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            old = self._sizes.get(key)
            if old == size:
                return
            if old is None:
                weakref.finalize(storage, self._forget, key).atexit = False
            self._sizes[key] = size
            self.live += size - (old or 0)
            self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        with self._lock:
            self.live -= self._sizes.pop(key, 0)


class _CountingMode(TorchDispatchMode):
    def __init__(self, counter: ByteCounter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.counter.register(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

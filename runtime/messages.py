"""What passes between the driver and its workers: pickles whose arrays and tensors travel as raw bytes beside them.

A message is a list of *frames*: the pickle (protocol 5) first, then one frame per array or tensor of it. Plain torch
pickling copies a tensor through `torch.save`; here a contiguous CPU tensor is a view of its own memory.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pibroch.runtime.errors import InputError

Frame = bytes | bytearray | memoryview
Frames = list[Frame]

ALIGNMENT = 64  # bytes; torch's own, and what vectorized kernels need to give the same bits for the same values


def encode(value: object, *, what: str) -> Frames:
    """Frames of `value`; they are views of its memory, so send them before anything changes it.

    Raises InputError, which names `what`, for values that cannot be pickled (lambdas, local functions, open files).
    """
    views: Frames = []
    stream = io.BytesIO()

    def beside(buffer: pickle.PickleBuffer) -> None:
        views.append(buffer.raw())

    try:
        _Pickler(stream, protocol=5, buffer_callback=beside).dump(value)
    except Exception as error:
        # pickle raises PicklingError, AttributeError, TypeError or whatever a __reduce__ raises
        raise InputError(
            f"{what} cannot be pickled ({type(error).__name__}: {error}); use a module-level function or class, "
            "or functools.partial, in place of a lambda or a local function"
        ) from error
    return [stream.getvalue(), *views]  # not getbuffer(): early Python 3.12 crashes when it collects that


def decode(frames: Sequence[Frame], *, find: Callable[[str], Any] | None = None) -> Any:
    """The value of `frames`, whose arrays and tensors then live in the frames' memory (writable if that is).

    `find(name)` resolves names of the driver's `__main__`. Raises whatever unpickling raises.
    """
    return _Unpickler(io.BytesIO(frames[0]), find, frames[1:]).load()


def room(size: int) -> memoryview:
    """Writable memory of `size` bytes, aligned as torch aligns its own."""
    import numpy

    memory = numpy.empty(size + ALIGNMENT, numpy.uint8)
    offset = -memory.ctypes.data % ALIGNMENT
    return memory[offset : offset + size].data


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        plain = (
            obj.device.type == "cpu"
            and obj.layout is torch.strided
            and obj.numel() > 0
            and not obj.is_quantized
            and not (obj.is_conj() or obj.is_neg())
            and not obj.__dict__
        )
        if not plain or (not obj.is_contiguous() and obj.untyped_storage().nbytes() <= 2 * obj.nbytes):
            return NotImplemented  # torch's own way keeps the strides; it sends the whole storage
        raw = obj.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        is_parameter = type(obj) is torch.nn.Parameter
        return _tensor, (pickle.PickleBuffer(raw), obj.dtype, tuple(obj.shape), obj.requires_grad, is_parameter)


def _tensor(raw: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool) -> Any:
    import torch

    view = memoryview(raw)
    if view.readonly:
        copy = room(view.nbytes)
        copy[:] = view
        view = copy
    tensor = torch.frombuffer(view, dtype=torch.uint8).view(dtype).reshape(shape)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, find: Callable[[str], Any] | None, buffers: Sequence[Frame]) -> None:
        super().__init__(stream, buffers=buffers)
        self._find = find

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__" and self._find is not None:
            return self._find(name)
        return super().find_class(module, name)

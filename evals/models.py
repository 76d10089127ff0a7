"""The shipped workloads, and the way to a user's own.

| name          | what it is                                                                                     |
|---------------|------------------------------------------------------------------------------------------------|
| `gpt-tiny`    | byte-level GPT, 4 blocks, width 64, length 64; trains on real text in tens of ms a step        |
| `gpt-dropout` | `gpt-tiny` with dropout 0.1                                                                    |
| `gpt-tied`    | the same with one weight for embedding and head                                                |
| `gpt-masked`  | the same with uneven label counts: the loss returns (sum, count)                               |
| `gpt-small`   | byte-level GPT, 6 blocks, width 128, length 128: enough work to pay for a pipeline; the demo's |
| `gpt-bench`   | GPT, 8 blocks, width 256, length 256, vocabulary 1024, one sample per microbatch; for timing   |
| `gpt-vocab`   | GPT, 6 blocks, width 128, length 64, vocabulary 8192: a head as heavy as five blocks            |
| `mlp-tiny`    | 8 equal layers of width 16: quick checks up to 8 stages                                        |
| `mlp-deep`    | 16 equal layers of width 16: quick checks up to 16 stages                                      |
| `mlp:N`       | N equal layers of width 16, N up to 999: what runs under emulation of a profile of N layers    |

All of them run in float32 and in float64.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pibroch.evals import timing  # noqa: F401, takes its clock before a workload's module can replace it
from pibroch.evals.gpt import GPT, masked_loss, mean_loss
from pibroch.evals.text import VOCABULARY, masked_text_batch, random_tokens, text_batch
from pibroch.runtime.annotate import annotate
from pibroch.runtime.errors import InputError
from pibroch.runtime.workload import Workload

LENGTH = 64


class MLP(nn.Module):
    """Equal residual layers, each annotated."""

    def __init__(self, *, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        """(samples, width) to the same."""
        for layer in self.layers:
            with annotate("LAYER"):
                x = x + functional.gelu(layer(x))
        return x


def squared_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error; the batch is (inputs, targets)."""
    return functional.mse_loss(model(batch[0]), batch[1])


def regression_batch(size: int, step: int, *, width: int) -> tuple[Tensor, Tensor]:
    """Normal inputs and bounded targets that depend on them, float32 of shape (size, width)."""
    x = torch.randn(size, width, generator=torch.Generator().manual_seed(step))
    return x, torch.sin(x.roll(1, dims=1))


def adamw(params: Iterable[Any], *, lr: float = 3e-3) -> torch.optim.Optimizer:
    """AdamW as the shipped workloads use it."""
    return torch.optim.AdamW(params, lr=lr)


def _gpt_tiny(name: str, **options: Any) -> Workload:
    masked = name == "gpt-masked"
    return Workload(
        name=name,
        model=partial(GPT, vocabulary=VOCABULARY, width=64, heads=4, blocks=4, length=LENGTH, **options),
        loss=masked_loss if masked else mean_loss,
        optimizer=adamw,
        batch=partial(masked_text_batch if masked else text_batch, length=LENGTH),
        microbatch=2,
        tokens=LENGTH,
    )


def _gpt_small() -> Workload:
    length = 128
    return Workload(
        name="gpt-small",
        model=partial(GPT, vocabulary=VOCABULARY, width=128, heads=4, blocks=6, length=length),
        loss=mean_loss,
        optimizer=partial(adamw, lr=1e-3),
        batch=partial(text_batch, length=length),
        microbatch=2,
        tokens=length,
    )


def _gpt_random(name: str, *, vocabulary: int, length: int, width: int, blocks: int, lr: float) -> Workload:
    """On random tokens, one sample per microbatch."""
    return Workload(
        name=name,
        model=partial(GPT, vocabulary=vocabulary, width=width, heads=4, blocks=blocks, length=length),
        loss=mean_loss,
        optimizer=partial(adamw, lr=lr),
        batch=partial(random_tokens, length=length, vocabulary=vocabulary),
        microbatch=1,
        tokens=length,
    )


def _mlp(name: str, layers: int) -> Workload:
    return Workload(
        name=name,
        model=partial(MLP, width=16, layers=layers),
        loss=squared_error,
        optimizer=adamw,
        batch=partial(regression_batch, width=16),
        microbatch=2,
    )


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "gpt-tiny": partial(_gpt_tiny, "gpt-tiny"),
    "gpt-dropout": partial(_gpt_tiny, "gpt-dropout", dropout=0.1),
    "gpt-tied": partial(_gpt_tiny, "gpt-tied", tied=True),
    "gpt-masked": partial(_gpt_tiny, "gpt-masked"),
    "gpt-small": _gpt_small,
    "gpt-bench": partial(_gpt_random, "gpt-bench", vocabulary=1024, length=256, width=256, blocks=8, lr=3e-4),
    "gpt-vocab": partial(_gpt_random, "gpt-vocab", vocabulary=8192, length=64, width=128, blocks=6, lr=1e-3),
    "mlp-tiny": partial(_mlp, "mlp-tiny", 8),
    "mlp-deep": partial(_mlp, "mlp-deep", 16),
}


_MLP = re.compile(r"mlp:([1-9][0-9]{0,2})")


def load_workload(ref: str) -> Workload:
    """The shipped workload of that name, or what the user's `module:function` returns (`function` takes no arguments).

    The current folder is on the path. Raises `InputError`, in one line: an unknown name (with those that exist), a
    module that is absent, unreadable or fails when imported, and a function that fails or returns no `Workload`.
    """
    if ref in WORKLOADS:
        return WORKLOADS[ref]()
    if deep := _MLP.fullmatch(ref):
        return _mlp(ref, int(deep[1]))
    if ":" not in ref:
        shipped = ", ".join([*WORKLOADS, "mlp:N"])
        raise InputError(f"--model {ref}: no such workload. Shipped: {shipped}; your own: module:function")
    module_name, function_name = ref.rsplit(":", 1)
    function = _import(ref, module_name, function_name)
    try:
        workload = function()
    except (Exception, SystemExit) as error:  # a status of 0 would look like success
        raise InputError(f"--model {ref}: {function_name}() failed: {_one_line(error)}") from error
    if not isinstance(workload, Workload):
        kind = type(workload).__name__
        raise InputError(f"--model {ref}: {function_name}() must return a pibroch Workload, not {kind}")
    return workload


def _import(ref: str, module_name: str, function_name: str) -> Callable[[], Any]:
    name = module_name.removesuffix(".py").replace("/", ".")
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"--model {ref}: {module_name!r} is not a module's name; write module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # stays: what the module imports later, and pickles, must be found as well
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise InputError(f"--model {ref}: there is no module {name!r} in {here} or on Python's path") from error
        raise InputError(f"--model {ref}: importing {name} failed: {_one_line(error)}") from error
    except OSError as error:
        raise InputError(f"--model {ref}: cannot read the module: {error.strerror or _one_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"--model {ref}: importing {name} failed: {_one_line(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(f"--model {ref}: module {name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]

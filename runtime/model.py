"""What lowering needs to know of a model, as plain data.

A `ModelSpec` lists the *layers* of a captured model in execution order (a layer is one annotated region) with the
parameters each one owns and the values that flow between them. Nothing here imports torch: a schedule can be lowered,
verified and simulated for a model that exists only as figures.

Shapes are those of one microbatch. `flops` are relative costs of one forward; a backward counts twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a value; `grad` tells whether a gradient flows back through it."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    grad: bool = True

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One parameter of the whole model. Tied parameters are one `ParamSpec` that several layers name."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One annotated region of the model.

    `consumes` and `produces` name values of `ModelSpec.values` that cross between layers. `saved_bytes` is what one
    microbatch keeps between forward and backward, `weight_saved_bytes` what it keeps between BI and BW.
    """

    index: int
    tags: dict[str, int]
    params: tuple[str, ...] = ()
    consumes: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    saved_bytes: int = 0
    weight_saved_bytes: int = 0
    flops: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole model. `loss` is "mean" or "sum_count"; `random` tells whether any node draws random numbers, `clip`
    whether gradients are clipped by their norm over the whole model."""

    name: str
    layers: tuple[LayerSpec, ...]
    params: dict[str, ParamSpec] = field(default_factory=dict)
    values: dict[str, TensorSpec] = field(default_factory=dict)
    loss: str = "mean"
    random: bool = False
    clip: bool = False

    @property
    def fixed_stages(self) -> bool:
        """True where the model itself annotates `PP`: its stages are then fixed."""
        return any("PP" in layer.tags for layer in self.layers)


def uniform_model(layers: int, *, hidden_bytes: int = 4, param_bytes: int = 4, saved_bytes: int = 4) -> ModelSpec:
    """A chain of equal layers, for simulations that need no real model."""
    values = {f"h{i}": TensorSpec((hidden_bytes // 4,)) for i in range(layers - 1)}
    params = {f"w{i}": ParamSpec(f"w{i}", (param_bytes // 4,)) for i in range(layers)}
    return ModelSpec(
        name=f"uniform-{layers}",
        layers=tuple(
            LayerSpec(
                index=i,
                tags={"LAYER": i},
                params=(f"w{i}",),
                consumes=(f"h{i - 1}",) if i else (),
                produces=(f"h{i}",) if i < layers - 1 else (),
                saved_bytes=saved_bytes,
                weight_saved_bytes=saved_bytes,
            )
            for i in range(layers)
        ),
        params=params,
        values=values,
    )

"""Small models with one trait each that schedules have been known to get wrong. Module-level, so that they pickle."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pibroch.runtime.annotate import annotate
from pibroch.runtime.workload import Workload

WIDTH = 8


class Chain(nn.Module):
    """Four layers. `trait`: plain, dropout, tied (first and last weight), skip (the first value is used last too),
    frozen (the first two layers), norm (batch statistics in buffers)."""

    def __init__(self, trait: str = "plain") -> None:
        super().__init__()
        self.trait = trait
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        if trait == "tied":
            self.layers[3].weight = self.layers[0].weight
        if trait == "frozen":
            self.layers[:2].requires_grad_(False)
        if trait == "norm":
            self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        first = x
        for i, layer in enumerate(self.layers):
            with annotate("LAYER"):
                x = torch.tanh(layer(x))
                if self.trait == "dropout":
                    x = F.dropout(x, 0.3, self.training)
                if self.trait == "norm" and i == 1:
                    x = self.norm(x)
                if i == 0:
                    first = x
                if self.trait == "skip" and i == 3:
                    x = x + first
        return x


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def masked_loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """A (sum, count) loss over the samples whose mask is set: uneven across microbatches."""
    errors = (model(batch["x"]) - batch["y"]).square().sum(dim=1)
    return (errors * batch["mask"]).sum(), batch["mask"].sum()


def batch(size: int, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return {"x": torch.randn(size, WIDTH, generator=generator), "y": torch.randn(size, WIDTH, generator=generator)}


def masked_batch(size: int, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    mask = (torch.rand(size, generator=generator) < 0.6).float()
    mask[0] = 1.0
    return {**batch(size, step), "mask": mask}


adamw = partial(torch.optim.AdamW, lr=1e-2)


def workload(trait: str = "plain") -> Workload:
    masked = trait == "masked"
    return Workload(
        name=trait,
        model=partial(Chain, "plain" if trait in ("masked", "clipped") else trait),
        loss=masked_loss if masked else loss,
        optimizer=adamw,
        batch=masked_batch if masked else batch,
        microbatch=2,
        clip_norm=0.05 if trait == "clipped" else None,
    )

"""Small annotated models, each with one peculiarity."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pibroch.runtime.annotate import annotate

WIDTH, VOCABULARY, LENGTH = 8, 16, 6


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = (h.view(b, t, 2, d // 2).transpose(1, 2) for h in self.qkv(self.norm1(x)).split(d, dim=-1))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=self.dropout)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class TinyGPT(nn.Module):
    """Layers: embedding, `depth` blocks, head."""

    def __init__(self, *, depth: int = 3, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        with annotate("LAYER"):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            with annotate("LAYER"):
                x = block(x)
        with annotate("LAYER"):
            result: Tensor = self.head(self.norm(x))
        return result


def token_batch(size: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    draw = torch.randint(0, VOCABULARY, (2, size, LENGTH), generator=generator)
    return {"ids": draw[0], "labels": draw[1]}


def token_loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


class Chain(nn.Module):
    """`depth` layers, each one module that `make(i)` builds; no annotation besides "LAYER" around each."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            with annotate("LAYER"):
                x = layer(x)
        return x


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    result: Tensor = model(batch).square().mean()
    return result

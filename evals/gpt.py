"""A small GPT (pre-norm, learned positions), annotated layer by layer: the embedding, each block, the head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pibroch.evals.text import IGNORED
from pibroch.runtime.annotate import annotate


class Block(nn.Module):
    """Causal self-attention and a GELU network of four times the width, each with its residual."""

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(samples, length, width) to the same."""
        samples, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=-1)
        q, k, v = (t.view(samples, length, self.heads, width // self.heads).transpose(1, 2) for t in parts)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(samples, length, width))
        y = self.down(functional.gelu(self.up(self.norm2(x))))
        if self.dropout:
            y = functional.dropout(y, self.dropout, self.training)
        total: Tensor = x + y
        return total


class GPT(nn.Module):
    """`tied` shares the embedding's weight with the head."""

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int,
        heads: int,
        blocks: int,
        length: int,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads, dropout=dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens (samples, length) to logits (samples, length, vocabulary)."""
        with annotate("LAYER"):
            x = self.embed(ids)
        for block in self.blocks:
            with annotate("LAYER"):
                x = block(x)
        with annotate("LAYER"):
            logits = self.unembed(x)
        return logits

    def embed(self, ids: Tensor) -> Tensor:
        """The first layer."""
        x: Tensor = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return x

    def unembed(self, x: Tensor) -> Tensor:
        """The last layer."""
        logits: Tensor = self.head(self.norm(x))
        return logits


def mean_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the next token."""
    logits = model(batch["ids"])
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def masked_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(sum, count) over the labels that are not masked: samples weigh by their number of labels."""
    logits, labels = model(batch["ids"]), batch["labels"].flatten()
    total = functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED, reduction="sum")
    return total, (labels != IGNORED).sum()

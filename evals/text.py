"""Batches of real text without a network: the sources of Python's own library, one token per byte.

The corpus is the library's top-level `*.py` files in the order of their names, so it is the same for everyone with the
same Python release. A batch depends on nothing but its arguments.
"""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

import torch

from pibroch.runtime.errors import MissingError

VOCABULARY = 256
CORPUS_BYTES = 4 << 20
IGNORED = -100  # the label that cross_entropy leaves out


@functools.cache
def corpus() -> torch.Tensor:
    """The text as uint8, shape (bytes,), at most `CORPUS_BYTES` long. Raises `MissingError` where no sources are."""
    data = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            data += path.read_bytes()
        except OSError:
            continue  # an unreadable file is as good as an absent one
        if len(data) >= CORPUS_BYTES:
            break
    if len(data) < 1 << 16:
        raise MissingError("Python's library sources are not installed; they are the text that the shipped models read")
    return torch.frombuffer(data[:CORPUS_BYTES], dtype=torch.uint8)


def text_batch(size: int, step: int, *, length: int) -> dict[str, torch.Tensor]:
    """Samples `ids` and next-byte `labels`, int64 of shape (size, length), at places that `step` determines."""
    text = corpus()
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(text) - length - 1, (size, 1), generator=generator)
    window = text[starts + torch.arange(length + 1)].long()
    return {"ids": window[:, :-1].contiguous(), "labels": window[:, 1:].contiguous()}


def masked_text_batch(size: int, step: int, *, length: int) -> dict[str, torch.Tensor]:
    """The same with a different number of labels in each sample (at least one): the rest are `IGNORED`."""
    batch = text_batch(size, step, length=length)
    generator = torch.Generator().manual_seed(step + 1)
    kept = torch.randint(1, length + 1, (size, 1), generator=generator)
    batch["labels"][torch.arange(length) >= kept] = IGNORED
    return batch


def random_tokens(size: int, step: int, *, length: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """Uniform random tokens in the form of `text_batch`, for timing a model of another vocabulary."""
    generator = torch.Generator().manual_seed(step)
    window = torch.randint(0, vocabulary, (size, length + 1), generator=generator)
    return {"ids": window[:, :-1].contiguous(), "labels": window[:, 1:].contiguous()}

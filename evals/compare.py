"""One schedule against the single process and against torch.distributed.pipelining, on the same model and batch.

Forward and backward without the optimizer, one thread per process, all sides warm, steps in alternation
(`timing.paired`). Ratios are speed of ours over theirs. The single process accumulates over the same microbatches. The
peer is their schedule of the same family where they have it and can cut the model that way, else their 1F1B over two
processes; it always processes the same batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from pibroch.evals.gpt import GPT, mean_loss
from pibroch.evals.peers import PEERS, PeerPool
from pibroch.evals.reference import fresh_model, one_thread
from pibroch.evals.timing import Paired, measurement_lock, paired
from pibroch.runtime.batches import piece
from pibroch.runtime.trainer import Trainer
from pibroch.runtime.workload import Batch, Workload


def compare(
    trainer: Trainer,
    *,
    family: str | None = None,
    pairs: int = 10,
    deadline: float = 120.0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time the trainer's schedule against both. Leaves the trainer without an optimizer and with other gradients.

    Returns `single_process` and `pipelining`; each has `tokens_per_s`, `ours_tokens_per_s` in the same minute, `ratio`
    and `interval`, and the last one a `name`, or only a `reason` why there is none.
    """
    workload = trainer.workload
    batch = workload.batch(trainer.batch_size, 0)
    parts = trainer.plan.microbatches * trainer.plan.replicas
    tokens = trainer.batch_size * workload.tokens
    trainer.update = False
    trainer.load(trainer.schedule)
    single = _Single(workload, batch, parts, seed=trainer.seed)

    def ours() -> object:
        return trainer.step(batch)

    with measurement_lock():
        progress("timing against the single process")
        alone = paired(single.step, ours, pairs=pairs, keep_noisy=True)
        single_process = _row(alone, tokens)
        reason = _no_peer(workload)
        if reason:
            return {"single_process": single_process, "pipelining": {"reason": reason}}
        name, ranks = _peer(trainer, family)
        progress(f"timing against torch.distributed.pipelining ({PEERS[name]}, {ranks} processes)")
        with PeerPool(workload, batch, ranks=ranks, seed=trainer.seed, deadline=deadline) as pool:
            pool.load(name, parts)
            beside = paired(lambda: pool.step(name, parts), ours, pairs=pairs, keep_noisy=True)
    peer = {"name": PEERS[name], "processes": ranks, **_row(beside, tokens)}
    return {"single_process": single_process, "pipelining": peer}


class _Single:
    """The whole model in this process, accumulating over the microbatches."""

    def __init__(self, workload: Workload, batch: Batch, parts: int, *, seed: int) -> None:
        self.model = fresh_model(workload, seed=seed, dtype=torch.float32)
        self.loss = workload.loss
        size = workload.microbatch
        self.pieces = [
            piece(batch, i * size, (i + 1) * size)
            for i in range(parts)
        ]

    def step(self) -> None:
        self.model.zero_grad(set_to_none=True)
        with one_thread():
            for sample in self.pieces:
                loss = self.loss(self.model, sample)
                mean = loss[0] / loss[1] if isinstance(loss, tuple) else loss
                (mean / len(self.pieces)).backward()


def _no_peer(workload: Workload) -> str:
    """Why their runtime has no counterpart of this workload here, or nothing."""
    if not isinstance(workload.model(), GPT) or workload.loss is not mean_loss:
        return f"{workload.name} is not one of the shipped GPTs with a mean loss, the models that are cut for it here"
    return ""


def _peer(trainer: Trainer, family: str | None) -> tuple[str, int]:
    """Their schedule and how many processes it takes."""
    plan, blocks = trainer.plan, len(trainer.workload.model().blocks)  # type: ignore[arg-type]
    positions = plan.devices // plan.replicas
    per_device = 2 if family == "interleaved" else 1
    same = family in PEERS and plan.stages == positions * per_device and plan.stages > 1
    if same and plan.replicas == 1 and blocks % plan.stages == 0 and not plan.microbatches % positions:
        return str(family), positions
    return "1f1b", 2


def _row(found: Paired, tokens: int) -> dict[str, Any]:
    return {
        "tokens_per_s": tokens / statistics.median(found.baseline),
        "ours_tokens_per_s": tokens / statistics.median(found.candidate),
        "ratio": found.ratio,
        "interval": [found.lower, found.upper],
        "pairs": found.pairs,
    }

"""The peer runs on our weights and our batch: its gradients equal the plain model's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pibroch.evals.models import load_workload
from pibroch.evals.peers import PeerPool, even_cut
from pibroch.runtime.errors import InputError, WorkerError

MICROBATCHES = 4


@pytest.fixture(scope="module")
def pool() -> Iterator[PeerPool]:
    workload = load_workload("gpt-tiny")
    with PeerPool(workload, workload.batch(MICROBATCHES * workload.microbatch, 5), deadline=60) as pool:
        yield pool


@pytest.mark.parametrize("family", ["gpipe", "1f1b", "interleaved", "zbv"])
def test_gradients_equal_those_of_the_unsplit_model(pool: PeerPool, family: str) -> None:
    workload = load_workload("gpt-tiny")
    torch.manual_seed(0)
    model = workload.model()
    workload.loss(model, workload.batch(MICROBATCHES * workload.microbatch, 5)).backward()
    pool.load(family, MICROBATCHES)
    found = pool.gradients(family, MICROBATCHES)
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert torch.allclose(found[name], p.grad, rtol=1e-3, atol=1e-5), name


def test_steps_are_timed_and_bytes_counted(pool: PeerPool) -> None:
    pool.load("gpipe", MICROBATCHES)
    assert pool.step("gpipe", MICROBATCHES) > 0
    assert pool.single_step(MICROBATCHES) > 0
    gpipe, one = pool.peak_bytes("gpipe", MICROBATCHES), pool.peak_bytes("1f1b", MICROBATCHES)
    weights = sum(4 * p.numel() for p in load_workload("gpt-tiny").model().parameters())
    assert sum(gpipe) > 2 * weights  # weights and gradients at least
    assert gpipe == pool.peak_bytes("gpipe", MICROBATCHES)
    # GPipe holds four microbatches on the last rank, 1F1B one.
    assert gpipe[1] > one[1]


def test_a_failing_peer_is_named(pool: PeerPool) -> None:
    with pytest.raises(InputError, match="unknown peer family"):
        pool.load("2f2b", MICROBATCHES)
    workload = load_workload("gpt-tiny")
    with PeerPool(workload, workload.batch(2, 0), ranks=1, deadline=60) as other:
        with pytest.raises(WorkerError, match="peer rank 0: KeyError"):
            other.step("gpipe", 1)  # never loaded
        with pytest.raises(WorkerError, match="peer rank 0 has died"):
            other.step("gpipe", 1)


def test_even_cut() -> None:
    assert even_cut(8, 2) == [5]
    assert even_cut(8, 4) == [3, 5, 7]
    with pytest.raises(InputError, match="do not divide"):
        even_cut(8, 3)

"""The byte counter against sums done by hand."""

from __future__ import annotations

import threading

import torch

from pibroch.runtime.memory import ByteCounter


def test_counts_each_storage_once_and_forgets_it() -> None:
    with ByteCounter() as counter:
        a = torch.zeros(1000)
        b = a.view(10, 100)[2:]  # the same storage
        assert counter.live == 4000
        c = torch.zeros(500, dtype=torch.float64)
        assert counter.live == 8000
        del a
        assert counter.live == 8000  # the view keeps it
        del b
        assert counter.live == 4000
        del c
    assert counter.live == 0
    assert counter.peak == 8000


def test_registered_tensors_count_with_those_made_inside() -> None:
    weight = torch.zeros(100, 100, requires_grad=True)
    counter = ByteCounter()
    counter.register([weight, weight.view(-1)])
    assert counter.live == 40_000
    x = torch.ones(100)
    with counter:
        (weight @ x).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    # Left: the weight, its gradient. The peak held the product's 400 bytes or more beside the weight.
    assert counter.live == 80_000
    assert counter.peak >= 80_000


def test_saved_activations_of_an_inference_and_a_training_forward() -> None:
    def peak(grad: bool) -> int:
        x = torch.ones(1000, requires_grad=grad)
        with ByteCounter() as counter:
            for _ in range(10):
                x = x.exp()
        return counter.peak

    assert peak(True) == 10 * 4000  # exp saves its result
    assert peak(False) == 2 * 4000  # one being read, one being written


def test_one_counter_serves_several_threads() -> None:
    counter = ByteCounter()
    kept: list[torch.Tensor] = []

    def work() -> None:
        with counter:
            kept.append(torch.zeros(250))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outside = torch.zeros(1000)
    assert counter.live == counter.peak == 4000
    kept.clear()
    assert counter.live == 0
    counter.register([outside])
    assert (counter.live, counter.peak) == (4000, 4000)


def test_a_resized_storage_and_a_new_peak() -> None:
    with ByteCounter() as counter:
        a = torch.zeros(10)
        a.resize_(1000)
        assert counter.live == 4000
        b = torch.zeros(1000)
        del b
        counter.reset_peak()
        assert counter.peak == 4000

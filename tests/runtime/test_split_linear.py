from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pibroch.runtime.split_linear import WeightQueue, split_linear

Params = dict[str, Tensor]


def _params(*, bias: bool, dtype: torch.dtype = torch.float32) -> Params:
    generator = torch.Generator().manual_seed(3)
    shapes = {"w": (5, 7), **({"b": (5,)} if bias else {})}
    return {n: torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for n, s in shapes.items()}


def _split(x: Tensor, params: Params, queue: WeightQueue) -> Tensor:
    return split_linear(x, params["w"], params.get("b"), queue, "w", "b" if "b" in params else None)


def _grads(x: Tensor, params: Params) -> list[Tensor | None]:
    found = [x.grad, *(p.grad for p in params.values())]
    x.grad = None
    for p in params.values():
        p.grad = None
    return found


def _equal(left: list[Tensor | None], right: list[Tensor | None]) -> None:
    for a, b in zip(left, right, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


INPUTS = {
    "2-D": lambda: torch.randn(6, 7),
    "3-D": lambda: torch.randn(2, 3, 7),
    "4-D": lambda: torch.randn(2, 2, 3, 7),
    "transposed": lambda: torch.randn(3, 2, 7).transpose(0, 1),
    "column-major": lambda: torch.randn(7, 6).t(),
    "sliced": lambda: torch.randn(2, 3, 14)[..., ::2],
    "one row": lambda: torch.randn(1, 7),
}


@pytest.mark.parametrize("shape", INPUTS)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_equal_autograds_bitwise(shape: str, bias: bool) -> None:
    torch.manual_seed(0)
    x = INPUTS[shape]().requires_grad_()
    params = _params(bias=bias)
    weight = torch.randn(*x.shape[:-1], 5)
    (F.linear(x, params["w"], params.get("b")).tanh() * weight).sum().backward()
    reference = _grads(x, params)
    queue = WeightQueue()
    (_split(x, params, queue).tanh() * weight).sum().backward()
    assert params["w"].grad is None, "BI computes no weight gradient"
    queue.run(params)
    assert len(queue) == 0
    _equal(_grads(x, params), reference)


def test_gradients_accumulate_over_microbatches_bitwise() -> None:
    torch.manual_seed(0)
    params, batches = _params(bias=True), [torch.randn(4, 7, requires_grad=True) for _ in range(3)]
    for x in batches:
        F.linear(x, params["w"], params["b"]).exp().sum().backward()
    reference = [params["w"].grad, params["b"].grad]
    params["w"].grad = params["b"].grad = None
    queues = []
    for x in batches:
        queues.append(WeightQueue())
        _split(x, params, queues[-1]).exp().sum().backward()
    for queue in queues:
        queue.run(params)
    _equal([params["w"].grad, params["b"].grad], reference)


def test_a_weight_used_several_times_counts_each_once_in_autograds_order() -> None:
    torch.manual_seed(0)
    square = {"w": torch.randn(7, 7, requires_grad=True), "b": torch.randn(7, requires_grad=True)}
    x = torch.randn(4, 7, requires_grad=True)
    square["w"].grad, square["b"].grad = torch.full((7, 7), 0.1), torch.full((7,), 0.3)
    y = x
    for _ in range(3):
        y = F.linear(y, square["w"], square["b"]).sin()
    y.sum().backward()
    reference = _grads(x, square)
    square["w"].grad, square["b"].grad = torch.full((7, 7), 0.1), torch.full((7,), 0.3)
    queue = WeightQueue()
    y = x
    for _ in range(3):
        y = _split(y, square, queue).sin()
    y.sum().backward()
    queue.run(square)
    _equal(_grads(x, square), reference)


@pytest.mark.parametrize("frozen", [("w",), ("b",), ("w", "b")])
def test_frozen_parameters_get_no_gradient(frozen: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    params, x = _params(bias=True), torch.randn(4, 7, requires_grad=True)
    for name in frozen:
        params[name].requires_grad_(False)
    F.linear(x, params["w"], params["b"]).cos().sum().backward()
    reference = _grads(x, params)
    queue = WeightQueue()
    _split(x, params, queue).cos().sum().backward()
    assert len(queue) == (frozen != ("w", "b"))
    queue.run(params)
    _equal(_grads(x, params), reference)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 7), (2, 3, 7)])
def test_its_output_may_be_changed_in_place(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    params, x = _params(bias=bias), torch.randn(shape, requires_grad=True)
    (F.linear(x, params["w"], params.get("b")).relu_() ** 2).sum().backward()
    reference = _grads(x, params)
    queue = WeightQueue()
    (_split(x, params, queue).relu_() ** 2).sum().backward()
    queue.run(params)
    _equal(_grads(x, params), reference)


def test_an_input_without_gradient_still_gives_weight_gradients() -> None:
    params, x = _params(bias=True), torch.randn(4, 7)
    F.linear(x, params["w"], params["b"]).square().sum().backward()
    reference = _grads(x, params)
    queue = WeightQueue()
    _split(x, params, queue).square().sum().backward()
    queue.run(params)
    _equal(_grads(x, params), reference)


def test_autocast_gradients_equal_autograds_bitwise() -> None:
    torch.manual_seed(0)
    params, x = _params(bias=True), torch.randn(2, 4, 7, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(x, params["w"], params["b"])
    y.float().sin().sum().backward()
    reference = _grads(x, params)
    queue = WeightQueue()
    with torch.autocast("cpu", torch.bfloat16):
        z = _split(x, params, queue)
    assert z.dtype == torch.bfloat16
    assert torch.equal(y, z)
    z.float().sin().sum().backward()
    queue.run(params)
    _equal(_grads(x, params), reference)


def test_after_bi_only_inputs_and_output_gradients_of_linear_layers_stay_alive() -> None:
    params, x = _params(bias=True), torch.randn(4, 7, requires_grad=True)
    queue = WeightQueue()
    hidden = x * 2
    y = _split(hidden, params, queue)
    activated = y.tanh()
    (activated * torch.ones(4, 5)).sum().backward()
    hidden_ref, activated_ref = weakref.ref(hidden), weakref.ref(activated)
    del hidden, y, activated
    gc.collect()
    assert activated_ref() is None
    assert queue.nbytes == 4 * (4 * 7 + 4 * 5)
    queue.run(params)
    assert queue.nbytes == 0
    gc.collect()
    assert hidden_ref() is None


def test_without_queue_or_gradients_it_is_plain_linear() -> None:
    params, x = _params(bias=True), torch.randn(4, 7)
    split_linear(x, params["w"], params["b"], None, "w", "b").sum().backward()
    assert params["w"].grad is not None
    queue = WeightQueue()
    with torch.no_grad():
        assert not _split(x, params, queue).requires_grad
    assert len(queue) == 0

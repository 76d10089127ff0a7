from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from chain_helper import assert_same, run_chain, run_eager
from small_models import LENGTH, VOCABULARY, WIDTH, Chain, TinyGPT, mean_square, token_batch, token_loss
from torch import Tensor, nn

from pibroch.runtime.annotate import annotate
from pibroch.runtime.capture import Captured, capture, flatten_batch
from pibroch.runtime.errors import InputError
from pibroch.runtime.model import TensorSpec

LOGGER = logging.getLogger("mine")


def test_figures_of_a_small_gpt() -> None:
    captured = capture(TinyGPT(), token_loss, token_batch(2), name="gpt")
    spec = captured.spec
    assert (spec.name, spec.loss, spec.random, spec.fixed_stages) == ("gpt", "mean", False, False)
    assert [len(layer.params) for layer in spec.layers] == [2, 11, 11, 11, 3]
    hidden = TensorSpec((2, LENGTH, WIDTH), "float32", True)
    assert list(spec.values.values()) == [hidden] * 4
    names = list(spec.values)
    assert [layer.consumes for layer in spec.layers] == [(), *((name,) for name in names)]
    assert [layer.produces for layer in spec.layers] == [*((name,) for name in names), ()]
    rows = 2 * LENGTH
    # four linear layers of (3 + 1 + 4 + 4) width^2 weights, and attention's two products of (t x t x d) per sample
    products = 2 * rows * 12 * WIDTH**2 + 2 * 2 * 2 * LENGTH * LENGTH * WIDTH
    assert products < spec.layers[1].flops < 1.3 * products
    # x and g of each linear layer: widths 1 + 3, 1 + 1, 1 + 4, 4 + 1
    assert spec.layers[1].weight_saved_bytes == rows * 16 * WIDTH * 4
    # autograd keeps: norm input twice with its output, q k v, attention's output, the matrix made of it, up and gelu
    assert spec.layers[1].saved_bytes >= rows * (4 + 3 + 1 + 1 + 8 - 1) * WIDTH * 4


def test_pickle_is_small_and_loads_without_the_tracer() -> None:
    data = pickle.dumps(capture(TinyGPT(), token_loss, token_batch(), name="gpt"))
    assert len(data) < 60_000
    code = (
        "import pickle, sys; import pibroch.runtime.chunk; c = pickle.load(sys.stdin.buffer);"
        "print(len(c.spec.layers), 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=120, check=True)
    assert done.stdout.split() == [b"5", b"False"], done.stderr


def test_a_pickled_copy_computes_the_same() -> None:
    model, batch = TinyGPT(), token_batch()
    captured: Captured = pickle.loads(pickle.dumps(capture(model, token_loss, batch, name="gpt")))
    assert_same(run_chain(captured, model, batch, [2]), run_eager(model, token_loss, batch))


def test_capture_leaves_batch_buffers_and_random_state_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    model = Chain(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 3))
    batch = torch.randn(4, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept, state = batch.clone(), torch.get_rng_state()
    for _ in range(12):  # more often than the tracer's limit of recompilations
        capture(model, mean_square, batch, name="norm")
    assert torch.equal(batch, kept)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert capfd.readouterr() == ("", "")


def test_equal_leaves_stay_different_leaves() -> None:
    ids = token_batch()["ids"]
    captured = capture(TinyGPT(), token_loss, {"ids": ids, "labels": ids}, name="gpt")
    assert sorted(name for kind, name in captured.bindings.values() if kind == "batch") == ["ids", "labels"]


def test_flatten_batch() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    flat = flatten_batch({"ids": a, "more": [b, {"x": c}], "scale": 2.0})
    assert {name: value.numel() for name, value in flat.items()} == {"ids": 1, "more.0": 2, "more.1.x": 3}
    assert flatten_batch(flat) == flat
    assert list(flatten_batch((a, b))) == ["0", "1"]
    assert flatten_batch(flatten_batch(a)) == {"batch": a}
    with pytest.raises(InputError, match=r"'0'.*rename"):
        flatten_batch({"0": a, 0: b})


def _sum_and_count(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
    labels = batch["labels"].masked_fill(batch["labels"] < 4, -100)
    total = F.cross_entropy(model(batch["ids"]).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return total, labels.ne(-100).sum()


def test_a_count_follows_from_the_batch_alone() -> None:
    captured = capture(TinyGPT(), _sum_and_count, token_batch(), name="gpt")
    assert captured.spec.loss == "sum_count"
    other = {"ids": torch.zeros(2, LENGTH, dtype=torch.long), "labels": torch.arange(12).view(2, LENGTH)}
    count = pickle.loads(pickle.dumps(captured)).count_of(other)
    assert count is not None
    assert count.item() == 8
    flat = captured.count_of(flatten_batch(other))
    assert flat is not None
    assert flat.item() == 8


@pytest.mark.parametrize(
    ("count", "value"),
    [
        (lambda b: b["ids"].numel(), 2 * LENGTH),
        (lambda b: b["tokens"], 7),
        (lambda b: torch.tensor(5.0), 5),
    ],
)
def test_a_count_may_be_a_number_or_a_leaf(count: Callable[[Any], Any], value: int) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
        return model(batch["ids"]).sum(), count(batch)

    batch = {**token_batch(), "tokens": torch.tensor(7)}
    got = capture(TinyGPT(), loss, batch, name="gpt").count_of(batch)
    assert got is not None
    assert got.item() == value


def test_a_mean_loss_has_no_count() -> None:
    assert capture(TinyGPT(), token_loss, token_batch(), name="gpt").count_of(token_batch()) is None


def test_log_calls_in_the_model_are_no_obstacle() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        LOGGER.warning("step")
        return token_loss(model, batch)

    capture(TinyGPT(depth=1), loss, token_batch(), name="gpt")


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x)
        return result


class Breaks(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with annotate("LAYER"):
            y = super().forward(x)
            return y if y.sum() > 0 else -y


class Reassigns(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with annotate("LAYER"):
            self.seen = self.seen + x.sum()
            return super().forward(x)


class Stores(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with annotate("LAYER"):
            self.last = super().forward(x)
            return self.last + 1


class WrongShape(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with annotate("LAYER"):
            return super().forward(x.flatten())


class Frozen(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with annotate("LAYER"):
            return super().forward(x).detach()


class ChangesItsWeight(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with annotate("LAYER"):
            with torch.no_grad():
                self.linear.weight.mul_(0.5)
            return super().forward(x)


class ChangesAnotherRegionsValue(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with annotate("LAYER"):
            x = super().forward(x)
        with annotate("LAYER"):
            y = x.sigmoid()
            x[:, 0] = 1.0
        with annotate("LAYER"):
            return x + y


class ReadsAnotherRegionsBuffer(Reassigns):
    def forward(self, x: Tensor) -> Any:
        with annotate("LAYER"):
            self.seen.add_(1.0)
            x = self.linear(x)
        with annotate("LAYER"):
            return x * self.seen


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Plain(), r"thing: the model has no annotated regions.*annotate\(\"LAYER\"\)"),
        (Breaks(), r"thing: the model cannot be captured as one graph: .*test_capture\.py:\d+"),
        (WrongShape(), "thing: the model cannot be captured as one graph: "),
        (Reassigns(), "assigns the buffer seen anew"),
        (Stores(), "stores the tensor"),
        (Frozen(), "does not depend on any trainable parameter"),
        (ChangesItsWeight(), r"changes the parameter linear\.weight in place"),
        (ChangesAnotherRegionsValue(), r"in region \{'LAYER': 1\} changes .* in place"),
        (ReadsAnotherRegionsBuffer(), "changes buffer seen in place"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_cannot_be_captured_says_why(model: nn.Module, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=message) as caught:
        capture(model, mean_square, torch.ones(2, 3), name="thing")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda m, b: m(b["ids"]), r"must be a scalar tensor or a pair .* not a tensor of shape \(2, 6, 16\)"),
        (lambda m, b: (m(b["ids"]).sum(), m(b["ids"]).abs().sum()), "count depends on the param"),
        (lambda m, b: (m(b["ids"]).sum(), b["ids"].ne(0).sum(0)), "count must be a scalar"),
        (lambda m, b: (m(b["ids"]).sum(), None), "a pair without a count"),
        (lambda m, b: 3.0, "depends on no tensor"),
    ],
)
def test_a_wrong_loss_says_what_is_wanted(loss: Callable[..., Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        capture(TinyGPT(depth=1), loss, token_batch(), name="gpt")


def test_constants_of_a_closure_travel_with_the_graph_and_trainable_ones_are_refused() -> None:
    weights = torch.rand(VOCABULARY)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), weight=weights)

    model, batch = TinyGPT(), token_batch()
    captured = pickle.loads(pickle.dumps(capture(model, loss, batch, name="gpt")))
    assert_same(run_chain(captured, model, batch, [2]), run_eager(model, loss, batch))
    weights.requires_grad_()
    with pytest.raises(InputError, match="register it"):
        capture(model, lambda m, b: (m(b["ids"]) * weights).sum(), batch, name="gpt")


def test_tied_and_frozen_parameters_in_the_specification() -> None:
    model = TinyGPT(tied=True)
    model.positions.weight.requires_grad_(False)
    spec = capture(model, token_loss, token_batch(), name="gpt").spec
    assert "tokens.weight" in spec.layers[0].params
    assert "tokens.weight" in spec.layers[-1].params
    assert "head.weight" not in spec.params
    assert [name for name, p in spec.params.items() if not p.trainable] == ["positions.weight"]

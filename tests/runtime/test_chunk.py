from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from chain_helper import assert_same, chunks_at, run_chain, run_eager
from small_models import VOCABULARY, WIDTH, Block, Chain, TinyGPT, mean_square, token_batch, token_loss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pibroch.runtime.annotate import annotate
from pibroch.runtime.capture import Captured, capture
from pibroch.runtime.chunk import build_chunk
from pibroch.runtime.plan import ChunkSpec
from pibroch.runtime.randomness import seed_of, seeded


def check(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Any],
    batch: Any,
    *,
    cuts: Sequence[tuple[int, ...]] | None = None,
    close: bool = False,
) -> Captured:
    """All ways to cut the model into chunks (or `cuts`), split backward or not, equal plain PyTorch bitwise.

    With `close`, plain PyTorch is only close, and they equal the whole captured graph bitwise.
    """
    captured: Captured = pickle.loads(pickle.dumps(capture(model, loss, batch, name="model")))
    reference = run_eager(model, loss, batch)
    if close:
        eager, reference = reference, run_chain(captured, model, batch)
        torch.testing.assert_close(reference, eager)
    inner = range(1, len(captured.spec.layers))
    every = [c for k in range(len(inner) + 1) for c in itertools.combinations(inner, k)]
    for cut in every if cuts is None else cuts:
        for split in (False, True):
            assert_same(run_chain(captured, model, batch, cut, split=split), reference)
    return captured


@pytest.mark.parametrize("tied", [False, True])
def test_gpt(tied: bool) -> None:
    check(TinyGPT(tied=tied), token_loss, token_batch())


def test_linear_weights_are_split_and_others_are_not() -> None:
    captured = capture(TinyGPT(depth=1, tied=True), token_loss, token_batch(), name="gpt")
    block = {f"blocks.0.{n}" for n in ("qkv.weight", "qkv.bias", "out.weight", "out.bias", "up.weight", "up.bias")}
    whole = chunks_at(captured, [], split=True)[0]
    assert {*whole.split} == block | {"blocks.0.down.weight"}, "a tied head in the embedding's chunk stays whole"
    first, last = chunks_at(captured, [2], split=True)
    assert {*last.split} == {"tokens.weight"}
    assert "tokens.weight" in first.params
    assert not any(chunk.split for chunk in chunks_at(captured, [2]))


def test_chunks_take_only_what_they_need() -> None:
    captured = capture(TinyGPT(depth=2), token_loss, token_batch(), name="gpt")
    first, middle, last = chunks_at(captured, [1, 3])
    assert (first.batch_leaves, middle.batch_leaves, last.batch_leaves) == (("ids",), (), ("labels",))
    assert (len(first.inputs), len(middle.inputs), len(last.inputs)) == (0, 1, 1)
    assert last.outputs == ("loss",)
    assert all(name.startswith("blocks.") for name in middle.params)


def test_frozen_layers() -> None:
    model = TinyGPT()
    for module in (model.tokens, model.positions, model.blocks[0], model.blocks[2].up):
        module.requires_grad_(False)
    captured = check(model, token_loss, token_batch())
    assert [value.grad for value in captured.spec.values.values()] == [False, False, True, True]


class Skips(nn.Module):
    """The value of layer 0 is consumed by layers 2 and 3; layer 1's tuple by layers 2 and 3 item by item."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        with annotate("LAYER"):
            first = self.layers[0](x).tanh()
        with annotate("LAYER"):
            left, right = self.layers[1](first).chunk(2, dim=-1)
        with annotate("LAYER"):
            both = self.layers[2](torch.cat([left, right], -1)) + first
        with annotate("LAYER"):
            return self.layers[3](both * first) * right.sum()


class WholeTuple(Skips):
    def forward(self, x: Tensor) -> Any:
        with annotate("LAYER"):
            parts = self.layers[0](x).split(WIDTH // 2, dim=-1)
            y = parts[0] * parts[1]
        with annotate("LAYER"):
            return self.layers[1](torch.cat(parts, -1)) * y.sum()


def test_values_that_skip_layers() -> None:
    # Layers 2 and 3 in one chunk add their contributions to one gradient before layer 1's, as autograd does; in any
    # other grouping the sum is in another order.
    captured = check(Skips(), mean_square, torch.randn(3, WIDTH), cuts=[(), (1,), (3,), (2, 3), (1, 2, 3)])
    first = captured.spec.layers[0].produces[0]
    assert [first in layer.consumes for layer in captured.spec.layers] == [False, True, True, True]
    assert all(len(value.shape) == 2 for value in captured.spec.values.values())


def test_a_tuple_is_taken_apart_before_it_crosses() -> None:
    captured = check(WholeTuple(), mean_square, torch.randn(3, WIDTH))
    assert len(captured.spec.layers[1].consumes) == 3


class Masked(nn.Module):
    """Rotary-like factors and a mask, made in layer 0 from batch, buffer and constants, used by all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.frequency: Tensor
        self.register_buffer("frequency", torch.linspace(0.1, 1.0, WIDTH))

    def forward(self, ids: Tensor, *, keep: Tensor) -> Any:
        with annotate("LAYER"):
            length = ids.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool).tril() & keep[:, None, None, :]
            cos = (torch.arange(length).float()[:, None] * self.frequency).cos()
            x = self.tokens(ids) * cos
        for block in self.blocks:
            with annotate("LAYER"):
                x = block(x * cos, mask)
        with annotate("LAYER"):
            result: Tensor = self.head(x)
        return result


def test_derived_values_are_repeated_not_sent() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = model(batch["ids"], keep=batch["keep"]).flatten(0, 1)
        labels = batch["labels"].masked_fill(~batch["keep"], -100).flatten()
        return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum"), (labels != -100).sum()

    batch = {**token_batch(), "keep": torch.tensor([[True] * 6, [True] * 4 + [False] * 2])}
    captured = check(Masked(), loss, batch)
    assert all(len(layer.consumes) <= 1 for layer in captured.spec.layers)
    assert [value.shape for value in captured.spec.values.values()] == [(2, 6, WIDTH)] * 4
    count = captured.count_of(batch)
    assert count is not None
    assert count.item() == 10
    last = chunks_at(captured, [4])[1]
    assert {*last.batch_leaves} == {"labels", "keep"}
    middle = chunks_at(captured, [2, 3])[1]
    assert (middle.buffers, middle.batch_leaves) == (("frequency",), ("keep",))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        with annotate("LAYER"):
            x = self.layers[0](x)
            x[:, 0] = 2.0
        with annotate("LAYER"):
            x += self.layers[1](x * 3)
            x.mul_(0.5)
        with annotate("LAYER"):
            return self.layers[2](x) + x


def test_in_place_changes_of_a_received_value() -> None:
    check(InPlace(), mean_square, torch.randn(3, WIDTH))


def test_in_place_change_of_the_batch_leaves_the_callers_alone() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        labels = batch["labels"]
        labels[labels < 3] = -100
        total = F.cross_entropy(model(batch["ids"]).flatten(0, 1), labels.flatten(), reduction="sum")
        return total, (labels != -100).sum()

    model, batch = TinyGPT(depth=1), token_batch()
    kept = {name: value.clone() for name, value in batch.items()}
    captured = capture(model, loss, batch, name="gpt")
    got, count = run_chain(captured, model, batch, [1]), captured.count_of(batch)
    assert all(torch.equal(batch[name], value) for name, value in kept.items())
    assert count is not None
    assert count.item() == (batch["labels"] >= 3).sum()
    assert_same(got, run_eager(model, loss, batch))


def test_batch_norm_updates_its_buffers_once_per_call() -> None:
    model = Chain(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    batch = torch.randn(5, 3)
    captured = capture(model, mean_square, batch, name="norm")
    start = {name: value.clone() for name, value in model.named_buffers()}
    reference = run_eager(model, mean_square, batch)
    after = {name: value.clone() for name, value in model.named_buffers()}
    assert not torch.equal(start["layers.1.running_mean"], after["layers.1.running_mean"])
    with torch.no_grad():
        for name, value in model.named_buffers():
            value.copy_(start[name])
    assert_same(run_chain(captured, model, batch, [1, 2]), reference)
    assert all(torch.equal(value, after[name]) for name, value in model.named_buffers())
    _, middle, last = chunks_at(captured, [1, 2])
    assert {*middle.mutated} == {*after}
    assert last.mutated == ()


def test_convolutions() -> None:
    model = Chain(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 4))
    captured = check(model, mean_square, torch.randn(2, 1, 8, 8))
    assert captured.spec.layers[0].flops >= 2 * 2 * 2 * 6 * 6 * 9


def test_bare_tensor_and_tuple_batches() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    captured = check(Chain(nn.Linear(4, 4), nn.Linear(4, 2)), loss, (torch.randn(3, 4), torch.randn(3, 2)))
    assert chunks_at(captured, [1])[1].batch_leaves == ("1",)


class Scoped(nn.Module):
    """no_grad and autocast scopes, and a scope that spans regions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad(), annotate("LAYER"):
            x = self.layers[0](x)
        with torch.autocast("cpu", torch.bfloat16):
            with annotate("LAYER"):
                x = self.layers[1](x)
            with annotate("LAYER"):
                x = self.layers[2](x.float())
                with torch.no_grad():
                    scale = x.abs().mean()
        with annotate("LAYER"):
            return self.layers[3](x.float() / scale)


def test_scopes_hold_wherever_the_model_is_cut() -> None:
    captured = check(Scoped(), mean_square, torch.randn(3, WIDTH))
    assert [value.dtype for value in captured.spec.values.values()][:2] == ["float32", "bfloat16"]
    with torch.no_grad():
        chunk = chunks_at(captured, [])[0]
        model = Scoped()
        chunk(dict(model.named_parameters()), {}, {"batch": torch.randn(3, WIDTH)}, {})
        assert not torch.is_grad_enabled(), "a chunk must not turn gradients on for a caller who turned them off"


def test_the_whole_loss_under_autocast() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return token_loss(model, batch)

    captured = check(TinyGPT(depth=2), loss, token_batch())
    assert {value.dtype for value in captured.spec.values.values()} <= {"float32", "bfloat16"}


class Checkpointed(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            with annotate("LAYER"):
                x = checkpoint(block, x, use_reentrant=False)
        return x


def test_activation_checkpoints() -> None:
    captured = check(Checkpointed(0.0), mean_square, torch.randn(2, 6, WIDTH))
    assert len(captured.spec.layers) == 2
    assert not captured.spec.random


def test_dropout_under_an_activation_checkpoint_draws_the_same_numbers_again() -> None:
    torch.manual_seed(1)
    model, batch = Checkpointed(0.3), torch.randn(2, 6, WIDTH)
    captured = capture(model, mean_square, batch, name="checkpointed")
    assert captured.spec.random
    one = run_chain(captured, model, batch, [], seed=(2, 5))
    assert_same(run_chain(captured, model, batch, [1], seed=(2, 5)), one)
    # A wrong mask in the repeated forward would give gradients that finite differences contradict.
    weight = dict(model.named_parameters())["blocks.0.down.weight"]
    gradient = one[1]["blocks.0.down.weight"]
    assert gradient is not None
    direction = torch.randn_like(weight)
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(direction, alpha=sign * 1e-2)
        losses.append(run_chain(captured, model, batch, [], seed=(2, 5))[0].item())
        with torch.no_grad():
            weight.add_(direction, alpha=-sign * 1e-2)
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx((gradient * direction).sum().item(), rel=2e-2)


def test_dropout_depends_on_step_and_microbatch_but_not_on_cuts_or_the_generator() -> None:
    model, batch = TinyGPT(dropout=0.2), token_batch()
    captured = capture(model, token_loss, batch, name="gpt")
    assert captured.spec.random
    whole = run_chain(captured, model, batch, seed=(3, 1))
    torch.manual_seed(77)
    state = torch.get_rng_state()
    for cuts in ([1], [2, 3], [1, 2, 3, 4]):
        for split in (False, True):
            assert_same(run_chain(captured, model, batch, cuts, split=split, seed=(3, 1)), whole)
    assert torch.equal(torch.get_rng_state(), state)
    others = [run_chain(captured, model, batch, seed=seed)[0].item() for seed in ((3, 0), (1, 3), (4, 1), (0, 0))]
    assert len({*others, whole[0].item()}) == 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_dropout_does_not_depend_on_cuts_either() -> None:
    model, batch = TinyGPT(dropout=0.2).cuda(), {name: leaf.cuda() for name, leaf in token_batch().items()}
    captured = capture(model, token_loss, batch, name="gpt")
    assert captured.spec.random
    whole = run_chain(captured, model, batch, seed=(3, 1))
    on_cpu = capture(TinyGPT(dropout=0.2), token_loss, token_batch(), name="gpt")
    moved = build_chunk(on_cpu, ChunkSpec(0, 0, 0, 5), split_backward=False, device="cuda")
    loss = moved(dict(model.named_parameters()), {}, batch, {}, seed=(3, 1))["loss"]
    torch.testing.assert_close(loss.detach(), whole[0])
    torch.cuda.manual_seed(77)
    for cuts in ([1], [2, 3], [1, 2, 3, 4]):
        for split in (False, True):
            torch.testing.assert_close(run_chain(captured, model, batch, cuts, split=split, seed=(3, 1)), whole)


def test_every_kind_of_random_operation_is_seeded() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            with annotate("LAYER"):
                x = self.a(x) + torch.rand_like(x) + torch.randn(4) + torch.randint(0, 9, (4,))
            with annotate("LAYER"):
                x = (
                    x * torch.bernoulli(torch.full_like(x, 0.5))
                    + torch.empty_like(x).uniform_()
                    + x.new_zeros(4).normal_()
                )
                return self.b(F.rrelu(x, training=True)) * torch.randperm(4)

    model, batch = Noisy(), torch.randn(3, 4)
    captured = capture(model, mean_square, batch, name="noisy")
    assert sorted(info.random for info in captured.info.values() if info.random >= 0) == list(range(8))
    one = run_chain(captured, model, batch, seed=(0, 4))
    torch.rand(9)
    assert_same(run_chain(captured, model, batch, [1], seed=(0, 4)), one)


def test_seeds_differ_in_every_coordinate_and_follow_manual_seed() -> None:
    seeds = {seed_of((step, mb), index) for step in range(6) for mb in range(6) for index in range(6)}
    assert len(seeds) == 216
    assert all(0 <= seed < 2**63 for seed in seeds)
    got = seeded(torch.rand, 2)((7, 3), 5)
    generator = torch.Generator().manual_seed(seed_of((7, 3), 2))
    assert torch.equal(got, torch.rand(5, generator=generator))


def test_a_chunk_for_another_device_makes_its_tensors_there() -> None:
    weights = torch.rand(VOCABULARY)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = checkpoint(model, batch["ids"], use_reentrant=False)
        noise = torch.zeros(VOCABULARY, device=logits.device)
        return F.cross_entropy((logits + noise).flatten(0, 1), batch["labels"].flatten(), weight=weights)

    model, batch = TinyGPT(depth=1), token_batch()
    captured = capture(model, loss, batch, name="gpt")
    spec = ChunkSpec(0, 0, 0, len(captured.spec.layers))
    chunk = build_chunk(captured, spec, split_backward=False, device="meta")
    params = {name: p.to("meta") for name, p in model.named_parameters()}
    result = chunk(params, {}, {name: leaf.to("meta") for name, leaf in batch.items()}, {})["loss"]
    assert (result.device.type, result.shape) == ("meta", ())
    on_cpu = build_chunk(captured, spec, split_backward=False, device="cpu")
    again = on_cpu(dict(model.named_parameters()), {}, batch, {})["loss"]
    assert torch.equal(again, loss(model, batch))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    common = {"vocab_size": 32, "use_cache": False, "attn_implementation": "sdpa"}
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=2, n_positions=16,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
        blocks = model.transformer.h
    else:
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=16, **common,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        blocks = model.model.layers
    for block in blocks:
        _annotate_forward(block)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        result: Tensor = model(input_ids=batch["ids"], labels=batch["ids"]).loss
        return result

    # Transformers itself takes another way through attention masks while it is traced.
    captured = check(model, loss, {"ids": torch.randint(0, 32, (2, 8))}, close=True)
    assert len(captured.spec.layers) == 2
    assert len(captured.spec.values) == 1


def _annotate_forward(module: nn.Module) -> None:
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with annotate("LAYER"):
            return inner(*args, **kwargs)

    module.forward = forward  # type: ignore[method-assign]

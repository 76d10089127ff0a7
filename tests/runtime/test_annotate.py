from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from small_models import TinyGPT, token_batch, token_loss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pibroch.runtime.annotate import annotate
from pibroch.runtime.capture import capture
from pibroch.runtime.errors import AnnotationWarning


class Nested(nn.Module):
    """Two PP scopes with two LAYER scopes each."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for stage in range(2):
            with annotate("PP"):
                for part in range(2):
                    with annotate("LAYER"):
                        x = self.parts[2 * stage + part](x)
        return x


def _square(model: nn.Module, x: Tensor) -> Tensor:
    total: Tensor = model(x).square().sum()
    return total


class Tagged(nn.Module):
    """One region for each tag."""

    def __init__(self, *tags: str) -> None:
        super().__init__()
        self.tags = tags
        self.part = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for tag in self.tags:
            with annotate(tag):
                x = self.part(x)
        return x


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        (("LAYERS", "LAYERS"), "'LAYERS'.*did you mean LAYER.*tags: LAYERS"),
        (("LAYER", "LYAER"), "'LYAER'.*did you mean LAYER"),
        (("layer", "LAYER"), "'layer'.*did you mean LAYER"),
        (("pp", "pp"), "did you mean PP"),
        (("PPP", "PP"), "did you mean PP"),
        (("BLOCK", "HEAD"), "no region is tagged LAYER or PP: stages are made of the regions BLOCK, HEAD"),
    ],
)
def test_doubtful_tags_are_named(tags: tuple[str, ...], words: str) -> None:
    with pytest.warns(AnnotationWarning, match=words):
        captured = capture(Tagged(*tags), _square, torch.ones(2, 3), name="tagged")
    assert len(captured.spec.layers) == 2


@pytest.mark.parametrize("tags", [("LAYER", "EXPERT"), ("PP", "TP"), ("LAYER", "MAYOR")])
def test_tags_of_ones_own_are_no_doubt(tags: tuple[str, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", AnnotationWarning)
        capture(Tagged(*tags), _square, torch.ones(2, 3), name="tagged")


def test_nested_scopes_count_globally_and_afresh_in_each_capture() -> None:
    model = Nested()
    for _ in range(2):
        captured = capture(model, _square, torch.ones(2, 3), name="nested")
        assert [layer.tags for layer in captured.spec.layers] == [
            {"PP": 0, "LAYER": 0},
            {"PP": 0, "LAYER": 1},
            {"PP": 1, "LAYER": 2},
            {"PP": 1, "LAYER": 3},
        ]
        assert captured.spec.fixed_stages


def test_models_that_import_annotate_do_not_load_the_tracer() -> None:
    code = "import sys, pibroch.runtime.annotate; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_eager_and_the_users_own_compile_ignore_scopes() -> None:
    model, x = Nested(), torch.ones(2, 3)
    plain = x
    for part in model.parts:
        plain = part(plain)
    assert torch.equal(model(x), plain)
    capture(model, _square, x, name="nested")
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=keep, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(x), plain)
    assert len(graphs) == 1, "the counters must not make the user's compiled model recompile"
    assert not any("pibroch" in str(node.meta.get("custom")) for node in graphs[0].graph.nodes)


def test_untagged_operations_join_the_region_before_and_leading_ones_the_first() -> None:
    class Loose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(2, 2) for _ in range(3))

        def forward(self, x: Tensor) -> Any:
            x = self.a(x)
            with annotate("LAYER"):
                x = x.relu()
            x = self.b(x)
            with annotate("LAYER"):
                x = x.relu()
            return self.c(x)

    layers = capture(Loose(), _square, torch.ones(1, 2), name="loose").spec.layers
    assert [layer.tags["LAYER"] for layer in layers] == [0, 1]
    assert [layer.params for layer in layers] == [("a.weight", "a.bias", "b.weight", "b.bias"), ("c.weight", "c.bias")]


def test_scopes_inside_of_an_activation_checkpoint_count() -> None:
    class Inside(Nested):
        def part(self, index: int, x: Tensor) -> Tensor:
            with annotate("LAYER"):
                result: Tensor = self.parts[index](x)
            return result

        def forward(self, x: Tensor) -> Tensor:
            for index in range(3):
                x = checkpoint(self.part, index, x, use_reentrant=False)
            return x

    layers = capture(Inside(), _square, torch.ones(1, 3), name="inside").spec.layers
    assert [layer.tags for layer in layers] == [{"LAYER": 0}, {"LAYER": 1}, {"LAYER": 2}]
    assert [layer.params for layer in layers] == [(f"parts.{i}.weight", f"parts.{i}.bias") for i in range(3)]


def test_what_stands_between_inner_scopes_is_a_layer_of_the_outer_tag() -> None:
    class Between(Nested):
        def forward(self, x: Tensor) -> Any:
            with annotate("PP"):
                with annotate("LAYER"):
                    x = self.parts[0](x)
                x = self.parts[1](x)
                with annotate("LAYER"):
                    return self.parts[2](x)

    layers = capture(Between(), _square, torch.ones(1, 3), name="between").spec.layers
    assert [layer.tags for layer in layers] == [{"PP": 0, "LAYER": 0}, {"PP": 0}, {"PP": 0, "LAYER": 1}]


@pytest.mark.parametrize("depth", [1, 4])
def test_one_line_in_a_loop_gives_one_index_per_turn(depth: int) -> None:
    layers = capture(TinyGPT(depth=depth), token_loss, token_batch(), name="gpt").spec.layers
    assert [layer.tags["LAYER"] for layer in layers] == list(range(depth + 2))

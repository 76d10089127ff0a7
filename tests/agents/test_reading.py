"""What a request says of the sentence and of the model."""

from __future__ import annotations

from pibroch.agents.intent import read_intent
from pibroch.agents.model_facts import facts
from pibroch.agents.reading import reading
from pibroch.runtime.model import LayerSpec, ModelSpec, ParamSpec


def test_each_open_clause_is_shown_whole_and_once() -> None:
    intent = read_intent(
        "ZeRO-1, run the backward of a microbatch as early as possible, 2 stages unless memory is short"
    )
    text = reading(intent, None, None)
    assert '"run the backward of a microbatch as early as possible"; "2 stages unless memory is short"' in text
    assert [line for line in text.splitlines() if "cannot be followed" in line] == [
        "- cannot be followed: ZeRO-1 (sharded optimizer state, gradients or parameters (ZeRO)); do the rest"
    ]
    assert text.count("ZeRO-1") == 1


def test_layers_are_located_by_their_parameters() -> None:
    names = (("tokens.weight", "positions.weight"), ("blocks.0.norm.weight", "blocks.0.up.bias"),
             ("blocks.1.norm.weight", "blocks.1.up.bias"), ("head.weight",), ())  # fmt: skip
    params = {n: ParamSpec(n, (2,)) for row in names for n in row}
    layers = tuple(LayerSpec(index=i, tags={}, params=row) for i, row in enumerate(names))
    text = facts(ModelSpec("m", layers, params))
    for row in ("| 0 | tokens, positions |", "| 1 to 2 | blocks.0 to blocks.1 |", "| 3 | head |", "| 4 | none |"):
        assert row in text

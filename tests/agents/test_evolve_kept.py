"""What is kept of a setting is what would be worked out anew."""

from __future__ import annotations

import pytest
from evolve_settings import emulated

from pibroch.agents.evolve import kept as kept_module
from pibroch.agents.evolve.design import changed, decode
from pibroch.agents.evolve.figures import _figures, figures
from pibroch.agents.evolve.kept import kept
from pibroch.runtime.families import build


def test_an_answer_is_made_once_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "MOST", 2)
    setting, made = emulated(devices=2, samples=4), list[int]()

    def ask(n: int) -> int:
        def make() -> int:
            made.append(n)
            return n * n

        return kept(setting, "squares", n, make)

    assert [ask(n) for n in (1, 2, 2, 1, 3, 2, 1)] == [1, 4, 4, 1, 9, 4, 1]
    assert made == [1, 2, 3, 1]


def test_figures_of_partly_recomputed_stages_are_put_together_from_those_of_all_and_none() -> None:
    setting = emulated(profile="alternating-12", devices=4, samples=4)
    design = decode(build("1f1b", devices=4, microbatches=4), setting)
    for some in ({0}, {1, 2}, {design.stages - 1}):
        mixed = changed(design, recompute=frozenset(some))
        assert figures(mixed, setting) == _figures(mixed, setting)
        assert figures(mixed, setting) != figures(design, setting)

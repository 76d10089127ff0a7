"""What a small model is asked: no skeleton, a line per condition, failed calls as assertions, fresh starts in turn."""

from __future__ import annotations

from pathlib import Path

from scripted_judge import SOURCE, ScriptedCompare
from scripted_lm import ScriptedModel, block

from pibroch.agents.module_small import assertions, short_task, suits, wrong
from pibroch.agents.module_writer import Written, write_module
from pibroch.evals.speceval.verdict import Finding
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec
from pibroch.specs.store import load_all

SPECS = load_all([Path(__file__).parents[2] / "specs"])


def small(answers: list[str | Exception], name: str = "local:tiny") -> ScriptedModel:
    lm = ScriptedModel(answers)
    lm.name = name
    return lm


def failing(call: str, got: str, right: str) -> Finding:
    message = f"result == X does not hold after delay_ms; `result` is {got} and should be {right}"
    return Finding("contract", "P1", message, calls=(call,), values={"result": got})


def test_only_small_models_and_functions_that_stand_alone() -> None:
    local, capable = small([]), small([], "mailbox")
    assert suits(SPECS["pareto"], 1, local)
    assert not suits(SPECS["pareto"], 1, capable)
    assert not suits(SPECS["pareto"], 2, local)
    assert not suits(SPECS["trace_ring"], 1, local)
    assert not suits(SPECS["gpipe"], 1, local)


def test_conditions_are_lines_and_helpers_are_to_be_written_too() -> None:
    text = short_task(SPECS["pareto"])
    assert "Write these 2 functions" in text
    assert "`def _beats(a: list[int], b: list[int]) -> bool`" in text
    assert "any(_beats(other, point) for other in points)]`" in text
    text = short_task(SPECS["event_policy"])
    assert "- `if kind in ['device_lost', 'host_lost']: return 'evict'`" in text
    assert "..." not in text
    assert "- Example: `cuts([3, 1, 2, 2, 1], 3) == [1, 3]`" in short_task(SPECS["bucket_packer"])


def test_failed_calls_become_assertions() -> None:
    spec, first = SPECS["retry_delay"], failing("delay_ms(0, 1, 0)", "1", "0")
    assert "assert delay_ms(0, 1, 0) == 0  # yours returned 1" in wrong([first], spec, "")
    told = [[first], [first, failing("delay_ms(2, 1, 9)", "2", "4")], []]
    assert assertions(told, spec) == "```python\nassert delay_ms(0, 1, 0) == 0\nassert delay_ms(2, 1, 9) == 4\n```"
    assert assertions([], spec) == ""
    broken = Finding("contract", "P2", "X does not hold after cuts", calls=("cuts([1], 1)",), values={"result": "[0]"})
    assert "`cuts([1], 1)` returned `[0]`, but this must be true: `all(" in wrong([broken], SPECS["bucket_packer"], "")
    assert "raised KeyError" in wrong([Finding("contract", "raises", "cuts raised KeyError")], spec, "")


class Judge:
    """Refuses `bad`, with a call."""

    def __call__(self, source: str, spec: Spec, **_: object) -> object:
        from pibroch.evals.speceval.verdict import Report, StageReport

        found = [failing("delay_ms(0, 1, 0)", "1", "0")] if "bad" in source else []
        return Report(spec.module, 1, [StageReport("contract", findings=found)])


def test_it_mends_and_starts_afresh_in_turn() -> None:
    answers: list[str | Exception] = [block(f"bad = {i}", "python") for i in range(3)]
    answers += [block("a = 1", "python"), block("a = 1", "python")]
    lm, spec = small(answers), SPECS["retry_delay"]
    written: Written = write_module(
        spec, lm, peers={spec.module: spec}, sources={}, judge=Judge(), compare=ScriptedCompare(), review=False  # type: ignore[arg-type]
    )
    assert written.source == "a = 1\n"
    assert written.entry is not None
    assert set(written.entry.prompts) == {"module_small"}
    assert "bad = 0" in lm.prompt(1)
    assert "yours returned 1" in lm.prompt(1)
    assert "bad" not in lm.prompt(2)
    assert "It must pass\n\n```python\nassert delay_ms(0, 1, 0) == 0\n```" in lm.prompt(2)
    assert "bad = 2" in lm.prompt(3)
    assert "assert" not in lm.prompt(4)


def test_what_a_module_relies_on_needs_the_whole_request() -> None:
    assert suits(parse_spec(SOURCE, "x.spec.md"), 1, small([]))
    assert "## The skeleton" not in short_task(parse_spec(SOURCE, "x.spec.md"))

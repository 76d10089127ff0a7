"""Cost clauses: growth of opcodes against the bound of the spec."""

from __future__ import annotations

import pytest
from module_samples import BUCKETS, changed, sample_spec

from pibroch.evals.speceval import contract, cost
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec

QUADRATIC = changed(
    BUCKETS,
    "        rest -= size\n",
    "        rest = 0\n        for later in sizes[i + 1:]:\n            rest += later\n",
)
STACK = """from typing import Any


class Stack:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items: list[int] = []

    def view(self) -> dict[str, Any]:
        return {"limit": self.limit, "items": list(self.items)}

    def push(self, x: int) -> None:
        self.items.append(x)

    def has(self, x: int) -> bool:
        for item in self.items:
            if item == x:
                return True
        return False
"""


def stack(bounds: str) -> Spec:
    return parse_spec(
        f"---\nspec: 1\nmodule: stack\nversion: 1\nsummary: A stack.\nguarantee: {{exports: [Stack]}}\ncost: {bounds}\n"
        "scope: {limit: 1..3, x: 0..5}\n---\n## Intent\nA stack.\n## Functionality\n```python\nclass Stack:\n"
        "    limit: int\n    items: list[int]\n    view(limit, items)\n    def __init__(self, limit: int) -> None:\n"
        '        requires("A1", limit >= 1)\n        ensures("P0", self.items == [])\n'
        "    def push(self, x: int) -> None:\n        modifies(items)\n"
        '        ensures("P1", self.items == old.items + [x])\n'
        '    def has(self, x: int) -> bool:\n        ensures("P2", result == (x in old.items))\n```\n'
    )


def test_a_right_but_quadratic_module_is_refused_by_its_cost_clause_alone() -> None:
    spec = sample_spec("buckets")
    assert contract.judge(QUADRATIC, spec, phase=1, peers={}, effort="quick").findings == []
    findings = cost.judge(QUADRATIC, spec).findings
    assert [(f.clause, f.line) for f in findings] == [("cost", 7)]
    assert "cuts grows faster than O(len(sizes)) with sizes" in findings[0].message
    assert [str(f) for f in findings] == [str(f) for f in cost.judge(QUADRATIC, spec).findings]


def test_the_linear_module_keeps_it() -> None:
    report = cost.judge(BUCKETS, sample_spec("buckets"))
    assert report.findings == []
    assert report.verdicts == {"cost.cuts": "held"}
    assert set(report.evidence) == {"cuts, sizes", "cuts, floor"}


def test_a_state_that_grows_with_the_calls_before_counts() -> None:
    assert cost.judge(STACK, stack('{push: "O(1)", has: "O(len(self.items))"}')).findings == []
    found = cost.judge(STACK, stack('{has: "O(1)"}')).findings
    assert len(found) == 1
    assert "has grows faster than O(1) with" in found[0].message


def test_setup_and_call_say_what_is_measured() -> None:
    setup = '["Stack(n)", "for i in range(n): push(i)"]'
    entry = '{has: {bound: "O(%s)", setup: ' + setup + ', call: "has(n)", sizes: [8, 32, 128]}}'
    assert cost.judge(STACK, stack(entry % "n")).findings == []
    found = cost.judge(STACK, stack(entry % "log(n)")).findings
    assert [f.calls for f in found] == [("Stack(n)", "for i in range(n): push(i)", "has(n)")]


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ('{has: "n"}', "a bound is written O"),
        ('{has: "O(m)"}', "m in O.m. is not known"),
        ('{has: {bound: "O(1)", setup: ["push(1)"], call: "has(1)"}}', "setup begins with Stack"),
        ('{has: {bound: "O(1)", setup: ["Stack(1)"], call: "push(1)"}}', "call is one call of has"),
        ('{has: {bound: "O(1)", setup: ["Stack(1)", "pop()"], call: "has(1)"}}', "no operation pop"),
    ],
)
def test_a_wrong_entry_is_one_message_with_its_line(bounds: str, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        cost.judge(STACK, stack(bounds))
    assert caught.value.line == 7

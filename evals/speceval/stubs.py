"""Stubs made of the rely: answers drawn so that they meet what this spec relies on, and nothing more."""

from __future__ import annotations

import ast
from typing import Any

from pibroch.evals.speceval.calls import relied
from pibroch.evals.speceval.domains import Choices, Dicts, Domain, Extra, Ints, Lists, RandomPicker, Tuples, answers_of
from pibroch.specs.errors import SpecError
from pibroch.specs.evaluate import holds
from pibroch.specs.explain import show
from pibroch.specs.model import Clause, Spec

_TRIES = 400
_SMALL, _WIDE = Ints(-1, 5), Ints(-3, 40)


class Stubs:
    """Answers of all relied-upon functions. The same run, with the same seed, gets the same answers again."""

    def __init__(self, spec: Spec, extra: Extra) -> None:
        self.spec, self.extra = spec, extra
        self.seed = 0
        self.asked: dict[str, int] = {}
        self.domains: dict[str, Domain | None] = {r.name: answers_of(spec, r.name, extra) for r in spec.relies}

    def begin(self, seed: int) -> None:
        """A new run."""
        self.seed, self.asked = seed, {}

    def __call__(self, name: str, args: list[Any]) -> Any:
        question = f"{name}({show(args, 1000)})"
        count = self.asked.get(question, 0)
        self.asked[question] = count + 1
        return self.answer(name, args, f"{self.seed} {question} {count}")

    def answer(self, name: str, args: list[Any], seed: str) -> Any:
        """One answer. Raises `SpecError` where none was found that meets the rely's `ensures`."""
        rely = relied(self.spec, name)
        picker = RandomPicker(seed)
        named = dict(zip([p.name for p in rely.function.params], args, strict=False))
        if not all(self._holds(clause, None, named) for clause in rely.function.of("requires")):
            return of_type(rely.function.returns, _SMALL).make(picker, {})  # asked wrongly, which the oracle tells
        for i in range(_TRIES):
            domain = self.domains[name] or of_type(rely.function.returns, _WIDE if i % 4 == 3 else _SMALL)
            value = domain.make(picker, dict(named))
            if all(self._holds(clause, value, named) for clause in rely.function.of("ensures")):
                return value
        call = f"{name}({', '.join(show(a) for a in args)})"
        message = f"rely {name}: no answer to {call} was found that meets its ensures"
        raise SpecError(self.spec.path, rely.line, f'{message}; give one in the scope: `{name}: {{draw: "…"}}`')

    def _holds(self, clause: Clause, value: Any, named: dict[str, Any]) -> bool:
        return holds(self.spec, clause, unit=self.spec.module, state=None, old=None, result=value, args=named,
                     extra=self.extra)  # fmt: skip


def of_type(type_text: str, ints: Ints) -> Domain:
    """Small values of a plain type."""
    return _of(ast.parse(type_text, mode="eval").body, ints)


def _of(tree: ast.expr, ints: Ints) -> Domain:
    if isinstance(tree, ast.BinOp):
        none = isinstance(tree.right, ast.Constant) and tree.right.value is None
        return _of(tree.left if none else tree.right, ints)
    if isinstance(tree, ast.Subscript):
        name = ast.unparse(tree.value).lower()
        inner = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        made = [_of(e, ints) for e in inner if not (isinstance(e, ast.Constant) and e.value is ...)]
        if name == "literal":
            return Choices(tuple(ast.literal_eval(e) for e in inner))
        if name == "dict":
            return Dicts(made[0], made[1], 0, 3)
        if name == "tuple" and len(made) == len(inner):
            return Tuples(tuple(made))
        return Lists(made[0], 0, 4, {"set": set, "frozenset": frozenset, "tuple": tuple}.get(name, list))
    name = ast.unparse(tree)
    simple: dict[str, Domain] = {
        "bool": Choices((False, True)), "str": Choices(("", "a", "b", "ab")), "None": Choices((None,)),
        "float": Ints(ints.low, ints.high, real=True), "list": Lists(ints, 0, 4),
    }  # fmt: skip
    return simple.get(name, ints)

"""The cost clauses: how an operation's work grows with the size of its input and state, against the bound of the spec.

Work is the number of the candidate's opcodes, counted inside; what builtins do in C counts as one. It is measured at
growing sizes. Where work divided by the bound more than doubles from the smallest to the largest size and still grows
at the end, the bound is broken: a factor of 16 in size leaves a quadratic operation no way to hide behind constants.

A bound with `setup` and `call` says what is measured. For a bare bound the judge grows one parameter after another (of
the constructor and the operation) and the number of calls before, and leaves the rest to the domains.
"""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pibroch.evals.speceval import library
from pibroch.evals.speceval.calls import Call, Drawer, given
from pibroch.evals.speceval.domains import RandomPicker
from pibroch.evals.speceval.oracle import Oracle, View
from pibroch.evals.speceval.session import LoadFailed, Session, SessionEnded
from pibroch.evals.speceval.stubs import Stubs
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.errors import SpecError
from pibroch.specs.evaluate import ClauseError, draw
from pibroch.specs.model import CostBound, Operation, Spec, Unit

SIZES = (8, 32, 128)
_FACTOR = 2.0
_DRAWS = 3  # calls measured per size; the dearest counts
_OPS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Pow: lambda a, b: a**b if b <= 8 else math.inf,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len, "min": min, "max": max, "sum": sum, "log": lambda x: math.log2(max(x, 1)) + 1,
}  # fmt: skip
Point = tuple[int, int, float]  # size, opcodes, bound


def judge(source: str, spec: Spec) -> StageReport:
    """Measure every operation with a cost. Raises `SpecError` for a bound, setup or call that makes no sense."""
    report, started = StageReport("cost"), time.monotonic()
    for name in spec.front.cost:
        meter = _Meter(source, spec, name)
        for grown, points in meter.measured():
            told = ", ".join(f"{count} at {size}" for size, count, _ in points)
            report.evidence[f"{name}, {grown}"] = told
            if _breaks(points):
                ratio = ", ".join(f"{count / bound:.3g}" for _, count, bound in points)
                message = (
                    f"{name} grows faster than {meter.text} with {grown}: opcodes {told}; by the bound {ratio}, "
                    "which should stay level"
                )
                report.findings.append(Finding("cost", "cost", message, line=meter.line, calls=meter.last))
                break
        broken = any(f.line == meter.line for f in report.findings)
        report.verdicts[f"cost.{name}"] = "refuted" if broken else "held"
    report.seconds = time.monotonic() - started
    return report


def _breaks(points: Sequence[Point]) -> bool:
    if len(points) < 3:
        return False
    ratios = [count / bound for _, count, bound in points]
    return ratios[-1] > _FACTOR * max(ratios[0], 1e-9) and ratios[-1] > 1.2 * ratios[-2]


class _Meter:
    """Measures one operation."""

    def __init__(self, source: str, spec: Spec, name: str) -> None:
        self.source, self.spec, self.name = source, spec, name
        raw = spec.front.cost[name]
        self.entry = raw if isinstance(raw, CostBound) else CostBound(bound=raw)
        self.text, self.line = self.entry.bound, spec.line(f"cost.{name}")
        self.unit: Unit = next(u for u in spec.units if name in u.calls)
        self.operation: Operation = self.unit.operations[name]
        self.extra = library.functions(tuple(spec.front.library))
        self.oracle, self.stubs = Oracle(spec, self.extra), Stubs(spec, self.extra)
        self.drawers = {n: Drawer(spec, self.unit, o, self.extra) for n, o in self.unit.operations.items()}
        self.picker = RandomPicker(f"{spec.module}.{name} cost")
        self.session: Session | None = None
        self.last: tuple[str, ...] = ()
        text = self.text.strip()
        if not (text.startswith("O(") and text.endswith(")")):
            raise self.fail(f"a bound is written O(…), not {self.text!r}")
        try:
            self.bound = ast.parse(text[2:-1], mode="eval").body
        except SyntaxError as error:
            raise self.fail(f"bound {self.text!r}: {error.msg}") from error

    def fail(self, message: str) -> SpecError:
        return SpecError(self.spec.path, self.line, f"cost of {self.name}: {message}")

    def measured(self) -> list[tuple[str, list[Point]]]:
        """All series, made in one session."""
        try:
            return list(self.series())
        except LoadFailed:
            return []  # the contract stage says what is wrong
        finally:
            if self.session is not None:
                self.session.kill()
                self.session = None

    def open(self) -> Session:
        """The session, started anew where the last one ended."""
        if self.session is None:
            self.session = Session(self.source, self.spec, relies=self.stubs, watch="opcodes", deadline_s=30.0)
            self.session.__enter__()
        return self.session

    def series(self) -> Iterator[tuple[str, list[Point]]]:
        """What was grown, and the points measured."""
        if self.entry.call or self.entry.setup:
            yield "n", [p for p in map(self.scripted, self.entry.sizes) if p is not None]
            return
        grown = [(o.name, p.name) for o in (self.unit.init, self.operation) if o for p in o.params
                 if p.type.startswith(("int", "list", "tuple", "dict", "set"))]  # fmt: skip
        for owner, param in grown:
            yield param, [p for p in (self.drawn(n, owner, param) for n in SIZES) if p is not None]
        if self.unit.view:
            yield "calls before", [p for p in (self.drawn(n, "", "") for n in SIZES) if p is not None]

    # As the spec says

    def scripted(self, n: int) -> Point | None:
        calls = [c for text in self.entry.setup for c in self._calls(text, {"n": n})]
        init: tuple[Any, ...] = ()
        if self.unit.is_class:
            if not calls or calls[0][0] != self.unit.name:
                raise self.fail(f"setup begins with {self.unit.name}(…)")
            init = calls.pop(0)[1]
        measured = self._calls(self.entry.call, {"n": n})
        if [name for name, _ in measured] != [self.name]:
            raise self.fail(f"call is one call of {self.name}, not {self.entry.call!r}")
        self.last = (*self.entry.setup, self.entry.call)
        try:
            outcomes = self.open().replay(self.unit.name, init, [*calls, *measured])
        except SessionEnded:
            self.session = None
            return None  # the contract stage says what is wrong
        failed = next((o for o in outcomes if o.error), None)
        if failed is not None:
            raise self.fail(f"setup or call raises {failed.error} at n = {n}")
        before = outcomes[-2].view
        return n, outcomes[-1].opcodes, self._bound({"n": n}, init, measured[0][1], before)

    def _calls(self, text: str, env: dict[str, Any]) -> list[Call]:
        try:
            body = ast.parse(text.strip()).body
        except SyntaxError as error:
            raise self.fail(f"{text!r}: {error.msg}") from error
        return [call for node in body for call in self._expand(node, env, text)]

    def _expand(self, node: ast.stmt, env: dict[str, Any], text: str) -> Iterator[Call]:
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            for value in self._value(node.iter, env):
                for inner in node.body:
                    yield from self._expand(inner, {**env, node.target.id: value}, text)
            return
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
            raise self.fail(f"{text!r}: write calls such as observe(1), or `for i in range(n): observe(i)`")
        if call.func.id != self.unit.name and call.func.id not in self.unit.calls:
            raise self.fail(f"{text!r}: {self.unit.name} has no operation {call.func.id}")
        yield call.func.id, tuple(self._value(arg, env) for arg in call.args)

    def _value(self, tree: ast.expr, env: dict[str, Any]) -> Any:
        try:
            return draw(self.spec, self.unit.name, ast.unparse(tree), env, self.picker, extra=self.extra)
        except (ClauseError, IndexError) as error:
            raise self.fail(str(error)) from error

    # As the judge chooses

    def drawn(self, n: int, owner: str, param: str) -> Point | None:
        """One parameter grown to n (none: only the calls before); None where `requires` forbids it."""
        points = [p for p in (self._once(n, owner, param) for _ in range(_DRAWS)) if p is not None]
        return max(points, key=lambda p: p[1] / p[2], default=None)

    def _once(self, n: int, owner: str, param: str) -> Point | None:
        init: tuple[Any, ...] | None = ()
        if self.unit.init is not None:
            init = self._grown(self.unit.init, n, param if owner == "__init__" else "", None)
        if init is None:
            return None
        try:
            session = self.open()
            made = session.fresh(self.unit.name, init)
            view, calls = made.view, []
            if made.error is not None:
                return None
            for _ in range(n if self.unit.view else 0):
                step = self._step(view)
                if step is not None:
                    calls.append(step)
                    view = session.call(*step).view
            args = self._grown(self.operation, n, param if owner == self.name else "", view)
            if args is None:
                return None
            seen = session.call(self.name, args)
        except SessionEnded:
            self.session = None
            return None
        if self.unit.view and view is None:
            return None
        first = [f"{self.unit.name}({', '.join(map(_short, init))})"] if self.unit.is_class else []
        before = [f"… {len(calls)} calls …"] if calls else []
        self.last = (*first, *before, f"{self.name}({', '.join(map(_short, args))})")
        return n, seen.opcodes, self._bound({"n": n}, init, args, view)

    def _step(self, view: View) -> Call | None:
        names = list(self.unit.calls)
        for _ in range(8):
            name = names[self.picker(0, len(names) - 1)]
            args = self._admitted(self.unit.calls[name], view, lambda a: a)
            if args is not None:
                return name, args
        return None

    def _grown(self, operation: Operation, n: int, param: str, view: View) -> tuple[Any, ...] | None:
        names = [p.name for p in operation.params]
        if not param:
            return self._admitted(operation, view, lambda a: a)
        at = names.index(param)
        for others in (0, 1, 2, 4):  # what stands beside it may have to grow as well (m >= 2 * p)

            def grow(args: tuple[Any, ...], others: int = others) -> tuple[Any, ...]:
                values = [_enlarge(a, n * others, self.picker) if others and i != at else a for i, a in enumerate(args)]
                if at < len(values):
                    values[at] = _enlarge(values[at], n, self.picker)
                return tuple(values)

            found = self._admitted(operation, view, grow)
            if found is not None:
                return found
        return None

    def _admitted(
        self, operation: Operation, view: View, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    ) -> tuple[Any, ...] | None:  # fmt: skip
        for _ in range(20):
            try:
                args = change(self.drawers[operation.name].draw(self.picker, view))
                if self.oracle.admits(self.unit, operation, view, args) == "ok":
                    return args
            except (IndexError, ClauseError):
                continue
        return None

    # The bound

    def _bound(self, env: dict[str, Any], init: Sequence[Any], args: Sequence[Any], view: View) -> float:
        names = {**env, **(given(self.unit.init, init) if self.unit.init else {}), **given(self.operation, args)}
        return max(float(self._evaluate(self.bound, names, view or {})), 1.0)

    def _evaluate(self, tree: ast.expr, names: dict[str, Any], view: dict[str, Any]) -> Any:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
            return tree.value
        if isinstance(tree, ast.Name) and tree.id in names:
            return names[tree.id]
        if isinstance(tree, ast.Name) and tree.id in view:
            return view[tree.id]
        if isinstance(tree, ast.Attribute) and ast.unparse(tree.value) in ("self", "old") and tree.attr in view:
            return view[tree.attr]
        if isinstance(tree, ast.BinOp) and type(tree.op) in _OPS:
            left, right = self._evaluate(tree.left, names, view), self._evaluate(tree.right, names, view)
            return _OPS[type(tree.op)](left, right)
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in _FUNCTIONS:
            return _FUNCTIONS[tree.func.id](*[self._evaluate(a, names, view) for a in tree.args])
        known = ", ".join(sorted({*names, *view}))
        raise self.fail(f"{ast.unparse(tree)} in {self.text} is not known; a bound has {known}, len, log, min and max")


def _enlarge(value: Any, n: int, picker: RandomPicker) -> Any:
    """A value of the same kind and size n, made of what it holds already."""
    if type(value) is int:
        return n
    if isinstance(value, list | tuple) and value:
        items = [value[picker(0, len(value) - 1)] for _ in range(n)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, list | tuple):
        return type(value)()
    if isinstance(value, dict) and value and all(type(k) is int for k in value):
        values = list(value.values())
        return {k: values[k % len(values)] for k in range(n)}
    if isinstance(value, set | frozenset) and all(type(k) is int for k in value):
        return type(value)(range(n))
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:30]}…"




"""What several threads do at the same time: the spec's own scenarios, and more from its roles and its test domain.

In a generated scenario each role is one thread; more threads of a role only where the spec's own scenarios have them. A
scenario is used only if no order of its calls breaks a `requires`: that is the callers' duty.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from pibroch.evals.speceval.domains import RandomPicker, domain_of
from pibroch.evals.speceval.linearize import Extra, Sequential, conditions, named
from pibroch.evals.speceval.thread_runs import Invocation, Scenario, show_call
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Operation, Spec, Unit

THREADS, TRIES, ORDERS = 4, 80, 400
MakeSequential = Callable[[Scenario], Sequential]


def own_scenarios(spec: Spec) -> list[Scenario]:
    """`scope: scenarios`. Raises `SpecError` with the line."""
    given = spec.front.scope.get("scenarios") or []
    if not isinstance(given, list):
        raise SpecError(spec.path, spec.line("scope.scenarios"), "scope: scenarios is a list")
    return [_own(spec, i, entry) for i, entry in enumerate(given)]


def _own(spec: Spec, index: int, entry: Any) -> Scenario:
    line = spec.line(f"scope.scenarios.{index}")

    def fail(message: str) -> SpecError:
        return SpecError(spec.path, line, f"scope: scenarios: {message}")

    if not isinstance(entry, dict) or set(entry) - {"init", "before", "threads"} or "threads" not in entry:
        raise fail("a scenario has `threads`, and may have `init` and `before`")
    init, before, threads = entry.get("init") or {}, entry.get("before") or [], entry["threads"]
    if not (isinstance(threads, list) and threads and all(isinstance(t, list) and t for t in threads)):
        raise fail("`threads` is a list of lists of calls")
    if len(threads) > THREADS:
        raise fail(f"at most {THREADS} threads")
    names = {_call_name(text, fail) for text in [*before, *(c for t in threads for c in t)]}
    units = [u for u in spec.units if names <= set(u.calls)]
    if not units:
        raise fail(f"no unit has all of {', '.join(sorted(names))}")
    unit = units[0]
    made = unit.init
    if set(init) - {p.name for p in (made.params if made else ())}:
        raise fail(f"`init` names what is no parameter of {unit.name}")
    values = {p.name: ast.literal_eval(p.default) for p in (made.params if made else ()) if p.default} | init
    missing = [p.name for p in (made.params if made else ()) if p.name not in values]
    if missing:
        raise fail(f"`init` lacks {', '.join(missing)}")
    args = tuple(values[p.name] for p in made.params) if made else ()
    calls = tuple(tuple(_invocation(unit, text, fail) for text in thread) for thread in threads)
    prefix = tuple(_invocation(unit, text, fail) for text in before)
    roles = tuple(_roles(spec, thread) for thread in calls)
    return Scenario(unit, args, prefix, calls, roles, f"scope.scenarios.{index}", line)


def _parsed(text: Any, fail: Callable[[str], SpecError]) -> ast.Call:
    try:
        tree = ast.parse(str(text), mode="eval").body
    except SyntaxError as error:
        raise fail(f"{text!r} is no call: {error.msg}") from error
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise fail(f"{text!r} is no call such as `observe(8)`")
    return tree


def _call_name(text: Any, fail: Callable[[str], SpecError]) -> str:
    func = _parsed(text, fail).func
    assert isinstance(func, ast.Name)
    return func.id


def _invocation(unit: Unit, text: Any, fail: Callable[[str], SpecError]) -> Invocation:
    tree = _parsed(text, fail)
    operation = unit.operations[_call_name(text, fail)]
    params = [p.name for p in operation.params]
    try:
        given = dict(zip(params, [ast.literal_eval(a) for a in tree.args], strict=False))
        given |= {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
        given = {p.name: ast.literal_eval(p.default) for p in operation.params if p.default} | given
    except ValueError as error:
        raise fail(f"{text!r}: arguments are literals") from error
    if set(given) != set(params) or len(tree.args) > len(params):
        raise fail(f"{text!r} does not fit {operation.signature}")
    return operation.name, tuple(given[p] for p in params)


def _roles(spec: Spec, calls: tuple[Invocation, ...]) -> frozenset[str]:
    used = {name for name, _ in calls}
    return frozenset(role for role, names in spec.front.concurrency.roles.items() if used <= set(names))


def broken_requires(
    spec: Spec, scenario: Scenario, sequential: Sequential, extra: Extra = None
) -> tuple[str, tuple[Invocation, ...]] | None:
    """Which call breaks a `requires`, and after which others; None: no order does (`ORDERS` beginnings are tried)."""
    seen: set[tuple[tuple[int, ...], str]] = set()
    stack: list[tuple[tuple[Invocation, ...], tuple[int, ...]]] = [((), (0,) * len(scenario.threads))]
    while stack and len(seen) < ORDERS:
        order, at = stack.pop()
        view = sequential.after(order).view
        if (at, repr(view)) in seen:
            continue
        seen.add((at, repr(view)))
        for thread, calls in enumerate(scenario.threads):
            if at[thread] == len(calls):
                continue
            call = calls[at[thread]]
            operation = scenario.unit.operations[call[0]]
            args = named(operation, call[1])
            if conditions(spec, scenario.unit, operation.of("when"), view, args, extra) is not None:
                continue
            broken = conditions(spec, scenario.unit, operation.of("requires"), view, args, extra)
            if broken is not None:
                before = ", ".join(map(show_call, order)) or "nothing"
                return f"{show_call(call)} breaks {broken.id} ({broken.text}) after {before}", order
            stack.append(((*order, call), (*at[:thread], at[thread] + 1, *at[thread + 1 :])))
    return None


def generated_scenarios(
    spec: Spec, own: list[Scenario], make: MakeSequential, extra: Extra = None
) -> Iterator[Scenario]:
    """Different scenarios that the spec's domains give, the same ones each time."""
    unit = next((u for u in spec.units if set(_used(spec)) <= set(u.calls)), None)
    if unit is None:
        return
    crews = _crews(spec, own)
    known = {s.texts() for s in own}
    for attempt in range(TRIES if crews else 0):
        crew = crews[attempt % len(crews)]
        try:
            scenario = _Drawing(spec, unit, crew, f"{spec.module} {attempt}", make, extra).scenario()
        except IndexError:
            continue
        if scenario is None or scenario.texts() in known:
            continue
        known.add(scenario.texts())
        yield scenario


def _used(spec: Spec) -> set[str]:
    return {name for names in spec.front.concurrency.roles.values() for name in names}


def _crews(spec: Spec, own: list[Scenario]) -> list[tuple[str, ...]]:
    """Which roles meet, the largest meetings last."""
    roles = list(spec.front.concurrency.roles)
    most = dict.fromkeys(roles, 1)
    for scenario in own:
        for role in roles:
            most[role] = max(most[role], sum(1 for fits in scenario.roles if fits == {role}))
    for role in spec.front.concurrency.single_writer.values():
        most[role] = 1
    people = [role for role in roles for _ in range(most[role])]
    found: dict[tuple[str, ...], None] = {}
    for size in (2, 3):
        for crew in combinations(people, size):
            found[crew] = None
    return list(found)


class _Drawing:
    """Draws one scenario."""

    def __init__(
        self, spec: Spec, unit: Unit, crew: tuple[str, ...], seed: str, make: MakeSequential, extra: Extra
    ) -> None:
        self.spec, self.unit, self.crew, self.make, self.extra = spec, unit, crew, make, extra
        self.picker, self.source = RandomPicker(seed), random.Random(seed)
        self.seed = seed

    def scenario(self) -> Scenario | None:
        """None where the draw breaks a `requires`; raises `IndexError` where there was nothing to choose."""
        init = self.args(self.unit.init, None) if self.unit.init else ()
        roles = tuple(frozenset({role}) for role in self.crew)
        empty = Scenario(self.unit, init, (), ((),) * len(self.crew), roles, self.seed)
        if self.unit.init and conditions(
            self.spec, self.unit, self.unit.init.of("requires"), None, named(self.unit.init, init), self.extra
        ):
            return None
        sequential = self.make(empty)
        before = self.calls(sequential, (), sorted(_used(self.spec)), self.source.randrange(3))
        each = 2 if len(self.crew) == 2 else self.source.choice((1, 2))
        roles_of: Mapping[str, list[str]] = self.spec.front.concurrency.roles
        threads = [self.calls(sequential, before, roles_of[role], each, guarded=False) for role in self.crew]
        if any(not calls for calls in threads):
            return None
        name = f"generated {'+'.join(self.crew)}"
        scenario = Scenario(self.unit, init, before, tuple(threads), roles, name)
        return None if broken_requires(self.spec, scenario, self.make(scenario), self.extra) else scenario

    def calls(
        self, sequential: Sequential, before: tuple[Invocation, ...], names: list[str], count: int, *,
        guarded: bool = True,
    ) -> tuple[Invocation, ...]:  # fmt: skip
        """Calls that fit one after another. Unless `guarded`, one that must wait may stand last: others may free it."""
        made: tuple[Invocation, ...] = ()
        for _ in range(count * 4):
            if len(made) == count:
                break
            view = sequential.after((*before, *made)).view
            operation = self.unit.operations[self.source.choice(names)]
            try:
                args = self.args(operation, view)
            except IndexError:
                continue
            values = named(operation, args)
            if conditions(self.spec, self.unit, operation.of("when"), view, values, self.extra) is not None:
                if guarded:
                    continue
                return (*made, (operation.name, args))
            if conditions(self.spec, self.unit, operation.of("requires"), view, values, self.extra) is not None:
                continue
            longer = (*made, (operation.name, args))
            if not guarded or sequential.after((*before, *longer)).error is None:
                made = longer
        return made

    def args(self, operation: Operation, view: dict[str, Any] | None) -> tuple[Any, ...]:
        env: dict[str, Any] = {} if view is None else {"self": view}
        for param in operation.params:
            env[param.name] = domain_of(self.spec, self.unit, operation, param, self.extra).make(self.picker, env)
        return tuple(env[p.name] for p in operation.params)

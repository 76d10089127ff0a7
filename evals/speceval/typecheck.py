"""Stage `load`: the clauses of a spec are well typed. Each becomes one line of a generated module for `mypy --strict`,
and what mypy says is told with the spec's line.

    class AnomalyTrigger: …                         the view's fields
    def low(t: "AnomalyTrigger", tput: int): …      helpers, as they stand
    class trace_ring: …                             the functions relied upon
    def clause_3(self: AnomalyTrigger, old: AnomalyTrigger, result: bool, tput: int) -> None:
        clause: bool = (implies(low(old, tput), self.base == old.base))
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pibroch.evals.speceval import cache, library, mypy_run
from pibroch.evals.speceval.rules import ALWAYS, PURE
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Clause, Operation, Spec, Unit
from pibroch.specs.names import check_names, clauses_of, states_of
from pibroch.specs.store import check_relies
from pibroch.specs.whitelist import check_expression

_PRELUDE = """\
from collections.abc import Iterable
from typing import Any, Literal, Optional, TypeVar, Union
_T = TypeVar("_T")
def implies(a: object, b: bool) -> bool: raise NotImplementedError
def pick(low: int, high: int) -> int: raise NotImplementedError
def choose(values: Iterable[_T]) -> _T: raise NotImplementedError
def many(low: int, high: int) -> range: raise NotImplementedError
"""
_OPTIONS = ("calls", "acceptance", "scenarios")  # entries of `scope` that are no domains
_NOT_BOOL = re.compile(r'Incompatible types in assignment \(expression has type (".*?"), variable has type "bool"\)')
_NOT_TYPE = re.compile(r'Incompatible types in assignment \(expression has type (".*?"), variable has type (".*?")\)')


@dataclass(slots=True)
class _Source:
    """A generated module. `where` maps its lines to a clause's id (or another name), the spec's line and the text."""

    rows: list[str] = field(default_factory=list)
    where: dict[int, tuple[str, int, str]] = field(default_factory=dict)

    def add(self, text: str, *, name: str = "", line: int = 0, shown: str = "", follow: bool = False) -> None:
        """`follow`: the text's lines are the spec's, one by one."""
        for i, row in enumerate(text.splitlines()):
            self.rows.append(row)
            if name:
                self.where[len(self.rows)] = (name, line + (i if follow else 0), shown)

    @property
    def text(self) -> str:
        return "\n".join(self.rows) + "\n"


def check(specs: Iterable[Spec]) -> list[SpecError]:
    """What is wrong with the clauses, helpers and drawn domains of these specs, by spec and line; unchanged specs are
    not looked at again. Raises `MissingError` without mypy."""
    found: dict[str, list[SpecError]] = {}
    asked: dict[str, tuple[Spec, _Source, str]] = {}
    for spec in specs:
        try:
            found[spec.module] = []
            _check_untyped(spec)
            source = generate(spec)
        except SpecError as error:
            found[spec.module].append(error)
            continue
        name = cache.key("typecheck", spec.module, source.text)
        known = cache.find("typecheck", name)
        if known is None:
            asked[spec.module] = (spec, source, name)
        else:
            found[spec.module] = [_told(spec, source, line, text) for line, text in known]
    if asked:
        faults = mypy_run.run({f"spec_{module}": source.text for module, (_, source, _) in asked.items()})
        for module, (spec, source, name) in asked.items():
            rows = [(f.line, f.message) for f in faults if f.name == f"spec_{module}"]
            cache.store("typecheck", name, rows)
            found[module] = [_told(spec, source, line, text) for line, text in rows]
    return [error for errors in found.values() for error in sorted(errors, key=lambda e: e.line)]


def judge(spec: Spec, *, peers: Mapping[str, Spec]) -> StageReport:
    """Names, types and relies of one spec among its peers, as SpecEval's first stage."""
    report = StageReport("load")
    errors: list[SpecError] = []
    try:
        check_relies({**peers, spec.module: spec}, [spec.module])
    except SpecError as error:
        errors.append(error)
    errors += check([spec])
    for fault in errors:
        name = fault.message.partition(":")[0]
        clause = name if name in spec.clauses else "spec"
        report.findings.append(Finding("load", clause, fault.message, fault.line))
    report.evidence = {"clauses": len(spec.clauses), "helpers": len(spec.helpers), "relies": len(spec.relies)}
    return report


def library_of(spec: Spec) -> Mapping[str, Any] | None:
    """The functions of the front matter's `library`, by name; the same object each time (see `specs.evaluate`)."""
    return library.functions(tuple(spec.front.library))


def _check_untyped(spec: Spec) -> None:
    check_names(spec, list(library_of(spec) or ()))
    relies = {rely.module for rely in spec.relies}
    for i, name in enumerate(spec.front.imports):
        if name not in relies and name not in PURE:
            known = ", ".join(n for n in sorted(PURE) if n not in ALWAYS)
            message = f"imports {name}, which is neither relied upon nor a pure module ({known})"
            raise SpecError(spec.path, spec.line(f"imports.{i}"), message)


def _told(spec: Spec, source: _Source, line: int, message: str) -> SpecError:
    if line not in source.where:
        raise AssertionError(f"{spec.path}: generated line {line}: {source.rows[line - 1]!r}: {message}")
    name, at, shown = source.where[line]
    message = _NOT_BOOL.sub(r"gives \1, not a truth value", message)
    message = _NOT_TYPE.sub(r"gives \1, not \2", message)
    return SpecError(spec.path, at, f"{name}: {message}" + (f": {shown}" if shown else ""))


def generate(spec: Spec) -> _Source:
    """The module for mypy."""
    source = _Source()
    source.add(_PRELUDE)
    if spec.front.library:
        source.add(library.SIGNATURES.replace(": ...", ": raise NotImplementedError"))
    for unit in spec.units:
        if unit.view:
            source.add(f"class {unit.name}:")
            for name in unit.view:
                source.add(f"    {name}: {unit.fields[name]}", name=f"{unit.name}.{name}", line=unit.line)
    _relies(source, spec)
    for helper in spec.helpers.values():
        source.add(helper.source, name=helper.name, line=helper.line, follow=True)
    number = 0
    for unit in spec.units:
        for clause, _, operation in clauses_of(unit):
            number += 1
            _clause(source, f"clause_{number}", clause, _parameters(unit, clause, operation))
        for operation in unit.operations.values():
            for key, text, wanted, params in _draws(spec, unit, operation):
                number += 1
                _draw(source, spec, f"draw_{number}", key, text, wanted, params)
    return source


def _relies(source: _Source, spec: Spec) -> None:
    for module in dict.fromkeys(rely.module for rely in spec.relies):
        source.add(f"class {module}:")
        for rely in spec.relies:
            if rely.module == module:
                source.add("    @staticmethod")
                signature = f"    def {rely.function.signature}: raise NotImplementedError"
                source.add(signature, name=f"rely {rely.name}", line=rely.line)
    for i, rely in enumerate(spec.relies):
        for j, clause in enumerate(rely.function.clauses):
            params = _signature(rely.function)
            if clause.kind == "ensures":
                params.append(f"result: {rely.function.returns}")
            _clause(source, f"rely_{i}_{j}", clause, params)


def _signature(operation: Operation) -> list[str]:
    return [f"{p.name}: {p.type}" for p in operation.params]


def _parameters(unit: Unit, clause: Clause, operation: Operation | None) -> list[str]:
    params = [f"{name}: {unit.name}" for name in states_of(unit, clause)]
    if operation is None:
        return params
    if clause.kind == "ensures" and operation.name != "__init__":
        params.append(f"result: {operation.returns}")
    return params + _signature(operation)


def _clause(source: _Source, function: str, clause: Clause, params: list[str]) -> None:
    where: dict[str, Any] = {"name": clause.id, "line": clause.line, "shown": clause.text}
    source.add(f"def {function}({', '.join(params)}) -> None:", **where)
    source.add(f"    clause: bool = ({ast.unparse(clause.tree)})", **where)


def _draws(spec: Spec, unit: Unit, operation: Operation) -> Iterator[tuple[str, str, str, list[str]]]:
    """Of an operation's parameters the drawn domains: key, text, wanted type (empty inside of a list or a tuple) and
    what the text may use."""
    for i, parameter in enumerate(operation.params):
        keys = (f"{operation.name}.{parameter.name}", parameter.name)
        key = next((k for k in keys if k in spec.front.scope and k not in _OPTIONS), None)
        if key is None:
            continue
        params = [f"{p.name}: {p.type}" for p in operation.params[:i]]
        if unit.view and operation.name != "__init__":
            params.insert(0, f"self: {unit.name}")
        domain = spec.front.scope[key]
        for text in _texts(domain):
            top = isinstance(domain, dict) and domain.get("draw") == text
            yield key, text, parameter.type if top else "", params


def _texts(domain: Any) -> Iterator[str]:
    if isinstance(domain, dict):
        for name, inner in domain.items():
            if name == "draw" and isinstance(inner, str):
                yield inner
            else:
                yield from _texts(inner)
    elif isinstance(domain, list):
        for inner in domain:
            yield from _texts(inner)


def _draw(source: _Source, spec: Spec, function: str, key: str, text: str, wanted: str, params: list[str]) -> None:
    line = spec.line(f"scope.{key}.draw")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise SpecError(spec.path, line, f"scope.{key}: {getattr(error, 'msg', error)}: {text}") from error
    check_expression(spec, tree, f"scope.{key}", line)
    where: dict[str, Any] = {"name": f"scope.{key}", "line": line, "shown": text}
    source.add(f"def {function}({', '.join(params)}) -> None:", **where)
    source.add(f"    drawn{f': {wanted}' if wanted else ''} = ({ast.unparse(tree)})", **where)

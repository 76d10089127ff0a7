"""The contract stage: a candidate against its spec's clauses, alone in its sandbox, with stubs for its relies.

Runs are searched (`search.py`), judged outside (`oracle.py`) and, where one breaks a clause, shortened (`shrink.py`).
What passed is then made again in other circumstances, where nothing may change: another process with other string
hashes, nobody calling `view()`, everything mutable overwritten after each call. At last every line must have run.

All of it is counted in calls and never timed, so that findings are the same on every machine.
"""

from __future__ import annotations

import ast
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any, Literal

from pibroch.evals.speceval import library
from pibroch.evals.speceval.calls import Drawer, Run, operations_of, unit_of
from pibroch.evals.speceval.domains import RandomPicker, acceptance_floor, check_scope
from pibroch.evals.speceval.oracle import Failure, Oracle
from pibroch.evals.speceval.search import FULL, QUICK, Search, SpecFault, Trial
from pibroch.evals.speceval.session import LoadFailed, Outcome, SessionEnded
from pibroch.evals.speceval.shrink import shrink
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.errors import SpecError
from pibroch.specs.evaluate import ClauseError
from pibroch.specs.explain import show
from pibroch.specs.model import Spec

GENERAL = ("frame", "raises", "returns", "alias", "ends")  # clauses that every spec has without writing them
_AGAIN = 250  # runs that are made again
_DRAWS = 300


def judge(
    source: str, spec: Spec, *, phase: int, peers: Mapping[str, Spec], effort: Literal["quick", "full"] = "full"
) -> StageReport:
    """Test a candidate. `quick` stops at the first fault and shortens nothing. Raises `SpecError` for a bad scope."""
    report, started = StageReport("contract"), time.monotonic()
    check_scope(spec)
    full = effort == "full"
    search = Search(source, spec, phase=phase, budget=FULL if full else QUICK, **({} if full else {"stop_at": 1}))
    try:
        search.search()
        search.close()
        if not search.faults:
            report.findings += _acceptance(search)
            _again(search, full)
        if not search.faults and full:
            report.findings += _reached(search)
        report.findings[:0] = [_finding(search, *_shortest(search, r, f, full)) for r, f in search.faults.values()]
    except LoadFailed as failed:
        lines = (failed.error.line,) if failed.error.line else ()
        report.findings.append(Finding("contract", "load", f"the code does not load: {failed.error}", code_lines=lines))
    except SpecFault as fault:
        report.findings.append(_finding(search, fault.run, fault.failure))
    except SpecError as error:
        report.findings.append(Finding("contract", "rely", error.message, line=error.line))
    except SessionEnded as ended:
        report.findings.append(Finding("contract", "ends", str(ended)))
    finally:
        search.drop()
    report.verdicts = _verdicts(search, report.findings)
    report.evidence = _evidence(search)
    report.seconds = time.monotonic() - started
    return report


def compare(source_a: str, source_b: str, spec: Spec, peers: Mapping[str, Spec]) -> Finding | None:
    """Two candidates that both pass: the shortest run on which their results or views differ, if one is found."""
    for first, second in ((source_a, source_b), (source_b, source_a)):
        search = Search(first, spec, phase=1, budget=replace(QUICK, small=1_500, random=800, beyond=300))
        other = Search(second, spec, phase=1, budget=QUICK)
        try:
            search.search()
            for trial in search.trials:
                if (found := _difference(search, other, trial.run)) is not None:
                    return _told(search, other, found)
        except (SessionEnded, SpecFault):
            continue  # the contract stage says what is wrong with it
        finally:
            search.drop()
            other.drop()
    return None


def check_generators(spec: Spec, peers: Mapping[str, Spec]) -> StageReport:
    """Whether the domains meet the preconditions often enough, as far as that is known without a candidate: for
    constructors, and for operations whose preconditions and domains do not speak of the state."""
    report, started = StageReport("generators"), time.monotonic()
    check_scope(spec)
    extra = library.functions(tuple(spec.front.library))
    oracle = Oracle(spec, extra)
    for unit in spec.units:
        for operation in unit.operations.values():
            drawer = Drawer(spec, unit, operation, extra)
            name = unit.name if operation is unit.init else operation.name
            if not drawer.free:
                report.evidence[name] = "known only with a candidate"
                continue
            picker, counts = RandomPicker(f"{spec.module}.{name}"), Counter[str]()
            oracle.refused.clear()
            args: tuple[Any, ...] = ()
            try:
                for _ in range(_DRAWS):
                    try:
                        args = drawer.draw(picker, None)
                    except IndexError:
                        counts["empty"] += 1
                        continue
                    counts[oracle.admits(unit, operation, None, args)] += 1
            except ClauseError as error:
                clause = error.clause
                call = f"{name}({', '.join(show(a) for a in args)})"
                which, line = (clause.id, clause.line) if clause else ("generator", spec.line("scope"))
                calls = (call,) if clause else ()
                report.findings.append(Finding("generators", which, str(error), line=line, calls=calls))
                continue
            drawn = _DRAWS - counts["empty"]
            met, waiting, empty = counts["ok"], counts["disabled"], counts["empty"]
            report.findings += _rates("generators", spec, name, drawn, met, waiting, empty, oracle.refused)
            report.evidence[name] = round(counts["ok"] / drawn, 3) if drawn else 0.0
    report.seconds = time.monotonic() - started
    return report


# Acceptance


def _acceptance(search: Search) -> list[Finding]:
    found: list[Finding] = []
    for unit in search.spec.units:
        names = [*([unit.name] if unit.init else []), *operations_of(search.spec, unit, search.phase)]
        for name in names:
            drawn, empty = search.drawn[name], search.empty[name]
            accepted, disabled = search.accepted[name], search.disabled[name]
            refused = search.refused.get(name, Counter())
            found += _rates("contract", search.spec, name, drawn, accepted, disabled, empty, refused)
    return found


def _rates(
    stage: str, spec: Spec, name: str, drawn: int, accepted: int, disabled: int, empty: int, refused: Counter[str]
) -> Iterator[Finding]:  # fmt: skip
    floor, line = acceptance_floor(spec), spec.line("scope")
    for key, raw in spec.front.scope.items() if empty else ():
        if isinstance(raw, dict) and "draw" in raw and _belongs(spec, key, name):
            line = spec.line(f"scope.{key}")
    if not drawn:
        if empty:
            message = f"{name}: its domain never gives a value: {empty} of {empty} draws had nothing to choose from"
            yield Finding(stage, "generator", message, line=line)
        return
    if accepted + disabled and accepted == 0:
        message = f"{name}: never enabled in {drawn} draws: its `when` is met by no state that the domains lead to"
        yield Finding(stage, "acceptance", message, line=line)
    elif drawn - disabled >= 20 and accepted < floor * (drawn - disabled):
        worst, count = max(refused.items(), key=lambda item: item[1], default=("", 0))
        clause = spec.clauses.get(worst)
        message = (
            f"{name}: {accepted} of {drawn - disabled} drawn calls meet its precondition, fewer than {floor:.0%}; "
            f"{worst} turns down {count}: {clause.text if clause else ''}; draw what meets it, as with {{draw: …}}"
        )
        yield Finding(stage, "acceptance", message, line=clause.line if clause else line)


def _belongs(spec: Spec, key: str, name: str) -> bool:
    owner, _, param = key.rpartition(".")
    for unit in spec.units:
        operation = unit.init if unit.is_class and unit.name == name else unit.operations.get(name)
        if operation and owner in ("", operation.name) and param in [p.name for p in operation.params]:
            return True
    return False


# The same runs again


def _again(search: Search, full: bool) -> None:
    """Replays in another process that must show the same; differences become faults."""
    runs = _spread(search.trials, _AGAIN if full else 60)
    search.options = {"seed": 1}
    for trial in runs:
        for kind in ("plain", "scribble", "blind"):
            failure = _changed(search, trial, kind)
            if failure is not None:
                search.fault(trial.run, [failure])
                return
    search.close()


def _spread(trials: list[Trial], count: int) -> list[Trial]:
    """Every so many-th of the runs; the long ones all, and some in which one call has equal arguments."""
    step = max(1, len(trials) // count)
    equal = [i for i, t in enumerate(trials) if any(_equal_arguments(args) for _, args in t.run.calls)][:20]
    return [t for i, t in enumerate(trials) if i % step == 0 or len(t.run.calls) > 100 or i in equal]


def _equal_arguments(args: tuple[Any, ...]) -> bool:
    """Whether two arguments are one large number: small ones are the same object anyway."""
    large = [a for a in args if type(a) is int and abs(a) > 256]
    return len(set(large)) < len(large)


_WHY = {
    "plain": ("deterministic", "gives another answer when the same calls are made again in another process: nothing "
                               "may depend on the order of a set, on addresses or on what came before"),
    "scribble": ("alias", "keeps a list, dict or set that the caller also holds (an argument or a result), and changes "
                          "when the caller changes it: copy it (or it tells equal arguments apart by `is`)"),
    "blind": ("returns", "gives another answer when nobody calls view() between the calls: view() must change nothing"),
}  # fmt: skip


def _changed(search: Search, trial: Trial, kind: str) -> Failure | None:
    """What differs when a run that went well is made again."""
    found = _differs(search, trial.run, trial.outcomes, kind)
    if found is not None and kind != "plain":

        def judge(run: Run) -> tuple[int, list[Failure]] | None:
            return None if search.judge(run) is not None else _differs(search, run, search.replay(run), kind)

        search.judges[found[1][0].clause] = judge
    return found[1][0] if found else None


def _differs(search: Search, run: Run, seen: list[Outcome], kind: str) -> tuple[int, list[Failure]] | None:
    """The first call of a run that gives something else in other circumstances than was seen."""
    unit = unit_of(search.spec, run.unit)
    try:
        outcomes = search.replay(run, scribble=kind == "scribble", look=kind != "blind")
    except SessionEnded as ended:
        search.drop()
        return len(run.calls), [Failure("ends", str(ended), unit.line)]
    for i, (was, now) in enumerate(zip(seen, outcomes, strict=False)):
        if not _same(was, now, look=kind != "blind"):
            operation = unit.operations[run.calls[i - 1][0]] if i else unit.init
            name = operation.name if operation else unit.name
            clause, why = _WHY[kind]
            return i, [Failure(clause, f"{name} {why}", operation.line if operation else unit.line, shown(was, now))]
    return None


def different(a: Outcome, b: Outcome) -> bool:
    """Whether two calls gave different results, errors or views."""
    return not _same(a, b)


def _same(a: Outcome, b: Outcome, *, look: bool = True) -> bool:
    errors = (a.error and a.error.type) == (b.error and b.error.type)
    return errors and a.fault == b.fault and _equal(a.value, b.value) and (not look or _equal(a.view, b.view))


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or repr(a) == repr(b)  # nan equals itself here


def shown(a: Outcome, b: Outcome, first: str = "first", second: str = "again") -> dict[str, str]:
    """What differs between two calls, both sides."""

    def told(seen: Outcome) -> str:
        return f"raises {seen.error}" if seen.error else show(seen.value)

    values = {} if told(a) == told(b) else {f"result, {first}": told(a), f"result, {second}": told(b)}
    for name in a.view or {}:
        if b.view is not None and not _equal((a.view or {})[name], b.view[name]):
            values |= {f"{name}, {first}": show((a.view or {})[name]), f"{name}, {second}": show(b.view[name])}
    return values


def _difference(one: Search, two: Search, run: Run) -> tuple[Run, Outcome, Outcome] | None:
    """The run up to the first call on which two candidates differ."""
    for i, (a, b) in enumerate(zip(one.replay(run), two.replay(run), strict=False)):
        if not _same(a, b):
            return replace(run, calls=run.calls[:i]), a, b
    return None


def _told(one: Search, two: Search, found: tuple[Run, Outcome, Outcome]) -> Finding:
    run, a, b = found
    at = 0
    while at < len(run.calls) - 1:  # leave out what the difference does not need
        shorter = replace(run, calls=run.calls[:at] + run.calls[at + 1 :])
        again = _difference(one, two, shorter) if one.judge(shorter) is None else None
        if again is not None and len(again[0].calls) < len(run.calls):
            run, a, b = again
        else:
            at += 1
    unit = unit_of(one.spec, run.unit)
    last = unit.operations[run.calls[-1][0]] if run.calls else unit.init
    message = f"two modules that meet every clause differ in {last.name if last else unit.name}: a clause is missing"
    return Finding("contract", "several answers", message, last.line if last else unit.line, run.written(one.spec),
                   shown(a, b, "one module", "the other"))  # fmt: skip


# Every line runs


def _reached(search: Search) -> list[Finding]:
    wanted = executable_lines(search.source)
    search.options = {"watch": "lines"}
    seen: set[int] = set()
    ordered = sorted(search.trials, key=lambda t: len(t.run.calls) > 100)
    for trial in ordered:
        if wanted <= seen:
            break
        for outcome in search.replay(trial.run):
            seen |= outcome.lines
    search.close()
    missed = sorted(wanted - seen - (_waits(search.source) if search.phase == 2 else set()))
    if not missed:
        return []
    rows = search.source.splitlines()
    values = {f"line {n}": rows[n - 1].strip()[:100] for n in missed[:8]}
    message = "no call that the spec allows runs these lines: remove them (what `requires` excludes needs no check)"
    return [Finding("contract", "reached", message, values=values, code_lines=tuple(missed))]


def _waits(source: str) -> set[int]:
    """Statements that wait on a condition: one thread alone never comes there."""
    return {
        node.lineno for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute) and node.value.func.attr == "wait"
    }  # fmt: skip


def executable_lines(source: str) -> frozenset[int]:
    """The first lines of statements inside functions, where code was made for them."""
    made: set[int] = set()

    def visit(code: CodeType, inside: bool) -> None:
        if inside:
            made.update(line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                visit(constant, inside or bool(constant.co_flags & 0x1))  # CO_OPTIMIZED: a function, no class body

    visit(compile(source, "candidate", "exec", dont_inherit=True), False)
    statements = {
        s.lineno for f in ast.walk(ast.parse(source)) if isinstance(f, ast.FunctionDef) for top in f.body
        for s in ast.walk(top) if isinstance(s, ast.stmt) and not isinstance(s, ast.FunctionDef | ast.ClassDef)
    }  # fmt: skip
    return frozenset(made & statements)


# Words


def _shortest(search: Search, run: Run, failure: Failure, full: bool) -> tuple[Run, Failure]:
    if not full or failure.clause in ("deterministic",):
        return run, failure
    return shrink(search, run, failure)


def _finding(search: Search, run: Run, failure: Failure) -> Finding:
    written = run.written(search.spec)
    if len(written) > 24:
        written = (*written[:4], f"… {len(written) - 8} calls …", *written[-4:])
    return failure.finding("contract", written)


def _verdicts(search: Search, findings: list[Finding]) -> dict[str, Any]:
    names = [c.id for u in search.spec.units for c in u.invariants]
    for unit in search.spec.units:
        chosen = [*([unit.init] if unit.init else []), *operations_of(search.spec, unit, search.phase).values()]
        names += [c.id for o in chosen for c in o.clauses if c.kind in ("ensures", "raises")]
    refuted = {f.clause for f in findings}
    verdicts: dict[str, Any] = {}
    for name in names:
        met = search.oracle.met[name] and name not in search.oracle.vacuous
        verdicts[name] = "refuted" if name in refuted else "held" if met else "not reached"
    clean = not refuted
    return verdicts | {n: "refuted" if n in refuted else "held" if clean else "not reached" for n in GENERAL}


def _evidence(search: Search) -> dict[str, Any]:
    acceptance = {n: round(search.accepted[n] / d, 3) for n, d in sorted(search.drawn.items()) if d}
    return {
        "calls": search.calls, "runs": len(search.trials), "acceptance": acceptance,
        "beyond the domains, too large": search.skipped,
    }  # fmt: skip


__all__ = ["GENERAL", "check_generators", "compare", "executable_lines", "judge"]

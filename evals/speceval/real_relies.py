"""The candidate together with the accepted code that it relies on, instead of stubs: each in a sandbox of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pibroch.evals.speceval import library
from pibroch.evals.speceval.calls import Drawer, operations_of, relied
from pibroch.evals.speceval.domains import RandomPicker
from pibroch.evals.speceval.oracle import Oracle
from pibroch.evals.speceval.search import Budget, Search, SpecFault
from pibroch.evals.speceval.session import Session, SessionEnded
from pibroch.evals.speceval.shrink import shrink
from pibroch.evals.speceval.verdict import Finding, StageReport
from pibroch.specs.errors import SpecError
from pibroch.specs.evaluate import holds
from pibroch.specs.model import Spec

TOGETHER = Budget(small=400, random=300, beyond=0, long=0)
_WARM_UP = 6  # calls at most that bring a relied-upon module into some state


class Reals:
    """Answers of the real modules. Each run begins with fresh ones, brought into some state by calls of their own."""

    def __init__(self, spec: Spec, peers: Mapping[str, Spec], sources: Mapping[str, str]) -> None:
        self.spec, self.peers = spec, peers
        self.modules = dict.fromkeys(rely.module for rely in spec.relies)
        self._extra = library.functions(())
        self._sources = sources
        self._sessions: dict[str, Session] = {}
        self._begun: set[str] = set()
        self._seed = 0

    def __enter__(self) -> Reals:
        with contextlib.ExitStack() as stack:
            for name in self.modules:
                peer = self.peers[name]
                below = stack.enter_context(Reals(peer, self.peers, self._sources)) if peer.relies else None
                self._sessions[name] = stack.enter_context(Session(self._sources[name], peer, relies=below))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def begin(self, seed: int) -> None:
        """A new run; the modules start when they are first asked."""
        self._seed = seed
        self._begun.clear()

    def __call__(self, name: str, args: list[Any]) -> Any:
        """Raises `SpecError` where a module gives what the rely does not allow."""
        module, _, function = name.partition(".")
        if module not in self._begun:
            self._begun.add(module)
            self._warm_up(module)
        outcome = self._sessions[module].call(function, args)
        rely = relied(self.spec, name)
        problem = outcome.fault or (f"raised {outcome.error}" if outcome.error else "")
        named = dict(zip([p.name for p in rely.function.params], args, strict=False))
        for clause in rely.function.of("ensures"):
            if not problem and not holds(
                self.spec, clause, unit=self.spec.module, state=None, old=None, result=outcome.value, args=named,
                extra=self._extra,
            ):  # fmt: skip
                problem = f"gave {outcome.value!r}: the rely's `{clause.text}` does not hold"
        if problem:
            call = f"{name}({', '.join(map(repr, args))})"
            raise SpecError(self.spec.path, rely.line, f"the real {module}: {call} {problem}")
        return outcome.value

    def _warm_up(self, module: str) -> None:
        spec, session = self.peers[module], self._sessions[module]
        unit = next(u for u in spec.units if not u.is_class)
        before = session.fresh(unit.name, []).view
        if not unit.view:
            return
        picker, oracle = RandomPicker(f"{module} {self._seed}"), Oracle(spec, self._extra)
        operations = list(operations_of(spec, unit, 2).values())
        for _ in range(picker(0, _WARM_UP)):
            operation = operations[picker(0, len(operations) - 1)]
            try:
                args = Drawer(spec, unit, operation, self._extra).draw(picker, before)
            except IndexError:
                continue
            if oracle.admits(unit, operation, before, args) == "ok":
                before = session.call(operation.name, list(args)).view


def judge(source: str, spec: Spec, *, phase: int, peers: Mapping[str, Spec], sources: Mapping[str, str]) -> StageReport:
    """Contract tests with the real modules. Where one of them has no accepted code, nothing is run."""
    report = StageReport("together")
    missing = [rely.module for rely in spec.relies if rely.module not in sources]
    if missing:
        report.evidence = {"not run": f"no accepted code of {', '.join(dict.fromkeys(missing))} yet"}
        return report
    search = Search(source, spec, phase=phase, budget=TOGETHER, stop_at=1)
    with Reals(spec, peers, sources) as reals:
        search.stubs = reals
        try:
            search.search()
            for run, failure in search.faults.values():
                run, failure = shrink(search, run, failure)
                report.findings.append(failure.finding("together", run.written(spec)))
        except SpecFault as fault:
            report.findings.append(fault.failure.finding("together", fault.run.written(spec)))
        except SpecError as error:
            report.findings.append(Finding("together", "rely", error.message, line=error.line))
        except SessionEnded as ended:
            report.findings.append(Finding("together", "ends", str(ended)))
        finally:
            search.drop()
    report.evidence = {"calls": search.calls, "with": ", ".join(reals.modules)}
    return report

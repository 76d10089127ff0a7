"""What can be said of specs before any code exists: the judge's part of `pibroch spec check`.

Of every spec: its clauses are well typed, its scope is sound and its generators meet the preconditions, its clauses can
hold together and do not raise, and what it relies on follows from what is guaranteed. What was found once is kept by
the semantic hashes of the spec and of what it relies on; lines are only kept for the very same text.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pibroch.evals.speceval import cache, consistency, contract, rely, typecheck
from pibroch.evals.speceval.domains import check_scope
from pibroch.specs.errors import SpecError
from pibroch.specs.lint import lint
from pibroch.specs.model import Spec
from pibroch.specs.store import check_relies, closure, files, load_each, order, semantic_hash


@dataclass(slots=True)
class ModuleCheck:
    """What was found of one spec. `acceptance` by operation (a class's name for its constructor): the share of drawn
    calls that meet the precondition, or why it is not known yet; `satisfiable`: what showed that the clauses can hold
    together; `relies`: rulings by the rely's clause. `seconds` is what it took when it was judged."""

    module: str
    path: Path
    errors: list[SpecError] = field(default_factory=list)
    warnings: list[SpecError] = field(default_factory=list)
    acceptance: dict[str, float | str] = field(default_factory=dict)
    satisfiable: dict[str, str] = field(default_factory=dict)
    relies: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cached: bool = False

    def lines(self) -> list[str]:
        """For people: acceptance rates, then what else is known."""
        rates = [f"{n} {r:.0%}" if isinstance(r, float) else f"{n} ({r})" for n, r in self.acceptance.items()]
        rows = [f"    accepted    {', '.join(rates)}"] if rates else []
        if doubtful := [name for name, how in self.satisfiable.items() if how == "not decided"]:
            rows.append(f"    not decided whether all clauses can hold together: {', '.join(doubtful)}")
        return rows + [f"    {name}: {ruling}" for name, ruling in self.relies.items()]


@dataclass(slots=True)
class SpecCheck:
    """All specs, in rely order. Errors that belong to no spec that could be read are in `unread`."""

    modules: dict[str, ModuleCheck] = field(default_factory=dict)
    unread: list[SpecError] = field(default_factory=list)

    @property
    def errors(self) -> list[SpecError]:
        """Every error once, the unreadable specs first."""
        rows = [*self.unread, *(e for m in self.modules.values() for e in m.errors)]
        return list({(str(e.path), e.line, e.message): e for e in rows}.values())

    @property
    def warnings(self) -> list[SpecError]:
        """Doubts: they refuse nothing."""
        return [w for m in self.modules.values() for w in m.warnings]

    @property
    def passed(self) -> bool:
        return not self.errors


def check_folders(folders: Sequence[Path]) -> SpecCheck:
    """Load every spec of these folders and check it. Raises `MissingError` where a tool is missing."""
    found = SpecCheck()
    try:
        paths = files(folders)
    except SpecError as error:
        found.unread.append(error)
        return found
    specs, found.unread = load_each(paths)
    broken = {name: error for name, path in paths.items() for error in found.unread if error.path == path}
    sound: list[str] = []
    for name in specs:
        try:
            check_relies(specs, [name], broken=broken)
        except SpecError as error:
            found.unread.append(error)
            continue
        if not {r.module for n in closure(specs, [name]) for r in specs[n].relies} & set(broken):
            sound.append(name)
    found.modules = check({n: specs[n] for n in closure(specs, sound)}).modules
    return found


def check(specs: Mapping[str, Spec], names: Sequence[str] | None = None) -> SpecCheck:
    """Check these (default: all) of specs that load and whose relies lead to each other."""
    chosen = [name for name in order(specs) if names is None or name in names]
    found = SpecCheck({name: ModuleCheck(name, specs[name].path) for name in chosen})
    for error in typecheck.check([specs[name] for name in chosen]):
        owner = next(m for m in found.modules.values() if m.path == error.path)
        owner.errors.append(error)
    for name, module in found.modules.items():
        if not module.errors:
            _judged(specs[name], specs, module)
        module.warnings += [SpecError(d.path, d.line, d.message) for d in lint(specs[name])]
    return found


def _judged(spec: Spec, specs: Mapping[str, Spec], module: ModuleCheck) -> None:
    near = sorted(closure(specs, [spec.module]))
    name = cache.key("check", spec.module, *(semantic_hash(specs[n]) for n in near))
    text = hashlib.sha256(spec.text.encode()).hexdigest()
    kept = cache.find("checks", name)
    if kept is not None and (kept["text"] == text or not (kept["errors"] or kept["warnings"])):
        _restore(module, kept)
        return
    started = time.monotonic()
    _judge(spec, specs, module)
    module.seconds = round(time.monotonic() - started, 3)
    data: dict[str, Any] = {
        "text": text, "acceptance": module.acceptance, "satisfiable": module.satisfiable, "relies": module.relies,
        "seconds": module.seconds, "errors": [(e.line, e.message) for e in module.errors],
        "warnings": [(w.line, w.message) for w in module.warnings],
    }  # fmt: skip
    cache.store("checks", name, data)


def _restore(module: ModuleCheck, kept: dict[str, Any]) -> None:
    module.errors = [SpecError(module.path, line, message) for line, message in kept["errors"]]
    module.warnings = [SpecError(module.path, line, message) for line, message in kept["warnings"]]
    module.acceptance, module.satisfiable, module.relies = kept["acceptance"], kept["satisfiable"], kept["relies"]
    module.seconds, module.cached = kept["seconds"], True


def _judge(spec: Spec, specs: Mapping[str, Spec], module: ModuleCheck) -> None:
    """Each step takes for granted that the last one found nothing."""
    try:
        check_scope(spec)
    except SpecError as error:
        module.errors.append(error)
        return
    able = consistency.check(spec)
    module.errors += able.errors
    module.warnings += able.warnings
    module.satisfiable = able.satisfiable
    if not module.errors:
        drawn = contract.check_generators(spec, specs)
        module.errors += [SpecError(spec.path, f.line or spec.line("scope"), f.message) for f in drawn.findings]
        module.acceptance = dict(drawn.evidence)
    if not module.errors and spec.relies:
        composed = rely.judge(spec, specs)
        module.relies = dict(composed.verdicts)
        for finding in composed.findings:
            seen = ", ".join(f"{name} = {value}" for name, value in finding.values.items())
            message = finding.message + (f" (when {seen})" if seen else "")
            module.errors.append(SpecError(spec.path, finding.line, message))

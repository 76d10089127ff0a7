"""From prose to a draft of a spec: a model writes it, the parser and the checks send back what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pibroch.agents.lm.base import LanguageModel, ReplyError, Request, digest, fenced_block, finish
from pibroch.runtime.errors import InputError
from pibroch.specs.errors import SpecError
from pibroch.specs.model import Spec
from pibroch.specs.parse import parse_spec
from pibroch.specs.store import check_relies

DRAFT_SCHEMA = 1
DEADLINE_S = 600.0
PROMPTS = ("spec_draft",)
_ASSUMED = re.compile(r"<!--\s*Assumptions\s*:\s*(.+?)\s*-->|^Assumptions\s*:\s*(.+?)(?:\n\s*\n|\Z)", re.DOTALL | re.M)

Check = Callable[[Spec, Mapping[str, Spec]], Sequence[str]]


@dataclass(slots=True)
class Draft:
    """`spec` is None where no reply passed; `feedback` holds what was wrong, per attempt; `assumptions` is prose."""

    spec: Spec | None = None
    text: str = ""
    assumptions: str = ""
    attempts: int = 0
    feedback: list[list[str]] = field(default_factory=list)


def default_check(spec: Spec, known: Mapping[str, Spec]) -> list[str]:
    """What `pibroch spec check` says of one spec: types of the clauses, then the test domains."""
    from pibroch.evals.speceval import typecheck
    from pibroch.evals.speceval.domains import check_scope

    check_relies({**known, spec.module: spec}, [spec.module])
    found = [str(finding) for finding in typecheck.judge(spec, peers=known).findings]
    if not found:
        check_scope(spec)
    return found


def draft_spec(
    wish: str,
    lm: LanguageModel,
    *,
    known: Mapping[str, Spec] | None = None,
    attempts: int = 4,
    check: Check = default_check,
    prompts: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Draft:
    """Draft a spec for `wish`; `known` are the specs that it may rely on. Raises `InputError`, `Paused`, `LMError`."""
    if not wish.strip():
        raise InputError("say in a sentence or more what the module shall do")
    draft, reply, rows = Draft(), "", list[str]()
    while draft.attempts < attempts:
        draft.attempts += 1
        say(f"attempt {draft.attempts}: asking {lm.name}")
        reply = _ask(wish, lm, known or {}, draft.attempts, reply if rows else "", rows, prompts)
        spec, rows = read_draft(reply, known or {}, check)
        draft.feedback.append(rows)
        say(f"attempt {draft.attempts}: {rows[0].splitlines()[0] if rows else 'parsed and checked'}")
        if spec is not None and not rows:
            draft.spec, draft.text, draft.assumptions = spec, spec.text, assumptions(spec.text)
            break
    finish(lm)
    return draft


def read_draft(reply: str, known: Mapping[str, Spec], check: Check) -> tuple[Spec | None, list[str]]:
    """The spec of a reply, and what is wrong with it."""
    try:
        text = _body(reply).strip() + "\n"
    except ReplyError as error:
        return None, [f"{error}. Use four backticks, ````markdown, as the spec has a block of its own"]
    try:
        spec = parse_spec(text, "draft.spec.md")
        rows = [] if assumptions(text) else ["it says nothing of what it assumed: end with <!-- Assumptions: … -->"]
        if spec.module in known:
            rows.append(f"module {spec.module} has a spec already: choose another name")
        return spec, rows or list(check(spec, known))
    except SpecError as error:
        return None, [f"line {error.line}: {error.message}" + _shown(text, error.line)]


def _body(reply: str) -> str:
    """The one block; up to the last three backticks, where the fence is no longer than that of the spec's own."""
    match = re.search(r"^```(?:markdown|md)[ \t]*\n(.*)^```[ \t]*$", reply, re.DOTALL | re.MULTILINE)
    return match[1] if match else fenced_block(reply, ("markdown",))[1]


def assumptions(text: str) -> str:
    """What a draft says that it assumed; empty where it says nothing."""
    match = _ASSUMED.search(text)
    return " ".join((match[1] or match[2]).split()) if match else ""


def file_name(spec: Spec) -> Path:
    """Where a draft belongs in a project."""
    return Path("specs") / "modules" / f"{spec.module}.spec.md"


def _shown(text: str, line: int) -> str:
    rows = text.splitlines()
    return f"\n    {rows[line - 1].strip()}" if 0 < line <= len(rows) else ""


def _ask(
    wish: str, lm: LanguageModel, known: Mapping[str, Spec], attempt: int, previous: str, rows: Sequence[str],
    prompts: Mapping[str, str] | None,
) -> str:  # fmt: skip
    from pibroch.agents.instructed import Instructed
    from pibroch.agents.lm.dspy_engine import call
    from pibroch.agents.module_dspy import DraftSpec

    request = Request(
        role="drafter", subject=" ".join(wish.split())[:40], phase=1, attempt=attempt, messages=(),
        deadline_s=DEADLINE_S, semantic_key=digest([wish.split(), sorted(known)]), previous_hash=digest(previous),
        schema_version=DRAFT_SCHEMA, max_tokens=16384, blocks=("markdown",),
    )  # fmt: skip
    _, reply, _ = call(
        Instructed(DraftSpec, PROMPTS, prompts), lm, request, wish=wish, known=_offers(known), previous=previous,
        feedback="\n".join(f"- {row}" for row in rows),
    )  # fmt: skip
    return reply.text


def _offers(known: Mapping[str, Spec]) -> str:
    """The exported functions of other modules, with what they ensure."""
    rows = []
    for spec in known.values():
        for unit in spec.units:
            for operation in [] if unit.is_class else unit.operations.values():
                rows.append(f"- `{spec.module}.{operation.signature}`: {spec.front.summary}")
                rows += [f"    {clause.kind}: {clause.text}" for clause in operation.clauses]
    return "\n".join(rows)

"""A language model proposes: one better schedule than the incumbent, or one edit of it, proven before it is handed on.

Whatever the model does (nothing, garbage, ten megabytes, the same again) ends within a fixed number of requests as an
answer without a schedule that says why, and the run goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pibroch.agents.candidate_reply import shown
from pibroch.agents.evolve.catalogue import catalogue
from pibroch.agents.evolve.design import Design, decode, encode, schedule_hash
from pibroch.agents.evolve.edits import NotApplicable, apply_edit, describe, parse_edit
from pibroch.agents.evolve.outline import outline
from pibroch.agents.feedback import Feedback, as_text
from pibroch.agents.lm.accounting import BudgetError
from pibroch.agents.lm.base import LanguageModel, LMError, ReplyError, Request, digest, fenced_block
from pibroch.agents.model_facts import facts
from pibroch.evals.feedback.text import as_text as findings_text
from pibroch.evals.finding import Finding
from pibroch.evals.sandbox import SandboxError, run_sandboxed
from pibroch.evals.setting import Setting
from pibroch.playbooks.model import Bullet
from pibroch.playbooks.retrieve import render
from pibroch.runtime.directives import Schedule, parse_schedule, schedule_from
from pibroch.runtime.errors import InputError, MissingError
from pibroch.runtime.simulate import Simulation

WRITER_SCHEMA = 1
PHASE = 3  # of the role "writer": 1 and 2 write a schedule from a sentence
DEADLINE_S = 300.0
ATTEMPTS = 3
PROMPTS = ("propose", "directives")
SHOWN_FINDINGS = 4
SHOWN_TRIED = 10

_CITES = re.compile(r"^\W*cites?\W*:(.*)$", re.IGNORECASE | re.MULTILINE)
_ID = re.compile(r"[a-z]{2,12}-\d{5}")


@dataclass(frozen=True, slots=True)
class Answer:
    """`schedule` is proven legal and new, or None, and then `why` is the reason. `edit` is what the model named instead
    of a whole schedule: the incumbent with this edit alone. `cites` are ids of bullets that it was shown."""

    schedule: Schedule | None
    why: str
    edit: dict[str, Any] | None = None
    cites: tuple[str, ...] = ()
    attempts: int = 0


class _GivenUp(Exception):
    """No further attempt is worth its tokens; the message is the reason."""


@dataclass(slots=True)
class Writer:
    """Asks `lm` about one setting, at most `attempts` times per proposal, each within `deadline_s`."""

    lm: LanguageModel
    setting: Setting
    prompts: Mapping[str, str] | None = None
    attempts: int = ATTEMPTS
    deadline_s: float = DEADLINE_S
    sample: int = 0
    say: Callable[[str], None] = field(default=lambda line: None)

    def propose(
        self,
        incumbent: Schedule,
        findings: Sequence[Finding],
        bullets: Sequence[Bullet],
        *,
        tried: Sequence[str] = (),
        seen: Container[str] = (),
        evaluation: int,
    ) -> Answer:
        """One proposal. `tried` are lines on earlier candidates and what came of them, the latest last; `seen` holds
        the hashes of plans that need no second evaluation. Raises `Paused`.
        """
        return _Proposal(self, incumbent, findings, bullets, tried, seen, evaluation).run()


class _Proposal:
    def __init__(
        self,
        writer: Writer,
        incumbent: Schedule,
        findings: Sequence[Finding],
        bullets: Sequence[Bullet],
        tried: Sequence[str],
        seen: Container[str],
        evaluation: int,
    ) -> None:
        self.writer, self.incumbent, self.bullets, self.seen = writer, incumbent, bullets, seen
        setting = writer.setting
        self.design: Design = decode(incumbent, setting)
        plan = setting.lower(incumbent)
        self.plan = plan.hash()
        self.given = {
            "task": task_text(setting),
            "model": facts(setting.model(plan.replicas, plan.microbatches)),
            "incumbent": f"{outline(self.design)}\n{simulated(self.design, setting.simulate(plan))}",
            "findings": findings_text(findings, limit=SHOWN_FINDINGS),
            "bullets": render(bullets),
            "edits": catalogue(),
            "tried": "\n".join(f"- {line}" for line in tried[-SHOWN_TRIED:]),
        }
        self.semantic_key = digest([
            setting.task.model_dump(mode="json"), schedule_hash(incumbent), evaluation, [b.id for b in bullets],
        ])  # fmt: skip
        self.replies: set[str] = set()
        self.repeated = False

    def run(self) -> Answer:
        attempt, previous, rows = 0, "", list[Feedback]()
        try:
            for attempt in range(1, self.writer.attempts + 1):
                previous = self._ask(attempt, previous, rows)
                answer, rows = self._read(previous, attempt)
                self.writer.say(f"proposal, attempt {attempt}: {str(rows[0]).splitlines()[0] if rows else 'passed'}")
                if answer is not None:
                    return answer
        except _GivenUp as error:
            return Answer(None, str(error), attempts=attempt)
        except BudgetError as error:
            return Answer(None, f"the budget for the model is spent: {_short(str(error))}", attempts=attempt - 1)
        except LMError as error:
            return Answer(None, f"the model did not answer: {_short(str(error))}", attempts=attempt)
        return Answer(None, f"nothing valid in {attempt} attempts; last: {_short(str(rows[0]))}", attempts=attempt)

    def _ask(self, attempt: int, previous: str, rows: Sequence[Feedback]) -> str:
        # Imported here: DSPy takes seconds, and without a language model nothing of it is needed.
        from pibroch.agents.evolve_dspy import Propose
        from pibroch.agents.instructed import Instructed
        from pibroch.agents.lm.dspy_engine import call

        request = Request(
            role="writer", subject=self.writer.setting.task.name, phase=PHASE, attempt=attempt, messages=(),
            deadline_s=self.writer.deadline_s, semantic_key=self.semantic_key, previous_hash=digest(previous),
            sample=self.writer.sample, schema_version=WRITER_SCHEMA, max_tokens=8192,
        )  # fmt: skip
        _, reply, _ = call(
            Instructed(Propose, PROMPTS, self.writer.prompts), self.writer.lm, request, **self.given,
            previous=shown(previous), feedback=as_text(rows),
        )  # fmt: skip
        text: str = reply.text
        if digest(text) in self.replies:
            refused = f", which was refused: {_short(str(rows[0]))}" if rows else ""
            raise _GivenUp(f"the model repeats its reply word for word{refused}")
        self.replies.add(digest(text))
        return text

    def _read(self, text: str, attempt: int) -> tuple[Answer | None, list[Feedback]]:
        try:
            schedule, edit, cites = self._candidate(text)
            rows = self._judge(schedule)
        except (InputError, SandboxError, ReplyError, MissingError) as error:
            return None, [Feedback("FORMAT", "", _short(str(error), 1000))]
        except NotApplicable as error:
            return None, [Feedback("EDIT", "", f"it does not apply to the incumbent: {error}")]
        if rows:
            return None, rows
        known = {b.id for b in self.bullets}
        cited = [*cites, *(id for line in _CITES.findall(text) for id in _ID.findall(line))]
        why = _prose(text) or (describe(parse_edit(edit)) if edit else "")
        return Answer(schedule, why, edit, tuple(i for i in dict.fromkeys(cited) if i in known), attempt), []

    def _candidate(self, text: str) -> tuple[Schedule, dict[str, Any] | None, list[str]]:
        """What the block stands for. Raises `ReplyError`, `InputError`, `NotApplicable` or `SandboxError`."""
        language, body = fenced_block(text)
        if language == "python":
            rows = run_sandboxed(body, call="schedule", args=[self.incumbent.to_json()["directives"]])
            return schedule_from(rows, source="schedule()"), None, []
        try:
            data = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ReplyError(f"the block is not valid JSON: {error}") from error
        if not isinstance(data, dict) or "edit" not in data:
            return parse_schedule(body, source="the JSON block"), None, []
        if extra := sorted(data.keys() - {"edit", "cites"}):
            raise ReplyError(f"beside edit and cites there is nothing to say: {', '.join(extra)[:200]}")
        cites = data.get("cites", [])
        if not isinstance(cites, list):
            raise ReplyError('"cites" is a list of bullet ids')
        edit = parse_edit(data["edit"])
        return encode(apply_edit(edit, self.design, self.writer.setting)), edit.to_json(), list(map(str, cites))

    def _judge(self, schedule: Schedule) -> list[Feedback]:
        """Proven and new, or what is wrong. Raises `InputError` where it does not lower, `_GivenUp` at a repetition."""
        setting = self.writer.setting
        plan = setting.lower(schedule)
        name = plan.hash()
        if name == self.plan or name in self.seen:
            if self.repeated:
                raise _GivenUp("the model proposes again what was tried before")
            self.repeated = True
            what = "the incumbent itself" if name == self.plan else "a schedule that was tried before"
            return [Feedback("REPEATED", "", f"this is {what}: propose another one")]
        simulation = setting.simulate(plan)
        return [Feedback(v.rule, v.where, v.message) for v in setting.check(plan, simulation)]


def task_text(setting: Setting) -> str:
    """What a candidate may not change, and which ways to divide the batch there are."""
    task = setting.task
    counts = {k: setting.choices(k) for k in range(1, task.devices + 1) if task.devices % k == 0}
    choices = "; ".join(f"{k} x {'|'.join(map(str, m))}" for k, m in counts.items() if m)
    limit = f"{task.memory_limit / 1e6:g} MB per device" if task.memory_limit else "none"
    return (
        f"{task.intent}\n{task.devices} devices, {task.samples} samples per step, memory bound: {limit}. "
        f"Replicas x microbatches that divide the samples: {choices}."
    )


def simulated(design: Design, simulation: Simulation) -> str:
    """The simulator's figures of each position, for the fullest or slowest of its replicas."""
    groups = sorted(set(design.placement))
    busy = [max(simulation.busy[d] for d in devices) for devices in groups]
    peak = [max(simulation.peak_bytes[d] for d in devices) for devices in groups]
    times, sizes = (" ".join(map(_figure, row)) for row in ([b * 1e3 for b in busy], [b / 1e6 for b in peak]))
    step = f"step {_figure(simulation.makespan * 1e3)} ms, of it idle {simulation.bubble:.0%}"
    return f"simulated: {step}; per position: busy ms {times}, peak MB {sizes}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _prose(text: str) -> str:
    """What the reply says before its block, for people."""
    words = " ".join(_CITES.sub("", re.split(r"^(?:`{3,}|~{3,})", text, maxsplit=1, flags=re.MULTILINE)[0]).split())
    return _short(words)


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

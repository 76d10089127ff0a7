"""From a spec to a proved module: write, judge, feedback; phase 1 sequential, phase 2 concurrent.

Phase 1 is written twice, independently: where the two modules behave differently the spec lacks a clause, and the loop
stops. Phase 2 starts from the first of them. A candidate that the judge has not passed is never returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pibroch.agents.lm.base import LanguageModel, ReplyError, Request, digest, fenced_block, finish
from pibroch.agents.lm.replay import ReplayMiss
from pibroch.agents.lm.together import at_once, together
from pibroch.agents.lock import LockEntry, Reviewed, sha256
from pibroch.agents.module_small import assertions, short_task, suits, wrong
from pibroch.agents.module_task import feedback_text, has_state, skeleton, task
from pibroch.agents.prompt_files import prompt_hashes
from pibroch.agents.reviewer import Reviewer, ReviewFailed
from pibroch.evals.speceval.verdict import Finding, Report, Ruling
from pibroch.runtime.errors import InputError, PibrochError
from pibroch.specs.model import Spec
from pibroch.specs.store import semantic_hash

WRITER_SCHEMA = 1
DEADLINE_S = 600.0
SAMPLES = (0, 1)
REPEATED = "repeated"
NOW = "Reply with the whole module in one fenced block that opens with ```python."


class Judge(Protocol):
    """`evals.speceval.pipeline.judge_module`."""

    def __call__(
        self, source: str, spec: Spec, *, phase: int, peers: Mapping[str, Spec], sources: Mapping[str, str],
        sequential: str | None = None,
    ) -> Report:
        """Judge one candidate of a phase."""
        ...  # fmt: skip


class Compare(Protocol):
    """`evals.speceval.contract.compare`."""

    def __call__(self, source_a: str, source_b: str, spec: Spec, peers: Mapping[str, Spec]) -> Finding | None:
        """Calls on which two modules differ."""
        ...


@dataclass(slots=True)
class Track:
    """One writer's tries at one phase: findings per attempt, an empty list for the attempt that passed."""

    phase: int
    sample: int
    attempts: int = 0
    feedback: list[list[Finding]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    asked: str = ""  # a reply that came before it was its turn
    reply: str = ""
    source: str | None = None
    sequential: str | None = None
    seen: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"phase {self.phase}, sample {self.sample}"

    @property
    def passed(self) -> bool:
        """Whether the last attempt was accepted."""
        return self.source is not None


@dataclass(slots=True)
class Written:
    """`source` is None unless everything passed, and `entry` is its lock entry. `problem` says why nothing was written;
    `difference` is where the two phase-1 modules differ. `stale` counts replayed replies whose prompt has changed."""

    spec: Spec
    source: str | None = None
    entry: LockEntry | None = None
    tracks: list[Track] = field(default_factory=list)
    verdicts: dict[str, Ruling] = field(default_factory=dict)
    difference: Finding | None = None
    problem: str = ""
    review: Reviewed = "not reviewed"
    stale: int = 0


class Refused(PibrochError):
    """The loop ends without a module; the message says why."""


def default_judge(
    source: str, spec: Spec, *, phase: int, peers: Mapping[str, Spec], sources: Mapping[str, str],
    sequential: str | None = None,
) -> Report:  # fmt: skip
    """SpecEval's mechanical stages, whole."""
    from pibroch.evals.speceval.pipeline import judge_module

    return judge_module(source, spec, phase=phase, peers=peers, sources=sources, sequential=sequential)


def default_compare(source_a: str, source_b: str, spec: Spec, peers: Mapping[str, Spec]) -> Finding | None:
    """The contract stage's comparison of two modules."""
    from pibroch.evals.speceval.contract import compare

    return compare(source_a, source_b, spec, peers)


def write_module(
    spec: Spec,
    lm: LanguageModel,
    *,
    peers: Mapping[str, Spec],
    sources: Mapping[str, str],
    attempts: int = 4,
    review: bool = True,
    judge: Judge = default_judge,
    compare: Compare = default_compare,
    prompts: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Written:
    """Write the module of `spec`.

    `peers` are the specs by module, `sources` the accepted code of those relied on. `attempts` is per phase and sample.
    Whatever the model answered, the outcome is a `Written`; raises `InputError` for a wrong argument, and `Paused` and
    `LMError` from the model.
    """
    if attempts < 1:
        raise InputError(f"attempts is at least 1, not {attempts}")
    written = Written(spec)
    loop = Loop(written, lm, peers, sources, attempts, review, judge, compare, prompts, say)
    try:
        loop.run()
    except (Refused, ReplayMiss, ReviewFailed) as error:
        written.problem = str(error)
    finish(lm)
    return written


@dataclass(slots=True)
class Loop:
    """The state of one `write_module`. `track` is also used alone, to measure one phase."""

    written: Written
    lm: LanguageModel
    peers: Mapping[str, Spec]
    sources: Mapping[str, str]
    attempts: int
    review: bool
    judge: Judge
    compare: Compare
    prompts: Mapping[str, str] | None
    say: Callable[[str], None]
    model: str = ""
    who: str = ""
    used: set[str] = field(default_factory=set)
    judged: dict[tuple[int, str, str | None], Report] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        return self.written.spec

    def run(self) -> None:
        """Fill `written`. Raises `Refused`."""
        first, second = (self.start(1, sample) for sample in SAMPLES)
        if at_once(self.lm):
            calls = [partial(self._ask, track, []) for track in (first, second)]
            first.asked, second.asked = together(calls, lm=self.lm, deadline_s=DEADLINE_S)
        self.go(first)
        self.go(second)
        self._agree(first, second)
        final = first
        if 2 in self.spec.phases:
            final = self.start(2, 0, first.source)
            self.go(final)
        if self.review:
            self._reviewed(final, first, second)
        assert final.source is not None
        report = final.reports[-1]
        assert report.passed
        self.written.source, self.written.verdicts = final.source, report.verdicts
        self.written.entry = self._entry(final.source)

    def start(self, phase: int, sample: int, sequential: str | None = None) -> Track:
        """A new track, listed among the outcome's."""
        track = Track(phase, sample, sequential=sequential)
        self.written.tracks.append(track)
        return track

    def go(self, track: Track, told: list[Finding] | None = None) -> str:
        """Ask and judge until a candidate passes; `told` is feedback on the last one. Raises `Refused` at the limit."""
        findings, track.source = list(told or []), None
        while track.asked or track.attempts < self.attempts:
            try:
                source, findings = self._try(track, findings)
            except ReplayMiss as error:
                if not findings:
                    raise
                shown = feedback_text(findings[:1], self.spec, _code(track.reply))
                raise Refused(f"the recorded reply of {track.name} does not pass:\n{shown}\n{error}") from error
            track.feedback.append(findings)
            outcome = str(findings[0]).splitlines()[0] if findings else "passed"
            self.say(f"{self.spec.module}, {track.name}, attempt {track.attempts}: {outcome}")
            if not findings:
                track.source = source
                return source
        last = feedback_text(findings, self.spec, _code(track.reply))
        tries = f"{track.attempts} attempt" + "s" * (track.attempts != 1)
        raise Refused(f"no candidate of {track.name} passed in {tries}; the last one:\n{last}")

    def _try(self, track: Track, told: list[Finding]) -> tuple[str, list[Finding]]:
        """One request and its judgement: the source and what is wrong with it."""
        reply, track.asked = track.asked or self._ask(track, told), ""
        repeated = reply in track.seen
        track.reply = reply
        track.seen.add(reply)
        try:
            _, body = fenced_block(reply, ("python",))
        except ReplyError as error:
            track.reports.append(Report(self.spec.module, track.phase))
            return "", [Finding("reply", "format", str(error))]
        source = body.strip("\n") + "\n"
        key = (track.phase, source, track.sequential)
        if key not in self.judged:  # two writers often write the same
            self.say(f"{self.spec.module}, {track.name}, attempt {track.attempts}: judging")
            self.judged[key] = self.judge(
                source, self.spec, phase=track.phase, peers=self.peers, sources=self.sources,
                sequential=track.sequential,
            )  # fmt: skip
        report = self.judged[key]
        track.reports.append(report)
        findings = list(report.findings)
        assert report.passed == (not findings)
        if not findings and not report.stages:
            raise Refused("the judge ran no stage: nothing is accepted without a verdict")
        if not findings and track.phase == 2 and self.spec.front.concurrency.model == "streams":
            findings = self._kept(track, source)
        if findings and repeated:
            findings.append(Finding("reply", REPEATED, "you sent this candidate before: write another one"))
        return source, findings

    def _ask(self, track: Track, told: list[Finding]) -> str:
        # Imported here: DSPy takes seconds, and not every user of this module asks a model.
        from pibroch.agents.instructed import Instructed
        from pibroch.agents.lm.dspy_engine import call
        from pibroch.agents.module_dspy import WriteConcurrent, WriteSequential, WriteShort

        track.attempts += 1
        spec, phase = self.spec, track.phase
        short = suits(spec, phase, self.lm)
        names = ("module_small",) if short else self._prompts_of(phase)
        given = {} if short else task(spec, phase)
        if short:
            given["task"] = short_task(spec)
        elif phase == 1:
            given["skeleton"] = f"```python\n{skeleton(spec).rstrip()}\n```"
        else:
            given.pop("words")
            assert track.sequential is not None
            given["accepted"] = f"```python\n{track.sequential.rstrip()}\n```"
        request = Request(
            role="writer", subject=spec.module, phase=phase, attempt=track.attempts, messages=(),
            deadline_s=DEADLINE_S, semantic_key=semantic_hash(spec), sample=track.sample, schema_version=WRITER_SCHEMA,
            previous_hash=digest([track.reply, track.sequential]), max_tokens=16384, blocks=("python",),
        )  # fmt: skip
        self.say(f"{spec.module}, {track.name}, attempt {track.attempts}: asking {self.lm.name}")
        if short:
            signature, stages = WriteShort, {row.stage for row in told}
            afresh = "reply" in stages or (track.attempts % 2 == 1 and "review" not in stages)
            given["tests"] = assertions(track.feedback, spec) if afresh else ""
            given["previous"] = "" if afresh else f"```python\n{_code(track.reply)}\n```"
            given["feedback"] = "" if afresh else wrong(told, spec, _code(track.reply))
        else:
            signature = WriteSequential if phase == 1 else WriteConcurrent
            anew = any(row.clause == REPEATED for row in told)  # who is stuck starts afresh, knowing what went wrong
            given["previous"] = "" if anew or not told else track.reply
            given["feedback"] = "" if anew else self._feedback(track, told)
            given |= {"mind": self._feedback(track, told[:1]) if anew else "", "now": NOW}
        _, reply, _ = call(Instructed(signature, names, self.prompts), self.lm, request, **given)
        self._answered(names, reply.model, reply.who, reply.stale)
        return reply.text

    def _feedback(self, track: Track, told: list[Finding]) -> str:
        return feedback_text(told, self.spec, _code(track.reply))

    def _prompts_of(self, phase: int) -> tuple[str, ...]:
        if phase == 1:
            return ("module_phase1", "module_language") if has_state(self.spec) else ("module_phase1_functions",)
        streams = self.spec.front.concurrency.model == "streams"
        return "module_phase2_streams" if streams else "module_phase2", "module_language"

    def _answered(self, names: tuple[str, ...], model: str, who: str, stale: bool) -> None:
        self.used |= set(names)
        self.model, self.who = model, who
        self.written.stale += stale

    def _agree(self, first: Track, second: Track) -> None:
        """Raises `Refused` where the two phase-1 modules differ and the spec does not allow it."""
        if self.spec.front.several_answers:
            return
        assert first.source is not None
        assert second.source is not None
        if first.source == second.source:
            return
        self.say(f"{self.spec.module}: comparing the two modules of phase 1")
        found = self.compare(first.source, second.source, self.spec, self.peers)
        if found is not None:
            self.written.difference = found
            raise Refused(
                f"two modules that pass every clause of {self.spec.path.name} behave differently, so the spec lacks a "
                f"clause: mend the spec (or say under several_answers why both are right)\n{found}"
            )

    def _kept(self, track: Track, source: str) -> list[Finding]:
        """Phase 2 of a schedule must not change what phase 1's functions return."""
        assert track.sequential is not None
        found = self.compare(track.sequential, source, self.spec, self.peers)
        return [found] if found is not None else []

    def _reviewed(self, final: Track, first: Track, second: Track) -> None:
        """Let the reviewer read what the judge passed; what it rejects is written and judged again."""
        reviewer = Reviewer(self.spec, self.lm, self.prompts, say=self.say)
        while True:
            assert final.source is not None
            findings = reviewer.read(final.source, phase=final.phase, answered=self._answered_review)
            if not findings:
                self.written.review = "passed"
                return
            final.feedback[-1] = findings
            self.go(final, findings)
            if final is first:
                self._agree(first, second)

    def _answered_review(self, names: tuple[str, ...], stale: bool) -> None:
        self.used |= set(names)
        self.written.stale += stale

    def _entry(self, source: str) -> LockEntry:
        spec = self.spec
        return LockEntry(
            spec_version=spec.front.version, spec_hash=semantic_hash(spec),
            rely=sorted({rely.module for rely in spec.relies}), prompts=prompt_hashes(self.used, self.prompts),
            model=self.model, who=self.who, attempts={t.name: t.attempts for t in self.written.tracks},
            verdicts=dict(self.written.verdicts), review=self.written.review,
            source_sha256=sha256(file_text(spec, source)),
        )  # fmt: skip


def file_text(spec: Spec, source: str) -> str:
    """The generated file: the module under a comment that says where it comes from."""
    name = spec.path.name
    return f"# Generated from {name}, version {spec.front.version}. Edit the spec, not this file.\n{source}"


def _code(reply: str) -> str:
    try:
        return fenced_block(reply, ("python",))[1].strip("\n")
    except ReplyError:
        return ""

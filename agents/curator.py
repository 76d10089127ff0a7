"""The curator: from lessons to deltas of the playbook.

Counters move by rule alone, from what was measured. A language model may word and choose what is added, merge twins
and remove what has failed; each of its deltas is checked, and a reply that cannot be read adds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pibroch.agents.evolve.lesson_rules import canonical, same
from pibroch.agents.lessons import PITFALLS, Lesson
from pibroch.agents.lm.accounting import BudgetError
from pibroch.agents.lm.base import LanguageModel, LMError, ReplyError, Request, digest, fenced_block
from pibroch.agents.wording import numbers_in, wrong_way
from pibroch.playbooks.model import Add, Bullet, Delta, Merge, Playbook, Remove, Tag, Update
from pibroch.playbooks.retrieve import fits
from pibroch.playbooks.verdict import verdict

CURATOR_SCHEMA = 1
DEADLINE_S = 300.0
PROMPTS = ("curate",)
MAX_DELTAS = 20
SHOWN_BULLETS = 30

CLEAR_LOSS = 0.95  # a speed ratio from which on a loss is worth a warning; most edits lose a little
BEYOND_DOUBT = 2  # as many harmful tests without a helpful one

Facts = Mapping[str, bool | int | float | str]


def curate(
    lessons: Sequence[Lesson],
    playbook: Playbook,
    *,
    facts: Facts,
    shown: Iterable[str] = (),
    tested: Iterable[str] = (),
    cited: Iterable[str] = (),
    lm: LanguageModel | None = None,
    prompts: Mapping[str, str] | None = None,
    sample: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> list[Delta]:
    """Deltas in the order in which they are to be applied: TAG, REMOVE, MERGE, ADD (and a model's UPDATE).

    `shown`, `cited` and `tested` are ids of bullets: given to a writer, named by it, and those whose edit the lessons
    come from. A lesson also tests every other bullet with its very edit whose conditions fit `facts`; only a lesson
    that tests none is news. An addition starts untested: the measurement that suggested it is its evidence and no
    confirmation. Raises `Paused` from the model.
    """
    named = set(tested)
    tests = [(lesson, _tested(lesson, playbook, named, facts)) for lesson in lessons]
    tags = [*_seen(shown, cited, playbook), *(_tag(lesson, bullet) for lesson, bullets in tests for bullet in bullets)]
    counted = [_counted(bullet, tags) for bullet in playbook.bullets]
    removed = [b for b in counted if b.harmful >= BEYOND_DOUBT and not b.helpful]
    kept = [b for b in counted if b not in removed]
    news = _news([lesson for lesson, bullets in tests if not bullets])
    merged = _twins(kept)
    deltas: list[Delta] = [*tags, *(_remove(b) for b in removed), *merged]
    if lm is None or not news:
        return [*deltas, *(_add(lesson, lesson.text) for lesson in news)]
    changing = {id for merge in merged for id in merge.ids}
    free = [b for b in kept if b.id not in changing]
    return deltas + _Model(lm, prompts, sample, say).deltas(news, free, facts)


def _seen(shown: Iterable[str], cited: Iterable[str], playbook: Playbook) -> list[Tag]:
    shown, cited = set(shown), set(cited)
    return [
        Tag(id=b.id, shown=int(b.id in shown), cited=int(b.id in cited))
        for b in playbook.bullets
        if b.id in shown or b.id in cited
    ]


def _tested(lesson: Lesson, playbook: Playbook, named: set[str], facts: Facts) -> list[Bullet]:
    return [
        b for b in playbook.bullets
        if b.id in named or (same(b.edit, lesson.edit) and fits(b, facts))
    ]  # fmt: skip


def _tag(lesson: Lesson, bullet: Bullet) -> Tag:
    wanted = "hurt" if bullet.section == PITFALLS else "helped"
    moved = lesson.effect != "nothing"
    return Tag(
        id=bullet.id, tested=1, helpful=int(moved and lesson.effect == wanted),
        harmful=int(moved and lesson.effect != wanted), evidence=(lesson.evidence,),
    )  # fmt: skip


def _counted(bullet: Bullet, tags: Sequence[Tag]) -> Bullet:
    mine = [t for t in tags if t.id == bullet.id]
    sums = {
        name: getattr(bullet, name) + sum(getattr(t, name) for t in mine) for name in ("tested", "helpful", "harmful")
    }
    return bullet.model_copy(update=sums)


def _remove(bullet: Bullet) -> Remove:
    return Remove(id=bullet.id, why=f"harmful in {bullet.harmful} of {bullet.tested} tests, helpful in none")


def _news(lessons: Iterable[Lesson]) -> list[Lesson]:
    """Lessons worth a bullet: a gain, or a clear loss; one for each edit and condition."""
    found: dict[str, Lesson] = {}
    for lesson in lessons:
        clear = lesson.effect == "helped" or (lesson.ratio is not None and lesson.ratio <= CLEAR_LOSS)
        if lesson.edit is not None and lesson.effect != "nothing" and clear:
            found.setdefault(digest([lesson.section, lesson.edit, lesson.applies_when]), lesson)
    return list(found.values())


def _add(lesson: Lesson, text: str) -> Add:
    return Add(
        section=lesson.section, text=text, applies_when=lesson.applies_when, edit=lesson.edit,
        evidence=(lesson.evidence,),
    )  # fmt: skip


def _twins(bullets: Sequence[Bullet]) -> list[Merge]:
    """MERGE of those that say the same edit under the same conditions."""
    groups: dict[str, list[str]] = {}
    for b in bullets:
        if b.edit is not None:
            groups.setdefault(digest([b.section, canonical(b.edit), b.applies_when]), []).append(b.id)
    return [Merge(ids=tuple(ids)) for ids in groups.values() if len(ids) > 1]


class _Chosen(BaseModel):
    """A model's ADD: which lesson, in which words. All else is the lesson's."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    op: Literal["ADD"] = "ADD"
    lesson: int = Field(ge=0)
    text: str | None = Field(default=None, min_length=1, max_length=600)


_ROW: TypeAdapter[Any] = TypeAdapter(Annotated[_Chosen | Update | Tag | Merge | Remove, Field(discriminator="op")])


class _Refused(ValueError):
    """A delta that the rules do not allow, and why."""


class _Model:
    def __init__(
        self, lm: LanguageModel, prompts: Mapping[str, str] | None, sample: int, say: Callable[[str], None]
    ) -> None:
        self.lm, self.prompts, self.sample, self.say = lm, prompts, sample, say

    def deltas(self, news: Sequence[Lesson], bullets: Sequence[Bullet], facts: Facts) -> list[Delta]:
        """What of the reply stands; nothing where there is no reply or none that can be read."""
        near = _near(news, bullets, facts)
        try:
            rows = _rows(self._ask(news, near))
        except (LMError, BudgetError, ReplyError) as error:
            self.say(f"curator: nothing is added: {str(error)[:300]}")
            return []
        known = {b.id: b for b in near}
        left = dict(enumerate(news))
        deltas: list[Delta] = []
        for row in rows:
            try:
                deltas.append(_checked(row, left, known))
            except _Refused as error:
                self.say(f"curator: refused: {str(error)[:300]}")
        return sorted(deltas, key=lambda d: d.op == "ADD")

    def _ask(self, news: Sequence[Lesson], near: Sequence[Bullet]) -> str:
        # Imported here: DSPy takes seconds, and without a language model nothing of it is needed.
        from pibroch.agents.evolve_dspy import Curate
        from pibroch.agents.instructed import Instructed
        from pibroch.agents.lm.dspy_engine import call

        lines = [
            f"{n}. {one.effect}{'' if one.ratio is None else f' (speed x {one.ratio:.3f})'} [{one.section}] {one.text} "
            f"when {json.dumps(one.applies_when)} edit {json.dumps(one.edit)}"
            for n, one in enumerate(news)
        ]
        known = [
            f"[{b.id}] ({b.section}; {verdict(b)}: tested {b.tested}, helpful {b.helpful}, harmful {b.harmful}) "
            f"{b.text} when {json.dumps(b.applies_when)} edit {json.dumps(b.edit)}"
            for b in near
        ]
        request = Request(
            role="curator", subject="playbook", phase=1, attempt=1, messages=(), deadline_s=DEADLINE_S,
            semantic_key=digest([[one.evidence, one.edit, one.effect] for one in news]),
            previous_hash=digest([b.id for b in near]), sample=self.sample, schema_version=CURATOR_SCHEMA,
            max_tokens=4096, blocks=("json",),
        )  # fmt: skip
        _, reply, _ = call(
            Instructed(Curate, PROMPTS, self.prompts), self.lm, request, lessons="\n".join(lines),
            bullets="\n".join(known) or "None yet.",
        )  # fmt: skip
        return reply.text


def _near(news: Sequence[Lesson], bullets: Sequence[Bullet], facts: Facts) -> list[Bullet]:
    """The bullets to show: those that fit, of the lessons' kinds of edit and sections first."""
    ops = {str((one.edit or {}).get("op")) for one in news}
    sections = {one.section for one in news}
    ranked = sorted(
        bullets,
        key=lambda b: (str((b.edit or {}).get("op")) not in ops, b.section not in sections, not fits(b, facts), b.id),
    )
    return ranked[:SHOWN_BULLETS]


def _rows(text: str) -> list[Any]:
    """The reply's JSON list. Raises `ReplyError`."""
    _, body = fenced_block(text, ("json",))
    try:
        rows = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReplyError(f"not JSON: {error}") from error
    if not isinstance(rows, list) or len(rows) > MAX_DELTAS:
        raise ReplyError(f"the block must be a list of at most {MAX_DELTAS} deltas")
    return rows


def _checked(row: Any, left: dict[int, Lesson], known: dict[str, Bullet]) -> Delta:
    """The delta that a row stands for. It uses up its lesson or its bullets: each is spoken of once."""
    try:
        delta = _ROW.validate_python(row)
    except ValidationError as error:
        raise _Refused(error.errors()[0]["msg"]) from error
    if isinstance(delta, _Chosen):
        lesson = left.get(delta.lesson)
        if lesson is None:
            raise _Refused(f"ADD: there is no lesson {delta.lesson}, or it was added already")
        pitfall = lesson.section == PITFALLS
        text = _worded(delta.text, lesson.text, pitfall=pitfall) if delta.text else lesson.text
        del left[delta.lesson]
        return _add(lesson, text)
    if isinstance(delta, Tag):
        raise _Refused(f"TAG {delta.id}: counters move with measurements only")
    ids = delta.ids if isinstance(delta, Merge) else (delta.id,)
    mine = [known[i] for i in dict.fromkeys(ids) if i in known]
    if len(mine) != len(ids):
        raise _Refused(f"{delta.op}: unknown bullets, or some that another delta changes: {', '.join(ids)[:100]}")
    if isinstance(delta, Update):
        if delta.text is None or {"section", "applies_when", "edit", "evidence"} & delta.model_fields_set:
            raise _Refused(f"UPDATE {delta.id}: only its text may change")
        _worded(delta.text, mine[0].text, pitfall=mine[0].section == PITFALLS)
    elif isinstance(delta, Merge):
        if len({digest([b.section, b.edit and canonical(b.edit), b.applies_when]) for b in mine}) > 1:
            raise _Refused(f"MERGE {', '.join(ids)}: they differ in section, edit or conditions")
        if delta.text is not None:
            _worded(delta.text, mine[0].text, pitfall=mine[0].section == PITFALLS)
    elif verdict(mine[0]) not in ("harmful", "placebo"):
        raise _Refused(f"REMOVE {delta.id}: its tests do not speak against it ({verdict(mine[0])})")
    for bullet in mine:
        del known[bullet.id]
    result: Delta = delta
    return result


def _worded(text: str, was: str, *, pitfall: bool) -> str:
    """New words for the same thing: no other numbers, and not the opposite."""
    if not text.strip() or len(text) > 600 or "```" in text:
        raise _Refused("the text is empty, too long or holds a block")
    if numbers_in(text) - numbers_in(was):
        raise _Refused(
            f"the text has numbers that nothing measured: {', '.join(sorted(numbers_in(text) - numbers_in(was)))}"
        )
    if why := wrong_way(text, was=was, pitfall=pitfall):
        raise _Refused(why)
    return " ".join(text.split())

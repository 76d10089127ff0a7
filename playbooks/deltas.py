"""Deltas: the only way in which a playbook changes. Pure: out come the new playbook and what became of each delta."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pibroch.playbooks import checks
from pibroch.playbooks.conditions import normal
from pibroch.playbooks.model import Add, Bullet, Delta, Merge, Outcome, Playbook, Tag, Update
from pibroch.playbooks.similar import Judge, agree, twin
from pibroch.runtime.errors import InputError

COUNTERS = ("shown", "cited", "tested", "helpful", "harmful")
EVIDENCE = 12  # newest entries that a bullet keeps
LAST = 99_999  # the largest number that an id holds
PREFIX = {"schedules": "sched", "communication": "comm", "memory": "mem", "measuring": "meas", "pitfalls": "pit"}

CheckEdit = Callable[[dict[str, Any]], object]
_DELTA: TypeAdapter[Delta] = TypeAdapter(Delta)


class _Refused(Exception):
    pass


def apply(
    playbook: Playbook,
    deltas: Sequence[Delta | Mapping[str, Any]],
    *,
    check_edit: CheckEdit | None = None,
    judge: Judge | None = None,
) -> tuple[Playbook, list[Outcome]]:
    """Apply deltas one after the other, each to what the one before left. One outcome per delta.

    A delta that breaks a rule is refused with the reason and changes nothing; it never becomes another operation.
    Plain data (a model's answer) is validated here. `check_edit` raises `ValueError` for an edit that the schedule
    operators do not know. An ADD whose words, edit and conditions a bullet has already is merged into that bullet; a
    `judge` of two texts is asked about paraphrases alone (`similar.twin`).
    """
    outcomes = []
    for delta in deltas:
        op = delta.get("op", "") if isinstance(delta, Mapping) else delta.op
        try:
            delta = _parse(delta) if isinstance(delta, Mapping) else delta
            playbook, outcome = _apply_one(playbook, delta, check_edit, judge)
        except (_Refused, InputError) as refusal:
            named = getattr(delta, "id", "")
            outcome = Outcome(op=str(op), done="refused", id=named, reason=str(refusal))
        outcomes.append(outcome)
    return playbook, outcomes


def _parse(data: Mapping[str, Any]) -> Delta:
    try:
        return _DELTA.validate_python(dict(data))
    except ValidationError as error:
        row = error.errors()[0]
        place = ".".join(str(part) for part in row["loc"] if part not in ("ADD", "UPDATE", "TAG", "MERGE", "REMOVE"))
        raise _Refused(f"{place or 'the delta'}: {row['msg']}") from error


def _apply_one(
    playbook: Playbook, delta: Delta, check_edit: CheckEdit | None, judge: Judge | None
) -> tuple[Playbook, Outcome]:
    if isinstance(delta, Add):
        return _add(playbook, delta, check_edit, judge)
    if isinstance(delta, Update):
        return _update(playbook, delta, check_edit)
    if isinstance(delta, Tag):
        return _tag(playbook, delta)
    if isinstance(delta, Merge):
        return _merge(playbook, delta)
    bullet = _find(playbook, delta.id)
    left = tuple(b for b in playbook.bullets if b is not bullet)
    return _with(playbook, bullets=left), Outcome(op="REMOVE", done="removed", id=bullet.id, reason=delta.why)


def _add(playbook: Playbook, delta: Add, check_edit: CheckEdit | None, judge: Judge | None) -> tuple[Playbook, Outcome]:
    section = checks.clean_section(delta.section)
    new = Bullet(
        id=f"{PREFIX.get(section, 'misc')}-{min(playbook.next_id, LAST):05d}",
        section=section,
        text=checks.clean_text(delta.text),
        applies_when=normal(delta.applies_when),
        edit=_edit(delta.edit, check_edit),
        evidence=_joined((), delta.evidence),
    )
    if (same := twin(new, playbook.bullets, judge=judge)) is not None:
        merged = same.model_copy(update={"evidence": _joined(same.evidence, new.evidence)})
        reason = "the same words" if same.text == new.text else f"says the same as {same.text!r}"
        return _replaced(playbook, merged), Outcome(op="ADD", done="merged", id=same.id, reason=reason)
    if playbook.next_id > LAST:
        raise _Refused("the playbook has used all its ids: export it and start a new one")
    after = _with(playbook, bullets=(*playbook.bullets, new), next_id=playbook.next_id + 1)
    return after, Outcome(op="ADD", done="added", id=new.id)


def _update(playbook: Playbook, delta: Update, check_edit: CheckEdit | None) -> tuple[Playbook, Outcome]:
    old = _find(playbook, delta.id)
    changes: dict[str, Any] = {}
    if delta.text is not None:
        changes["text"] = checks.clean_text(delta.text)
    if delta.section is not None:
        changes["section"] = checks.clean_section(delta.section)
    if delta.evidence is not None:
        changes["evidence"] = _joined((), delta.evidence)
    if delta.applies_when is not None:
        changes["applies_when"] = normal(delta.applies_when)
    if delta.edit is not None:
        changes["edit"] = _edit(delta.edit, check_edit)
    changes = {name: value for name, value in changes.items() if value != getattr(old, name)}
    if not changes:
        raise _Refused("it changes nothing")
    reason = ""
    if changes.keys() & {"applies_when", "edit"}:
        # What was measured was the old edit where the old conditions held.
        if old.tested:
            reason = f"tested, helpful and harmful start again from 0 (were {old.tested}, {old.helpful}, {old.harmful})"
        changes |= {"tested": 0, "helpful": 0, "harmful": 0}
    after = _replaced(playbook, old.model_copy(update=changes))
    return after, Outcome(op="UPDATE", done="updated", id=old.id, reason=reason)


def _tag(playbook: Playbook, delta: Tag) -> tuple[Playbook, Outcome]:
    old = _find(playbook, delta.id)
    if delta.helpful + delta.harmful > delta.tested:
        raise _Refused("helpful and harmful count tests: together they are at most `tested`")
    if delta.tested and old.edit is None:
        raise _Refused("the bullet names no edit, so nothing was tested alone")
    evidence = _joined(old.evidence, delta.evidence)
    counts = {name: getattr(old, name) + getattr(delta, name) for name in COUNTERS}
    if evidence == old.evidence and all(counts[name] == getattr(old, name) for name in COUNTERS):
        raise _Refused("it changes nothing")
    after = _replaced(playbook, old.model_copy(update={**counts, "evidence": evidence}))
    return after, Outcome(op="TAG", done="tagged", id=old.id)


def _merge(playbook: Playbook, delta: Merge) -> tuple[Playbook, Outcome]:
    if len(set(delta.ids)) < len(delta.ids):
        raise _Refused("an id stands twice")
    first, *others = [_find(playbook, id) for id in delta.ids]
    for other in others:
        if (reason := agree(first, other)) is not None:
            raise _Refused(f"{first.id} and {other.id} do not say the same: {reason}")
    text = first.text if delta.text is None else checks.clean_text(delta.text)
    if (reason := agree(first, first.model_copy(update={"text": text}))) is not None:
        raise _Refused(f"the new text does not say the same: {reason}")
    counts = {name: sum(getattr(b, name) for b in (first, *others)) for name in COUNTERS}
    evidence = first.evidence
    for other in others:
        evidence = _joined(evidence, other.evidence)
    merged = first.model_copy(update={**counts, "text": text, "evidence": evidence})
    gone = {other.id for other in others}
    left = tuple(merged if b is first else b for b in playbook.bullets if b.id not in gone)
    after = _with(playbook, bullets=left)
    return after, Outcome(op="MERGE", done="merged", id=first.id, reason=f"took in {', '.join(sorted(gone))}")


def _find(playbook: Playbook, id: str) -> Bullet:
    bullet = playbook.get(id)
    if bullet is None:
        raise _Refused(f"no bullet {id!r}")
    return bullet


def _edit(edit: dict[str, Any] | None, check_edit: CheckEdit | None) -> dict[str, Any] | None:
    plain = checks.clean_edit(edit)
    if plain is not None and check_edit is not None:
        try:
            check_edit(plain)
        except ValueError as error:
            raise _Refused(f"edit: {error}") from error
    return plain


def _joined(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """Each entry once, on one line, the newest kept."""
    lines = [" ".join(entry.split())[:300] for entry in (*old, *new)]
    return tuple(dict.fromkeys(filter(None, lines)))[-EVIDENCE:]


def _replaced(playbook: Playbook, bullet: Bullet) -> Playbook:
    return _with(playbook, bullets=tuple(bullet if b.id == bullet.id else b for b in playbook.bullets))


def _with(playbook: Playbook, **changes: Any) -> Playbook:
    """A copy, validated: counters and ids keep their rules whatever a delta did."""
    return Playbook.model_validate({"version": 1, "next_id": playbook.next_id, "bullets": playbook.bullets, **changes})

"""Retrieval: the bullets that fit a task, the best first, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pibroch.playbooks.conditions import FINDING, Fact, holds
from pibroch.playbooks.model import Bullet, Playbook
from pibroch.playbooks.similar import relevance
from pibroch.playbooks.verdict import value, verdict


def fits(bullet: Bullet, facts: Mapping[str, Fact]) -> bool:
    """Whether every condition of the bullet is known to hold. A finding that is absent is false."""
    return _fit(bullet, facts) is True


def may_fit(bullet: Bullet, facts: Mapping[str, Fact]) -> bool:
    """Whether no known fact speaks against the bullet."""
    return _fit(bullet, facts) is not False


def _fit(bullet: Bullet, facts: Mapping[str, Fact]) -> bool | None:
    """None where a condition's fact is not known and no other one fails."""
    known = True
    for key, condition in bullet.applies_when.items():
        if key not in facts and not key.startswith(FINDING):
            known = False
        elif not holds(condition, facts.get(key, False)):
            return False
    return True if known else None


def select(
    playbook: Playbook, facts: Mapping[str, Fact], *, tokens: int, query: str = "", warnings: bool = False
) -> list[Bullet]:
    """The bullets for a writer, the best first, whose rendered text costs at most `tokens` (`estimate`).

    First those that fit, then those of which a fact is unknown; those that do not fit never. Within each: by what tests
    said (`verdict.value`), then by the number of conditions that hold, then by likeness to `query`, then the oldest.
    Harmful ones are left out, or with `warnings` come last; `render` marks them.
    """
    like = relevance(query, [b.text for b in playbook.bullets]) if query else [0.0] * len(playbook.bullets)
    rows = []
    for position, bullet in enumerate(playbook.bullets):
        fit, harmful = _fit(bullet, facts), verdict(bullet) == "harmful"
        if fit is False or (harmful and not warnings):
            continue
        known = sum(key in facts or key.startswith(FINDING) for key in bullet.applies_when)
        rows.append(((harmful, fit is None, -value(bullet), -known, -like[position], position), bullet))
    chosen, left = [], tokens
    for _, bullet in sorted(rows, key=lambda row: row[0]):
        cost = estimate(render([bullet])) + 1  # its line's end
        if cost <= left:
            chosen.append(bullet)
            left -= cost
    return chosen


def search(playbook: Playbook, query: str, *, limit: int = 10) -> list[tuple[float, Bullet]]:
    """The bullets whose words are most like the query's, with their likeness (0 to 1), the most alike first."""
    scored = zip(relevance(query, [b.text for b in playbook.bullets]), playbook.bullets, strict=True)
    found = sorted(((like, b) for like, b in scored if like > 0), key=lambda row: (-row[0], row[1].number))
    return found[:limit]


def render(bullets: Iterable[Bullet]) -> str:
    """One line each: `[sched-00012] text`; a harmful one says so, so that it reads as a warning."""
    return "\n".join(
        f"[{b.id}] " + ("WARNING, this made runs slower: " if verdict(b) == "harmful" else "") + b.text for b in bullets
    )


def estimate(text: str) -> int:
    """Tokens of a text, estimated from above: four letters each, two digits, one sign; other alphabets by the byte."""
    letters = sum(c.isascii() and (c.isalpha() or c == " ") for c in text)
    digits = sum(c.isascii() and c.isdigit() for c in text)
    return -(-letters // 4) - (-digits // 2) + len(text.encode()) - letters - digits

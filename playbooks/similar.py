"""Thin: to be replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pibroch.playbooks.model import Bullet

Judge = Callable[[str, str], bool]


def agree(a: Bullet, b: Bullet) -> str | None:
    return (
        "their edits differ"
        if a.edit != b.edit
        else "their conditions differ"
        if a.applies_when != b.applies_when
        else None
    )


def twin(new: Bullet, bullets: Iterable[Bullet], *, judge: Judge | None = None) -> Bullet | None:
    return next((b for b in bullets if agree(new, b) is None and b.text == new.text), None)


def relevance(query: str, texts: Sequence[str]) -> list[float]:
    words = set(query.lower().split())
    return [len(words & set(t.lower().split())) / (len(words) or 1) for t in texts]

"""Whether two bullets say the same.

Likeness of words is not enough: opposites differ in one word. So the numbers with their units, negation, directions,
comparisons, order words, opposites and the names of directives must agree first, and be said of the same things; then
the words that are left must be alike (cosine of character 3- to 5-grams, TF-IDF). What fails the first is *different*
and nobody is asked; what fails only the second is *unclear*, and a judge (a language model) may decide it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Literal

from pibroch.playbooks.conditions import normal
from pibroch.playbooks.model import Bullet
from pibroch.playbooks.roles import exchanged, spoken_of_by_both
from pibroch.playbooks.vocabulary import OPPOSED
from pibroch.playbooks.words import SENSITIVE, THINGS, Token, tokens

Judge = Callable[[str, str], bool]
Likeness = Literal["same", "unclear", "different"]
CLOSE = 0.60
ASKED = 0.15  # below this cosine two texts speak of different things: a judge is not asked
PREFIXES = (
    "un",
    "in",
    "im",
    "non",
    "dis",
    "de",
    "mis",
    "re",
    "pre",
    "post",
    "anti",
    "over",
    "under",
    "inter",
    "intra",
    "ir",
    "il",
)


def twin(new: Bullet, bullets: Iterable[Bullet], *, judge: Judge | None = None) -> Bullet | None:
    """The bullet that says the same as `new`, the most alike first; None where none does for certain.

    `judge(a, b)` says whether two texts mean the same. It is asked about unclear pairs alone, one at a time.
    """
    same, unclear = [], []
    for bullet in bullets:
        if _conditions_and_edit(new, bullet) is not None:
            continue
        if bullet.text == new.text:
            return bullet
        likeness, _ = compare(new.text, bullet.text)
        row = (-closeness(new.text, bullet.text), bullet.number, bullet)
        if likeness == "same":
            same.append(row)
        elif likeness == "unclear":
            unclear.append(row)
    if same:
        return min(same, key=lambda row: row[:2])[2]
    ranked = sorted(unclear, key=lambda row: row[:2]) if judge is not None else []
    return next((bullet for _, _, bullet in ranked if judge is not None and judge(new.text, bullet.text)), None)


def agree(a: Bullet, b: Bullet) -> str | None:
    """None where nothing speaks against merging two bullets, however different their words; else the reason."""
    if (reason := _conditions_and_edit(a, b)) is not None:
        return reason
    likeness, reason = compare(a.text, b.text)
    return reason if likeness == "different" else None


def compare(a: str, b: str) -> tuple[Likeness, str]:
    """How two texts stand to each other, and why they are not the same."""
    left, right = tokens(a), tokens(b)
    reason = _contradiction(left, right)
    if reason is not None:
        return "different", reason
    if (reason := _substitution(left, right)) is not None:
        return "unclear", reason
    cosine = _cosine(_rest(left), _rest(right))
    if cosine < CLOSE:
        return ("unclear" if cosine >= ASKED else "different"), f"their words are too different ({cosine:.2f})"
    return "same", ""


def closeness(a: str, b: str) -> float:
    """Cosine of what two texts say besides numbers, negation and the like (0 to 1)."""
    return _cosine(_rest(tokens(a)), _rest(tokens(b)))


def relevance(query: str, texts: Sequence[str]) -> list[float]:
    """Likeness of each text to the query (0 to 1): how much of the query's words, by their rarity, the text has."""
    words = [Counter(_plain_words(text)) for text in texts]
    wanted = set(_plain_words(query))
    rarity = {w: math.log((1 + len(texts)) / (1 + sum(w in have for have in words))) + 1 for w in wanted}
    total = sum(rarity.values())
    return [sum(rarity[w] for w in wanted if w in have) / total if total else 0.0 for have in words]


def _plain_words(text: str) -> list[str]:
    return [token.value for token in tokens(text)]


def _conditions_and_edit(a: Bullet, b: Bullet) -> str | None:
    if a.edit != b.edit:
        return "their edits differ"
    return None if normal(a.applies_when) == normal(b.applies_when) else "their conditions differ"


def _contradiction(a: Sequence[Token], b: Sequence[Token]) -> str | None:
    names = [_values(side, "NAME") for side in (a, b)]
    if names[0] != names[1]:
        return f"other names: {_listed(names[0] ^ names[1])}"
    nouns = [_values(side, "NOUN") for side in (a, b)]
    for pair in OPPOSED:
        if (nouns[0] - nouns[1]) & pair and (nouns[1] - nouns[0]) & pair:
            return f"opposites: {_listed(pair)}"
    words = [_values(side, "WORD") for side in (a, b)]
    for one, other in product(words[0] - words[1], words[1] - words[0]):
        if any(one == prefix + other or other == prefix + one for prefix in PREFIXES):
            return f"opposites: {_listed((one, other))}"
    reason = ""
    for left, right in product(_variants(a), _variants(b)):
        left, right = spoken_of_by_both(left, right)
        counts = [_said(side) for side in (left, right)]
        if counts[0] != counts[1]:
            odd = {f"{kind} {value}" for kind, value in (counts[0] - counts[1]) + (counts[1] - counts[0])}
            reason = reason or f"other numbers, negation or directions: {_listed(odd)}"
        else:
            reason = exchanged(left, right) or ""
            if not reason:
                return None
    return reason


def _said(side: Sequence[Token]) -> Counter[tuple[str, str]]:
    """Sensitive tokens and how often; an opposite counts once however often it is said."""
    counts = Counter((t.kind, t.value) for t in side if t.kind in SENSITIVE)
    return Counter({key: 1 if key[0] == "AXIS" else count for key, count in counts.items()})


def _values(side: Sequence[Token], kind: str) -> set[str]:
    return {t.value for t in side if t.kind == kind}


def _variants(side: Sequence[Token]) -> list[Sequence[Token]]:
    """The word "one" counts as the number, or as an article."""
    if not any(t.kind == "NUM" and t.flavour == "word" for t in side):
        return [side]
    return [side, [t for t in side if not (t.kind == "NUM" and t.flavour == "word")]]


def _substitution(a: Sequence[Token], b: Sequence[Token]) -> str | None:
    """A thing that only one text speaks of against one that only the other does; a lone word in another's place."""
    nouns = [{t.value for t in side if t.kind == "NOUN"} for side in (a, b)]
    if nouns[0] - nouns[1] and nouns[1] - nouns[0]:
        return f"one speaks of {_listed(nouns[0] - nouns[1])}, the other of {_listed(nouns[1] - nouns[0])}"
    words = [[t.value for t in side if t.kind == "WORD"] for side in (a, b)]
    odd = [[w for w in words[i] if w not in words[1 - i]] for i in (0, 1)]
    if len(odd[0]) == len(odd[1]) == 1 and not _alike(odd[0][0], odd[1][0]):
        return f"{odd[0][0]!r} stands in the place of {odd[1][0]!r}"
    return None


def _alike(a: str, b: str) -> bool:
    return a[:4] == b[:4] and len(a) >= 4


def _listed(items: Iterable[str]) -> str:
    return ", ".join(sorted(items))


def _rest(side: Sequence[Token]) -> str:
    return " ".join(t.value for t in side if t.kind in (*THINGS, "WORD", "AXIS"))


def _grams(text: str) -> Counter[str]:
    """Character 3- to 5-grams within words, whose ends count as a blank."""
    return Counter(
        padded[i : i + n]
        for word in text.split()
        for padded in (f" {word} ",)
        for n in (3, 4, 5)
        for i in range(max(len(padded) - n + 1, 1))
    )


def _cosine(a: str, b: str) -> float:
    """TF-IDF over the two texts alone, with smoothed frequencies: ln(3 / (1 + df)) + 1 for df of 2 texts."""
    x, y = _grams(a), _grams(b)
    if not x or not y:
        return float(not x and not y)
    weight = {gram: 1.0 if gram in x and gram in y else math.log(1.5) + 1 for gram in x.keys() | y.keys()}
    dot = sum(x[gram] * y[gram] for gram in x.keys() & y.keys())
    norm = [math.sqrt(sum((count * weight[gram]) ** 2 for gram, count in side.items())) for side in (x, y)]
    return dot / (norm[0] * norm[1])

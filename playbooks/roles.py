"""Whether two texts that hold the same numbers, directions and names say them of the same things.

The same order settles it, also with a clause moved from the front to the end. Otherwise what would show that parts were
exchanged is looked for: things around the same word, condition and advice, two values and what they stand next to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from pibroch.playbooks.vocabulary import STRONG
from pibroch.playbooks.words import FAR, SENSITIVE, THINGS, Token

CONTENT = (*THINGS, "WORD")
FAMILY = {"NUM": "number", "ORD": "number", "CMP": "number", "AXIS": "word", "DIR": "word", "WORD": "word"}


def exchanged(a: Sequence[Token], b: Sequence[Token]) -> str | None:
    """What was exchanged between two texts whose sensitive tokens agree; None where nothing was."""
    if _around_words(a, b) or _sides(a, b):
        return "the same words with the parts exchanged"
    if _crossed(a, b):
        return "the same numbers or directions, paired otherwise"
    if _conditions(a, b):
        return "condition and advice are exchanged"
    if _contexts(a, b):
        return "from, to and by are exchanged"
    common = {t.value for t in a if t.kind in THINGS} & {t.value for t in b if t.kind in THINGS}
    if _same_order(a, b, common):
        return None
    counts = Counter((t.kind, t.value) for t in a if t.kind in ("NUM", "ORD"))
    if len(counts) > 1 and max(counts.values()) > 1:
        return "the same numbers in another order"
    if _denied_elsewhere(a, b) or _values(a, b):
        return "the same numbers or directions, said of other things"
    return None


def spoken_of_by_both(a: Sequence[Token], b: Sequence[Token]) -> tuple[Sequence[Token], Sequence[Token]]:
    """Both texts without the opposites, the "then" and the "from" and "to" of which only one of them speaks."""
    axes = [{t.value[:-1] for t in side if t.kind == "AXIS"} for side in (a, b)]
    then = all(any(t.value == "then" for t in side) for side in (a, b))
    left, right = (
        [
            t
            for t in side
            if (t.kind != "AXIS" or t.value in STRONG or t.value[:-1] in axes[0] & axes[1])
            and (t.value != "then" or then)
        ]
        for side in (a, b)
    )
    return left, right


def _around_words(a: Sequence[Token], b: Sequence[Token]) -> bool:
    """The head waits for the embedding, and the reverse."""
    rows = [_roles(side) for side in (a, b)]
    mine, others = rows[0] - rows[1], rows[1] - rows[0]
    if any((right, word, left) in others for left, word, right in mine):
        return True
    # "half the memory of A" in one text, "half the memory of B" in the other, and both speak of A and B.
    both = {t.value for t in a if t.kind in THINGS} & {t.value for t in b if t.kind in THINGS}
    return any(
        word == "of" and (left, word) == other[:2] and {right, other[2]} <= both
        for left, word, right in mine
        for other in others
    )


def _roles(side: Sequence[Token]) -> set[tuple[str, str, str]]:
    """Words with what stands on both sides, in the active voice ("bubbles filled by gradients" is turned around)."""
    found = set()
    for at, token in enumerate(side):
        kinds = CONTENT if token.kind in ("NEG", "REL", "PREP") else THINGS
        (far_left, left), (far_right, right) = _near(side, at, -1, kinds), _near(side, at, 1, kinds)
        adjective = token.kind in ("AXIS", "DIR") and far_right == 1
        if token.kind in (*THINGS, "NUM") or adjective or FAR in (far_left, far_right) or left == right:
            continue
        follower = side[at + 1]
        passive = (
            (token.flavour == "passive" or token.kind == "DIR")
            and follower.kind == "PREP"
            and follower.value in ("by", "with")
        )
        found.add((right, token.value, left) if passive else (left, token.value, right))
    return found


def _sides(a: Sequence[Token], b: Sequence[Token]) -> bool:
    """Before, after, than, instead of, then: whether what stood before the word stands behind it."""
    for word in {t.value for t in a if t.kind in ("REL", "CMP")}:
        (left, right), (other_left, other_right) = _around(a, word), _around(b, word)
        if (left - right) & (other_right - other_left) and (right - left) & (other_left - other_right):
            return True
    return False


def _around(side: Sequence[Token], word: str) -> tuple[set[str], set[str]]:
    """What is said on both sides of a relation. One that opens the text has its left side behind the clause."""
    left: set[str] = set()
    right: set[str] = set()
    for at, token in enumerate(side):
        if token.value != word:
            continue
        said = [t for t in side if t.kind in (*CONTENT, "AXIS", "NUM", "ORD")]
        before = [t for t in side[:at] if t in said and t.clause == token.clause]
        if not before:
            beside = token.clause + 1 if not at else max(t.clause for t in side[:at]) if at else 0
            before = [t for t in said if t.clause == beside]
        left |= {t.value for t in before}
        right |= {t.value for t in side[at + 1 :] if t in said and t.clause == token.clause}
    return left, right


def _crossed(a: Sequence[Token], b: Sequence[Token]) -> bool:
    """Large on fast and small on slow, large on slow and small on fast."""
    rows = []
    for side in (a, b):
        said = [t for t in side if t.kind not in ("PREP", "REL", "CMP")]
        rows.append({(x.value, y.value) for x in said for y in said if x.part == y.part and x.value != y.value})
    mine, others = rows[0] - rows[1], rows[1] - rows[0]
    return any((v, y) in others and (x, w) in others for x, y in mine for v, w in mine if x != v and y != w)


def _conditions(a: Sequence[Token], b: Sequence[Token]) -> bool:
    """Raise A when B is large, raise B when A is large: one thing went into the condition and another came out."""
    rows = [_halves(side) for side in (a, b)]
    into = rows[0][0] & rows[1][1]
    out = rows[0][1] & rows[1][0]
    return bool(into and out)


def _halves(side: Sequence[Token]) -> tuple[set[str], set[str]]:
    """What stands outside of conditions only, and inside only."""
    inside = {t.value for t in side if t.condition and t.kind not in ("PREP", "REL")}
    outside = {t.value for t in side if not t.condition and t.kind not in ("PREP", "REL")}
    return outside - inside, inside - outside


def _contexts(a: Sequence[Token], b: Sequence[Token]) -> bool:
    """From 25 to 100, from 100 to 25; by 2, to 2."""
    for token in a:
        if token.context and token.kind not in ("PREP", "WORD"):
            others = {t.context for t in b if t.value == token.value and t.kind == token.kind}
            mine = {t.context for t in a if t.value == token.value and t.kind == token.kind}
            if "" not in others | mine and not others & mine and others:
                return True
    return False


def _same_order(a: Sequence[Token], b: Sequence[Token], common: set[str]) -> bool:
    """Whether sensitive tokens and common things follow each other alike; or do so once the first clause or phrase of
    one text is moved to its end ("when X, do Y" and "do Y when X")."""
    one, other = _spine(a, common), _spine(b, common)
    if len(one) != len(other):
        return False
    for cut in range(len(one)):
        opens = sorted((one[cut].opens, other[len(one) - cut].opens)) if cut else [1, 2]
        parts = ((one[cut:], other[: len(one) - cut]), (one[:cut], other[len(one) - cut :]))
        if opens[0] >= 1 and opens[1] == 2 and all(_match(*part) for part in parts):
            return True
    return not one


def _spine(side: Sequence[Token], common: set[str]) -> Sequence[Token]:
    """Sensitive tokens and common things; each opens what a token that was left out before it opened."""
    found, opens = [], 0
    for token in side:
        opens = max(opens, token.opens)
        if token.kind in SENSITIVE or (token.kind in THINGS and token.value in common):
            found.append(replace(token, opens=opens))
            opens = 0
    return found


def _match(a: Sequence[Token], b: Sequence[Token]) -> bool:
    """The order of things next to each other in a clause is free: memory for activations, activation memory."""
    return all(
        x.kind == y.kind and x.value == y.value and _same_flavour(x, y)
        for x, y in zip(_sorted_runs(a), _sorted_runs(b), strict=True)
    )


def _same_flavour(x: Token, y: Token) -> bool:
    return x.kind != "DIR" or x.flavour == y.flavour or not x.flavour or not y.flavour


def _sorted_runs(side: Sequence[Token]) -> list[Token]:
    found: list[Token] = []
    run: list[Token] = []
    for token in side:
        if token.kind not in THINGS or (run and run[-1].clause != token.clause):
            found += sorted(run, key=lambda t: t.value)
            run = []
        if token.kind in THINGS:
            run.append(token)
        else:
            found.append(token)
    return found + sorted(run, key=lambda t: t.value)


def _denied_elsewhere(a: Sequence[Token], b: Sequence[Token]) -> bool:
    """Whether a "not", an "only" or a direction stands near nothing that it stands near in the other text."""
    for kind in ("NEG", "ONLY", "DIR"):
        sides = [[(side, at) for at, t in enumerate(side) if t.kind == kind] for side in (a, b)]
        for mine, others in (sides, sides[::-1]):
            for side, at in mine:
                spoken = _neighbours(side, at)
                same = [_neighbours(s, i) for s, i in others if s[i].value == side[at].value]
                if spoken and all(n for n in same) and not any(_overlap(spoken, n) for n in same):
                    return True
                if (
                    kind == "DIR"
                    and same
                    and not any(_same_flavour(side[at], s[i]) for s, i in others if s[i].value == side[at].value)
                ):
                    return True
    return False


def _values(a: Sequence[Token], b: Sequence[Token]) -> bool:
    """Whether two words of `a` stand, in `b`, next to what the other one stood next to."""
    rows = []
    for side in (a, b):
        found: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
        for at, token in enumerate(side):
            if token.kind not in (*THINGS, "PREP"):
                found.setdefault((token.kind, token.value), Counter()).update(_neighbours(side, at))
        rows.append(found)
    both = rows[0].keys() & rows[1].keys()
    for x, y in combinations(sorted(both), 2):
        if FAMILY.get(x[0], x[0]) != FAMILY.get(y[0], y[0]):
            continue
        kept = _overlap(rows[0][x], rows[1][x]) + _overlap(rows[0][y], rows[1][y])
        crossed = _overlap(rows[0][x], rows[1][y]) + _overlap(rows[0][y], rows[1][x])
        if crossed > kept + 0.3:
            return True
    return False


def _neighbours(side: Sequence[Token], at: int) -> Counter[tuple[str, str]]:
    """The two nearest pieces of content on both sides in the clause, heavier the nearer they are (hundredths)."""
    found: Counter[tuple[str, str]] = Counter()
    for name, others in (("left", side[:at][::-1]), ("right", side[at + 1 :])):
        content = [t for t in others if t.kind in CONTENT and t.clause == side[at].clause]
        for token in content if side[at].kind == "ONLY" else content[:2]:  # "only" may move within its clause
            weight = 100 // (1 + abs(token.place - side[at].place) // 2)
            found[name, token.value] = max(found[name, token.value], weight)
    return found


def _overlap(a: Counter[tuple[str, str]], b: Counter[tuple[str, str]]) -> float:
    """Weight that two neighbourhoods share: whole on the same side, half across."""
    total = 0.0
    for (side, value), weight in a.items():
        other = "left" if side == "right" else "right"
        total += max(min(weight, b[side, value]), min(weight, b[other, value]) / 2)
    return total / 100


def _near(side: Sequence[Token], at: int, step: int, kinds: tuple[str, ...]) -> tuple[int, str]:
    """Distance in words and value of the nearest of these kinds in that direction, in the clause; of a compound its
    last word."""
    there = at + step
    while 0 <= there < len(side) and side[there].clause == side[at].clause:
        if side[there].kind in kinds:
            distance = abs(side[there].place - side[at].place)
            while step > 0 and _goes_on(side, there):
                there += 1
            return distance, side[there].value
        there += step
    return FAR, ""


def _goes_on(side: Sequence[Token], at: int) -> bool:
    """Whether the next token belongs to the same compound: pipeline bubble."""
    after = side[at + 1] if at + 1 < len(side) else None
    return (
        after is not None
        and side[at].kind in THINGS
        and after.kind in THINGS
        and after.place == side[at].place + 1
        and after.clause == side[at].clause
    )

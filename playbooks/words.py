"""The words that decide what a bullet says: numbers, names, directions, negation and opposites.

A text becomes tokens. Sensitive ones decide the meaning; NOUN and NAME are what they speak of; PREP links these; WORD
is any other; free words (articles, modals, "use") are left out.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Literal

from pibroch.playbooks import vocabulary
from pibroch.playbooks.phrases import PHRASES

Kind = Literal["NUM", "NEG", "DIR", "CMP", "REL", "ORD", "ONLY", "AXIS", "NOUN", "NAME", "PREP", "WORD"]
SENSITIVE: tuple[Kind, ...] = ("NUM", "NEG", "DIR", "CMP", "REL", "ORD", "ONLY", "AXIS")
THINGS: tuple[Kind, ...] = ("NOUN", "NAME")
FAR = 1000  # words


@dataclass(frozen=True, slots=True)
class Token:
    """`value` is spelled one way for all words that mean it.

    `flavour` of a direction: size, count, or "" for either; of a verb: passive. `clause` numbers the clauses of the
    text, `part` also what "and" joins, and `place` the words. `context` is the from, to or by before it. `opens`: it is
    the first of a phrase (1) or of a clause (2). `condition`: it stands in a when or an if.
    """

    kind: Kind
    value: str
    flavour: str = ""
    clause: int = 0
    part: int = 0
    place: int = 0
    context: str = ""
    opens: int = 0
    condition: bool = False


def stem(word: str) -> str:
    """A light stem: plural, -ing, -ed, -er, -est and -ly go, and a doubled last consonant. For look-ups only."""
    word = vocabulary.IRREGULAR.get(word, word)
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-3] + "y" if word.endswith("ies") and len(word) > 4 else word[:-1]
    for ending in ("ly", "ing", "ed", "est", "er"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
    word = word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word
    word = word[:-1] if len(word) > 3 and word.endswith("e") else word
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiou" else word


def _by_stem(table: dict[str, list[str]]) -> dict[str, str]:
    return {form: name for name, words in table.items() for word in words for form in (word, stem(word))}


_DIRECTIONS = _by_stem(vocabulary.DIRECTIONS)
_AXES: dict[str, str] = {}
for _name, _words in vocabulary.OPPOSITES.items():
    _bar = _words.index("|")
    for _at, _form in enumerate(_words):
        _AXES.setdefault(stem(_form), f"{_name}{'+' if _at < _bar else '-'}")
_THINGS, _NAMES, _ALIKE = (_by_stem(t) for t in (vocabulary.THINGS, vocabulary.NAMES, vocabulary.ALIKE))
_NEGATIONS = vocabulary.NEGATIONS | {stem(word) for word in ("avoid", "refrain", "prevent")}
_TOKEN = re.compile(
    r"(?P<pass>@[a-z]+)|(?P<cmp>GE|LE|GT|LT)|(?P<name>1f1b)|(?P<frac>\d+\s?/\s?\d+)(?![\d.])"
    r"|(?P<num>\d[\d,]*\d(?![\d.])|\d+(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)\s*(?P<unit>[a-zµμ]+/s\b|[a-zµμ]+\b|%|×)?"
    r"|(?P<word>[^\W\d_][\w]*)|(?P<stop>[,;:.()!?])"
)


@lru_cache(maxsize=4096)
def tokens(text: str) -> tuple[Token, ...]:
    """What a text says, free words left out."""
    line = unicodedata.normalize("NFKC", text).replace("’", "'").replace("`", " ")
    line = re.sub(r"[–—]", " , ", line)
    line = re.sub(r"(?<=\d)(\s*)([KMGT])b(?:it|its)?(?:ps|(/s))?\b", r"\1\2bit/s", line)  # bits, not bytes
    line = re.sub(r"(?<![\w@])(BI|BW|F|B|PP|DP|EP)(?!\w)", lambda m: f" @{m[1].lower()} ", line)
    line = re.sub(r"(?<![\d\s.])(\s+)MB(?!\w)", r"\1microbatch", line).lower()
    line = line.replace("gbps", "gbit/s").replace("mbps", "mbit/s")
    for pattern, new in PHRASES:
        line = pattern.sub(new, line)
    line = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", line)
    found: list[Token] = []
    clause, part, context, opens, condition, until = 0, 0, "", 2, False, FAR
    for place, match in enumerate(_TOKEN.finditer(line)):
        word = match["word"] or ""
        if match["stop"]:
            clause, part, context, opens, condition = clause + 1, part + 1, "", 2, False
        elif word == "and":
            part += 1
        elif word == "when":
            condition = True
        elif word in ("from", "to", "into", "onto"):
            context, opens, until = "from" if word == "from" else "to", max(opens, 1), FAR
        elif word in vocabulary.PREPOSITIONS:
            found.append(Token("PREP", word, clause=clause, place=place))
            context, opens, until = "by" if word == "by" else "", max(opens, 1), FAR
        else:
            for token in _of(match, found):
                passive = token.kind in ("WORD", "AXIS") and word.endswith(("ed", "en"))
                token = replace(token, flavour="passive") if passive else token
                context = context if place <= until else ""
                token = replace(token, clause=clause, part=part, place=place, context=context)
                found.append(replace(token, opens=opens, condition=condition))
                opens = 0
                if token.kind in (*THINGS, "NUM", "WORD"):
                    until = min(until, place + 1)  # it holds for the thing that it introduces
    return tuple(t for t, after in zip_longest(found, found[1:]) if not _idle_only(t, after))


def _idle_only(token: Token, after: Token | None) -> bool:
    """Only half, half: the number says it."""
    return token.kind == "ONLY" and after is not None and after.kind == "NUM" and after.place == token.place + 1


def _of(match: re.Match[str], before: list[Token]) -> list[Token]:
    if match["pass"]:
        return [Token("NAME", match["pass"])]
    if match["cmp"]:
        return [Token("CMP", match["cmp"])]
    if match["name"]:
        return [Token("NAME", "1f1b")]
    if match["frac"]:
        above, below = (float(part) for part in match["frac"].split("/"))
        return [_number(above / below if below else above, "")]
    if match["num"]:
        return _measured(float(match["num"].replace(",", "")), (match["unit"] or "").replace("×", "x"), before)
    return _word(match["word"], before)


def _measured(number: float, unit: str, before: list[Token]) -> list[Token]:
    """A number with the unit after it; what is no unit is the next word."""
    if unit in vocabulary.UNITS:
        return [_number(number, vocabulary.UNITS[unit])]
    return [_number(number, ""), *(_word(unit, before) if unit else [])]


def _number(number: float, unit: str) -> Token:
    return Token("NUM", f"{number / 100:g}" if unit == "%" else f"{number:g}{unit}")


def _word(word: str, before: list[Token]) -> list[Token]:
    if word in vocabulary.UNITS and before and before[-1].kind == "NUM" and before[-1].value.replace(".", "").isdigit():
        number = float(before.pop().value)  # "two times", "half a second" spelled out
        return [_number(number, vocabulary.UNITS[word])]
    if word in vocabulary.NUMBERS:
        return [Token("NUM", vocabulary.NUMBERS[word], flavour="word" if word == "one" else "")]
    if word in _NEGATIONS or stem(word) in _NEGATIONS:
        return [Token("NEG", "not")]
    if word in vocabulary.RELATIONS:
        return [Token("REL", word)]
    if word in ("only", "solely", "exclusively"):
        return [Token("ONLY", "only")]
    if word in vocabulary.ORDINALS:
        return [Token("ORD", vocabulary.ORDINALS[word])]
    root = stem(word)
    if name := _NAMES.get(word) or _NAMES.get(root):
        return [Token("NAME", name)]
    if root in _DIRECTIONS:
        pole, _, flavour = _DIRECTIONS[root].partition(" ")
        return [Token("DIR", pole, flavour)]
    if root in _THINGS:
        thing = Token("NOUN", _THINGS[root])
        return [thing, Token("AXIS", "merge-")] if thing.value == "split" else [thing]
    if word in vocabulary.FREE:
        return []
    if axis := _AXES.get(word) or _AXES.get(root):
        return [Token("AXIS", axis)]
    return [Token("WORD", _ALIKE.get(root, root))]

"""A sentence of intent as data, with every word accounted for.

Each word of the sentence is used by a documented phrase (`agents/phrases.py`), is a filler (`agents/words.py`), or is
named in `unused`. Phrases that change the meaning and that no schedule of ours can follow are in `unsupported` as
well. Contradictions are an `InputError` that names both phrases. Nothing is guessed here: what the sentence leaves
open stays None for the planner or the writer to choose.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pibroch.agents.consistency import settle
from pibroch.agents.phrases import PHRASES, Phrase
from pibroch.agents.values import Values
from pibroch.agents.words import (
    AND_GAP,
    COMMA_GAP,
    COMPARED,
    FILLER,
    NEGATED_AFTER,
    NEGATION,
    OR_GAP,
    TURNS,
    normalize,
    unsupported_patterns,
)  # fmt: skip
from pibroch.runtime.errors import InputError

Family = Literal["gpipe", "1f1b", "interleaved", "zb-h1"]
_BLANK = "\x00"
_SEPARATOR = re.compile(r"(?<!\d)[,.:]|[,.:](?!\d)|[;()!?\[\]\"]")


class Bound(BaseModel):
    """Allowed values of a count that the sentence bounds without fixing it."""

    model_config = ConfigDict(frozen=True)
    low: int | None = None
    high: int | None = None
    among: tuple[int, ...] | None = None

    def allows(self, value: int) -> bool:
        """Whether `value` keeps every bound."""
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.among is None or value in self.among)
        )

    def __str__(self) -> str:
        if self.among is not None:
            return "one of " + ", ".join(map(str, self.among))
        parts = [f"at least {self.low}"] * (self.low is not None) + [f"at most {self.high}"] * (self.high is not None)
        return " and ".join(parts)


class Unsupported(BaseModel):
    """A phrase that changes what is asked for, and why it is not followed. `known`: it names a feature that no schedule
    here has; otherwise it was not understood."""

    model_config = ConfigDict(frozen=True)
    phrase: str
    reason: str
    known: bool = False


class Intent(BaseModel):
    """What a sentence asks for.

    `stages` counts `PP` indices, `pipeline` the devices of one pipeline (stages = pipeline x stages_per_device),
    `num_devices` all devices (pipeline x replicas). `microbatches` is per replica. `memory_limit` is bytes per device,
    `bucket_size` MB (10^6 bytes). `cut[i]` is the first layer of stage i + 1. `used` maps each phrase to what it set.
    `open_clauses` are the clauses of the sentence, whole, with words of `unused` that name no known feature.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    text: str
    family: Family | None = None
    families: tuple[Family, ...] = ()
    excluded: tuple[Family, ...] = ()
    stages: int | None = None
    pipeline: int | None = None
    stages_per_device: int | None = None
    replicas: int | None = None
    num_devices: int | None = None
    microbatches: int | None = None
    total_microbatches: int | None = None
    ratios: tuple[tuple[str, int, int, str], ...] = ()
    bounds: dict[str, Bound] = {}
    memory_limit: int | None = None
    buckets: bool | None = None
    bucket_size: float | None = None
    reduce_stream: str | None = None
    stream: str | None = None
    recompute: bool | None = None
    cut: tuple[int, ...] | None = None
    layers_per_stage: tuple[int, ...] | None = None
    uniform_layers: int | None = None
    even: bool | None = None
    objective: Literal["time", "memory"] | None = None
    model_layers: int | None = None
    used: dict[str, str] = {}
    unused: tuple[str, ...] = ()
    open_clauses: tuple[str, ...] = ()
    unsupported: tuple[Unsupported, ...] = ()

    @property
    def understood(self) -> bool:
        """True where every word was used, so that a schedule can match the whole sentence."""
        return not self.unused and not self.unsupported


class _Found:
    def __init__(self, phrase: Phrase | None, match: re.Match[str], reason: str = "") -> None:
        self.phrase, self.match, self.reason = phrase, match, reason
        self.start, self.end = match.span()
        self.negated = False
        self.neg_start = self.start


def read_intent(text: str, *, known: tuple[str, ...] = ()) -> Intent:
    """Read a sentence. `known` are words with a meaning elsewhere (the model's name), so not reported as unused.

    Raises `InputError` for an empty sentence, for contradictions and for impossible values.
    """
    if not text.strip():
        raise InputError("the intent is empty: say for example '1F1B over 2 stages, 8 microbatches'")
    reader = _Reader(text, known)
    reader.find()
    reader.apply()
    return reader.intent()


class _Reader:
    def __init__(self, text: str, known: tuple[str, ...]) -> None:
        self.text, self.low = text, normalize(text)
        self.left = self.low
        self.values = Values()
        self.found: list[_Found] = []
        self.unsupported: list[Unsupported] = []
        self.refused: list[tuple[int, int]] = []
        self.open: list[tuple[int, int]] = []
        self.used: dict[str, str] = {}
        for word in known:
            for m in list(re.finditer(rf"(?<![\w-]){re.escape(normalize(word))}(?![\w-])", self.left)):
                self.take(*m.span(), with_=" ")

    def take(self, start: int, end: int, *, with_: str = _BLANK) -> None:
        self.left = self.left[:start] + with_ * (end - start) + self.left[end:]

    def original(self, start: int, end: int) -> str:
        return " ".join(self.text[start:end].split()).strip(" ,.;")

    def find(self) -> None:
        """All phrases, longest reading first; each owns its characters."""
        rows: list[tuple[re.Pattern[str], Phrase | None, str]] = [(p, None, why) for p, why in unsupported_patterns()]
        rows += [(phrase.pattern, phrase, "") for phrase in PHRASES]
        for pattern, phrase, reason in rows:
            at = 0
            while m := pattern.search(self.left, at):
                at = max(m.end(), at + 1)
                if m.end() > m.start():
                    self.found.append(_Found(phrase, m, reason))
                    self.take(*m.span())
        self.found.sort(key=lambda f: f.start)

    def apply(self) -> None:
        """Left to right: decide what is negated or only compared with, then set the values."""
        for i, item in enumerate(self.found):
            before = self.left[: item.start]
            compared = COMPARED.search(before)
            if compared and not re.search(r"(?:rather|other) than", before):
                self.refuse(compared.start(), item.end, "a comparison is not a request")
                continue
            self._negate(i, item, before)
            if item.phrase is None:
                if not item.negated:  # "no ZeRO" asks for what every schedule of ours does
                    phrase = self.original(item.start, item.end)
                    self.unsupported.append(Unsupported(phrase=phrase, reason=item.reason, known=True))
                    self.refused.append((item.start, item.end))
                else:
                    self.used[self.original(item.neg_start, item.end)] = "not used by any schedule here"
            elif item.negated and not item.phrase.negatable:
                self.refuse(item.neg_start, item.end, "this negation is not understood")
            else:
                before_it = self.values.said()
                if item.phrase.act(self.values, item.match, item.negated) is False:
                    self.refuse(item.neg_start, item.end, "it is not understood here")
                    continue
                self._either(i, item)
                new = [row for row in self.values.said() if row not in before_it]
                self.used[self.original(item.neg_start, item.end)] = ", ".join(new) or "said before"

    def _negate(self, i: int, item: _Found, before: str) -> None:
        previous = self.found[i - 1] if i else None
        gap = before[previous.end :] if previous else ""
        if m := NEGATION.search(before):
            # "from 2 stages" and "remove"-like verbs only speak of families and features.
            if m[1] == "from" and not (item.phrase and item.phrase.name == "family"):
                return
            item.negated, item.neg_start = True, m.start()
            self.take(m.start(), m.end())
        elif previous and previous.negated and OR_GAP.fullmatch(gap):
            item.negated = True
            self.take(previous.end, item.start)
        elif previous and previous.negated and (item.phrase is None or item.phrase.flag):
            if COMMA_GAP.fullmatch(gap) and self._list_goes_on(i):
                item.negated = True
                self.take(previous.end, item.start)
                return
            if AND_GAP.fullmatch(gap):
                raise InputError(
                    f"{self.original(previous.neg_start, item.end)!r} can be read two ways: write "
                    f"'no {self.original(previous.start, previous.end)}, no {self.original(item.start, item.end)}' or "
                    f"'..., with {self.original(item.start, item.end)}'"
                )
        if not item.negated and (m := NEGATED_AFTER.match(self.left, item.end)):
            item.negated = True
            self.take(*m.span())

    def _either(self, i: int, item: _Found) -> None:
        """"A or B" between two families lets the planner choose."""
        previous = self.found[i - 1] if i else None
        if previous and all(f.phrase and f.phrase.name == "family" and not f.negated for f in (previous, item)):
            m = OR_GAP.fullmatch(self.left[previous.end : item.start])
            if m and previous.match[0] != item.match[0]:
                self.values.fields["either"] = (True, item.match[0])
                self.take(previous.end, item.start)

    def _list_goes_on(self, i: int) -> bool:
        """Whether "no A, B ..." ends in "or C", which carries the negation through the list."""
        for j in range(i, len(self.found) - 1):
            gap = self.left[self.found[j].end : self.found[j + 1].start]
            if OR_GAP.fullmatch(gap):
                return True
            if not COMMA_GAP.fullmatch(gap):
                return False
        return False

    def refuse(self, start: int, end: int, reason: str) -> None:
        self.unsupported.append(Unsupported(phrase=self.original(start, end), reason=reason))
        self.refused.append((start, end))
        self.open.append((start, end))
        self.take(start, end)

    def leftovers(self) -> list[str]:
        """Runs of words that nothing used, fillers at their ends left out, in the order of the sentence."""
        rows = list(self.refused)
        for run in re.finditer(rf"[^{_BLANK},.;:()!?\[\]\"]+(?:\.\d+[^{_BLANK},.;:()!?]*)*", self.left):
            words = list(re.finditer(r"\S+", run[0]))
            while words and words[0][0] in FILLER:
                words.pop(0)
            while words and words[-1][0] in FILLER:
                words.pop()
            if not words or all(not re.search(r"[\w<>=~+&/%]", w[0]) for w in words):
                continue
            start, end = run.start() + words[0].start(), run.start() + words[-1].end()
            phrase = self.original(start, end)
            rows.append((start, end))
            self.open.append((start, end))
            turning = [w[0] for w in words if w[0].strip("'-") in TURNS]
            if turning:
                self.unsupported.append(
                    Unsupported(phrase=phrase, reason=f"{turning[0]!r} may turn the meaning and was not understood")
                )
        return [self.original(*span) for span in sorted(rows)]

    def clauses(self) -> list[str]:
        """The clauses, from separator to separator, that hold a span of `open`."""
        marks = [m.span() for m in _SEPARATOR.finditer(self.low)]
        spans = {
            (
                max((stop for _, stop in marks if stop <= start), default=0),
                min((begin for begin, _ in marks if begin >= end), default=len(self.low)),
            )
            for start, end in self.open
        }
        return [self.original(*span) for span in sorted(spans)]

    def intent(self) -> Intent:
        unused = self.leftovers()
        fields: dict[str, Any] = settle(self.values)
        return Intent(
            text=self.text, used=self.used, unused=tuple(unused), open_clauses=tuple(self.clauses()),
            unsupported=tuple(self.unsupported), **fields,
        )  # fmt: skip

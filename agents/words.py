# ruff: noqa: E501, SIM905 (one pattern or word list reads best on one line)
"""The small lexicon of the planner: numbers, sizes, bounds, negations and the words that carry no meaning of their own.

Everything here works on *normalized* text: same length as the user's sentence, ASCII letters in lower case, typographic
dashes, quotes and the multiplication sign replaced, so that spans found here can be cut from the original.
"""

from __future__ import annotations

import re

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()
NUMBER_WORDS = {
    **{word: value for value, word in enumerate(_ONES)},
    "thirty-two": 32, "forty-eight": 48, "sixty-four": 64, "a single": 1, "single": 1, "a dozen": 12, "a pair of": 2,
}  # fmt: skip
_WORDS = "|".join(sorted((re.escape(word) for word in NUMBER_WORDS), key=len, reverse=True))

# A number never starts inside another one ("2.5 stages" holds no 5 stages, "-2 stages" no 2 stages); "the last 2" are
# some of more.
_SOME = "".join(rf"(?<!{word} )" for word in ("first", "last", "next", "other", "remaining"))
NUMBER = rf"(?:(?<![\w.\-])(?<!\d,){_SOME}(?:\d{{1,3}}(?:,\d{{3}})+|\d+|{_WORDS})(?![\d.]\d)(?!\d))"
SIZE_UNITS = {
    "b": 1, "byte": 1, "bytes": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "megabytes": 10**6, "gigabytes": 10**9, "mebibytes": 2**20, "gibibytes": 2**30, "megabyte": 10**6, "gigabyte": 10**9,
}  # fmt: skip
_UNITS = "|".join(sorted(SIZE_UNITS, key=len, reverse=True))
SIZE = rf"(?<![\w.\-])(?P<size>\d+(?:\.\d+)?)[ -]?(?P<unit>{_UNITS})(?!\w)"

NOT_AN_INDEX = "".join(rf"(?<!{noun} )(?<!{noun}s )" for noun in ("stage", "device", "layer", "gpu", "rank", "replica"))
"""Before a list or span of counts: in "on device 1, 4 or 8 microbatches" the list starts at 4."""

# Bounds before a number, by the bound they mean. "over" is left out: "over 2 stages" means on them.
_BEFORE = {
    "most": r"at most|no more than|not more than|up to|max(?:imum)?(?: of)?|a maximum of|as many as|not exceeding|<=|≤",
    "below": r"fewer than|less than|below|under|<",
    "least": r"at least|no fewer than|no less than|not less than|min(?:imum)?(?: of)?|a minimum of|>=|≥",
    "above": r"more than|above|greater than|>",
    "exact": r"exactly|just|only",
}
_AFTER = {
    "most": r"or (?:fewer|less)|at (?:the )?most|max(?:imum)?|or below",
    "least": r"or more|at (?:the )?least|min(?:imum)?|or above",
}
BEFORE = r"(?:(?P<before>" + "|".join(_BEFORE.values()) + r")\s*)?"
AFTER = r"(?:\s+(?P<after>" + "|".join(_AFTER.values()) + r")(?!\w))?"
_ABOUT = r"about|around|roughly|approximately|nearly|almost|some|~"

# Streams: what runs on one, and "on their own stream", "on stream grads", "on a stream called grads".
REDUCED = (
    r"(?P<what>(?:gradient |grad )?(?:buckets?|bucketing|reductions?|all-?reduces?|reduces?|sync(?:hroni[sz]ation)?)"
    r"|(?:(?:reduc|averag|all-?reduc)(?:e|es|ing) (?:all )?(?:the )?)?gradients?(?: (?:are )?(?:reduced|averaged))?|(?:all )?(?:the )?communications?"
    r"|transfers?|sends?|activations?|p2p|point-to-point)"
)
REDUCING = (
    r"(?:(?:reduc|averag|all-?reduc)(?:e|es|ing) (?:all )?(?:the )?gradients|(?:gradient |grad )?(?:reductions|all-?reduces)|gradients (?:are )?"
    r"(?:reduced|averaged|all-?reduced))"
)
_NAME = r"(?!(?:and|with|for|over|that|to|on|while|at|in|so|but|no|please|then|now|too|also|only|each|instead)\b)[a-z_]\w*"
ON_STREAM = (
    r"(?P<stream>,? (?:(?:run(?:ning)?|go(?:ing)?|are|is|put) )?(?:on|in|over|through) (?:(?:a|an|its|their|the) )?"
    r"(?P<own>(?:own|separate|dedicated|second|side|another) )*(?:comm(?:unication)? )?streams?(?! of)"
    rf"(?: (?:named |called )['\"]?(?P<called>{_NAME})['\"]?(?!\w)"
    # A bare name ("on stream grads") only where nothing else says which stream it is: "on their own stream soon".
    rf"|(?(own)(?!)| ['\"]?(?P<name>{_NAME})['\"]?(?=\s*(?:$|[,.;)\x00]|(?:and|with|over|in|at)(?!\w)))))?)"
)

# Recomputing, and all of it: where a restriction follows ("of stage 1", "but the last"), it is not all.
RECOMPUTE = (
    r"(?:full )?(?:(?:activation|gradient)[ -](?:re-?comput(?:e|ation|ing)|checkpoint(?:s|ing|ed)?)|re-?comput(?:e|es|ation|ing)"
    r"(?: (?:of )?(?:the )?activations?)?(?: in (?:the )?backward)?|rematerial\w+)"
)
EVERYWHERE = (
    r"(?:of |in |on |for )?(?:everything|everywhere|(?:every|each|all(?: of)?(?: the)?|(?P<any>any)) (?:layers?|stages?|activations?)|the (?:whole|entire) model)"
    r"(?:'s activations)?(?: of the model)?(?: in the backward(?: pass)?)?(?!'| activation)"
    r"(?!,? (?:but|except\w*|excluding|save|apart|other|else|without|unless|only|if|when|that|which|whose|where|from|after|before|until|above|below|of|in|on|for)(?!\w)"
    r"(?! *\x00))"
)

NEGATION = re.compile(
    r"(?<![\w-])(no|not|zero|without|never|don't|do not|does not|doesn't|shouldn't|should not|mustn't|must not|can't|cannot|"
    r"isn't|aren't|avoid|avoiding|instead of|rather than|but not|and not|except(?: for)?|excluding|skip|disable|disabling|"
    r"free of|neither|nor|non|from|other than|anything (?:but|except)|drop|remove|turn off|switch off)"
    r"((?:\s+|-)(?:a|an|the|any|use|using|to|be|with|do|of|have|having|need|for|want|its|all|apply|applying|kind))*"
    r"(?:\s+|-)$"
)
NEGATED_AFTER = re.compile(
    r"\s*(?:=|:|\s(?:is|are|should be|must be|to be|being)\s)?\s*"
    r"(not (?:wanted|needed|allowed|used|required|desired|necessary)|unwanted|off|disabled|forbidden|false|switched off|"
    r"turned off|is not allowed|are not allowed|is not needed|are not needed|is not wanted|are not wanted)(?!\w)"
)
COMPARED = re.compile(
    r"(?<![\w-])(than|unlike|(?<!'d )(?<!would )(?<!i )(?<!we )like|versus|vs\.?|compared (?:to|with)|similar to|same as|beats?|beating|as good as|"
    r"as fast as|as (?:slow|low|small|much) as(?: in| with)?)(?:\s+(?:a|an|the|plain|our|my))*\s+$"
)
OR_GAP = re.compile(r"\s*,?\s*(?:or|nor)\s+(?:(?:a|an|the|any|use|using|with)\s+)*$")
AND_GAP = re.compile(r"\s*,?\s*and\s+(?:(?:a|an|the|any)\s+)*$")
COMMA_GAP = re.compile(r"\s*,\s*(?:(?:a|an|the|any)\s+)*$")

# Left over, these may turn the meaning round: they are reported as not supported, never passed over.
TURNS = frozenset(
    "no not without never don't doesn't shouldn't mustn't can't cannot isn't aren't avoid instead rather except excluding "
    "neither nor unless if otherwise until non than else or".split()
)

FILLER = frozenset(
    """a an the and with please of to for me i we want wants would like need needs give gives make write build generate
    create produce design schedule schedules plan run runs running train training trains model models my our your this
    that these those it its it's is are be been should shall must will can could use uses using used on over in across
    at by into as so then also both each every all any either one's which where have has having let's let us do does get
    there here some set up i'd i'm we'd parallelism parallel distributed pipeline pipelined pipelines pipelining strategy
    configuration config setup style type kind way ways s split splits splitting divided divide cut placed place put own
    their gradient gradients but just while whose via given named called such switch x fit fits possible"""
    .split()
)  # fmt: skip

UNSUPPORTED: tuple[tuple[str, str], ...] = (
    (r"(?:deepspeed\s+)?zero(?:[ -]?(?:stage[ -]?)?|\s*=\s*)(?:1|2|3|one|two|three|infinity|\+\+)(?!\s*-?(?:bubble|stage|replica|micro))",
     "sharded optimizer state, gradients or parameters (ZeRO)"),
    (r"zero(?=\s*(?:$|[,.;]|(?:and|or|with|over|for|on|in)(?!\w)))|zero[ -]redundancy(?: optimizer)?|zero optimizer|fsdp2?|hsdp|fully[ -]sharded(?: data[ -]parallel(?:ism)?)?|"
     r"shard(?:s|ed|ing)?(?: (?:the )?(?:optimizer(?: states?)?|gradients?|parameters?|weights?|states?))?|"
     r"distributed optimizer", "sharding (ZeRO, FSDP)"),
    (r"(?:NUM[ -]?way )?(?:tensor|model|expert|sequence|context|operator|intra-op)[ -]?(?:model[ -])?parallel(?:ism)?"
     r"(?:\s*(?:of|degree|degree of|size|over|=|:)?\s*NUM)?", "tensor, expert, sequence or context parallelism"),
    (r"(?<!\w)(?:tp|ep|sp|cp|etp)\s*[=:]?\s*\d+(?!\w)", "tensor, expert, sequence or context parallelism"),
    (r"(?:NUM )?experts?|moe|mixture[ -]of[ -]experts|all-to-all", "expert parallelism"),
    (r"fp8|fp16|fp4|bf16|bfloat16|float16|half[ -]precision|mixed[ -]precision|amp|int8|quanti[sz]\w+|(?:low|lower) precision",
     "another numeric precision"),
    (r"(?:cpu |nvme |optimizer |activation |host )?off-?load(?:s|ed|ing)?(?: to (?:the )?(?:cpu|host|nvme|disk))?",
     "offloading"),
    (r"gradient[ -]accumulation|accumulat\w+ gradients?|asynchronous(?:ly)?|async|stale|local sgd|diloco|"
     r"gradient compression|compress\w*|prefetch\w*|clip\w*|torch\.compile|cuda graphs?|elastic\w*|fault[ -]toleran\w+|"
     r"(?:global batch(?: size)?|micro-?batch size|batch size)(?:\s*(?:of|=|:)?\s*\d+)?", "this feature"),
    (r"(?:bucket[ _]?)(?:s|sizes?)?,? (?:of |is )?(?:at most|at least|under|over|below|above|up to|less than|more than|no more than|"
     r"no less than) \d+(?:\.\d+)? ?(?:[kmgt]i?b)", "a bound on the bucket size"),
    (r"interleaved[ -]zero[ -]bubble|zb-?v|zb-?h2|zb-?1p|zero[ -]bubble[ -]v|dual-?pipe-?v?|chimera|hanayo|"
     r"v-half|v-min|v-shaped?|looped bfs|breadth[ -]first|depth[ -]first|pipedream(?!-| flush)|terapipe|gems|"
     r"wave(?:-like)? pipeline", "this schedule family"),
)  # fmt: skip


def normalize(text: str) -> str:
    """Same length as `text`; see the head of this module."""
    table = {0x2010: "-", 0x2011: "-", 0x2012: "-", 0x2013: "-", 0x2014: ",", 0x2212: "-", 0x00D7: "x",
             0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x00A0: " ", 0x0009: " ", 0x000A: " "}  # fmt: skip
    return "".join(c.lower() if c.isascii() else c for c in text.translate(table))


def number(text: str) -> int:
    """The value of a text that `NUMBER` matched."""
    text = " ".join(text.split())
    return NUMBER_WORDS[text] if text in NUMBER_WORDS else int(text.replace(",", ""))


def size_bytes(size: str, unit: str) -> int:
    """Bytes of "2", "gib"; decimal units are powers of ten, binary ones powers of two."""
    return round(float(size) * SIZE_UNITS[unit])


def bound_kind(before: str | None, after: str | None) -> str:
    """most, below, least, above or exact, from the words around a number; raises ValueError where they disagree."""
    kinds = []
    for text, table in ((before, _BEFORE), (after, _AFTER)):
        if text:
            kinds.append(next(kind for kind, pattern in table.items() if re.fullmatch(pattern, text)))
    if len(set(kinds)) > 1:
        raise ValueError(f"{before!r} and {after!r} disagree")
    return kinds[0] if kinds else "exact"


def unsupported_patterns() -> list[tuple[re.Pattern[str], str]]:
    """The compiled `UNSUPPORTED` table."""
    rows = []
    for pattern, reason in UNSUPPORTED:
        rows.append((re.compile(rf"(?<!\w)(?:{pattern.replace('NUM', NUMBER)})(?!\w)"), reason))
    return rows

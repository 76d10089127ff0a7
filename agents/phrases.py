# ruff: noqa: E501 (one pattern or word list reads best on one line)
"""The documented phrases of the planner: what each one looks like and which field of an intent it sets.

`PHRASES` is tried in order and a phrase owns the characters that it matches, so longer readings stand before shorter
ones ("2 stages per device" before "2 stages"). A handler gets the values so far, the match and whether the phrase is
negated. Where a handler returns False, or a phrase that has no negated meaning is negated, it is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pibroch.agents.values import Values, group
from pibroch.agents.words import (
    AFTER,
    BEFORE,
    EVERYWHERE,
    NOT_AN_INDEX,
    NUMBER,
    NUMBER_WORDS,
    ON_STREAM,
    RECOMPUTE,
    REDUCED,
    REDUCING,
    SIZE,
    number,
    size_bytes,
)  # fmt: skip
from pibroch.runtime.errors import InputError

RAW = rf"(?:\d+|{'|'.join(sorted((w for w in NUMBER_WORDS if w.isalpha()), key=len, reverse=True))})"
# After "PP 2" must come the end, punctuation or a new phrase: "data parallel 2 stages" is no DP=2.
ENDS = (
    r"(?=\s*(?:$|[^\w\s\-]|(?:and|with|over|on|for|by|using|in|at|dp|pp|x|then|but|where|under|fit\w*|no|not|without)"
    r"(?![a-z])|(?:dp|pp)\d))"
)
DEVICE = r"(?:devices?|gpus?|ranks?|workers?|accelerators?|processes)"
STAGE = r"(?:stages?)"
MICRO = r"(?:micro[ -]?batch(?:es)?)"
REPLICA = r"(?:(?:data[ -]parallel |dp )?(?:replicas?|copies)|pipelines|(?:data[ -]parallel|dp) (?:ranks|devices|gpus|workers))"
EACH = r"(?:per|on each|on every|for each|in each)\s+(?:single\s+)?"

Act = Callable[[Values, re.Match[str], bool], bool | None]


@dataclass(frozen=True, slots=True)
class Phrase:
    """`flag` tells that the phrase is a bare feature word, without a number of its own."""

    name: str
    pattern: re.Pattern[str]
    act: Act
    negatable: bool = False
    flag: bool = False


def _p(
    name: str, pattern: str, act: Act, *, negatable: bool = False,
    flag: bool = False,
) -> Phrase:  # fmt: skip
    # Spaces in a pattern match any run of blanks; <N> is a number, <R> a number that may follow other characters.
    text = pattern.replace("<N>", NUMBER).replace("<R>", RAW)
    return Phrase(name, re.compile(rf"(?<!\w)(?:{text})(?!\w)"), act, negatable, flag)


def _counted(field: str, noun: str, *, refuse: str = "per|/") -> list[Phrase]:
    """"8 X", "at most 8 X", "8 X or fewer", "2 to 4 X", "4 or 8 X"."""

    def exact(values: Values, m: re.Match[str], _: bool) -> None:
        values.count(field, m, m[0])

    def span(values: Values, m: re.Match[str], _: bool) -> None:
        rows = values.bounds.setdefault(field, [])
        rows += [("low", number(m["lo"]), m[0]), ("high", number(m["hi"]), m[0])]

    def among(values: Values, m: re.Match[str], _: bool) -> None:
        choices = tuple(number(text) for text in re.findall(rf"(?<!\w){RAW}(?!\w)", m["list"]))
        values.bounds.setdefault(field, []).append(("among", choices, m[0]))

    tail = rf"(?!\s*(?:{refuse})(?!\w))"
    return [
        _p(field, rf"(?:at least|no fewer than|minimum) (?P<lo><N>)(?: and| but|,) (?:at most|no more than|not more than|up to) "
           rf"(?P<hi><N>)[ -]{noun}{tail}", span),
        _p(field, rf"between (?P<lo><N>) and (?P<hi><R>)[ -]{noun}{tail}", span),
        _p(field, rf"{NOT_AN_INDEX}(?P<lo><N>)(?: to |-| - )(?P<hi><R>)[ -]{noun}{tail}", span),
        _p(field, rf"(?P<list>{NOT_AN_INDEX}<N>(?:, <R>)+,? or <R>|<N> or <R>)[ -]{noun}{tail}", among),
        _p(field, rf"{BEFORE}(?P<n><N>)[ -]?{noun}(?!\w){AFTER}{tail}", exact),
    ]


def _named(field: str, names: str, *, spaced: bool = True) -> list[Phrase]:
    """"PP=2", "dp2", "pipeline degree of 4"."""

    def act(values: Values, m: re.Match[str], _: bool) -> None:
        values.count(field, m, m[0])

    rows = [_p(field, rf"(?:{names})\s*(?:=|:|is set to|set to|is|are)\s*(?P<n><R>)(?![\d.]*\d)(?!\s*-?(?:way|to \d|or \d))", act),
            Phrase(field, re.compile(rf"(?:(?<!\w)|(?<=[\d\x00]x))(?:{names})[-_]?(?P<n>\d+)(?![\d.]*\d)(?=x|dp|pp|_|\b)"), act)]  # fmt: skip
    if spaced:
        rows.append(_p(field, rf"(?:{names})(?: of| over| across| on)? (?P<n><N>){ENDS}", act))
    return rows


def _set(field: str, value: Any, *, negated: Any = None) -> Act:
    def act(values: Values, m: re.Match[str], no: bool) -> None:
        values.put(field, negated if no else value, m[0])

    return act


def _family(family: str) -> Act:
    def act(values: Values, m: re.Match[str], no: bool) -> None:
        (values.excluded if no else values.families).append((family, m[0]))

    return act


def _interleaved(values: Values, m: re.Match[str], _: bool) -> None:
    values.families.append(("interleaved", m[0]))
    values.put("stages_per_device", number(m["n"]), m[0])


def _field(field: str, name: str = "n") -> Act:
    def act(values: Values, m: re.Match[str], _: bool) -> None:
        value = number(m[name])
        if value < 1:
            raise InputError(f"{m[0]!r}: {field.replace('_', ' ')} must be at least 1")
        values.put(field, value, m[0])

    return act


def _grid(values: Values, m: re.Match[str], _: bool) -> None:
    first, second = int(m["a"]), int(m["b"])
    order = group(m, "order") or ""
    if first != second and not order:
        raise InputError(f"{m[0]!r} does not say which is which: write 'PP={first}, DP={second}' or the reverse")
    if order.startswith("d"):
        first, second = second, first
    values.put("pipeline", first, m[0])
    values.put("replicas", second, m[0])


def _two(field_a: str, field_b: str) -> Act:
    def act(values: Values, m: re.Match[str], _: bool) -> None:
        values.put(field_a, number(m["d"]), m[0])
        values.put(field_b, number(m["n"]), m[0])

    return act


def _ratio(values: Values, m: re.Match[str], _: bool) -> None:
    word = m["f"]
    up, down = {"half": (1, 2), "twice": (2, 1), "double": (2, 1), "": (1, 1)}.get(word, (0, 1))
    if not up:
        up = number(word.removesuffix(" times"))
    base = {"s": "stages", "r": "replicas"}.get(m["base"].split()[-1][0], "pipeline")
    if m["base"].endswith("ranks"):
        base = "pipeline"
    values.ratios.append((re.sub(r"[ -]", "", m["what"]), up, down, base, m[0]))


def _memory(values: Values, m: re.Match[str], _: bool) -> bool | None:
    things = r"(?:buckets?|sizes?|messages?|transfers?|parameters?|weights?|layers?|activations?|gradients?)"
    if re.search(rf"(?<!\w){things}\s*(?:of|are|is|with)?\s*$", m.string[: m.start()]):
        return False  # a size of something else
    values.put("memory_limit", size_bytes(m["size"], m["unit"]), m[0])
    return None


def _sized_devices(values: Values, m: re.Match[str], _: bool) -> None:
    values.put("num_devices", number(m["d"]), m[0])
    values.put("memory_limit", size_bytes(m["size"], m["unit"]), m[0])


def _bucket(values: Values, m: re.Match[str], no: bool) -> None:
    if no:
        values.put("buckets", False, m[0])
        return
    values.put("buckets", True, m[0])
    if group(m, "size"):
        unit = group(m, "unit") or "mb"
        values.put("bucket_size", size_bytes(m["size"], unit) / 1e6, m[0])


def _own_stream(values: Values, m: re.Match[str], _: bool) -> None:
    what, name = m["what"], group(m, "called") or group(m, "name")
    reduce = not re.search(r"transfer|send|activation|point|p2p", what)
    both = bool(re.fullmatch(r"(?:all )?(?:the )?communications?", what))
    if both and name:
        raise InputError(f"{m[0]!r}: transfers and reductions cannot share one stream; name a stream for each")
    if reduce:
        values.put("reduce_stream", name or "reduce", m[0])
        if "bucket" in what:
            values.put("buckets", True, m[0])
    if not reduce or both:
        values.put("stream", name or "transfer", m[0])


def _bucket_stream(values: Values, m: re.Match[str], _: bool) -> None:
    values.put("buckets", True, m[0])
    size, unit = m["size"] or m["size_2"], m["unit"] or m["unit_2"]
    if size:
        values.put("bucket_size", size_bytes(size, unit) / 1e6, m[0])
    if m["stream"]:
        values.put("reduce_stream", m["called"] or m["name"] or "reduce", m[0])


def _everywhere(values: Values, m: re.Match[str], no: bool) -> bool | None:
    if no is not bool(m["any"]):
        return False  # "not every layer" leaves some of them; "any layer" is a choice
    values.put("recompute", not no, m[0])
    return None


def _cut_at(values: Values, m: re.Match[str], _: bool) -> None:
    shift = 1 if group(m, "after_layer") else 0
    values.put("cut", tuple(int(text) + shift for text in re.findall(r"\d+", m["list"])), m[0])


def _layers(values: Values, m: re.Match[str], _: bool) -> None:
    values.put("layers_per_stage", tuple(number(text) for text in re.findall(rf"(?<!\w){RAW}(?!\w)", m["list"])), m[0])


SIZE_2 = SIZE.replace("<size>", "<size_2>").replace("<unit>", "<unit_2>")
_LIST = r"(?P<list>\d+(?:\s*(?:,|and|, and)\s*\d+(?!\s*-?(?:micro|stage|replica|device|gpu|rank|way|layer|mb|gb|x)))*)"
_OBJECTIVES = (
    ("memory", r"minimi[sz]e (?:the )?(?:peak |activation )?memory(?: use| usage)?|(?:lowest|least|smallest|minimal|minimum) "
     r"(?:peak |activation )?memory(?: use| usage| footprint)?|(?:as )?(?:little|low) memory(?: as possible)?|"
     r"memory[ -]efficient(?:ly)?|save memory|low[ -]memory"),
    ("time", r"minimi[sz]e (?:the )?(?:step time|time|bubbles?|idle(?: time)?|latency|makespan)|maximi[sz]e (?:the )?"
     r"(?:throughput|speed|utili[sz]ation)|(?:the )?(?:fastest|quickest)(?: possible)?|as fast as possible|"
     r"(?:smallest|lowest|least|minimal|minimum) (?:bubbles?|step time|idle(?: time)?)|"
     r"(?:as )?(?:little|small|few) (?:an? )?(?:bubbles?|idle(?: time)?)(?: as possible)?|(?:highest|best|maximum|high) throughput"),
)  # fmt: skip

_ORDERS = (
    ("interleaved", r"(?<!non-)(?<!not )interleaved(?: 1f-?1b)?|1f-?1b,? interleaved"), ("zb-h1", r"zero[ -]bubble(?:[ -](?:1f-?1b|h1))?|zb-?h1"),
    ("1f1b", r"1f-?1b"), ("gpipe", r"g-?pipe"),
)  # fmt: skip

PHRASES: tuple[Phrase, ...] = (
    # families
    *(_p("family", rf"(?:in (?:an? |the )?)?(?:{names})[ -]order", _family(family), negatable=True, flag=True)
      for family, names in _ORDERS),
    _p("family", r"1f-?1b,? \(?interleaved\)?|(?<!non-)(?<!not )interleaved 1f-?1b|interleav(?:ed|ing)|interleave(?: the)? stages|virtual pipeline(?: stages)?",
       _family("interleaved"), negatable=True, flag=True),
    _p("family", r"zero[ -]bubbles?(?:[ -](?:1f-?1b|h1))?(?: pipeline)?|zb-?h1|zbh-1", _family("zb-h1"), negatable=True, flag=True),
    _p("family", r"1f-?1b|one[ -]forward[ -,]*(?:and )?one[ -]backward|pipedream[ -]flush", _family("1f1b"), negatable=True, flag=True),
    _p("family", r"g-?pipe|fill[ -]drain|all forwards?,? (?:and )?(?:then|before) all(?: the)? backwards?|afab", _family("gpipe"),
       negatable=True, flag=True),
    # stages per device
    _p("grid", rf"(?P<d><N>) (?:pipeline )?{DEVICE},? (?:with|of|holding|hosting|running) (?P<n><N>) (?:virtual |model )?"
       r"(?:stages|chunks) each", _two("pipeline", "stages_per_device")),
    _p("grid", rf"(?P<d><N>) (?:pipeline )?{DEVICE},? each (?:with|of|holding|hosting|running) (?P<n><N>) (?:virtual |model )?"
       r"(?:stages|chunks)", _two("pipeline", "stages_per_device")),
    _p("grid", rf"(?P<n><N>) stages on (?:each|every one) of (?:the )?(?P<d><N>) (?:pipeline )?{DEVICE}",
       _two("pipeline", "stages_per_device")),
    _p("replicas", rf"(?:every|each) stage on (?P<n><N>) {DEVICE}", _field("replicas")),
    _p("grid", rf"(?P<d><N>) {REPLICA},? (?:each )?(?:with|of|over|on) (?P<n><N>) {STAGE} each", _two("replicas", "stages")),
    _p("grid", rf"(?P<d><N>) {REPLICA},? (?:each )?(?:with|of|over|on) (?P<n><N>) {DEVICE} each", _two("replicas", "pipeline")),
    _p("stages_per_device", rf"(?P<n><N>)[ -](?:virtual |model |pipeline )?(?:stages?|chunks?) {EACH}(?:pipeline )?{DEVICE}",
       _field("stages_per_device")),
    _p("stages_per_device", r"(?P<n><N>) virtual (?:pipeline )?(?:stages|chunks)", _field("stages_per_device")),
    _p("stages_per_device", r"(?P<n><N>)-way interleav(?:ed|ing)", _interleaved),
    *_named("stages_per_device", r"vpp|v|virtual stages|virtual pipeline(?: size| degree)?|stages[_ ]per[_ ](?:device|rank)"
            r"|interleave", spaced=False),
    # before the replicas, which it looks ahead to
    _p("total_microbatches", rf"(?:a total of |{BEFORE})(?P<n><N>)[ -](?:{MICRO} (?:in total|total|overall|in all|altogether|"
       rf"combined|(?:across|over) (?:all |both )?(?:the )?(?:replicas|pipelines)|(?:split|divided|spread|shared|distributed) "
       rf"(?:across|over|among|between)(?= (?:the |all |both )*(?:<N> )?(?:{REPLICA})))|total {MICRO})",
       lambda v, m, no: v.count("total_microbatches", m, m[0])),
    # two degrees at once
    _p("grid", rf"(?P<d><N>)(?: ?x)? {SIZE} {DEVICE}", _sized_devices),
    _p("grid", r"(?P<a>\d+)\s*(?:x|by|\*)\s*(?P<b>\d+)(?! ?[kmgt]i?b)(?:\s*\(?\s*(?P<order>pp\s*(?:x|,|by)\s*dp|dp\s*(?:x|,|by)\s*pp|pipeline "
       r"(?:x|by) data|data (?:x|by) pipeline)\s*\)?)?(?: (?:mesh|grid|layout))?", _grid),
    # stages, pipeline devices, replicas, devices in all
    _p("stages", rf"(?P<n><N>)[ -](?:pipeline )?{STAGE} {EACH}(?:replica|pipeline)", _field("stages")),
    _p("layers", rf"(?P<n><N>) layers? {EACH}(?:pipeline )?stage|(?P<n2><N>)-layer stages", lambda v, m, no: v.put(
        "uniform_layers", number(m["n"] or m["n2"]), m[0])),
    *_counted("stages", rf"(?:pipeline[ -])?{STAGE}", refuse="per|/|each|on each|on every"),
    *_named("stages", r"stages|number of stages|num_stages|stage count", spaced=False),
    _p("pipeline", r"(?P<n><N>)[ -]?(?:way|fold)[ -]pipeline(?:[ -]?parallel(?:ism)?|d)?", _field("pipeline")),
    _p("pipeline", rf"(?P<n><N>) (?:pipeline {DEVICE}|{DEVICE} {EACH}(?:data[ -]parallel )?(?:replica|pipeline|copy))", _field("pipeline")),
    _p("pipeline", rf"pipeline of (?:depth )?(?P<n><N>)(?: {DEVICE}|{ENDS})", _field("pipeline")),
    *_named("pipeline", r"pp|p|pipeline[ -](?:parallel(?:ism)?[ -])?(?:degree|size|depth|width)|pipeline[ -]parallel(?:ism)?"
            r"(?: degree)?|pipelin(?:e|ed)"),
    _p("replicas", rf"(?P<n><N>) {DEVICE} {EACH}(?:pipeline )?stage", _field("replicas")),
    _p("replicas", r"(?P<n><N>)[ -]?(?:way|fold)[ -](?:data[ -]?parallel(?:ism)?|replication|dp)", _field("replicas")),
    _p("replicas", r"replicated (?:over |across )?(?P<n><N>)(?:[ -]?(?:times|fold|ways?)|" + ENDS + ")", _field("replicas")),
    _p("replicas", r"replicated twice", _set("replicas", 2)),
    _p("pipeline", r"(?:pure|only|just)(?= data[ -]?parallel)|data[ -]?parallel(?:ism)? only", _set("pipeline", 1)),
    *_counted("replicas", REPLICA),
    *_named("replicas", r"dp|data[ -]parallel(?:ism)?[ -](?:degree|size|width)|data[ -]parallel(?:ism)?|num_replicas|replicas|"
            r"replication(?: factor)?"),
    _p("replicas", r"no(?:t any)? (?:data[ -]?parallel(?:ism)?|replicas?|replication)|without (?:any )?"
       r"(?:data[ -]?parallel(?:ism)?|replicas?|replication)", _set("replicas", 1)),
    _p("pipeline", r"(?:no|without)(?: any)? pipelin(?:e|es|ing)(?:[ -]parallel(?:ism)?)?", _set("pipeline", 1)),
    _p("replicas", r"data[ -]?parallel(?:ism)?|ddp", lambda v, m, no: v.bounds.setdefault("replicas", []).append(
        ("high", 1, m[0]) if no else ("low", 2, m[0])), negatable=True),
    *_counted("num_devices", DEVICE, refuse="per|/|each|on each"),
    *_named("num_devices", r"num_devices|devices|gpus|world[ _-]size|number of (?:devices|gpus)", spaced=False),
    # microbatches
    _p("microbatches", rf"{BEFORE}(?P<n><N>)[ -]{MICRO}{AFTER} (?:(?:{EACH}(?:data[ -]parallel )?(?:replica|pipeline|copy))|each)",
       lambda v, m, no: v.count("microbatches", m, m[0])),
    _p("total_microbatches", rf"a total of (?P<n><N>) {MICRO}", _field("total_microbatches")),
    _p("ratio", rf"(?:with )?(?P<f>half|twice|double|(?:<R>) times|)\s?(?:as many|the (?:same )?(?:number|amount) of) (?P<what>{MICRO}|"
       rf"replicas) (?:as|of) (?:there are )?(?P<base>(?:pipeline )?(?:{STAGE}|{DEVICE})|replicas)", _ratio),
    *_counted("microbatches", MICRO, refuse=r"per|/|of size|of \d+|each|on|in|for"),
    *_named("microbatches", r"m|mb|mbs|num_microbatches|n_microbatches|micro[ -]?batches|number of micro[ -]?batches|"
            r"micro[ -]?batch count", spaced=False),
    # buckets (before memory: both speak of sizes)
    _p("buckets", rf"{REDUCING} (?:in|into|with|using|by) (?:(?:gradient |grad )?buckets(?: of (?:size )?{SIZE})?|{SIZE_2}"
       rf"(?: gradient| grad)?[ -]buckets)(?: each)?(?:{ON_STREAM})?", _bucket_stream),
    _p("buckets", rf"(?:(?:gradient |grad )?buckets of (?:size )?{SIZE}|{SIZE_2}(?: gradient| grad)?[ -]buckets)(?: each)?{ON_STREAM}", _bucket_stream),
    _p("bucket_size", rf"(?:(?:gradient |grad )?(?:buckets?|bucketing)(?: sizes?)?|bucket_size)\s*(?:of|=|:|at|is|with|\()?"
       rf"\s*(?:size |about )?{SIZE.replace('(?<![', '(?<![')}\)?(?: each)?", _bucket),
    _p("bucket_size", r"bucket[_ ]size\s*(?:of|=|:|is)?\s*(?P<size>\d+(?:\.\d+)?)(?!\s*[kmgt]?i?b)", _bucket),
    _p("bucket_size", rf"{SIZE}(?: gradient| grad)?[ -]buckets?", _bucket),
    # streams
    _p("stream", rf"{REDUCED}{ON_STREAM}", _own_stream),
    _p("stream", r"(?P<what>reduce|reduction|transfer)[ _]stream\s*(?:=|:|named|called|is)?\s*['\"]?(?P<name>[a-z_]\w*)['\"]?"
       r"(?=\s*(?:$|[,.;)]|and))", _own_stream),
    _p("buckets", r"(?:gradient |grad )?(?:buckets|bucketing)|bucketed(?: (?:gradients?|reductions?|all-?reduces?))?|bucketi[sz]e"
       r"(?: (?:the )?gradients)?", _bucket, negatable=True, flag=True),
    _p("buckets", r"(?:gradient |grad )?(?:reductions?|all-?reduces?|communication),? (?:is |are )?overlap(?:ped|ping|s) (?:with|by) (?:the )?"
       r"(?:backward(?: pass(?:es)?)?|compute|computation)", _bucket, negatable=True, flag=True),
    _p("buckets", r"overlap(?:s|ped|ping)? (?:(?:the|of) )?(?:gradient |grad )?(?:reductions?|all-?reduces?|communication)(?: (?:with|and|by"
       r"|under) (?:the )?(?:backward(?: pass(?:es)?)?|compute|computation))?", _bucket, negatable=True, flag=True),
    # memory
    _p("memory_limit", r"(?:(?:must |should |has to |to |that |it )*(?:fit(?:s|ting)?|stay(?:s|ing)?|keep(?:ing)?|run(?:s|ning)?|use|using)"
       r" )?(?:(?:it|memory|the memory|peak memory|all) )*(?:in|into|within|under|below|inside|at most|no more than|up to|less than|"
       rf"not more than|a maximum of|max(?:imum)?|<=?|≤)\s*{SIZE}(?: of)?(?: (?:gpu |device |peak )?(?:memory|ram|vram|hbm))?"
       rf"(?: (?:{EACH}{DEVICE}|each))?(?! (?:in total|total|overall|buckets?))", _memory),
    _p("memory_limit", rf"(?:peak )?memory(?: limit| bound| budget| cap| capacity)?(?: {EACH}{DEVICE})?\s*(?:of|is|=|:|at|at most|under|"
       rf"below|within|up to|limited to|bounded by|capped at|<=?|≤)*\s*{SIZE}(?: {EACH}{DEVICE})?(?! (?:in total|total|overall))", _memory),
    _p("memory_limit", rf"(?<!least )(?<!than )(?<!above ){SIZE}(?: of)?(?: (?:gpu |device |peak )?(?:memory|ram|vram|hbm)(?: limit| bound| budget"
       rf"| cap)?(?: {EACH}{DEVICE})?| {EACH}{DEVICE}| each)(?! (?:in total|total|overall))", _memory),
    # recompute
    _p("recompute", r"recompute\s*[=:]\s*(?:true|on|yes)", _set("recompute", True)),
    _p("recompute", rf"{RECOMPUTE} {EVERYWHERE}", _everywhere, negatable=True, flag=True),
    _p("recompute", rf"{RECOMPUTE}(?! (?:of |in |on |for )?(?:(?:only|just|all|each|any|both|odd|even|half|of|half) |(?:the )?(?:first|last|stage|layer|half|every|"
       r"some|device|\d))|s? only)", _set("recompute", True, negated=False), negatable=True, flag=True),
    # cut
    _p("cut", rf"(?:cut|split)(?: (?:it|the model|the stages))? (?:at|before)(?: layers?)? {_LIST}|cut\s*[=:]\s*[\[(]?(?P<list2>[\d, ]+)[\])]?",
       lambda v, m, no: v.put("cut", tuple(int(x) for x in re.findall(r"\d+", m["list"] or m["list2"])), m[0])),
    _p("cut", rf"(?:cut|split)(?: (?:it|the model))? (?P<after_layer>after) layers? {_LIST}", _cut_at),
    _p("layers", r"stages (?:of|with) (?P<list><R>(?:\s*(?:,|and|, and|\+)\s*<R>)+)(?: layers)?", _layers),
    _p("layers", rf"{NOT_AN_INDEX}(?P<list><N>(?:\s*(?:,|and|, and|\+|/)\s*<R>)+) layers(?: (?:per stage|each|respectively))?", _layers),
    _p("layers", r"(?P<list><N> layers? (?:on|in) the first(?: stage)?,? and <R>(?: layers?)? (?:on|in) the (?:second|other|last)(?: stage)?)",
       lambda v, m, no: v.put("layers_per_stage", tuple(number(x) for x in re.findall(
           rf"(?<!\w){RAW}(?= layers?| (?:on|in))", m["list"])), m[0])),
    _p("cut", r"(?:an? )?(?:uneven|unequal|unbalanced)(?:ly)?(?: (?:cuts?|stages?|split|sizes?))?", _set("even", False, negated=True),
       negatable=True, flag=True),
    _p("cut", r"(?:an? )?(?:(?<!un)(?:balanced|even(?:ly)?|equal(?:ly)?)(?: (?:cuts?|stages?|split|sized))?|balance(?: (?:the )?stages)?)",
       _set("even", True, negated=False), negatable=True, flag=True),
    # objective and facts
    *(_p("objective", pattern, _set("objective", goal)) for goal, pattern in _OBJECTIVES),
    _p("model_layers", r"(?P<n><N>)[ -]layers? (?:model|gpt|transformer|network)|model (?:has|with|of) (?P<n2><N>) layers", lambda v, m, no: v.put(
        "model_layers", number(m["n"] or m["n2"]), m[0])),
)  # fmt: skip

"""The vocabulary by which two texts are compared, as tables. Words stand in plain form; `words.stem` finds the rest."""

from __future__ import annotations


def table(text: str) -> dict[str, list[str]]:
    """`name: word word …`, one a line."""
    rows = (line.partition(":") for line in text.strip().splitlines())
    return {name.strip(): words.split() for name, _, words in rows}


def listed(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


IRREGULAR = {
    form: plain
    for plain, forms in table("""
        early: earlier earliest
        send: sent
        keep: kept
        hold: held
        take: taken took
        hide: hid hidden
        run: ran
        begin: began begun
        grow: grown grew
        fall: fallen fell
        rise: rose risen
        good: better best
        bad: worse worst
        lose: lost
        win: won
        spend: spent
        bring: brought
        gpu: gpus
        cpu: cpus
        lie: lying lay
    """).items()
    for form in forms
}
# up and down: by itself, of a size, of a number of things
DIRECTIONS = table("""
    up: raise increase grow rise up high boost extend expand widen lengthen heighten climb
    up size: large big enlarge great huge coarse
    up count: more many additional extra multiply
    down: lower decrease reduce down less lessen diminish trim fall shorten narrow decline
    down size: small shrink tiny little
    down count: fewer few
""")
# Opposites: the words before the bar against those behind it. Only a contradiction counts: a text may leave them out.
OPPOSITES = table("""
    speed: fast quick rapid speed accelerate swift | slow sluggish
    length: long | short brief
    depth: deep | shallow
    width: wide broad | narrow
    time: early soon eager immediate prompt ahead advance | late delay defer postpone lazy lag
    start: start begin open initial launch | end finish close complete terminate
    halt: resume continue | stop halt cease quit
    switch: enable activate allow permit | disable deactivate forbid
    exposed: expose visible uncovered unhidden | hide hidden cover overlap mask conceal unexposed
    help: help benefit improve gain profit useful worthwhile beneficial | hurt harm worsen degrade useless harmful
    good: good | bad wrong poor
    send: send push emit | receive recv pull
    joint: same share shared common together joint identical | different separate own dedicated distinct apart another
    even: even equal uniform balance balanced | uneven unequal imbalance imbalanced unbalanced skew skewed odd
    keep: keep retain preserve add insert append include | drop discard release forget evict remove delete strip skip \
ignore omit exclude
    save: save | waste spend squander
    front: front | back rear
    merge: merge fuse combine join coalesce group | split divide partition
    inside: inside intra within internal local | outside inter across between external remote
    cost: cheap light inexpensive | expensive costly heavy
    busy: busy loaded occupied | idle unloaded
    sync: synchronous blocking sync | asynchronous nonblocking async
    warm: warm hot | cold cool
    near: near adjacent neighbour neighbor nearby | far distant
    often: always often frequent usual | sometimes rarely seldom occasional hardly scarcely barely
    all: all every each any everything | some several part partial certain
    possible: possible feasible safe | impossible infeasible unsafe
    accept: accept pass | reject refuse fail
    lay: contiguous consecutive | scattered alternating interspersed
    dense: dense | sparse
    simple: simple | complex complicated
    fixed: fixed static constant | variable dynamic varying
    inner: inner | outer
    many: single | multiple both
    full: full whole entire | empty
    strong: strong | weak
    true: true yes | false
    win: win succeed success | lose failure
    there: present | absent missing
    extreme: most maximum max maximal maximize maximise | least minimum min minimal minimize minimise
    tight: tight strict scarce | loose slack ample plentiful abundant
    sort: ascending | descending
    top: top upper | bottom
    side: left | right
    new: new fresh | old stale
    thick: thick | thin
    easy: easy | hard difficult
    trust: trust believe | distrust doubt
""")
# Poles that deny, as a negation does, so that no text without one says the same; and what is never left out.
STRONG = {
    f"{pole}-" for pole in listed("switch keep help possible accept often there halt joint")
} | {"joint+"}  # fmt: skip
OPPOSED = [set(listed(row)) for row in (
    "forward backward", "input output", "input weight", "warmup cooldown", "head embedding", "device cpu",
)]  # fmt: skip
PREPOSITIONS = set(listed("on over in under for through against with at during of by per"))
NEGATIONS = set(listed("not no never nor neither none nothing without avoid non cannot refrain forbid prevent"))
RELATIONS = set(listed("before after until insteadof than then comparedto"))
# What texts speak of. A thing that only one text has stands against one that only the other has.
THINGS = table("""
    device: device gpu rank worker accelerator
    cpu: cpu
    stage: stage
    layer: layer block
    microbatch: microbatch microbatching
    batch: batch
    bucket: bucket
    stream: stream
    link: link network interconnect bandwidth
    memory: memory ram
    activation: activation
    gradient: gradient grad
    weight: weight
    parameter: parameter param
    optimizer: optimizer optimiser
    embedding: embedding embed
    head: head
    loss: loss
    forward: forward forwards
    backward: backward backwards
    input: input
    output: output
    transfer: transfer message
    communication: communication comm communicate
    collective: collective
    allreduce: allreduce
    bubble: bubble stall
    step: step iteration
    pipeline: pipeline
    warmup: warmup
    cooldown: cooldown drain
    model: model
    sample: sample
    peak: peak
    split: split divide
    order: order reorder
    place: place placement
    cut: cut cuts
    compute: compute computation
    schedule: schedule
    measurement: measure measurement
    noise: noise
    latency: latency
    throughput: throughput
    time: time duration
    size: size
""")
# Names that both texts hold or neither.
NAMES = table("""
    recompute: recompute recomputation recomputing rematerialize checkpointing
    interleaved: interleaved interleave
    replica: replicate replica replication
    reduce_stream: reduce_stream
    gpipe: gpipe
    zb-h1: zbh1
    zerobubble: zerobubble
""")
ALIKE = table("""
    shift: move shift transfer relocate
    slow: bottleneck
    fill: fill occupy
    wait: wait stall block
    finish: done ready available
    need: need require demand
    fit: fit suit
    enough: enough suffice sufficient
    bind: bound limited constrained tight limit
    run: run execute
""")
# Words that may come and go.
FREE = set(
    listed("""
    a an the this that these those its their it they them there here as is are was were be been being am do does
    did doing done has have had having will would shall should must may might can could ought so thus therefore
    hence also too just simply please and or but use uses used using set sets setting make makes making choose
    chooses choosing pick picks picking take takes taking give gives giving given let lets try apply applies
    applying assign assigns go goes put puts putting get gets which who what whose how very quite rather such one
    ones you your we our to into onto from out off toward towards about like well still already now because since
    case value number count amount quantity consider ensure sure want remember tends tend become becomes work
    works thing things way much bit belong belongs
""")
)
UNITS = {
    word: unit
    for unit, words in table("""
        b: b byte bytes
        kb: kb kilobyte kilobytes
        mb: mb megabyte megabytes
        gb: gb gigabyte gigabytes
        tb: tb
        kib: kib
        mib: mib mebibyte mebibytes
        gib: gib gibibyte gibibytes
        ns: ns nanosecond nanoseconds
        us: us µs μs microsecond microseconds
        ms: ms msec millisecond milliseconds
        s: s sec secs seconds
        gb/s: gb/s
        mb/s: mb/s
        kbit/s: kbit/s
        mbit/s: mbit/s
        gbit/s: gbit/s
        tbit/s: tbit/s
        x: x times fold
        %: % percent
    """).items()
    for word in words
}
NUMBERS = {
    word: number
    for number, words in table("""
        30: thirty
        40: forty
        50: fifty
        100: hundred
        1000: thousand
        0.5: half halve halves halved halving
        0.25: quarter quarters
        2x: twice double doubles doubled doubling
        3x: thrice triple triples tripled tripling
        4x: quadruple
    """).items()
    for word in words
} | {
    word: str(number)
    for number, word in enumerate(listed("""
        zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
        eighteen nineteen twenty
    """))
} | {"dozen": "12"}  # fmt: skip
ORDINALS = {
    word: ordinal
    for ordinal, words in table("""
        1: first 1st
        2: second 2nd
        3: third 3rd
        4: fourth 4th
        last: last final
        previous: previous preceding
        next: next following
        penultimate: penultimate
        middle: middle
    """).items()
    for word in words
}

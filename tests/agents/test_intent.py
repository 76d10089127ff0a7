"""Every expected value is what the sentence says in English, written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pibroch.agents.intent import read_intent
from pibroch.runtime.errors import InputError

READINGS: list[tuple[str, dict[str, Any]]] = [
    (
        "1F1B over 2 stages, 2 replicas, 8 microbatches, gradient buckets on their own stream",
        {"family": "1f1b", "stages": 2, "pipeline": 2, "replicas": 2, "num_devices": 4, "microbatches": 8,
         "total_microbatches": 16, "buckets": True, "reduce_stream": "reduce"},
    ),
    ("not 1F1B but GPipe, two-way pipeline", {"family": "gpipe", "excluded": ("1f1b",), "pipeline": 2}),
    ("GPipe rather than 1F1B, 4 stages", {"family": "gpipe", "excluded": ("1f1b",), "stages": 4}),
    ("Please switch from GPipe to 1F1B over 4 stages", {"family": "1f1b", "excluded": ("gpipe",), "stages": 4}),
    ("neither GPipe nor 1F1B, PP=2", {"family": None, "excluded": ("gpipe", "1f1b"), "pipeline": 2}),
    ("GPipe or zero bubble over 4 stages", {"families": ("gpipe", "zb-h1"), "family": None, "stages": 4}),
    ("1F1B over 2 stages, not interleaved", {"family": "1f1b", "excluded": ("interleaved",), "stages_per_device": 1}),
    ("non-interleaved 1F1B, PP=4", {"family": "1f1b", "excluded": ("interleaved",), "pipeline": 4}),
    ("interleaved 1F1B over 2 devices with 2 stages per device", {"family": "interleaved", "stages_per_device": 2,
                                                                   "num_devices": 2}),
    ("1F1B, interleaved, two stages per device, PP=2", {"family": "interleaved", "stages": 4, "stages_per_device": 2}),
    ("zero-bubble 1F1B on a 4-stage pipeline", {"family": "zb-h1", "stages": 4, "pipeline": 4}),
    ("ZB-H1, PP2 DP2, m=8", {"family": "zb-h1", "pipeline": 2, "replicas": 2, "microbatches": 8}),
    ("one forward one backward, pp2xdp4", {"family": "1f1b", "pipeline": 2, "replicas": 4, "num_devices": 8}),
    ("2x2", {"pipeline": 2, "replicas": 2, "num_devices": 4}),
    ("2x4 (DP x PP)", {"pipeline": 4, "replicas": 2}),
    ("at most 4 microbatches", {"microbatches": None, "bounds.microbatches": (None, 4, None)}),
    ("fewer than 4 microbatches", {"bounds.microbatches": (None, 3, None)}),
    ("no more than 4 microbatches", {"bounds.microbatches": (None, 4, None)}),
    ("8 microbatches or more", {"bounds.microbatches": (8, None, None)}),
    ("more than 8 microbatches", {"bounds.microbatches": (9, None, None)}),
    ("between 2 and 4 stages", {"bounds.stages": (2, 4, None), "stages": None}),
    ("2-4 stages", {"bounds.stages": (2, 4, None), "stages": None}),
    ("4 or 8 microbatches", {"bounds.microbatches": (None, None, (4, 8)), "microbatches": None}),
    ("8 microbatches per replica, DP=2", {"microbatches": 8, "total_microbatches": 16}),
    ("8 microbatches in total, DP=2", {"microbatches": 4, "total_microbatches": 8}),
    ("a total of 8 microbatches over two replicas", {"microbatches": 4, "total_microbatches": 8, "replicas": 2}),
    ("8 microbatches split across 2 replicas", {"microbatches": 4, "total_microbatches": 8, "replicas": 2}),
    ("4 16GB GPUs", {"num_devices": 4, "memory_limit": 16_000_000_000}),
    ("2 x 16 GB GPUs", {"num_devices": 2, "memory_limit": 16_000_000_000, "replicas": None}),
    ("2 replicas of 4 stages each", {"replicas": 2, "stages": 4}),
    ("2 devices per replica, 3 replicas", {"pipeline": 2, "replicas": 3, "num_devices": 6}),
    ("half as many microbatches as stages, 4 stages", {"ratios": (("microbatches", 1, 2, "stages"),)}),
    ("twice as many microbatches as stages", {"ratios": (("microbatches", 2, 1, "stages"),)}),
    ("three times as many microbatches as devices", {"ratios": (("microbatches", 3, 1, "pipeline"),)}),
    ("fit in 4 GB", {"memory_limit": 4_000_000_000}),
    ("1F1B that fits in 2 GiB per device", {"memory_limit": 2**31, "family": "1f1b"}),
    ("memory bound of 512 MiB", {"memory_limit": 2**29}),
    ("no more than 1.5 GB of memory", {"memory_limit": 1_500_000_000}),
    ("25 MB gradient buckets", {"buckets": True, "bucket_size": 25.0, "memory_limit": None}),
    ("buckets of 1 MiB each", {"bucket_size": 1.048576, "buckets": True}),
    ("bucket_size=25", {"bucket_size": 25.0}),
    ("without buckets", {"buckets": False}),
    ("no recompute", {"recompute": False}),
    ("recompute is not allowed", {"recompute": False}),
    ("recompute=false", {"recompute": False}),
    ("with activation checkpointing", {"recompute": True}),
    ("no recompute or buckets", {"recompute": False, "buckets": False}),
    ("without recompute, buckets or interleaving", {"recompute": False, "buckets": False,
                                                    "excluded": ("interleaved",)}),
    ("no recompute, buckets of 25 MB", {"recompute": False, "buckets": True, "bucket_size": 25.0}),
    ("transfers on their own stream", {"stream": "transfer", "reduce_stream": None}),
    ("reductions on a separate stream named grads", {"reduce_stream": "grads", "stream": None}),
    ("cut at layer 3", {"cut": (3,)}),
    ("cut after layers 2, 4 and 6", {"cut": (3, 5, 7)}),
    ("stages of 3 and 5 layers", {"layers_per_stage": (3, 5)}),
    ("3 layers on the first stage and 5 on the second", {"layers_per_stage": (3, 5)}),
    ("4 layers per stage", {"uniform_layers": 4}),
    ("an uneven cut over 2 stages", {"even": False, "stages": 2}),
    ("minimize memory over 4 stages", {"objective": "memory", "stages": 4}),
    ("the fastest schedule on 4 GPUs", {"objective": "time", "num_devices": 4}),
    ("pure data parallel over 4", {"pipeline": 1, "replicas": 4}),
    ("2 GPUs without pipelining", {"pipeline": 1, "num_devices": 2, "replicas": 2}),
    ("I'd like GPipe over 2 stages", {"family": "gpipe", "stages": 2}),
    ("zero recompute, 2 stages", {"recompute": False, "family": None, "stages": 2}),
    ("interleave the stages, PP=2", {"family": "interleaved", "pipeline": 2}),
    ("anything except GPipe, PP=2", {"excluded": ("gpipe",), "pipeline": 2}),
    ("at least 4 but not more than 8 microbatches", {"bounds.microbatches": (4, 8, None)}),
    ("every stage on 2 devices, 4 stages", {"replicas": 2, "stages": 4, "num_devices": 8}),
    ("2 stages on each of 3 devices", {"stages_per_device": 2, "pipeline": 3, "stages": 6}),
    ("2 devices with 3 stages each", {"stages_per_device": 3, "pipeline": 2}),
    ("reductions overlapped with the backward, DP=2", {"buckets": True, "replicas": 2}),
    ("dp=2 pp=2 mb=8 1f1b", {"replicas": 2, "pipeline": 2, "microbatches": 8, "family": "1f1b"}),
    ("2,000 microbatches", {"microbatches": 2000}),
    ("no ZeRO, no offload, 1F1B, PP=2", {"family": "1f1b", "pipeline": 2}),
    (
        "GPipe on 3 stages with 5 microbatches, recompute every layer",
        {"family": "gpipe", "stages": 3, "microbatches": 5, "recompute": True},
    ),
    ("recompute everything", {"recompute": True}),
    ("2 stages, recompute all layers of the model", {"recompute": True, "stages": 2}),
    ("recompute each layer in 1F1B order", {"recompute": True, "family": "1f1b"}),
    ("full recomputation of every stage, 2 replicas", {"recompute": True, "replicas": 2}),
    ("recompute all stages with 8 microbatches", {"recompute": True, "microbatches": 8}),
    ("without recompute in any layer", {"recompute": False}),
    (
        "data parallel over 4 replicas, gradient buckets of 0.2 MB on their own stream, 2 microbatches",
        {"replicas": 4, "buckets": True, "bucket_size": 0.2, "reduce_stream": "reduce", "microbatches": 2},
    ),
    (
        "1F1B, 2 replicas; reduce gradients in 0.3 MB buckets on stream grads",
        {"replicas": 2, "buckets": True, "bucket_size": 0.3, "reduce_stream": "grads", "memory_limit": None},
    ),
    (
        "average the gradients in buckets of 2 MB on a stream called grads with 4 microbatches, dp2",
        {"bucket_size": 2.0, "reduce_stream": "grads", "microbatches": 4, "stream": None},
    ),
    ("averaging gradients in 1 MiB buckets, 2 replicas", {"bucket_size": 1.048576, "reduce_stream": None}),
    ("reduce gradients on stream grads", {"reduce_stream": "grads", "buckets": None}),
    ("buckets of 2 MB and transfers on their own stream", {"bucket_size": 2.0, "stream": "transfer",
                                                           "reduce_stream": None}),
    ("transfers on stream p2p and reductions on stream grads", {"stream": "p2p", "reduce_stream": "grads"}),
    ("4 microbatches in 1F1B order", {"microbatches": 4, "family": "1f1b"}),
    ("4 microbatches in interleaved 1F1B order, PP=2", {"microbatches": 4, "family": "interleaved"}),
    ("8 microbatches in total in GPipe order, DP=2", {"microbatches": 4, "family": "gpipe"}),
    ("not in 1F1B order, PP=2", {"family": None, "excluded": ("1f1b",)}),
    ("2, 4 or 8 microbatches", {"bounds.microbatches": (None, None, (2, 4, 8))}),
    ("PP\u00a0=\u00a02 \u2014 8\u2010microbatch 1F1B", {"pipeline": 2, "microbatches": 8, "family": "1f1b"}),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "expected"), READINGS, ids=[s for s, _ in READINGS])
def test_reading(sentence: str, expected: dict[str, Any]) -> None:
    intent = read_intent(sentence)
    for name, value in expected.items():
        if name.startswith("bounds."):
            bound = intent.bounds[name.removeprefix("bounds.")]
            assert (bound.low, bound.high, bound.among) == value
        else:
            assert getattr(intent, name) == value, name
    assert intent.unused == ()
    assert intent.unsupported == ()


# Words that must be reported, and what must not be read out of them.
REPORTED: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("1F1B over 2 stages with a purple monkey", ("purple monkey",), {"stages": 2}),
    ("2.5 stages", ("2.5 stages",), {"stages": None}),
    ("-2 stages", ("-2 stages",), {"stages": None}),
    ("8 microbatches per stage", ("8 microbatches per stage",), {"microbatches": None}),
    ("microbatches of 4 samples", ("microbatches of 4 samples",), {"microbatches": None}),
    ("about 8 microbatches", ("about",), {"microbatches": 8}),
    ("8 more microbatches than stages", ("8 more microbatches than stages",), {"microbatches": None, "stages": None}),
    ("two-way", ("two-way",), {"pipeline": None, "replicas": None}),
    ("2 MBs", ("2 MBs",), {"microbatches": None, "memory_limit": None}),
    ("at least 2 GB of memory", ("least 2 GB of memory",), {"memory_limit": None}),
    ("recompute only the first stage", ("recompute only the first stage",), {"recompute": None}),
    ("recompute every other layer", ("recompute every other layer",), {"recompute": None}),
    ("recompute everything but the last stage", ("recompute everything but the last stage",), {"recompute": None}),
    ("recompute all layers of stage 1", ("recompute all layers of stage 1",), {"recompute": None}),
    ("recompute both stages", ("recompute both stages",), {"recompute": None}),
    ("don't recompute every layer", ("don't recompute every layer",), {"recompute": None}),
    ("no recompute of stage 1", ("no recompute of stage 1",), {"recompute": None}),
    ("recompute any layer", ("recompute any layer",), {"recompute": None}),
    ("reduce gradients", ("reduce",), {"buckets": None, "reduce_stream": None}),
    ("reduce weights in 1 MB buckets", ("reduce weights",), {"bucket_size": 1.0}),
    ("never reduce gradients in 1 MB buckets", ("never reduce gradients in 1 MB buckets",), {"buckets": None}),
    ("reduce gradients in 1 MB pieces", ("reduce", "in 1 MB", "pieces"), {"memory_limit": None, "bucket_size": None}),
    ("gradient buckets on their own stream soon", ("soon",), {"reduce_stream": "reduce"}),
    ("4 microbatches in flight, 1F1B", ("4 microbatches in flight",), {"microbatches": None}),
    ("2 microbatches per device in 1F1B order", ("2 microbatches per device",), {"microbatches": None}),
    ("the last 2 microbatches in 1F1B order", ("last 2 microbatches",), {"microbatches": None}),
    ("GPipe on the other 2 devices", ("other 2 devices",), {"num_devices": None}),
    (
        "everything else on device 1, 4 microbatches in 1F1B order",
        ("everything else on device 1",),
        {"microbatches": 4, "family": "1f1b"},
    ),
    ("stage 1 on device 1 - 4 microbatches", ("stage 1 on device 1 -",), {"microbatches": 4, "bounds": {}}),
    ("all on device 1, 3 layers per stage", ("device 1",), {"uniform_layers": 3, "layers_per_stage": None}),
    ("a model of 2 GB", ("2 GB",), {"memory_limit": None}),
    ("2 nodes", ("2 nodes",), {"num_devices": None}),
    ("GPipe on 2 GPUs with 4 chunks", ("4 chunks",), {"stages_per_device": 1, "num_devices": 2, "microbatches": None}),
    ("bucket size at most 25 MB, dp2", ("bucket size at most 25 MB",), {"memory_limit": None, "bucket_size": None}),
    ("transfers of at most 4 MB", ("transfers", "at most 4 MB"), {"memory_limit": None, "stream": None}),
    ("the first stage has 3 layers", ("first stage has 3 layers",), {"model_layers": None}),
    ("at most 2 microbatches in flight", ("most 2 microbatches in flight",), {"microbatches": None, "bounds": {}}),
    ("1F1B over stages 0 and 1", ("stages 0 and 1",), {"stages": None}),
    ("1F1B over 2 stages, seed 42", ("seed 42",), {"stages": 2}),
    ("stage 0 on device 1", ("stage 0 on device 1",), {"stages": None, "num_devices": None}),
    ("data parallel 2 stages", (), {"stages": 2, "replicas": None}),
    ("batch size 32", ("batch size 32",), {"microbatches": None}),
]


@pytest.mark.parametrize(("sentence", "unused", "fields"), REPORTED, ids=[row[0] for row in REPORTED])
def test_nothing_is_dropped_silently(sentence: str, unused: tuple[str, ...], fields: dict[str, Any]) -> None:
    intent = read_intent(sentence)
    assert intent.unused == unused
    for name, value in fields.items():
        assert getattr(intent, name) == value, name


@pytest.mark.parametrize(
    ("sentence", "phrase"),
    [
        ("ZeRO-1 with 1F1B over 2 stages", "ZeRO-1"),
        ("1F1B over 2 stages and ZeRO stage 3", "ZeRO stage 3"),
        ("PP=2, TP=2", "TP=2"),
        ("2-way tensor parallelism and 2 stages", "2-way tensor parallelism"),
        ("expert parallel over 4 devices", "expert parallel over 4"),
        ("2 stages in fp8", "fp8"),
        ("2 stages with CPU offload", "CPU offload"),
        ("DualPipeV over 2 devices", "DualPipeV"),
        ("interleaved zero bubble over 2 devices", "interleaved zero bubble"),
        ("ZBV with 8 microbatches", "ZBV"),
        ("faster than 1F1B over 2 stages", "than 1F1B"),
        ("not 2 stages", "not 2 stages"),
        ("1F1B over 2 stages unless memory is short", "unless memory is short"),
    ],
)
def test_what_changes_the_meaning_is_flagged(sentence: str, phrase: str) -> None:
    intent = read_intent(sentence)
    assert phrase in [u.phrase for u in intent.unsupported]
    assert any(phrase in words for words in intent.unused)
    assert intent.family in (None, "1f1b")
    assert not intent.understood


@pytest.mark.parametrize(
    ("sentence", "names"),
    [
        ("1F1B and GPipe over 2 stages", ("1f1b", "gpipe")),
        ("PP=2 and 4 stages, 1F1B", ("PP=2", "4 stages")),
        ("2 stages, 4 stages", ("2 stages", "4 stages")),
        ("1F1B over 2 stages, not 1F1B", ("1f1b",)),
        ("recompute, no recompute", ("recompute",)),
        ("at most 4 microbatches, 8 microbatches", ("at most 4 microbatches", "8 microbatches")),
        ("at least 8 microbatches and at most 4 microbatches", ("at least 8", "at most 4")),
        ("4 devices, 2 stages, 3 replicas, 1F1B", ("4 devices", "3 replicas")),
        ("1F1B with 2 stages per device", ("2 stages per device", "1f1b")),
        ("7 microbatches in total, 2 replicas", ("7 microbatches in total", "2 replicas")),
        ("1F1B over 2 devices, 2 replicas", ("1f1b", "2 devices")),
        ("0 microbatches", ("0 microbatches",)),
        ("2x4 1F1B", ("2x4",)),
        ("without recompute and buckets", ("recompute and buckets",)),
        ("fit in 2 GB, at most 4 GB of memory", ("2 gb", "4 gb")),
        ("cut at layer 2, stages of 3 and 5 layers", ("cut at layer 2", "stages of 3 and 5 layers")),
        ("cut at layer 2 into 4 stages", ("cut at layer 2", "4 stages")),
        ("fastest with the lowest memory", ("fastest", "lowest memory")),
        ("   ", ("empty",)),
    ],
)
def test_contradictions_name_both_phrases(sentence: str, names: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        read_intent(sentence)
    for name in names:
        assert name.lower() in str(error.value).lower()


def test_a_list_of_counts_begins_after_the_clause_before_it() -> None:
    intent = read_intent("stage 1 on device 0, 4 or 8 microbatches")
    assert intent.bounds["microbatches"].among == (4, 8)
    assert intent.unused == ("stage 1 on device 0",)


def test_known_words_are_not_reported() -> None:
    assert read_intent("1F1B over 2 stages for gpt-tiny", known=("gpt-tiny",)).unused == ()
    assert read_intent("1F1B over 2 stages for gpt-tiny").unused == ("gpt-tiny",)

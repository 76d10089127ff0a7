"""The kinds of findings, and which of them a schedule of a classic family has whatever its parameters are."""

from __future__ import annotations

from typing import Literal

Origin = Literal["schedule", "machine"]

MEANINGS: dict[str, tuple[Origin, str]] = {
    "warm-up-drain": ("schedule", "the pipeline fills and drains: too few microbatches for so many positions"),
    "stage-imbalance": ("schedule", "one device has more work per microbatch than the others, which wait for it"),
    "order": ("schedule", "chunks run later than they could: another order removes idle time in mid-step"),
    "late-receive": ("schedule", "one chunk that a peer waits for stands too late in its device's row"),
    "exposed-transfer": ("schedule", "activations or gradients are on the link, and nothing hides it"),
    "exposed-reduction": ("schedule", "gradient reductions that no bucket size hides"),
    "bucket-too-large": ("schedule", "reductions start only when a whole stage is done: smaller buckets overlap"),
    "bucket-too-small": ("schedule", "many small reductions: their latencies add up"),
    "unsplit-backward": ("schedule", "idle time that weight gradients could fill, were the backwards split"),
    "needless-recompute": ("schedule", "forwards are recomputed although memory suffices without"),
    "microbatch-too-small": ("schedule", "starting a chunk takes a good part of the time that the chunk takes"),
    "memory-tight": ("schedule", "a device is within 10% of its memory bound, or above it"),
    "memory-headroom": ("schedule", "the fullest device uses less than half of its memory bound"),
    "straggler": ("machine", "one device is slower than the reference, or than its peers at equal chunks"),
    "slow-link": ("machine", "a link, or the reductions of a group, is slower than the reference"),
    "host-overhead": ("machine", "a device has all that its next task needs, and yet does not start it"),
    "jitter": ("machine", "single tasks take far longer than their equals on the same device"),
    "slower-than-reference": ("machine", "all devices are slower than the reference costs"),
    "unexplained": ("machine", "the step took longer than its own tasks and their order explain"),
}
"""Each kind's origin, and what it means in one line."""

KINDS: tuple[str, ...] = tuple(MEANINGS)

INHERENT: tuple[str, ...] = ("warm-up-drain", "unsplit-backward", "memory-headroom")
"""Kinds that describe the family and the task's size more than a mistake in this one schedule: any 1F1B schedule has
the first two. They are findings with their full cost, and tests of causes set them aside."""

MIN_SHARE = 0.01
"""A cause that costs less than this part of the step is not reported."""

"""Edits of parameters: degrees, cut, buckets, recompute, streams."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from pibroch.agents.evolve.design import Design, changed
from pibroch.agents.evolve.edit_base import (
    EditBase,
    NotApplicable,
    Which,
    arranged,
    cut_by_costs,
    even_positions,
    fitted,
    named,
    refreshed,
    remade,
    stages_named,
)
from pibroch.evals.setting import Setting

Step = Annotated[int, Field(ge=-64, le=64)]


def _stepped(values: list[int], now: int, by: int, noun: str) -> int:
    """The value so many places further on. Raises `NotApplicable` where that is none."""
    index = values.index(now) + by
    if by == 0 or not 0 <= index < len(values):
        raise NotApplicable(f"there is no choice of {noun} {by:+d} from {now}: {values}")
    return values[index]


class SetMicrobatches(EditBase):
    """`by` steps through the counts that divide the batch."""

    op: Literal["microbatches"] = "microbatches"
    by: Step

    def describe(self) -> str:
        return f"Use {'more' if self.by > 0 else 'fewer'} microbatches: {abs(self.by)} of the possible steps."

    def apply(self, design: Design, setting: Setting) -> Design:
        choices = sorted(setting.choices(design.replicas))
        m = _stepped(choices, design.microbatches, self.by, "microbatches")
        return remade(changed(design, microbatches=m, rows=()), setting)


class SetReplicas(EditBase):
    """`by` steps through the replica counts that divide the batch. With `trade` the devices in use stay the same, and
    the pipeline gets shorter as the replicas get more; `keep` says what of the pipeline then stays."""

    op: Literal["replicas"] = "replicas"
    by: Step
    trade: bool = True
    keep: Literal["stages", "stages_per_device"] = "stages_per_device"

    def describe(self) -> str:
        word = "more" if self.by > 0 else "fewer"
        if not self.trade:
            return f"Use {word} replicas of the same pipeline."
        kept = "number of stages" if self.keep == "stages" else "stages per device"
        longer = "shorter" if self.by > 0 else "longer"
        return f"Use {word} replicas of a {longer} pipeline on the same devices, with the same {kept}."

    def apply(self, design: Design, setting: Setting) -> Design:
        p, k, devices = len(design.positions), design.replicas, setting.task.devices
        if self.trade:
            used = p * k
            counts = [n for n in range(1, used + 1) if used % n == 0 and (n == k or setting.choices(n))]
        else:
            counts = [n for n in range(1, devices // p + 1) if n == k or setting.choices(n)]
        replicas = _stepped(counts, k, self.by, "replicas")
        positions = p * k // replicas if self.trade else p
        each = max(1, design.stages // p)
        stages = positions * each if self.trade and self.keep == "stages_per_device" else design.stages
        if stages % positions:
            raise NotApplicable(f"{stages} stages do not divide over {positions} positions")
        return arranged(
            design, setting, positions=positions, stages=stages, replicas=replicas, layout=layout_now(design)
        )


class SetPipeline(EditBase):
    """`by` more pipeline positions for every replica, at the same stages per device."""

    op: Literal["pipeline"] = "pipeline"
    by: Step

    def describe(self) -> str:
        return f"Make the pipeline {abs(self.by)} devices {'longer' if self.by > 0 else 'shorter'}."

    def apply(self, design: Design, setting: Setting) -> Design:
        p = len(design.positions)
        positions, each = p + self.by, max(1, design.stages // p)
        if self.by == 0 or positions < 1:
            raise NotApplicable(f"no pipeline of {positions} positions")
        return arranged(
            design, setting, positions=positions, stages=positions * each, replicas=design.replicas,
            layout=layout_now(design),
        )  # fmt: skip


def layout_now(design: Design) -> Literal["loop", "v"]:
    """The layout that the design has, or is nearest to."""
    where, p = design.position_of, len(design.positions)
    return "v" if design.stages > p and where[p] == p - 1 and p > 1 else "loop"


class ShiftLayers(EditBase):
    """Layers of one stage go to a neighbour."""

    op: Literal["shift_layers"] = "shift_layers"
    stage: Which
    to: Literal["previous", "next"]
    layers: int = Field(default=1, ge=1, le=64)

    def describe(self) -> str:
        what = "1 layer" if self.layers == 1 else f"{self.layers} layers"
        return f"Move {what} of {named(self.stage, 'stage')} to the {self.to} stage."

    def apply(self, design: Design, setting: Setting) -> Design:
        if design.cut is None:
            raise NotApplicable("the model fixes its stages")
        chosen = stages_named(self.stage, design, setting)
        if len(chosen) > 1:
            raise NotApplicable("layers are shifted for one stage at a time")
        s = chosen[0]
        boundary, step = (s - 1, self.layers) if self.to == "previous" else (s, -self.layers)
        if not 0 <= boundary < len(design.cut):
            raise NotApplicable(f"stage {s} has no {self.to} stage")
        cut = [c + step if i == boundary else c for i, c in enumerate(design.cut)]
        bounds = [0, *cut, len(setting.model(design.replicas, design.microbatches).layers)]
        if any(a >= b for a, b in pairwise(bounds)):
            raise NotApplicable(f"stage {s} has no {self.layers} layers to give")
        return refreshed(changed(design, cut=tuple(cut)), setting)


class BalanceCut(EditBase):
    """All boundaries are set anew."""

    op: Literal["balance_cut"] = "balance_cut"
    by: Literal["costs", "flops", "layers"] = "costs"

    def describe(self) -> str:
        measure = {"costs": "the same time per microbatch", "flops": "the same operations", "layers": "as many layers"}
        return f"Cut the model so that every position has {measure[self.by]}."

    def apply(self, design: Design, setting: Setting) -> Design:
        if design.cut is None:
            raise NotApplicable("the model fixes its stages")
        layers = setting.model(design.replicas, design.microbatches).layers
        if self.by == "costs":
            cut = cut_by_costs(design, setting)
        else:
            weights = [layer.flops if self.by == "flops" else 1.0 for layer in layers]
            cut = even_positions(weights, design.position_of)
        if tuple(cut) == design.cut:
            raise NotApplicable("the cut is that already")
        return refreshed(changed(design, cut=tuple(cut)), setting)


class SetBuckets(EditBase):
    """`factor` times the present size; from no buckets, times the parameters of the stage. None: one per stage."""

    op: Literal["bucket_size"] = "bucket_size"
    stage: Which = "all"
    factor: float | None = Field(gt=0, le=64)

    def describe(self) -> str:
        where = f"of {named(self.stage, 'stage')}"
        if self.factor is None:
            return f"Reduce the gradients {where} in one bucket per stage."
        return f"Make the gradient buckets {where} {self.factor:g} times as large."

    def apply(self, design: Design, setting: Setting) -> Design:
        if design.replicas == 1:
            raise NotApplicable("buckets have no effect with one replica")
        sizes = list(design.bucket_size)
        for s in stages_named(self.stage, design, setting):
            now = sizes[s]
            if self.factor is None:
                sizes[s] = None
            else:
                whole = stage_megabytes(design, setting)[s]
                size = float(f"{(whole if now is None else now) * self.factor:.2g}")
                sizes[s] = size if 0 < size < whole else None
        if tuple(sizes) == design.bucket_size:
            raise NotApplicable("the buckets stay the same")
        return refreshed(changed(design, bucket_size=tuple(sizes)), setting)


def stage_megabytes(design: Design, setting: Setting) -> list[float]:
    """Trainable parameters of each stage in MB."""
    model = setting.model(design.replicas, design.microbatches)
    per_layer = [
        sum(model.params[p].nbytes for p in la.params if model.params[p].trainable) / 1e6 for la in model.layers
    ]
    if design.cut is None:
        tags = [layer.tags.get("PP") for layer in model.layers]
        starts = [tags.index(s) if s in tags and s else 0 for s in range(design.stages)]
        bounds = [*starts, len(per_layer)]
    else:
        bounds = list(design.bounds(len(per_layer)))
    return [sum(per_layer[bounds[s] : bounds[s + 1]]) for s in range(design.stages)]


class SetRecompute(EditBase):
    """Drop what forward saved and run the forward again in backward, or keep it."""

    op: Literal["recompute"] = "recompute"
    stage: Which = "all"
    on: bool

    def describe(self) -> str:
        verb = "Recompute" if self.on else "Keep, and do not recompute,"
        return f"{verb} the activations of {named(self.stage, 'stage')}."

    def apply(self, design: Design, setting: Setting) -> Design:
        stages = frozenset(stages_named(self.stage, design, setting))
        new = design.recompute | stages if self.on else design.recompute - stages
        layers = () if self.stage == "all" else design.layer_recompute
        if layers and self.on:
            raise NotApplicable("single layers are recomputed already")
        if new == design.recompute and layers == design.layer_recompute:
            raise NotApplicable("that is so already")
        return refreshed(changed(design, recompute=new, layer_recompute=layers), setting)


class FitRecompute(EditBase):
    """Recompute only the stages for which the memory bound has no room."""

    op: Literal["fit_recompute"] = "fit_recompute"

    def describe(self) -> str:
        return "Recompute only the stages for which the memory bound has no room."

    def apply(self, design: Design, setting: Setting) -> Design:
        if setting.task.memory_limit is None and not design.recompute:
            raise NotApplicable("there is no memory bound and nothing is recomputed")
        return fitted(design, setting)


class SetStream(EditBase):
    """The transfer stream's name. Transfers are never on the compute stream, so this changes no order."""

    op: Literal["stream"] = "stream"
    name: str | None = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=32)

    def describe(self) -> str:
        return f"Put transfers on the stream {self.name!r}." if self.name else "Put transfers on the default stream."

    def apply(self, design: Design, setting: Setting) -> Design:
        if self.name in (design.stream, "compute", "reduce"):
            raise NotApplicable(f"transfers cannot go to {self.name!r}, or are there already")
        return changed(design, stream=self.name)


class SetReduceStreams(EditBase):
    """One stream of reductions for each stage, so that they do not queue behind each other, or one for all."""

    op: Literal["reduce_stream"] = "reduce_stream"
    each: bool

    def describe(self) -> str:
        return f"Reduce gradients on {'a stream per stage' if self.each else 'one stream for all stages'}."

    def apply(self, design: Design, setting: Setting) -> Design:
        if design.replicas == 1 or design.stages_per_device == 1:
            raise NotApplicable("reductions of one device are of one stage only")
        each = design.reduce_stream is not None and len(set(design.reduce_stream)) > 1
        if each == self.each:
            raise NotApplicable("that is so already")
        streams = tuple(f"reduce{s}" for s in range(design.stages)) if self.each else None
        return changed(design, reduce_stream=streams)

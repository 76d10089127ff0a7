"""Edits: what may be changed of a schedule, as small plain data that people, playbooks and operators share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from pibroch.agents.evolve.design import Design
from pibroch.agents.evolve.edit_base import NotApplicable, Which
from pibroch.agents.evolve.edit_parameters import (
    BalanceCut,
    FitRecompute,
    SetBuckets,
    SetMicrobatches,
    SetPipeline,
    SetRecompute,
    SetReduceStreams,
    SetReplicas,
    SetStream,
    ShiftLayers,
)
from pibroch.agents.evolve.edit_structure import (
    Divide,
    MoveChunk,
    Overlap,
    Reorder,
    SetLayout,
    SetStagesPerDevice,
    ShiftWeights,
    SplitBackward,
    SwapFamily,
    SwapStages,
    WarmUp,
)
from pibroch.agents.evolve.kept import kept
from pibroch.evals.setting import Setting
from pibroch.runtime.errors import InputError

__all__ = [
    "OPS", "PARAMETERS", "STRUCTURE", "Edit", "NotApplicable", "Which", "apply_edit", "describe", "edit_key",
    "parse_edit",
]  # fmt: skip

PARAMETERS: tuple[str, ...] = (
    "microbatches", "replicas", "pipeline", "shift_layers", "balance_cut", "bucket_size", "recompute", "fit_recompute",
    "stream", "reduce_stream",
)  # fmt: skip
STRUCTURE: tuple[str, ...] = (
    "split_backward", "reorder", "family", "divide", "stages_per_device", "layout", "swap_stages", "move_chunk",
    "shift_weights", "warm_up", "overlap",
)  # fmt: skip
OPS: tuple[str, ...] = (*PARAMETERS, *STRUCTURE)

Edit = (
    SetMicrobatches | SetReplicas | SetPipeline | ShiftLayers | BalanceCut | SetBuckets | SetRecompute | FitRecompute
    | SetStream | SetReduceStreams | SplitBackward | Reorder | SwapFamily | Divide | SetStagesPerDevice | SetLayout
    | SwapStages | MoveChunk | ShiftWeights | WarmUp | Overlap
)  # fmt: skip
_ADAPTER: TypeAdapter[Edit] = TypeAdapter(Annotated[Edit, Field(discriminator="op")])


def parse_edit(data: Any) -> Edit:
    """Read an edit from plain data. Raises `InputError` that names the field."""
    try:
        return _ADAPTER.validate_python(data)
    except ValidationError as error:
        row = error.errors()[0]
        if row["type"] in ("union_tag_invalid", "union_tag_not_found"):
            given = data.get("op") if isinstance(data, dict) else None
            raise InputError(f"edit: unknown op {given!r}; there are {', '.join(OPS)}") from error
        if row["type"] in ("model_attributes_type", "dict_type"):
            raise InputError(f"edit: an object with an op, not {data!r}") from error
        where = ".".join(str(part) for part in row["loc"]) or "edit"
        raise InputError(f"edit {where}: {row['msg']}") from error


def edit_key(edit: Edit) -> str:
    """Equal for equal edits."""
    return repr(sorted(edit.to_json().items()))


def describe(edit: Edit) -> str:
    """One sentence."""
    return edit.describe()


def apply_edit(edit: Edit, design: Design, setting: Setting) -> Design:
    """The design after the edit. Raises `NotApplicable` where it has no meaning or changes nothing."""
    new = kept(setting, "edits", (edit_key(edit), design), lambda: _applied(edit, design, setting))
    if isinstance(new, NotApplicable):
        raise NotApplicable(*new.args)
    return new


def _applied(edit: Edit, design: Design, setting: Setting) -> Design | NotApplicable:
    try:
        new = edit.apply(design, setting)
    except NotApplicable as error:
        return error.with_traceback(None)
    return NotApplicable("nothing changes") if new == design else new

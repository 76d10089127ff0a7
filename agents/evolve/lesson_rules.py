"""From one edit of one schedule to advice for others: what to keep of the edit, where it belongs, when it applies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pibroch.agents.evolve.edits import Edit, parse_edit

Facts = Mapping[str, bool | int | float | str]

_SECTIONS = {
    "bucket_size": "communication", "reduce_stream": "communication", "stream": "communication", "recompute": "memory",
    "fit_recompute": "memory", "warm_up": "memory",
}  # fmt: skip
_MEMORY = ("recompute", "fit_recompute", "warm_up", "split_backward", "reorder", "replicas", "stages_per_device")


def section_of(edit: Edit) -> str:
    """The playbook's section for an edit that helps."""
    return _SECTIONS.get(edit.op, "schedules")


def general(edit: Edit, facts: Facts) -> Edit | None:
    """The edit in words that other schedules understand: the first or last stage and not its number.

    None where it is about one chunk, or a stage that has no such name.
    """
    data = edit.to_json()
    if edit.op == "move_chunk":
        return None
    stages = facts.get("stages")
    for name in ("stage", "position"):
        index = data.get(name)
        if isinstance(index, int):
            last = (-1, stages - 1) if name == "stage" and isinstance(stages, int) else (-1,)
            data[name] = "first" if index == 0 else "last" if index in last else None
            if data[name] is None:
                return None
    if edit.op == "swap_stages" and not {data["first"], data["second"]} <= {0, -1}:
        return None
    return parse_edit(data)


def bounds(edit: Edit, facts: Facts) -> dict[str, str]:
    """Conditions on what the edit's effect depends on, up to a factor of two from where it was measured.

    What grows with a number (idle time with the stages, reductions with the replicas) has a lower bound only; what an
    edit does to memory holds for tasks that are as bound by it.
    """
    data = edit.to_json()
    found: dict[str, str] = {}
    if edit.op in ("bucket_size", "reduce_stream"):
        _at_least(found, facts, "replicas")
    elif edit.op in ("balance_cut", "shift_layers"):
        imbalance = facts.get("imbalance")
        if isinstance(imbalance, int | float) and imbalance > 1:
            found["imbalance"] = f">={1 + (imbalance - 1) / 2:.3g}"
    elif edit.op == "microbatches":
        _limit(found, facts, "microbatches", up=data["by"] > 0)
    elif edit.op == "replicas":
        _limit(found, facts, "replicas", up=data["by"] > 0)
    elif edit.op not in ("recompute", "fit_recompute"):
        _at_least(found, facts, "stages")
    if edit.op in _MEMORY and isinstance(facts.get("memory_bound"), bool):
        found["memory_bound"] = str(facts["memory_bound"]).lower()
    return found


def _at_least(found: dict[str, str], facts: Facts, name: str) -> None:
    value = facts.get(name)
    if isinstance(value, int) and value > 1:
        found[name] = f">={max(2, value // 2)}"


def _limit(found: dict[str, str], facts: Facts, name: str, *, up: bool) -> None:
    """More of it was tried where there were few, fewer where there were many."""
    value = facts.get(name)
    if isinstance(value, int):
        found[name] = f"<={2 * value}" if up else f">={max(1, value // 2)}"


def same(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether two edits as plain data are one and the same, with or without fields at their defaults."""
    return one is not None and other is not None and canonical(one) == canonical(other)


def canonical(data: dict[str, Any]) -> dict[str, Any]:
    """All fields of an edit, as it was where no operator knows it."""
    try:
        return parse_edit(data).to_json()
    except ValueError:
        return data

"""What a filter of a directive selects: stages, layers, or (chunk, microbatch, pass) triples."""

from __future__ import annotations

from collections.abc import Mapping

from pibroch.runtime.dag import Dag, invalid
from pibroch.runtime.model import LayerSpec
from pibroch.runtime.words import count

Filter = Mapping[str, int | str | None]
Selected = tuple[str, int, int, int]  # (op, stage, part, mb)


def check_tags(dag: Dag, directive: int, filt: Filter) -> None:
    """Raises `InputError` (V9) on a tag that neither the model nor the schedule defines."""
    for tag in filt:
        if tag not in ("PP", "PASS", dag.dim_name) and not any(tag in layer.tags for layer in dag.model.layers):
            known = {tag for layer in dag.model.layers for tag in layer.tags} | {"PP", "PASS", dag.dim_name}
            raise invalid(directive, f"unknown tag {tag!r}: this model and schedule have {', '.join(sorted(known))}")


def matches_layer(filt: Filter, layer: LayerSpec, stage: int, *, ignore: tuple[str, ...] = ("PASS", "MB")) -> bool:
    """Whether a layer of a stage is selected by the tags of a filter that speak of layers."""
    for tag, want in filt.items():
        if tag in ignore:
            continue
        have = stage if tag == "PP" else layer.tags.get(tag)
        if want is None:
            if have is not None:
                return False
        elif want == "*":
            if have is None:
                return False
        elif have != want:
            return False
    return True


def stages_of(dag: Dag, directive: int, filt: Filter, *, name: str) -> list[int]:
    """The stages that a filter selects as a whole. Raises `InputError` where it cuts through one or selects none."""
    check_tags(dag, directive, filt)
    if set(filt) & {"PASS", dag.dim_name}:
        raise invalid(directive, f"{name} selects stages: PASS and {dag.dim_name} have no place in its filter")
    index = filt.get("PP", "*")
    if set(filt) <= {"PP"} and isinstance(index, int):
        selected = [index] if index < dag.stages else []
    else:
        selected = []
        for stage in range(dag.stages):
            hits = [
                matches_layer(filt, dag.model.layers[i], stage)
                for chunk in dag.chunks
                if chunk.stage == stage
                for i in range(chunk.start, chunk.stop)
            ]
            if any(hits) and not all(hits):
                raise invalid(directive, f"{name} selects a part of stage {stage} only: {dict(filt)}")
            if all(hits):
                selected.append(stage)
    if not selected:
        raise invalid(directive, f"{name}'s filter {dict(filt)} matches nothing ({count(dag.stages, 'stage')})")
    return selected


def select(dag: Dag, directive: int, filt: Filter) -> list[Selected]:
    """All chunks (op, stage, part, mb) of replica 0 that a filter of an `order` row selects, in default order.

    PASS BI and BW select the backward that they split. Raises `InputError` (V9) where nothing matches.
    """
    check_tags(dag, directive, filt)
    stage, mb, op = filt.get("PP", "*"), filt.get(dag.dim_name, "*"), filt.get("PASS", "*")
    ops = ("F", "B", "BI", "BW") if op == "*" else (str(op),)
    extra = [tag for tag in filt if tag not in ("PP", "PASS", dag.dim_name)]
    candidates = dag.chunks if stage == "*" else [] if stage is None else dag.chunks_of(int(stage))
    mbs = range(dag.microbatches) if mb == "*" else [] if mb is None else [int(mb)]
    found: list[Selected] = []
    for one in ops:
        chunks = candidates if one == "F" else reversed(candidates)
        keys = [
            c.key
            for c in chunks
            if not extra
            or all(
                matches_layer(filt, dag.model.layers[i], c.stage, ignore=("PASS", dag.dim_name))
                for i in range(c.start, c.stop)
            )
        ]
        found += [(one, s, p, i) for i in mbs for s, p in keys if (one, s, p, i) in dag.compute]
    if not found:
        size = f"{count(dag.stages, 'stage')}, {count(dag.microbatches, 'microbatch')}"
        raise invalid(directive, f"the filter {dict(filt)} matches nothing ({size})")
    return found

"""stages: group the model's layers into stages, and cut stages into chunks where a bucket or a recompute asks for it.

Requires a model with at least one layer.
Ensures every layer is in exactly one chunk, chunks in layer order, stages 0..n-1 all present, and each chunk's inputs
and outputs name the chunks at their other end. Leaves tasks alone (there are none yet).

How many stages: as many as the model's own `PP` annotation fixes, else the largest `PP` index that a filter names plus
one, else what `cut` gives, else one. Where: at `cut`, else balanced by cost.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from pibroch.runtime.action import Chunk
from pibroch.runtime.dag import Dag, invalid
from pibroch.runtime.directives import Cut, Order, Recompute, Replicate
from pibroch.runtime.generated import load_generated
from pibroch.runtime.passes.filters import check_tags, matches_layer, stages_of
from pibroch.runtime.plan import ChunkSpec
from pibroch.runtime.words import count

MB = 1_000_000


def run(dag: Dag) -> None:
    bounds = _stage_bounds(dag)
    dag.stages = len(bounds) - 1
    dag.chunks = [ChunkSpec(stage=s, part=0, start=bounds[s], stop=bounds[s + 1]) for s in range(dag.stages)]
    cuts = _bucket_cuts(dag)
    recomputed, recompute_cuts = _recompute(dag)
    cuts |= recompute_cuts
    chunks: list[ChunkSpec] = []
    for whole in dag.chunks:
        edges = [whole.start, *sorted(c for c in cuts if whole.start < c < whole.stop), whole.stop]
        for part, (start, stop) in enumerate(pairwise(edges)):
            chunks.append(_chunk(dag, whole.stage, part, start, stop, recompute=start in recomputed))
    dag.chunks = chunks
    _connect(dag)


def ensures(dag: Dag) -> None:
    covered = [i for c in dag.chunks for i in range(c.start, c.stop)]
    assert covered == list(range(len(dag.model.layers))), "every layer is in exactly one chunk, in order"
    assert sorted({c.stage for c in dag.chunks}) == list(range(dag.stages))
    by_key = {c.key: c for c in dag.chunks}
    for c in dag.chunks:
        assert all((value, c.key) in by_key[source].outputs for value, source in c.inputs)
        assert all((value, c.key) in by_key[target].inputs for value, target in c.outputs)


def balanced_bounds(costs: list[float], stages: int) -> list[int]:
    """Cut `costs` into `stages` non-empty runs whose largest sum is as small as possible.

    Binary search on the largest sum, then runs as even as that sum allows.
    """
    low, high = max(costs), sum(costs)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _runs_needed(costs, middle) <= stages else (middle, high)
    cap = high * (1 + 1e-9)
    bounds, start, left = [0], 0, sum(costs)
    for remaining in range(stages, 0, -1):
        target, total, stop = left / remaining, 0.0, start
        while stop < len(costs) - (remaining - 1):
            fits = total + costs[stop] <= cap
            wanted = total + costs[stop] / 2 < target
            rest_fits = _runs_needed(costs[stop:], cap) <= remaining - 1 if remaining > 1 else False
            if stop > start and not (fits and (wanted or not rest_fits)):
                break
            total += costs[stop]
            stop += 1
        bounds.append(stop)
        left -= total
        start = stop
    return bounds


def _runs_needed(costs: list[float], cap: float) -> int:
    runs, total = 1, 0.0
    for cost in costs:
        if total + cost > cap * (1 + 1e-12) and total:
            runs, total = runs + 1, 0.0
        total += cost
    return runs


def _stage_bounds(dag: Dag) -> list[int]:
    layers, directives = dag.model.layers, dag.schedule.directives
    cuts = [(i, d) for i, d in enumerate(directives) if isinstance(d, Cut)]
    if len(cuts) > 1:
        raise invalid(cuts[1][0], f"a second cut: directive {cuts[0][0]} has set the stage boundaries already")
    if dag.model.fixed_stages:
        if cuts:
            raise invalid(cuts[0][0], "the model annotates PP and so fixes its stages: remove the cut")
        return _own_bounds(dag)
    named = _largest_index(dag)
    if cuts:
        where, at = cuts[0][0], list(cuts[0][1].at)
        if at != sorted(set(at)) or at[-1] >= len(layers):
            raise invalid(where, f"cut at {at}: boundaries ascend and lie below the model's {len(layers)} layers")
        if named > len(at) + 1:
            raise invalid(where, f"cut makes {len(at) + 1} stages, but a filter names stage {named - 1}")
        return [0, *at, len(layers)]
    stages = max(named, 1)
    if stages > len(layers):
        have = count(len(layers), "layer")
        raise invalid(None, f"{count(stages, 'stage')}, but the model has only {have} to cut between")
    return balanced_bounds([layer.flops for layer in layers], stages)


def _own_bounds(dag: Dag) -> list[int]:
    bounds, last = [0], 0
    for layer in dag.model.layers:
        stage = layer.tags.get("PP", last)
        if stage == last + 1:
            bounds.append(layer.index)
            last = stage
        elif stage != last:
            raise invalid(None, f"the model's PP regions are out of order: {stage} follows {last}")
    return [*bounds, len(dag.model.layers)]


def _largest_index(dag: Dag) -> int:
    largest = -1
    for d in dag.schedule.directives:
        if isinstance(d, Order):
            for group in d.groups():
                for f in group:
                    index = f.get("PP")
                    if isinstance(index, int) and index > largest:
                        largest = index
        elif not isinstance(d, Cut):
            index = d.filter.get("PP")
            if isinstance(index, int):
                largest = max(largest, index)
    return largest + 1


def _bucket_cuts(dag: Dag) -> set[int]:
    """Layer indices at which a chunk must start so that each chunk holds at least `bucket_size` MB of parameters."""
    cuts: set[int] = set()
    for where, d in enumerate(dag.schedule.directives):
        if not isinstance(d, Replicate) or d.bucket_size is None:
            continue
        for stage in stages_of(dag, where, d.filter, name="replicate"):
            whole = dag.chunks[stage]
            sizes = [
                sum(dag.model.params[p].nbytes for p in dag.model.layers[i].params if dag.model.params[p].trainable)
                for i in range(whole.start, whole.stop)
            ]
            floor = ceil(d.bucket_size * MB)  # sizes are whole bytes
            cuts |= {whole.start + offset for offset in load_generated("bucket_packer").cuts(sizes, floor)}
    return cuts


def _recompute(dag: Dag) -> tuple[set[int], set[int]]:
    """Recomputed layers, and where chunks must be cut: around them, and at each layer where layers are named."""
    recomputed: dict[int, int] = {}
    cuts: set[int] = set()
    stage_of = {i: c.stage for c in dag.chunks for i in range(c.start, c.stop)}
    for where, d in enumerate(dag.schedule.directives):
        if not isinstance(d, Recompute):
            continue
        check_tags(dag, where, d.filter)
        if set(d.filter) & {"PASS", dag.dim_name}:
            raise invalid(where, f"recompute selects layers: PASS and {dag.dim_name} have no place in its filter")
        hits = [layer.index for layer in dag.model.layers if matches_layer(d.filter, layer, stage_of[layer.index])]
        if not hits:
            raise invalid(where, f"recompute's filter {dict(d.filter)} matches no layer")
        for i in hits:
            if i in recomputed:
                raise invalid(where, f"layer {i} is recomputed by directive {recomputed[i]} already")
            recomputed[i] = where
            if set(d.filter) - {"PP"}:
                cuts |= {i, i + 1}
    cuts |= {i for i in recomputed if i - 1 not in recomputed} | {i + 1 for i in recomputed if i + 1 not in recomputed}
    return set(recomputed), cuts


def _chunk(dag: Dag, stage: int, part: int, start: int, stop: int, *, recompute: bool) -> ChunkSpec:
    layers = dag.model.layers[start:stop]
    return ChunkSpec(
        stage=stage,
        part=part,
        start=start,
        stop=stop,
        params=tuple(dict.fromkeys(p for layer in layers for p in layer.params)),
        saved_bytes=sum(layer.saved_bytes for layer in layers),
        weight_saved_bytes=sum(layer.weight_saved_bytes for layer in layers),
        flops=sum(layer.flops for layer in layers),
        recompute=recompute,
    )


def _connect(dag: Dag) -> None:
    """Fill each chunk's inputs and outputs from the values that its layers consume and produce."""
    chunk_of = [c for c in dag.chunks for _ in range(c.start, c.stop)]
    producer = {value: layer.index for layer in dag.model.layers for value in layer.produces}
    outputs: dict[Chunk, dict[tuple[str, Chunk], None]] = {c.key: {} for c in dag.chunks}
    for chunk in dag.chunks:
        inputs: dict[tuple[str, Chunk], None] = {}
        for layer in dag.model.layers[chunk.start : chunk.stop]:
            for value in layer.consumes:
                source = chunk_of[producer[value]]
                if source is not chunk:
                    inputs[(value, source.key)] = None
                    outputs[source.key][(value, chunk.key)] = None
        chunk.inputs = tuple(inputs)
    for chunk in dag.chunks:
        chunk.outputs = tuple(outputs[chunk.key])

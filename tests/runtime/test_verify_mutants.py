"""The verifier against an independent oracle: it refuses every wrong mutant, and no plan that the compiler emits."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from plan_mutants import MODELS, MUTATIONS, compile_cell, mutate
from plan_oracle import examine

from pibroch.runtime.families import FAMILIES
from pibroch.runtime.model import ModelSpec
from pibroch.runtime.plan import Plan
from pibroch.runtime.verify import verify

MUTANTS = 2500
SMALL = 140
"""Tasks in a plan that the oracle judges, and that mutants are made of."""

VARIANTS = (  # model, buckets, recompute, uneven cut
    ("uniform", False, False, False),
    ("skip", False, True, False),
    ("tied", True, False, False),
    ("shared", True, False, True),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_compiled_plan_is_refused(family: str) -> None:
    """Positions 1 to 4, replicas 1 to 3, microbatches 1, 2, 3, 5, 8, with buckets, recomputation and uneven cuts."""
    plans = judged = 0
    for p in (1, 2, 3, 4):
        for m in (1, 2, 3, 5, 8):
            for replicas in (1, 2, 3):
                for model, bucket, recompute, uneven in VARIANTS:
                    cell = compile_cell(
                        family, p, m, replicas, model, bucket=bucket, recompute=recompute, uneven=uneven
                    )
                    if cell is None:
                        continue
                    plan, spec = cell
                    where = f"{family} p={p} m={m} replicas={replicas} {model}"
                    assert verify(plan, model=spec) == [], where
                    plans += 1
                    if len(plan.tasks) <= SMALL:
                        assert examine(plan, spec, seed=plans) == [], where
                        judged += 1
    assert plans >= 240
    print(f"{family}: {plans} plans, none refused; the oracle agrees on the {judged} small ones")


def test_every_wrong_mutant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(20240607)
    plans = _plans(rng, 60)
    names = list(MUTATIONS)
    counts: Counter[tuple[bool, bool]] = Counter()
    kinds: Counter[str] = Counter()
    strict: Counter[str] = Counter()
    missed: list[str] = []
    done = tried = 0
    while done < MUTANTS:
        where, plan, spec = plans[rng.randrange(len(plans))]
        name = names[tried % len(names)]
        tried += 1
        made = mutate(plan, rng, name)
        if made is None:  # no place for this fault in this plan
            continue
        mutant, what = made
        problems = examine(mutant, spec, seed=done)
        refused = verify(mutant, model=spec)
        counts[bool(problems), bool(refused)] += 1
        done += 1
        if problems:
            kinds[problems[0].split(":")[0]] += 1
            if not refused:
                missed.append(f"{where}: {what}: {problems[:2]}")
        elif refused:
            strict[name] += 1
    with capsys.disabled():
        print(
            f"\n{done} mutants of {len(plans)} plans: {counts[True, True]} wrong and refused "
            f"({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}), {len(missed)} wrong and missed, "
            f"{counts[False, False]} harmless and passed, {counts[False, True]} harmless but refused {dict(strict)}"
        )
    assert not missed
    assert counts[True, True] >= 2000
    assert counts[False, False] > 0


def _plans(rng: random.Random, count: int) -> list[tuple[str, Plan, ModelSpec]]:
    """Small plans of all families, sizes, models and options."""
    plans: list[tuple[str, Plan, ModelSpec]] = []
    while len(plans) < count:
        family, model = FAMILIES[len(plans) % len(FAMILIES)], rng.choice(list(MODELS))
        p, m, replicas = rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 3, 5)), rng.choice((1, 2, 2, 3))
        bucket, recompute = rng.choice([(False, False), (True, False), (False, True)])
        cell = compile_cell(
            family, p, m, replicas, model, bucket=bucket, recompute=recompute, uneven=rng.random() < 0.3
        )
        if cell is not None and len(cell[0].tasks) <= SMALL:
            assert examine(*cell) == []
            plans.append((f"{family} p={p} m={m} replicas={replicas} {model}", *cell))
    return plans

"""split_backward: cut the backwards that an `order` row names by BI and BW in two.

Requires F and B per chunk and microbatch (from `split`).
Ensures a named backward is a BI (gradient of inputs; what depended on B depends on it) and a BW (gradient of weights,
after it); the others stay whole.
"""

from __future__ import annotations

from pibroch.runtime.dag import Dag, invalid
from pibroch.runtime.directives import Order
from pibroch.runtime.passes.filters import select
from pibroch.runtime.plan import Task


def run(dag: Dag) -> None:
    named: dict[tuple[int, int, int], int] = {}
    for where, row in enumerate(dag.schedule.directives):
        if not isinstance(row, Order):
            continue
        counts: dict[tuple[int, int, int], list[str]] = {}
        for group in row.groups():
            for filt in group:
                if (op := filt.get("PASS")) in ("BI", "BW"):
                    for _, *key in select(dag, where, {**filt, "PASS": "B"}):
                        counts.setdefault((key[0], key[1], key[2]), []).append(str(op))
        for chunk, ops in counts.items():
            name = f"the backward of stage {chunk[0]}, microbatch {chunk[2]}"
            if ops != ["BI", "BW"]:
                raise invalid(where, f"{name} is named by {', '.join(ops)}: a row has exactly one BI and then one BW")
            if chunk in named:
                raise invalid(where, f"{name} is split by directive {named[chunk]} already")
            named[chunk] = where
    for stage, part, mb in named:
        i = dag.compute.pop(("B", stage, part, mb))
        dag.tasks[i].op = "BI"
        dag.compute["BI", stage, part, mb] = i
        weight = dag.add(Task(0, "BW", stage=stage, part=part, mb=mb, deps=[i]))
        dag.compute["BW", stage, part, mb] = weight.id
    dag.block = len(dag.tasks)


def ensures(dag: Dag) -> None:
    for op, stage, part, mb in dag.compute:
        rest = (stage, part, mb)
        if op == "F":
            assert (("B", *rest) in dag.compute) != (("BI", *rest) in dag.compute)
        assert (("BI", *rest) in dag.compute) == (("BW", *rest) in dag.compute)

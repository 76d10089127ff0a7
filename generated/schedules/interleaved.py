# Generated from interleaved.spec.md, version 1. Edit the spec, not this file.
def placement(p: int, v: int) -> list[int]:
    """Interleaved 1F1B (Narayanan et al., arXiv 2104.04473) over p positions, m microbatches and v >= 2 stages per position.
    Stage s of the p * v stages sits on position s % p: `placement` lists the position of each stage. `rows` lists, for
    each position, what it runs in its order: chunks ("F" or "B", stage, microbatch), the forward and the whole backward
    of each of its own stages and each microbatch once.

    Microbatches go in groups of neighbours. There are max(1, m // p) groups of nearly equal sizes: no two differ by more
    than 1 and the larger ones come first (so where p divides m, each has p). A position's forwards go group by group; in
    a group, stage by stage in rising order; in a stage, by rising microbatch. Its backwards go group by group; in a
    group, stage by stage in falling order; in a stage, by rising microbatch.

    Position r first runs w = 2(p - 1 - r) + (v - 1)g forwards (or all m * v, if that is fewer), where g is the size of
    the first group; then a forward and a backward in turn until no forward is left; then the remaining backwards.

    p = 2, m = 2, v = 2 (`2F0` is stage 2, microbatch 0), time running to the right (F takes 1, B takes 2):

        0 | 0F0 0F1 2F0 2F1 ... ... 2B0 2B0 ... 2B1 2B1 0B0 0B0 0B1 0B1
        1 | ... 1F0 1F1 3F0 3B0 3B0 3F1 3B1 3B1 1B0 1B0 1B1 1B1 ... ...

    So the j-th backward (from 0) comes right after min(m * v, w + 1 + j) forwards and j backwards. Position r holds min(m
    * v, w + 1) chunks in flight and, where m >= p, idles (p - 1)(F + B) of a chunk.

    Given p >= 1 and v >= 2
    P1: return [s % p for s in range(p * v)]
    """
    return [s % p for s in range(p * v)]


def _groups(p: int, m: int) -> list[range]:
    count = max(1, m // p)
    small, extra = divmod(m, count)
    groups = []
    start = 0
    for k in range(count):
        stop = start + small + (1 if k < extra else 0)
        groups.append(range(start, stop))
        start = stop
    return groups


def _row(r: int, p: int, m: int, v: int, groups: list[range]) -> list[tuple[str, int, int]]:
    stages = range(r, p * v, p)
    forwards = [("F", s, i) for group in groups for s in stages for i in group]
    backwards = [("B", s, i) for group in groups for s in reversed(stages) for i in group]
    first = min(m * v, 2 * (p - 1 - r) + (v - 1) * len(groups[0]))
    row = forwards[:first]
    for j, backward in enumerate(backwards):
        row.extend(forwards[first + j : first + j + 1])
        row.append(backward)
    return row


def rows(p: int, m: int, v: int) -> list[list[tuple[str, int, int]]]:
    """The chunks that each position runs, in its order.

    Given p >= 1 and m >= 1 and v >= 2
    """
    groups = _groups(p, m)
    return [_row(r, p, m, v, groups) for r in range(p)]

# Generated from one_f_one_b.spec.md, version 1. Edit the spec, not this file.
def placement(p: int, v: int) -> list[int]:
    """1F1B (PipeDream-Flush; Narayanan et al., arXiv 2006.09503) over p positions and m microbatches, one stage per
    position: v is always 1, and stage s sits on position s; `placement` lists the position of each stage. `rows` lists,
    for each position, what it runs in its order: chunks ("F" or "B", stage, microbatch), the forward and the whole
    backward of its own stage for each microbatch once. Position r runs min(m, p - 1 - r) forwards, then a forward and a
    backward in turn until no forward is left, then the remaining backwards. Forwards are in the order of their
    microbatches, and so are backwards.

    p = 3, m = 4, time running to the right (F takes 1, B takes 2):

        0 | F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 .. B2 B2 .. B3 B3
        1 | .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3 .. ..
        2 | .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. .. .. ..

    So the backward of microbatch i comes right after min(m, p - r + i) forwards and i backwards. Position r holds min(m,
    p - r) microbatches in flight and idles (p - 1)(F + B).

    Given p >= 1 and v == 1
    P1: return list(range(p))
    """
    return list(range(p))


def _row(p: int, m: int, r: int) -> list[tuple[str, int, int]]:
    ahead = min(m, p - 1 - r)
    row = [("F", r, i) for i in range(ahead)]
    for i in range(m):
        if ahead + i < m:
            row.append(("F", r, ahead + i))
        row.append(("B", r, i))
    return row


def rows(p: int, m: int, v: int) -> list[list[tuple[str, int, int]]]:
    """The chunks that each position runs, in its order.

    Given p >= 1 and m >= 1 and v == 1
    """
    return [_row(p, m, r) for r in range(p)]

# Generated from gpipe.spec.md, version 1. Edit the spec, not this file.
def placement(p: int, v: int) -> list[int]:
    """GPipe (Huang et al., arXiv 1811.06965) over p positions, m microbatches and v stages per position; with v > 1 it is
    looped breadth-first (Lamy-Poirier, arXiv 2211.05953). Stage s of the p * v stages sits on position s % p: `placement`
    lists the position of each stage. `rows` lists, for each position, what it runs in its order: chunks ("F" or "B",
    stage, microbatch), the forward and the whole backward of each of its own stages and each microbatch once. A position
    runs all its forwards, stage by stage in rising order and in each stage by rising microbatch, then all its backwards,
    stage by stage in falling order and in each stage by rising microbatch.

    p = 3, m = 3, v = 1, time running to the right (F takes 1, B takes 2):

        0 | F0 F1 F2 .. .. .. .. .. .. B0 B0 B1 B1 B2 B2
        1 | .. F0 F1 F2 .. .. .. B0 B0 B1 B1 B2 B2 .. ..
        2 | .. .. F0 F1 F2 B0 B0 B1 B1 B2 B2 .. .. .. ..

    Each position holds up to m * v chunks in flight and idles (p - 1)(F + B) where v = 1 or m >= p.

    Given p >= 1 and v >= 1
    P1: return [s % p for s in range(p * v)]
    """
    return [s % p for s in range(p * v)]


def rows(p: int, m: int, v: int) -> list[list[tuple[str, int, int]]]:
    """For each position, what its compute stream runs, in order.

    Given p >= 1 and m >= 1 and v >= 1
    """
    return [_row(p, m, v, r) for r in range(p)]


def _row(p: int, m: int, v: int, r: int) -> list[tuple[str, int, int]]:
    own = range(r, p * v, p)
    forwards = [("F", s, i) for s in own for i in range(m)]
    backwards = [("B", s, i) for s in reversed(own) for i in range(m)]
    return forwards + backwards

# Generated from zb_h1.spec.md, version 1. Edit the spec, not this file.
def placement(p: int, v: int) -> list[int]:
    """ZB-H1 (Qi et al., arXiv 2401.10241) over p positions and m microbatches, one stage per position: v is always 1, and
    stage s sits on position s; `placement` lists the position of each stage. `rows` lists, for each position, what it
    runs in its order: chunks (kind, stage, microbatch) of the kinds "F" (forward), "BI" (the backward's half that gives
    the gradient of the inputs) and "BW" (the half that gives that of the weights), each of the position's own stage and
    each microbatch once. All three go by rising microbatch.

    Position r first runs min(m, p - r) forwards. Then, for i = 0, 1, …, m + r - 1 in turn, it runs the BI of microbatch
    i, the BW of microbatch i - r, and the F of microbatch p - r + i, in this order, leaving out those whose microbatch is
    not in 0..m-1. So position r lags r weight halves behind.

    p = 3, m = 4 (`b` is BI, `w` is BW), time running to the right, each taking 1:

        0 | F0 F1 F2 .. .. b0 w0 F3 b1 w1 b2 w2 b3 w3
        1 | .. F0 F1 .. b0 F2 b1 w0 F3 b2 w1 b3 w2 w3
        2 | .. .. F0 b0 F1 b1 F2 b2 w0 F3 b3 w1 w2 w3

    Each position holds min(m, p) microbatches in flight (from F to BW) and, where m >= p, idles (p - 1)(F + BI - BW).

    Given p >= 1 and v == 1
    P1: return list(range(p))
    """
    return list(range(p))


def _row(p: int, m: int, r: int) -> list[tuple[str, int, int]]:
    row = [("F", r, i) for i in range(min(m, p - r))]
    for i in range(m + r):
        for kind, microbatch in (("BI", i), ("BW", i - r), ("F", p - r + i)):
            if 0 <= microbatch < m:
                row.append((kind, r, microbatch))
    return row


def rows(p: int, m: int, v: int) -> list[list[tuple[str, int, int]]]:
    """The chunks that each position runs, in its order.

    Given p >= 1 and m >= 1 and v == 1
    """
    return [_row(p, m, r) for r in range(p)]

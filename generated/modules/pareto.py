# Generated from pareto.spec.md, version 1. Edit the spec, not this file.
def _beats(a: list[int], b: list[int]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b))


def front(points: list[list[int]]) -> list[int]:
    """A point is a list of objectives, all to be minimised; all points have the same number of them. A point beats another
    if it is at most as large in every objective and smaller in at least one. The result lists the indices, ascending, of
    the points that no point beats. Of several equal points only the first one counts; the others are left out.

    Given len({len(point) for point in points}) <= 1
    P1: return [i for i, point in enumerate(points) if point not in points[:i] and not any(_beats(other, point) for other in points)]
    """
    return [
        i
        for i, point in enumerate(points)
        if point not in points[:i] and not any(_beats(other, point) for other in points)
    ]

# Generated from robust_stats.spec.md, version 1. Edit the spec, not this file.
def median(values: list[int]) -> int:
    """Given len(values) >= 1
    P1: ensure result == middle(values)
    """
    return sorted(values)[(len(values) - 1) // 2]


def mad(values: list[int]) -> int:
    """Given len(values) >= 1
    P2: ensure result == middle([abs(x - middle(values)) for x in values])
    """
    center = median(values)
    return median([abs(x - center) for x in values])

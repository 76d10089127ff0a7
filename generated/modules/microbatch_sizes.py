# Generated from microbatch_sizes.spec.md, version 1. Edit the spec, not this file.
def sizes(samples: int, parts: int) -> list[int]:
    """A batch of `samples` samples is cut into `parts` contiguous pieces. The result lists their sizes in order: there are
    exactly `parts` of them, they add up to `samples`, no two differ by more than 1, and the larger ones come first. A
    piece is empty where there are fewer samples than parts. (PyTorch's tensor_split cuts so.)

    Given samples >= 0 and parts >= 1
    P1: ensure len(result) == parts and sum(result) == samples
    P2: ensure result == sorted(result, reverse=True) and all(0 <= n - samples // parts <= 1 for n in result)
    """
    base = samples // parts
    extra = samples % parts
    return [base + 1] * extra + [base] * (parts - extra)

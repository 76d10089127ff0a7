# Generated from bucket_packer.spec.md, version 1. Edit the spec, not this file.
def cuts(sizes: list[int], floor: int) -> list[int]:
    """Layers of these sizes (0 or more), in order, are put into buckets of neighbours; `floor` is at least 1. The result
    lists the index at which every bucket but the first starts, ascending. A bucket ends as early as it can: after the
    first layer with which it holds at least `floor`, provided that the layers after it together hold at least `floor`
    too; otherwise everything left stays in it. So of several buckets each holds at least `floor`; where no bucket can end
    early, there is only one, and the result is empty.

    Given floor >= 1 and all(size >= 0 for size in sizes)
    P1: ensure all(a < b for a, b in zip([0] + result, result)) and all(c < len(sizes) for c in result)
    P2: ensure all(sum(sizes[a:b]) >= floor for a, b in zip([0] + result, result + [len(sizes)])) or not result
    P3: ensure all(sum(sizes[a : b - 1]) < floor for a, b in zip([0] + result, result))
    P4: ensure not any(sum(sizes[a:i]) >= floor and sum(sizes[i:]) >= floor for a in ([0] + result)[-1:] for i in range(a, len(sizes)))
    """
    starts: list[int] = []
    held = 0
    rest = sum(sizes)
    for index, size in enumerate(sizes):
        held += size
        rest -= size
        if held >= floor and rest >= floor:
            starts.append(index + 1)
            held = 0
    return starts

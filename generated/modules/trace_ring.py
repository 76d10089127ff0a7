# Generated from trace_ring.spec.md, version 1. Edit the spec, not this file.
samples: list[int] = []


def view() -> dict[str, object]:
    current = samples
    return {"samples": list(current)}


def record(value: int) -> None:
    """Given value >= 0
    T1: ensure self.samples == (old.samples + [value])[-16:]
    Change no other field than samples
    """
    global samples
    current = samples
    samples = (current + [value])[-16:]


def last(n: int) -> list[int]:
    """Given n >= 1
    T2: ensure result == self.samples[-n:]
    """
    current = samples
    return current[-n:]


def clear() -> None:
    """T3: ensure self.samples == []
    Change no other field than samples
    """
    global samples
    samples = []

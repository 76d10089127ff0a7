# Generated from flight_recorder.spec.md, version 1. Edit the spec, not this file.
import collections


class FlightRecorder:
    """INV1: always len(self.ring) <= self.size
    """

    def __init__(self, size: int) -> None:
        """Given size >= 1
        R0: ensure self.size == size and self.ring == []
        """
        self.size = size
        # a deque takes no greater bound than 2**63 - 1, and could never hold so many
        self.ring: collections.deque[tuple[int, int]] = collections.deque(maxlen=min(size, 2**63 - 1))

    def view(self) -> dict[str, object]:
        return {"size": self.size, "ring": list(self.ring)}

    def record(self, op: int) -> int:
        """R1: return (old.ring[-1][0] + 1 if old.ring else 0)
        R2: ensure self.ring == (old.ring + [(result, op)])[-self.size:]
        Change no other field than ring
        """
        ring = self.ring
        number = ring[-1][0] + 1 if ring else 0
        # one step for every reader: the new entry comes and, where the ring is full, the oldest goes
        ring.append((number, op))
        return number

    def last(self, n: int) -> list[tuple[int, int]]:
        """Given n >= 0
        R3: ensure result == self.ring[max(len(self.ring) - n, 0):]
        """
        kept = list(self.ring)
        return kept[max(len(kept) - n, 0) :]

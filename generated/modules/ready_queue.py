# Generated from ready_queue.spec.md, version 1. Edit the spec, not this file.
import heapq


def _downstream_counts(before: list[list[int]]) -> list[int]:
    below = [0] * len(before)
    counts = [0] * len(before)
    for i in range(len(before) - 1, -1, -1):
        mask = below[i]
        counts[i] = bin(mask).count("1")
        mask |= 1 << i
        for j in before[i]:
            below[j] |= mask
        below[i] = 0
    return counts


class ReadyQueue:
    def __init__(self, before: list[list[int]], streams: list[int]) -> None:
        """Given len(before) == len(streams)
        Given all(len(set(b)) == len(b) and all(0 <= j < i for j in b) for i, b in enumerate(before))
        P1: ensure (self.before, self.streams, self.taken, self.finished) == (before, streams, [], [])
        P2: ensure self.ready == [i for i, b in enumerate(before) if not b]
        """
        self.before = [list(b) for b in before]
        self.streams = list(streams)
        self.ready: set[int] = set()
        self.taken: set[int] = set()
        self.finished: set[int] = set()
        self._counts = _downstream_counts(self.before)
        self._waiting = [len(b) for b in self.before]
        self._after: list[list[int]] = [[] for _ in self.before]
        self._heaps: dict[int, list[tuple[int, int]]] = {s: [] for s in self.streams}
        for i, b in enumerate(self.before):
            for j in b:
                self._after[j].append(i)
            if not b:
                self._make_ready(i)

    def view(self) -> dict[str, object]:
        return {
            "before": [list(x) for x in self.before],
            "streams": list(self.streams),
            "ready": sorted(self.ready),
            "taken": sorted(self.taken),
            "finished": sorted(self.finished),
        }

    def _make_ready(self, item: int) -> None:
        self.ready.add(item)
        heapq.heappush(self._heaps[self.streams[item]], (-self._counts[item], item))

    def take(self, stream: int) -> int | None:
        """P3: return min([i for i in old.ready if old.streams[i] == stream], default=None, key=lambda i: (-downstream(old.before, i), i))
        P4: ensure self.ready == [i for i in old.ready if i != result] and self.taken == sorted(old.taken + [i for i in old.ready if i == result])
        Change no other field than ready, taken
        """
        heap = self._heaps.get(stream)
        if not heap:
            return None
        item = heapq.heappop(heap)[1]
        self.ready.remove(item)
        self.taken.add(item)
        return item

    def finish(self, item: int) -> None:
        """R1: raise ValueError if item not in old.taken
        P5: ensure self.taken == [i for i in old.taken if i != item] and self.finished == sorted(old.finished + [item])
        P6: ensure self.ready == sorted(old.ready + [i for i, b in enumerate(old.before) if item in b and set(b) <= set(self.finished)])
        Change no other field than ready, taken, finished
        """
        if item not in self.taken:
            raise ValueError("item is not under way")
        self.taken.remove(item)
        self.finished.add(item)
        for i in self._after[item]:
            self._waiting[i] -= 1
            if self._waiting[i] == 0:
                self._make_ready(i)

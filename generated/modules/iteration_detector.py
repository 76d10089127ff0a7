# Generated from iteration_detector.spec.md, version 1. Edit the spec, not this file.
import robust_stats


class IterationDetector:
    """INV1: always len(self.durations) <= self.window and [] in [self.pattern, self.recent]
    """

    def __init__(self, repeats: int, limit: int, window: int, k: int) -> None:
        """Given repeats >= 2 and limit >= 1 and window >= 1 and k >= 0
        P0: ensure (self.repeats, self.limit, self.window, self.k, self.recent, self.pattern, self.place, self.began, self.last, self.durations) == (repeats, limit, window, k, [], [], 0, 0, 0, [])
        """
        self.repeats = repeats
        self.limit = limit
        self.window = window
        self.k = k
        self.recent: list[int] = []
        self.pattern: list[int] = []
        self.place = 0
        self.began = 0
        self.last = 0
        self.durations: list[int] = []

    def view(self) -> dict[str, object]:
        return {"repeats": self.repeats, "limit": self.limit, "window": self.window, "k": self.k, "recent": list(self.recent), "pattern": list(self.pattern), "place": self.place, "began": self.began, "last": self.last, "durations": list(self.durations)}

    def record(self, op: int, now: int) -> str:
        """Given now >= old.last
        P1: ensure self.last == now
        P2: ensure implies(old.pattern == [], self.pattern == found((old.recent + [op])[-old.repeats * old.limit :], old.repeats, old.limit))
        P3: ensure implies(old.pattern == [], result == ("found" if self.pattern != [] else "searching"))
        P4: ensure self.recent == ([op] if result == "lost" else (old.recent + [op])[-old.repeats * old.limit :] if result == "searching" else [])
        P5: ensure implies(old.pattern != [] and op != old.pattern[old.place], result == "lost" and self.pattern == [])
        P6: ensure implies(old.pattern != [] and op == old.pattern[old.place], self.pattern == old.pattern and ( result in ["slow", "normal"] if old.place == len(old.pattern) - 1 else result == "running"))
        P7: ensure implies(result in ["slow", "normal"], (result == "slow") == ( len(old.durations) == old.window and 20 * (now - old.began) > 21 * robust_stats.median(old.durations) and now - old.began - robust_stats.median(old.durations) > old.k * robust_stats.mad(old.durations)))
        P8: ensure (self.place, self.began) == ((old.place + 1, old.began) if result == "running" else (0, now) if result in ["found", "slow", "normal"] else (0, old.began))
        P9: ensure self.durations == ((old.durations + [now - old.began])[-old.window :] if result == "normal" else [] if result == "lost" else old.durations)
        Change no other field than recent, pattern, place, began, last, durations
        """
        self.last = now
        if not self.pattern:
            return self._search(op, now)
        if op != self.pattern[self.place]:
            self.pattern = []
            self.durations = []
            self.place = 0
            self.recent = [op]
            return "lost"
        if self.place < len(self.pattern) - 1:
            self.place += 1
            return "running"
        took = now - self.began
        self.place = 0
        self.began = now
        if self._is_slow(took):
            return "slow"
        self.durations = (self.durations + [took])[-self.window :]
        return "normal"

    def blocked(self, now: int) -> bool:
        """Given now >= old.last
        P10: return (len(old.durations) == old.window and now - old.last > 5 * robust_stats.median(old.durations))
        """
        return len(self.durations) == self.window and now - self.last > 5 * robust_stats.median(self.durations)

    def _search(self, op: int, now: int) -> str:
        recent = (self.recent + [op])[-self.repeats * self.limit :]
        # recent holds at most repeats * limit operations, so no n here exceeds limit
        for n in range(1, len(recent) // self.repeats + 1):
            # the last repeats * n operations have the period n
            if recent[-self.repeats * n : -n] == recent[-(self.repeats - 1) * n :]:
                self.pattern = recent[-n:]
                self.recent = []
                self.place = 0
                self.began = now
                return "found"
        self.recent = recent
        return "searching"

    def _is_slow(self, took: int) -> bool:
        if len(self.durations) < self.window:
            return False
        median = robust_stats.median(self.durations)
        return 20 * took > 21 * median and took - median > self.k * robust_stats.mad(self.durations)

# Generated from comm_dispatcher.spec.md, version 1. Edit the spec, not this file.
import threading


class CommDispatcher:
    def __init__(self, kinds: list[int], window: int) -> None:
        """Given window >= 1 and all(k in (0, 1, 2) for k in kinds)
        D0: ensure (self.kinds, self.window) == (kinds, window)
        D1: ensure self.waiting == [False for _ in kinds] and self.open == [0 for _ in kinds]
        """
        self.kinds = list(kinds)
        self.window = window
        self.waiting = [False for _ in kinds]
        self.open = [0 for _ in kinds]
        self.lock = threading.Condition()

    def view(self) -> dict[str, object]:
        with self.lock:
            return {"kinds": list(self.kinds), "window": self.window, "waiting": list(self.waiting), "open": list(self.open)}

    def _first(self) -> int:
        # With the lock held: the smallest kind that waits with room, 2 if none does.
        ahead = [k for i, k in enumerate(self.kinds) if self.waiting[i] and self.open[i] < self.window]
        return min(ahead, default=2)

    def _may_go(self, s: int, first: int) -> bool:
        # With the lock held, for a stream that waits.
        return self.open[s] < self.window and self.kinds[s] <= first

    def announce(self, s: int) -> None:
        """Given 0 <= s < len(self.kinds) and not self.waiting[s]
        D2: ensure self.waiting == [w or i == s for i, w in enumerate(old.waiting)]
        Change no other field than waiting
        """
        with self.lock:
            self.waiting[s] = True

    def launch(self, s: int) -> None:
        """Given 0 <= s < len(self.kinds) and self.waiting[s]
        W1: wait until may_go(self, s)
        D3: ensure self.waiting == [w and i != s for i, w in enumerate(old.waiting)]
        D4: ensure self.open == [n + (i == s and old.kinds[s] == 1) for i, n in enumerate(old.open)]
        Change no other field than waiting, open
        """
        with self.lock:
            while not self._may_go(s, self._first()):
                self.lock.wait()
            self.waiting[s] = False
            if self.kinds[s] == 1:
                self.open[s] += 1
            self.lock.notify_all()

    def land(self, s: int) -> None:
        """Given 0 <= s < len(self.kinds) and self.open[s] > 0
        D5: ensure self.open == [n - (i == s) for i, n in enumerate(old.open)]
        Change no other field than open
        """
        with self.lock:
            self.open[s] -= 1
            self.lock.notify_all()

    def room(self, s: int) -> bool:
        """Given 0 <= s < len(self.kinds)
        D6: return room_of(old, s)
        """
        with self.lock:
            return self.open[s] < self.window

    def held(self) -> list[int]:
        """D7: return [s for s, w in enumerate(old.waiting) if w and not may_go(old, s)]
        """
        with self.lock:
            first = self._first()
            return [s for s, w in enumerate(self.waiting) if w and not self._may_go(s, first)]

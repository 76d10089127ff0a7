# Generated from request_queue.spec.md, version 1. Edit the spec, not this file.
import threading


class RequestQueue:
    """INV1: always len(self.waiting) <= self.limit
    """

    def __init__(self, limit: int) -> None:
        """Given limit >= 1
        Q0: ensure (self.limit, self.waiting, self.closed) == (limit, [], False)
        """
        self.limit = limit
        self.waiting: list[tuple[int, int]] = []
        self.closed = False
        self.lock = threading.Condition()

    def view(self) -> dict[str, object]:
        with self.lock:
            return {"limit": self.limit, "waiting": list(self.waiting), "closed": self.closed}

    def put(self, request: int, deadline: int) -> None:
        """W1: wait until self.closed or len(self.waiting) < self.limit
        X1: raise ValueError if old.closed
        Q1: ensure self.waiting == old.waiting + [(request, deadline)]
        Change no other field than waiting
        """
        with self.lock:
            while not (self.closed or len(self.waiting) < self.limit):
                self.lock.wait()
            if self.closed:
                raise ValueError("the queue is closed")
            self.waiting.append((request, deadline))
            self.lock.notify_all()

    def take(self, now: int) -> tuple[int | None, list[int]]:
        """W2: wait until self.closed or len(self.waiting) > 0
        Q2: return (first(in_time(old, now)), [r for r, d in old.waiting if d < now])
        Q3: ensure self.waiting == in_time(old, now)[1:]
        Change no other field than waiting
        """
        with self.lock:
            while not (self.closed or len(self.waiting) > 0):
                self.lock.wait()
            late = [request for request, deadline in self.waiting if deadline < now]
            in_time = [entry for entry in self.waiting if entry[1] >= now]
            self.waiting = in_time[1:]
            self.lock.notify_all()
        if in_time:
            return in_time[0][0], late
        return None, late

    def close(self) -> None:
        """Q4: ensure self.closed
        Change no other field than closed
        """
        with self.lock:
            self.closed = True
            self.lock.notify_all()

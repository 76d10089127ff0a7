# Generated from activation_store.spec.md, version 1. Edit the spec, not this file.
import threading


class ActivationStore:
    """INV1: always all(n >= 1 for n in self.uses.values())
    """

    def __init__(self) -> None:
        """S0: ensure self.uses == {}
        """
        self.uses: dict[int, int] = {}
        self.lock = threading.Lock()

    def view(self) -> dict[str, object]:
        with self.lock:
            return {"uses": dict(self.uses)}

    def put(self, handle: int, count: int) -> None:
        """Given count >= 1
        X1: raise ValueError if handle in old.uses
        S1: ensure self.uses == {**old.uses, handle: count}
        Change no other field than uses
        """
        with self.lock:
            if handle in self.uses:
                raise ValueError("handle is live already")
            self.uses[handle] = count

    def retain(self, handle: int) -> None:
        """X2: raise KeyError if handle not in old.uses
        S2: ensure self.uses == {**old.uses, handle: old.uses[handle] + 1}
        Change no other field than uses
        """
        with self.lock:
            if handle not in self.uses:
                raise KeyError(handle)
            self.uses[handle] += 1

    def release(self, handle: int) -> bool:
        """X3: raise KeyError if handle not in old.uses
        S3: return (old.uses[handle] == 1)
        S4: ensure self.uses == {h: n - (h == handle) for h, n in old.uses.items() if h != handle or n > 1}
        Change no other field than uses
        """
        with self.lock:
            if handle not in self.uses:
                raise KeyError(handle)
            if self.uses[handle] == 1:
                del self.uses[handle]
                return True
            self.uses[handle] -= 1
            return False

    def live(self) -> list[int]:
        """S5: return sorted(old.uses)
        """
        with self.lock:
            return sorted(self.uses)

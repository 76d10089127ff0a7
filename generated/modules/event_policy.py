# Generated from event_policy.spec.md, version 1. Edit the spec, not this file.
def advise(kind: str, now: int, earlier: list[int]) -> str:
    """A worker has failed in the way `kind` at the time `now` (seconds); `earlier` are the times of its earlier failures, in
    any order, none later than `now`. The advice is one of three words. "evict" (replace its machine): always for
    "device_lost" and "host_lost"; for "process_died" and "timeout" where any earlier failure is at most 300 seconds old
    (now - t <= 300; exactly 300 still counts). "retry" (start it again in place): for "process_died" and "timeout"
    otherwise. "rollback" (go back to the last checkpoint): for every other kind, whatever happened earlier.

    Given all(t <= now for t in earlier)
    P1: ensure implies(kind in ["device_lost", "host_lost"], result == "evict")
    P2: ensure implies(kind in ["process_died", "timeout"], result == ("evict" if any(now - t <= 300 for t in earlier) else "retry"))
    P3: ensure implies(kind not in ["device_lost", "host_lost", "process_died", "timeout"], result == "rollback")
    """
    if kind in ("device_lost", "host_lost"):
        return "evict"
    if kind in ("process_died", "timeout"):
        if any(now - t <= 300 for t in earlier):
            return "evict"
        return "retry"
    return "rollback"

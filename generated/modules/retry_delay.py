# Generated from retry_delay.spec.md, version 1. Edit the spec, not this file.
def delay_ms(attempt: int, base: int, limit: int) -> int:
    """Exponential back-off with a bound, in milliseconds. `attempt` counts the failed tries before this one, from 0: the
    wait is `base` for attempt 0 and doubles with each further attempt, but it is never longer than `limit`.

    Given 0 <= attempt <= 60 and base >= 0 and limit >= 0
    P1: ensure result == min(base * 2**attempt, limit)
    """
    return min(base * 2**attempt, limit)

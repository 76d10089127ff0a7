"""A process that writes to a playbook: `python playbook_writer.py FILE NAME COUNT`, one ADD a commit.

It prints each id once its commit has returned, so that a reader knows what must be there even if it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pibroch.playbooks.model import Add
from pibroch.playbooks.store import Store

# No two of them say the same: each has a number of its own.
TEXT = "Case {name}{i}: {number} microbatches were measured"


def main() -> None:
    file, name, count = sys.argv[1:]
    store = Store(Path(file))
    for i in range(int(count)):
        text = TEXT.format(name=name, i=i, number=10_000 + 1000 * (ord(name) - ord("a")) + i)
        (outcome,) = store.commit([Add(section="schedules", text=text)], why=f"{name}{i}")
        assert outcome.done == "added", outcome
        print(outcome.id, flush=True)


if __name__ == "__main__":
    main()

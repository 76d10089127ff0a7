"""Runs of evolution in processes that can be killed: `python evolve_server.py`, then one JSON object per line on stdin.

The heavy imports are paid once: each line forks a child that carries out one run (`{"path": …, "seed": …,
"evaluations": …, "resume": …}`) and whose process id is printed; its summary goes to `PATH.result`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Serve until stdin ends; children are reaped by whoever started the server."""
    sys.path.insert(0, str(Path(__file__).parent))
    from small_tasks import run, session

    run(Path(sys.argv[1]) / "warm", session(evaluations=1))
    print("ready", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        path = Path(told["path"])
        pid = os.fork()
        if pid == 0:
            os.setsid()  # a group of its own, to be killed as a whole
            new = None if told["resume"] else session(seed=told["seed"], evaluations=told["evaluations"])
            result = run(path, new)
            path.with_suffix(".result").write_text(json.dumps({"best": result["best"]["hash"]}))
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()

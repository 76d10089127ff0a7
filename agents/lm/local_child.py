"""The child of `local.py`: serves one GGUF file, one JSON line in, one JSON line out."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

from pibroch.evals.timing import measurement_lock
from pibroch.runtime.errors import PibrochError


def main(path: str, context: int) -> None:
    """Load the model and answer until standard input closes. llama.cpp's own prints go nowhere."""
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # die with the parent
    out = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    server = _server(path, context)
    for line in sys.stdin.buffer:
        os.write(out, json.dumps(_answer(server, json.loads(line))).encode() + b"\n")


def _server(path: str, context: int) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    return xllamacpp.Server(params)


def _answer(server: Any, job: dict[str, Any]) -> dict[str, Any]:
    wait_s = job.pop("wait_s")
    try:
        with measurement_lock(deadline=wait_s):  # no generation while something is being measured on this machine
            result = server.handle_chat_completions(job)
    except PibrochError as error:
        return {"error": str(error)}
    if isinstance(result, str):
        result = json.loads(result)
    if "choices" not in result:
        return {"error": str(result.get("error", result))[:300]}
    usage = result.get("usage", {})
    return {
        "text": result["choices"][0]["message"]["content"] or "",
        "input_tokens": usage.get("prompt_tokens", 0),
        "output_tokens": usage.get("completion_tokens", 0),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""A GGUF file served by llama.cpp (`xllamacpp`) in a child process that can be killed, on one thread.

The default file is Qwen2.5-Coder-0.5B-Instruct Q4_K_M (Apache-2.0). It is looked for at $PIBROCH_LOCAL_MODEL and in
the cache folder; another file is used as it is, a damaged default is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pibroch.agents.lm.base import LMError, Reply, Request, Usage
from pibroch.runtime.errors import InputError, MissingError
from pibroch.runtime.files import write_atomically

DEFAULT_FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
DEFAULT_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
DEFAULT_BYTES = 491_400_064
SOURCE = "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"
CONTEXT_TOKENS = 8192
MAX_TEXT_TOKENS = CONTEXT_TOKENS // 4  # of free text: a small model that goes in circles ends here


def cache_folder() -> Path:
    """Where the default file is looked for."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pibroch" / "models"


def find_model(path: Path | None = None) -> Path:
    """The GGUF file to serve. Raises `MissingError` that names the official source."""
    given = path or (Path(os.environ["PIBROCH_LOCAL_MODEL"]) if os.environ.get("PIBROCH_LOCAL_MODEL") else None)
    found = given or cache_folder() / DEFAULT_FILE
    if not found.is_file():
        raise MissingError(
            f"local model: {found} does not exist. Download {DEFAULT_FILE} ({DEFAULT_BYTES} bytes, sha256 "
            f"{DEFAULT_SHA256}) from {SOURCE}, and put it there or name it in PIBROCH_LOCAL_MODEL"
        )
    if found.name == DEFAULT_FILE or found.stat().st_size == DEFAULT_BYTES:
        _check_once(found)
    with found.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise InputError(f"{found} is not a GGUF file")
    return found


def _check_once(path: Path) -> None:
    """Hash half a gigabyte only where size or time have changed since the last check."""
    stat = path.stat()
    mark = path.with_name(path.name + ".checked")
    stamp = f"{DEFAULT_SHA256} {stat.st_size} {stat.st_mtime_ns}"
    with contextlib.suppress(OSError):
        if mark.read_text(encoding="utf-8") == stamp:
            return
    with path.open("rb") as handle:
        value = hashlib.file_digest(handle, "sha256").hexdigest()
    if value != DEFAULT_SHA256:
        raise InputError(f"{path} is damaged: sha256 {value}, not {DEFAULT_SHA256}; download it again from {SOURCE}")
    with contextlib.suppress(InputError):
        write_atomically(mark, stamp)


class LocalModel:
    """`local[:FILE]`. The child starts with the first request and is killed with `close()` or past a deadline."""

    def __init__(self, path: Path | None = None) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingError("local model: the package xllamacpp is not installed: pip install 'pibroch[local]'")
        self.path = find_model(path)
        self.name = f"local:{self.path.stem}"
        self._child: subprocess.Popen[bytes] | None = None

    def complete(self, request: Request) -> Reply:
        """Raises `LMError` where the child dies or the deadline passes; either way the child is gone then."""
        started = time.monotonic()
        schema = request.json_schema if "json" in request.blocks else None
        job = {
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "max_tokens": request.max_tokens if schema is not None else min(request.max_tokens, MAX_TEXT_TOKENS),
            "temperature": 0.7 if request.sample or request.attempt > 1 else 0.0,  # greedily it repeats its mistake
            "seed": request.sample + 100 * (request.attempt - 1),
            "wait_s": request.deadline_s * 0.9,  # for the measurement lock: its error comes before the deadline
        }  # fmt: skip
        if schema is not None:
            job["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
        try:
            answer = self._ask(json.dumps(job).encode() + b"\n", started + request.deadline_s)
        except BaseException:
            self.close()
            raise
        seconds = time.monotonic() - started
        if answer is None:
            raise LMError(f"{self.name}: no answer within {request.deadline_s:g} s")
        if "error" in answer:
            raise LMError(f"{self.name}: {answer['error']}")
        usage = Usage(int(answer["input_tokens"]), int(answer["output_tokens"]), False)
        text = str(answer["text"])
        return Reply(text if schema is None else f"```json\n{text}\n```", usage, self.name, seconds, who=self.name)

    def _ask(self, line: bytes, ends: float) -> dict[str, Any] | None:
        child = self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        text = b""
        unsent = memoryview(line)  # longer than a pipe holds, while the child still loads its file
        os.set_blocking(child.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdin, selectors.EVENT_WRITE)
            selector.register(child.stdout, selectors.EVENT_READ)
            while not text.endswith(b"\n"):
                left = ends - time.monotonic()
                if left <= 0:
                    self.close()
                    return None
                ready = {key.fileobj for key, _ in selector.select(left)}
                if child.stdin in ready:
                    try:
                        unsent = unsent[os.write(child.stdin.fileno(), unsent) :]
                    except BrokenPipeError as error:
                        raise LMError(f"{self.name}: the model's process ended") from error
                    if not unsent:
                        selector.unregister(child.stdin)
                if child.stdout in ready:
                    part = os.read(child.stdout.fileno(), 1 << 16)
                    if not part:
                        raise LMError(f"{self.name}: the model's process ended (exit status {child.poll()})")
                    text += part
        data = json.loads(text)
        assert isinstance(data, dict)
        return data

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self.close()
            self._child = subprocess.Popen(
                [sys.executable, "-m", "pibroch.agents.lm.local_child", str(self.path), str(CONTEXT_TOKENS)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return self._child

    def close(self) -> None:
        """Kill the child's whole process group and reap it."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

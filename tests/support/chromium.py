"""A headless Chromium driven over its debugging pipe, with the standard library only.

Messages are JSON objects ended by a NUL byte: file descriptor 3 is what the browser reads, 4 what it writes. Every wait
has a deadline. The browser runs in a process group of its own, which `close` ends.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-default-apps", "--no-default-browser-check", "--remote-debugging-pipe",
)  # fmt: skip
# Puts two descriptors where the browser looks for them, and becomes it. A shell would not do: some of them take only
# one digit as a descriptor's number.
WIRE = """
import fcntl, os, sys
high = [fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]]
for number, descriptor in zip((3, 4), high):
    os.dup2(descriptor, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
KEYS = {"+": ("Equal", 187), "-": ("Minus", 189), "0": ("Digit0", 48), "Tab": ("Tab", 9), "Enter": ("Enter", 13),
        "Home": ("Home", 36), "End": ("End", 35), "ArrowLeft": ("ArrowLeft", 37), "ArrowUp": ("ArrowUp", 38),
        "ArrowRight": ("ArrowRight", 39), "ArrowDown": ("ArrowDown", 40), "Escape": ("Escape", 27)}  # fmt: skip


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """One browser with one page. `problems` collects what the page logged as a warning or an error, and exceptions;
    `requests` all that it asked for."""

    def __init__(self, *, deadline: float = 60.0) -> None:
        path = chromium()
        assert path, "no chromium on PATH"
        self.deadline = deadline
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._buffer = b""
        self._id = 0
        self._events: list[dict[str, Any]] = []
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        command = [sys.executable, "-c", WIRE, str(to_read), str(to_write), path, *FLAGS,
                   f"--user-data-dir={self.home.name}", "about:blank"]  # fmt: skip
        self.process = subprocess.Popen(
            command, pass_fds=(to_read, to_write), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._session: str | None = None
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._out)
        os.close(self._in)
        self.home.cleanup()

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._id:
                assert "error" not in reply, (method, reply["error"])
                result: dict[str, Any] = reply["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + self.deadline
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser did not answer before the deadline"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser ended"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        if method:
            self._events.append(message)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, scale: float = 1) -> None:
        """Load a file; returns when its load event has fired."""
        self.problems.clear()
        self.requests.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)  # fmt: skip
        self.send("Emulation.setTouchEmulationEnabled", enabled=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()
        self.frame()

    def evaluate(self, expression: str) -> Any:
        reply = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def frame(self) -> None:
        """Wait until what is due has been drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def press(self, key: str, *, modifiers: int = 0) -> None:
        """`modifiers`: 1 Alt, 2 Control, 8 Shift."""
        code, number = KEYS.get(key, (f"Key{key.upper()}", ord(key.upper()[0])))
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)
        self.frame()

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.frame()

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"]))

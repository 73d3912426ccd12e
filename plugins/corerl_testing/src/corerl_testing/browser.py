"""A headless Chromium, controlled by its own protocol over a pair of pipes: no driver and no port."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT = 60.0
"""seconds for any answer"""

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """The program, or None if there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """One tab.

    Attributes:
        problems: errors and warnings of the console, and uncaught exceptions.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer, self._number, self._session = b"", 0, ""
        self.problems: list[str] = []
        self._events: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """The window's size, and whether the reader prefers dark pages."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        """Open a file, and wait until the browser has loaded it."""
        self._events.clear()
        self._call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + TIMEOUT
        while "Page.loadEventFired" not in self._events:
            self._take(self._receive(deadline))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited.

        Raises:
            RuntimeError: the expression throws.
        """
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The value of an expression once it is true.

        Raises:
            TimeoutError: the expression stays false.
        """
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.02)
        raise TimeoutError(f"{expression} is not true after {TIMEOUT:.0f} s")

    def screenshot(self, path: Path) -> None:
        """Save the window's content as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT
        while (answer := self._receive(deadline)).get("id") != self._number:
            self._take(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._answers, 2**20) if ready else b""
            if not data:
                raise TimeoutError("chromium does not answer" if not ready else "chromium has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _take(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(each.get("value", each)) for each in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])


@contextlib.contextmanager
def open_browser() -> Iterator[Page]:
    """A browser with an empty profile and one tab, closed at the end.

    Raises:
        FileNotFoundError: no Chromium is installed.
    """
    program = find_chromium()
    if program is None:
        raise FileNotFoundError(f"none of {', '.join(PROGRAMS)} is installed")
    for_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads from descriptor 3 and writes to 4; a shell puts the pipes there.
        places = f'exec "$0" "$@" 3<&{for_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", places, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(for_browser, from_browser),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(for_browser)
        os.close(from_browser)
        try:
            yield Page(commands, answers)
        finally:
            os.close(commands)
            process.terminate()
            process.wait(timeout=TIMEOUT)
            os.close(answers)

"""Chromium for the tests that look at pages as people do, over its own protocol (Chrome DevTools Protocol)."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

SECONDS = 30.0
"""After which a test fails instead of hanging."""


class Page:
    """A tab of a browser that runs."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands = commands
        self._events = events
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What was written to the console as a warning or an error, and exceptions."""
        self.requested: list[str] = []
        """Addresses of all requests."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command."""
        self._number += 1
        number, message = self._number, {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while (answer := self._next(end)).get("id") != number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, url: str, shows: str = "true") -> float:
        """Go to `url`; the seconds until the page is loaded and the expression `shows` holds in it."""
        started = time.monotonic()
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete' && ({shows})")
        return time.monotonic() - started

    def wait_for(self, condition: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.01)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            assert select.select([self._events], [], [], max(end - time.monotonic(), 0))[0], "the browser is silent"
            piece = os.read(self._events, 1 << 16)
            assert piece, "the browser ended"
            self._received += piece
        message, _, self._received = self._received.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("warning", "error", "assert"):
                self.complaints.append(str(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("warning", "error"):
                self.complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with one empty page, that keeps its files in `profile` and finds no host but 127.0.0.1."""
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--remote-debugging-pipe",  # reads from file descriptor 3 and writes to 4
    ]
    commands_out, commands_in = os.pipe()
    events_out, events_in = os.pipe()
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{commands_out} 4>&{events_in}', "bash", *command],
        pass_fds=[commands_out, events_in],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_out)
    os.close(events_in)
    try:
        page = Page(commands_in, events_out)
        yield page
    finally:
        process.terminate()  # its children end with it
        process.wait(SECONDS)
        os.close(commands_in)
        os.close(events_out)

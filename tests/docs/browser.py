"""Chromium for the tests that look at pages as people do: the system's, driven by Playwright."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, CDPSession, ConsoleMessage, Error, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

SECONDS = 30.0
"""After which a test fails instead of hanging."""

expect.set_options(timeout=SECONDS * 1000)


class Tab:
    """A tab of a browser that runs, and what was said of it."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        """What was written to the console as a warning or an error, and exceptions."""
        self.requested: list[str] = []
        """Addresses of all requests."""
        self._session: CDPSession = context.new_cdp_session(self.page)
        self.page.set_default_timeout(SECONDS * 1000)
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command of its own protocol, for what Playwright has no method."""
        result: dict[str, Any] = self._session.send(method, parameters)
        return result

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        return self.page.evaluate(f"async () => ({script})")

    def open(self, url: str, shows: str = "true") -> float:
        """Go to `url`; the seconds until the page is loaded and the expression `shows` holds in it."""
        started = time.monotonic()
        self.page.goto(url)
        self.wait_for(shows)
        return time.monotonic() - started

    def worked(self) -> float:
        """Seconds of a processor that the page's thread has taken, whatever else the machine does."""
        self.call("Performance.enable", timeDomain="threadTicks")
        measured = {each["name"]: each["value"] for each in self.call("Performance.getMetrics")["metrics"]}
        return float(measured["ThreadTime"])

    def wait_for(self, condition: str) -> None:
        """Wait until an expression holds in the page, or in the one that follows it."""
        end = time.monotonic() + SECONDS
        while not self._holds(condition):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.03)

    def _holds(self, condition: str) -> bool:
        try:
            return bool(self.run(f"Boolean({condition})"))
        except Error as error:
            if "because of a navigation" in str(error):
                return False
            raise

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("warning", "error", "assert"):
            self.complaints.append(f"{message.text} {message.location.get('url', '')}")


@contextmanager
def browser(**options: Any) -> Iterator[Tab]:
    """A browser with one empty tab, that finds no host but 127.0.0.1. `options` are those of Playwright's contexts."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        try:
            yield Tab(started.new_context(**options))
        finally:
            started.close()


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, by WCAG."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted(luminance(each) for each in (one, other))
    return (high + 0.05) / (low + 0.05)

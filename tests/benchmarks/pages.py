"""Measure how long a browser takes to show /, /operators and /docs, beside a small answer from the same service.

Chromium, headless, with an empty cache for each page; from the address's entry to the page complete and its content
there. In /docs, further, from the click on POST /v1/dispatch to its example on the screen, and from the click on
"Try it out", with one on "Execute", to the service's answer. Exits with 1 if something took as long in every round as
it is promised to stay below.
"""

import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import options
import report
import servers

from tests.docs.browser import Tab, browser

FLOOR = "/health/live"
PAGES = {
    FLOOR: "true",
    "/": "document.querySelector('.numbers td') && document.querySelector('.plot .curve')",
    "/operators": "document.querySelectorAll('.operator .plot').length",
    "/docs": "document.querySelector('.opblock') && document.querySelector('.model-container, .json-schema-2020-12')",
}
"""Paths, and what holds in the page when it is there."""

OPENED, TRIED = "/docs: dispatch opened", "/docs: dispatch tried"
DISPATCH, STATUS = "#operations-native-dispatch", ".live-responses-table .response .response-col_status"

PROMISED = {FLOOR: 3.0, "/": 1.0, "/operators": 3.0, "/docs": 3.0, OPENED: 1.5, TRIED: 3.0}
"""Seconds."""


def measure(page: Tab, url: str) -> dict[str, float]:
    """Seconds for each page, each loaded anew, and for what is done in the last of them."""
    seconds = {}
    for path, shows in PAGES.items():
        page.open("about:blank")
        page.call("Network.clearBrowserCache")
        seconds[path] = page.open(url + path, shows)
    started = time.monotonic()
    click(page, ".opblock-summary-control", shows=".highlight-code code")
    seconds[OPENED] = time.monotonic() - started
    started = time.monotonic()
    click(page, ".try-out__btn", shows="button.execute")
    click(page, "button.execute", shows=STATUS)
    seconds[TRIED] = time.monotonic() - started
    status = page.run(f"document.querySelector('{DISPATCH} {STATUS}').innerText")
    assert status.startswith("200"), status
    return seconds


def click(page: Tab, button: str, shows: str) -> None:
    """Click on `button` of the dispatch, and wait until `shows` is there and drawn."""
    page.run(f"document.querySelector('{DISPATCH} {button}').click()")
    page.wait_for(f"document.querySelector('{DISPATCH} {shows}')")
    page.run("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


def main() -> int:
    arguments = options.rounds_and_output(__doc__)
    loadavg = os.getloadavg()[0]
    with servers.service([]) as service, browser() as page:
        first = measure(page, service.url)
        rounds = [measure(page, service.url) for _ in range(arguments.rounds)]
    rows = [
        [
            path,
            report.number(first[path]),
            report.number(statistics.median(each[path] for each in rounds)),
            report.number(min(each[path] for each in rounds)),
            report.number(max(each[path] for each in rounds)),
            report.number(statistics.median(each[path] / each[FLOOR] for each in rounds)),
        ]
        for path in PROMISED
    ]
    head = ["page", "first, s", "median, s", "least, s", "most, s", f"over {FLOOR}"]
    report.publish(
        f"# Pages in a browser\n\n{report.facts(loadavg)}\n{report.table(head, rows, texts=1)}", arguments.output
    )
    return int(any(min(each[path] for each in rounds) >= most for path, most in PROMISED.items()))


if __name__ == "__main__":
    sys.exit(main())

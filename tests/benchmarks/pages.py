"""Measure how long a browser takes to show /operators and /docs, beside an answer of a few bytes from the same service.

Chromium, headless, with an empty cache for each page; from the address's entry to the page complete and its content
there. Exits with 1 if a page took 3 seconds or more in every round, which is what they are promised to stay below.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import options
import report
import servers

from tests.docs.browser import Page, browser

FLOOR = "/health/live"
PAGES = {
    FLOOR: "true",
    "/operators": "document.querySelectorAll('.operator .plot').length",
    "/docs": "document.querySelector('.opblock') && document.querySelector('.model-container, .json-schema-2020-12')",
}
"""Paths, and what holds in the page when it is there."""

PROMISED = 3.0


def measure(page: Page, url: str) -> dict[str, float]:
    """Seconds for each page, each loaded anew."""
    seconds = {}
    for path, shows in PAGES.items():
        page.call("Network.clearBrowserCache")
        seconds[path] = page.open(url + path, shows)
        page.open("about:blank")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=options.bounded(100), default=10, help="default 10")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="write the report there as well")
    arguments = parser.parse_args()
    options.end_on_signals()
    loadavg = os.getloadavg()[0]
    with servers.service([]) as service, tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
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
        for path in PAGES
    ]
    head = ["page", "first, s", "median, s", "least, s", "most, s", f"over {FLOOR}"]
    report.publish(
        f"# Pages in a browser\n\n{report.facts(loadavg)}\n{report.table(head, rows, texts=1)}", arguments.output
    )
    return int(any(min(each[path] for each in rounds) >= PROMISED for path in PAGES))


if __name__ == "__main__":
    sys.exit(main())

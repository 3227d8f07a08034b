"""A browser for the tests of pages."""

from collections.abc import Iterator

import pytest

from tests.docs.browser import Tab, browser


@pytest.fixture(scope="module")
def started() -> Iterator[Tab]:
    """Ended with the module: as long as it runs, asyncio.run() does not in the same thread."""
    with browser() as tab:
        yield tab


@pytest.fixture
def page(started: Tab) -> Tab:
    """An empty page, of which nothing is noted yet."""
    started.open("about:blank")
    started.complaints.clear()
    started.requested.clear()
    return started

"""A browser for the tests of pages."""

from collections.abc import Iterator

import pytest

from tests.docs.browser import Page, browser


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(started: Page) -> Page:
    """An empty page, of which nothing is noted yet."""
    started.open("about:blank")
    started.complaints.clear()
    started.requested.clear()
    return started

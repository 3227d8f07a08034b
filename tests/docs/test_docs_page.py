"""/docs in a real browser, with no other host to be reached."""

from tests.conftest import RunningServer
from tests.docs.browser import Page, needs_chromium

pytestmark = needs_chromium

SHOWN = "document.querySelector('.opblock') && document.querySelector('.model-container, .json-schema-2020-12')"
TEXT = "document.body.innerText.replaceAll('\\u200b', '')"


def test_the_page_shows_the_api_without_the_internet(server: RunningServer, page: Page) -> None:
    page.open(f"{server.url}/docs", SHOWN)
    text = page.run(TEXT)
    for shown in ("/v1/dispatch", "/v1/operators/{Type}", "/v1/feature-support", "/health/ready", "DispatchRequest"):
        assert shown in text, shown
    assert "Failed to load" not in text
    assert page.complaints == []
    assert all(url.startswith((server.url, "data:")) for url in page.requested)


def test_the_page_is_there_within_three_seconds(server: RunningServer, page: Page) -> None:
    """The best of three: what else the machine is doing does not count."""
    assert min(page.open(f"{server.url}/docs", SHOWN) for _ in range(3)) < 3


def test_an_operation_can_be_tried(server: RunningServer, page: Page) -> None:
    page.open(f"{server.url}/docs", SHOWN)
    operation = "document.querySelector('#operations-native-listOperators')"
    for button in (".opblock-summary-control", ".try-out__btn", "button.execute"):
        page.wait_for(f"{operation}.querySelector('{button}')")
        page.run(f"{operation}.querySelector('{button}').click()")
    page.wait_for(f"{operation}.querySelector('.live-responses-table')")
    answer = page.run(f"{operation}.querySelector('.live-responses-table').innerText")
    assert answer.split()[:3] == ["Code", "Details", "200"]
    assert "DML_OPERATOR_ACTIVATION_CELU" in answer
    assert page.complaints == []

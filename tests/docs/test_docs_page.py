"""/docs in a real browser, with no other host to be reached."""

import json
from typing import Literal

import httpx
import pytest

from app.engine.capabilities import example
from app.operators.catalog import OPERATORS
from tests.conftest import RunningServer
from tests.docs.browser import Tab, contrast, luminance, needs_chromium

pytestmark = needs_chromium

SHOWN = "document.querySelector('.opblock') && document.querySelector('.model-container, .json-schema-2020-12')"
TEXT = "document.body.innerText.replaceAll('\\u200b', '')"


def test_the_page_shows_the_api_without_the_internet(server: RunningServer, page: Tab) -> None:
    page.open(f"{server.url}/docs", SHOWN)
    text = page.run(TEXT)
    for shown in ("/v1/dispatch", "/v1/operators/{Type}", "/v1/feature-support", "/health/ready", "DispatchRequest"):
        assert shown in text, shown
    assert "Failed to load" not in text
    assert page.complaints == []
    assert all(url.startswith((server.url, "data:")) for url in page.requested)


def test_it_is_dark_for_those_who_want_that(server: RunningServer, page: Tab) -> None:
    schemes: list[Literal["light", "dark"]] = ["dark", "light"]
    page.open(f"{server.url}/docs", SHOWN)
    path = "getComputedStyle(document.querySelector('.opblock-summary-path')).color"
    try:
        for scheme in schemes:
            page.page.emulate_media(color_scheme=scheme)
            page.wait_for(f"document.documentElement.matches('.dark-mode') === {str(scheme == 'dark').lower()}")
            assert (luminance(page.run(path)) > 0.5) == (scheme == "dark")
            if scheme == "dark":
                back = page.run("getComputedStyle(document.documentElement).backgroundColor")
                assert contrast(back, page.run(path)) > 4.5
    finally:
        page.page.emulate_media(color_scheme="null")


def test_the_page_is_there_within_three_seconds(server: RunningServer, page: Tab) -> None:
    """Once in three times: what else the machine is doing does not count."""
    assert any(page.open(f"{server.url}/docs", SHOWN) < 3 for _ in range(3))


def test_every_operation_opens(server: RunningServer, page: Tab) -> None:
    page.open(f"{server.url}/docs", SHOWN)
    page.run("document.querySelectorAll('.opblock-summary-control').forEach(button => button.click())")
    page.wait_for("[...document.querySelectorAll('.opblock')].every(each => each.querySelector('.responses-table'))")
    assert page.run("document.querySelectorAll('.opblock').length") == sum(
        len(methods) for methods in httpx.get(f"{server.url}/openapi.json").json()["paths"].values()
    )
    assert page.complaints == []


@pytest.mark.parametrize(
    ("operation", "answered"),
    [("native-listOperators", "DML_OPERATOR_ACTIVATION_CELU"), ("native-dispatch", '"outputs"')],
)
def test_an_operation_can_be_tried(server: RunningServer, page: Tab, operation: str, answered: str) -> None:
    page.open(f"{server.url}/docs", SHOWN)
    block = f"document.querySelector('#operations-{operation}')"
    before = page.worked()
    for button in (".opblock-summary-control", ".try-out__btn", "button.execute"):
        page.wait_for(f"{block}.querySelector('{button}')")
        page.run(f"{block}.querySelector('{button}').click()")
    page.wait_for(f"{block}.querySelector('.live-responses-table')")
    assert 0 < page.worked() - before < 8, "Swagger UI makes all of a request's schema anew for each of its examples"
    answer = page.run(f"{block}.querySelector('.live-responses-table').innerText")
    assert answer.split()[:3] == ["Code", "Details", "200"]
    assert answered in answer
    assert page.complaints == []


@pytest.fixture
def body(server: RunningServer, page: Tab) -> str:
    """What shows the body of a dispatch, in JavaScript, in a page where that operation is opened."""
    body = "document.querySelector('#operations-native-dispatch .opblock-section-request-body')"
    page.open(f"{server.url}/docs", SHOWN)
    page.run("document.querySelector('#operations-native-dispatch .opblock-summary-control').click()")
    page.wait_for(f"{body}?.querySelector('.highlight-code')")
    return body


def test_a_dispatch_shows_an_example_of_every_operator(page: Tab, body: str) -> None:
    options = page.run(f"[...{body}.querySelectorAll('.examples-select option')].map(each => each.innerText)")
    assert options == [*(operator.short_name() for operator in OPERATORS.values()), "GRAPH"]
    first = next(iter(OPERATORS.values()))
    assert json.loads(page.run(f"{body}.querySelector('.highlight-code code').innerText")) == example(first)


def test_a_dispatch_shows_the_fields_of_every_operator(page: Tab, body: str) -> None:
    """What they are made of it only names: Swagger UI would take seconds to repeat all of that."""
    page.run(f"[...{body}.querySelectorAll('.tab button')].at(-1).click()")
    buttons = f"[...{body}.querySelectorAll('.json-schema-2020-12-accordion')]"
    members = [f"#{number} {operator.__name__}" for number, operator in enumerate(OPERATORS.values())]
    for name in ("One of", "#0 DispatchRequest", "operator", "One of", members[0], "InputTensor"):
        button = f"{buttons}.findLast(each => each.innerText === {json.dumps(name)})"
        page.wait_for(button)
        page.run(f"{button}.click()")
    page.wait_for(f"{body}.innerText.includes('#/components/schemas/TensorDesc')")
    shown = page.run(f"{buttons}.map(each => each.innerText)")
    first, *others, last = [name for name in shown if name.startswith("#")]
    assert (first, others, last) == ("#0 DispatchRequest", members, "#1 GraphDispatchRequest")

"""/operators in a real browser: drawn, filtered, readable on a phone and in the dark, and without scripts."""

import json
from typing import Literal

import httpx
import pytest

from app.contract.constants import DataType, FeatureLevel
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.conftest import RunningServer
from tests.docs.browser import Tab, contrast, luminance, needs_chromium
from tests.operators.facts import FAMILIES

pytestmark = needs_chromium

NAMES = [operator.short_name() for operator in OPERATORS.values()]
SHOWN = "[...document.querySelectorAll('.operator:not([hidden])')].map((each) => each.id)"
LISTED = """[...document.querySelectorAll("nav li:not([hidden]) a")].map((each) => each.hash.slice(1))"""


@pytest.fixture
def opened(server: RunningServer, page: Tab) -> Tab:
    page.open(f"{server.url}/operators")
    return page


def choose(page: Tab, **fields: str) -> list[str]:
    """The operators shown after the form's fields are filled in; those not given are emptied."""
    for name in ("search", "family", "data_type", "feature_level"):
        page.run(
            f"""(field => {{
                field.value = {json.dumps(fields.get(name, ""))};
                field.dispatchEvent(new Event("input", {{bubbles: true}}));
            }})(document.forms[0].elements.{name})"""
        )
    shown: list[str] = page.run(SHOWN)
    assert page.run(LISTED) == shown
    assert page.run("document.querySelector('output').textContent") == f"{len(shown)} of {len(NAMES)} operators"
    return shown


def test_everything_is_there_and_nothing_is_loaded(server: RunningServer, opened: Tab) -> None:
    assert opened.run(SHOWN) == NAMES
    assert opened.complaints == []
    assert [url for url in opened.requested if not url.startswith("data:")] == [f"{server.url}/operators"]


def test_it_is_there_within_three_seconds(server: RunningServer, page: Tab) -> None:
    """Once in three times: what else the machine is doing does not count."""
    assert any(page.open(f"{server.url}/operators") < 3 for _ in range(3))


def test_the_style_and_the_script_are_let_through(opened: Tab) -> None:
    assert opened.run("getComputedStyle(document.querySelector('nav ul')).listStyleType") == "none"
    assert opened.run("document.querySelector('form button').hidden")
    opened.run("document.body.append(Object.assign(document.createElement('script'), {text: 'window.foreign = 1'}))")
    assert opened.run("window.foreign") is None
    assert len(opened.complaints) == 1  # that this script was not
    assert "Content Security Policy" in opened.complaints[0]


def test_curves_are_drawn(opened: Tab) -> None:
    for plot in opened.run(
        """[...document.querySelectorAll(".plot")].map((plot) => {
            plot.scrollIntoView();
            const path = plot.querySelector(".curve, .dots");
            const box = plot.getBoundingClientRect();
            return {
                name: plot.closest("section").id, width: box.width, height: box.height, length: path.getTotalLength(),
                drawn: path.getBBox().width, stroke: getComputedStyle(path).stroke,
                label: plot.getAttribute("aria-label"), dots: path.classList.contains("dots"),
            };
        })"""
    ):
        assert plot["width"] > 200, plot
        assert plot["height"] > 100, plot
        assert plot["dots"] or plot["length"] > 1000, plot  # of 3200 across
        assert plot["drawn"] > 1500, plot
        assert plot["stroke"] == "rgb(179, 38, 30)", plot
        assert plot["name"] in plot["label"]
    assert opened.run("document.querySelector('#ACTIVATION_CELU .plot .curve') !== null")


def test_typing_searches(opened: Tab) -> None:
    opened.run("document.forms[0].elements.search.focus()")
    opened.page.keyboard.insert_text("exponential Celu")
    assert opened.run(SHOWN) == ["ACTIVATION_CELU"]
    opened.page.keyboard.press("Enter")
    assert opened.run(SHOWN) == ["ACTIVATION_CELU"]
    assert opened.run("location.search") == ""  # the form was not sent
    assert choose(opened, search="no such operator") == []
    assert opened.run("[...document.querySelectorAll('nav > div')].every((family) => family.hidden)")
    assert choose(opened) == NAMES
    assert opened.complaints == []


def test_filters_choose_what_the_api_lists(opened: Tab, client: httpx.Client) -> None:
    """Some values of each field, in every combination; what the API lists is tested by itself."""
    for family in FAMILIES:
        names = [operator.short_name() for operator in OPERATORS.values() if operator.family() == family]
        assert choose(opened, family=family) == names
    for family in ("", "ELEMENT_WISE", "QUANTIZATION"):
        for data_type in ("", DataType.FLOAT16, DataType.INT8, DataType.UINT64, DataType.INT4):
            for level in ("", FeatureLevel.V1_0, FeatureLevel.V3_0, FeatureLevel.V5_0, FeatureLevel.V5_1):
                query = {"family": family, "data_type": data_type, "feature_level": level}
                given = {name: value for name, value in query.items() if value}
                listed = client.get("/v1/operators", params=given).json()
                assert choose(opened, **query) == [each["Type"].removeprefix(PREFIX) for each in listed], given
    assert opened.complaints == []


def test_an_anchor_leads_to_its_operator(server: RunningServer, page: Tab) -> None:
    page.open(f"{server.url}/operators#{NAMES[-1]}")
    box = f"document.getElementById('{NAMES[-1]}').getBoundingClientRect()"
    page.wait_for(f"{box}.top < innerHeight && {box}.bottom > 0")
    choose(page, search=NAMES[-1])
    page.run(f"location.hash = '{NAMES[0]}'")
    page.wait_for(f"!document.getElementById('{NAMES[0]}').hidden")  # a link shows what the filter hid
    assert page.run(SHOWN) == NAMES


def test_it_leads_to_where_an_operator_is_tried(server: RunningServer, page: Tab) -> None:
    page.open(f"{server.url}/operators#GEMM")
    page.page.get_by_role("link", name="Try GEMM").click()
    page.page.get_by_role("heading", name="GEMM", level=2).wait_for()
    assert page.page.url == f"{server.url}/#operator=GEMM"


def test_the_request_names_this_service(server: RunningServer, opened: Tab) -> None:
    pasted = opened.run("document.querySelector('#ACTIVATION_CELU pre').textContent")
    assert pasted.startswith(f"curl -s {server.url}/v1/dispatch ")


def test_it_fits_a_phone(server: RunningServer, page: Tab) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    try:
        page.open(f"{server.url}/operators")
        page.run("document.querySelectorAll('details').forEach((each) => each.open = true)")
        assert page.run("document.documentElement.scrollWidth") == 360
        small = page.run("[...document.querySelectorAll('input, select')].map((each) => each.offsetHeight)")
        assert min(small) >= 44  # a finger's width
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in(server: RunningServer, page: Tab, scheme: Literal["light", "dark"]) -> None:
    """WCAG 2.2, 1.4.3 and 1.4.11: a contrast of 4.5 for text and 3 for the curve."""
    page.page.emulate_media(color_scheme=scheme)
    try:
        page.open(f"{server.url}/operators")
        page.run("document.querySelector('.plot').scrollIntoView()")
        colours = page.run(
            """[["body", "color", 4.5], [".formula", "color", 4.5], ["figcaption", "color", 4.5],
                ["nav a", "color", 4.5], ["label", "color", 4.5], ["input", "color", 4.5], ["thead th", "color", 4.5],
                ["output", "color", 4.5], [".plot text", "fill", 4.5], [".plot .curve", "stroke", 3],
                [".plot .axis", "stroke", 3]]
            .map(([selector, property, least]) => {
                const element = document.querySelector(selector);
                let behind = element;
                while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
                return [selector, getComputedStyle(element)[property], getComputedStyle(behind).backgroundColor, least];
            })"""
        )
        for selector, front, back, least in colours:
            assert contrast(front, back) >= least, (selector, front, back)
        assert (luminance(colours[0][2]) < 0.1) == (scheme == "dark")
    finally:
        page.page.emulate_media(color_scheme="null")


def test_names_and_roles_are_there_for_those_who_listen(opened: Tab) -> None:
    opened.call("Accessibility.enable")
    nodes = opened.call("Accessibility.getFullAXTree")["nodes"]
    roles: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            roles.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert len(roles["main"]) == len(roles["navigation"]) == len(roles["search"]) == 1
    assert roles["searchbox"] == ["Search"]
    assert roles["combobox"] == ["Family", "Data type", "Feature level"]
    assert "Curve of ACTIVATION_CELU" in roles["image"]
    for name in NAMES:
        assert {name, f"Fields of {name}", f"Support of {name}"} <= set(roles["region"])
        assert roles["link"].count(name) == 2  # in the index and at the operator
    assert {"Field", "Default", "Meaning", "From level"} <= set(roles["columnheader"])
    for role in ("link", "heading", "region", "image", "combobox", "searchbox"):
        assert all(name.strip() for name in roles[role]), role
    opened.call("Accessibility.disable")


def test_it_works_without_scripts(server: RunningServer, page: Tab) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(f"{server.url}/operators")
        assert page.run(SHOWN) == NAMES
        page.run("document.forms[0].elements.search.value = 'activation_celu'")
        page.run("document.forms[0].querySelector('button').click()")
        page.wait_for("location.search")
        page.wait_for("document.readyState === 'complete'")
        assert page.run(SHOWN) == ["ACTIVATION_CELU"]
        page.run("""document.querySelector("form a").click()""")
        page.wait_for("!location.search && document.readyState === 'complete'")
        assert page.run(SHOWN) == NAMES
        assert page.complaints == []
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)

"""The page at / in a real browser, as a person works with it."""

import io
import json
import re
from base64 import b64decode, b64encode, urlsafe_b64decode
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from app.operators.catalog import OPERATORS
from tests.conftest import RunningServer, running_server
from tests.docs.browser import Tab, contrast, luminance, needs_chromium

pytestmark = needs_chromium


def go(tab: Tab, server: RunningServer, fragment: str = "") -> Page:
    """The page with a view's heading shown."""
    tab.open("about:blank")  # or only the fragment changed
    tab.complaints.clear()
    tab.requested.clear()
    tab.open(f"{server.url}/#{fragment}")
    expect(tab.page.get_by_role("heading", level=2).first).to_be_visible()
    return tab.page


def numbers(page: Page, name: str = "OutputTensor") -> list[str]:
    cells = page.get_by_role("region", name=name, exact=True).locator("td")
    cells.first.wait_for()
    return [text.split()[0] for text in cells.all_inner_texts()]


@pytest.fixture
def celu(server: RunningServer, page: Tab) -> Page:
    opened = go(page, server)
    opened.get_by_text("On numpy (cpu)").wait_for()
    return opened


def test_it_opens_with_an_operator_computed(celu: Page, page: Tab, server: RunningServer) -> None:
    assert celu.get_by_role("heading", level=2).inner_text() == "ACTIVATION_CELU"
    assert celu.locator(".formula mfrac").count() == 1
    assert (celu.locator(".formula").text_content() or "").startswith("f")
    assert numbers(celu) == ["-0.9816843", "-0.86466473", "0", "1", "2", "4"]
    expect(celu.get_by_role("img", name="Curve of ACTIVATION_CELU on FLOAT32")).to_be_visible()
    assert page.complaints == []
    assert page.requested
    assert all(url.startswith(server.url) for url in page.requested)


def test_an_address_that_leads_elsewhere_is_not_written_over(celu: Page) -> None:
    """The page is told of it in a moment, in which what is shown may be about to be written there."""
    celu.get_by_role("combobox", name="Compare with").select_option("FLOAT16")
    celu.evaluate("history.replaceState(null, '', '#matrix')")
    celu.wait_for_timeout(600)
    assert celu.evaluate("location.hash") == "#matrix"


def test_it_is_small_and_there_within_a_second(server: RunningServer, page: Tab, client: httpx.Client) -> None:
    """Everything together, not compressed; the best of three: what else the machine is doing does not count."""
    shows = "document.querySelector('.numbers td') && document.querySelector('.plot .curve')"
    seconds = []
    for _ in range(3):
        page.open("about:blank")
        page.requested.clear()
        seconds.append(page.open(f"{server.url}/", shows))
    documents = {url for url in page.requested if not url.endswith("/v1/dispatch")}
    assert len(documents) > 20
    assert sum(len(client.get(url).raise_for_status().content) for url in documents) < 300 * 1024
    assert min(seconds) < 1


def test_an_operator_is_found_by_typing(celu: Page, page: Tab) -> None:
    search = celu.get_by_role("combobox", name="Find an operator")
    search.fill("uint4")
    expect(celu.get_by_role("option", name="QUANTIZE", exact=False).first).to_be_visible()
    search.fill("softplus")
    option = celu.get_by_role("option", name="ACTIVATION_SOFTPLUS", exact=False).first
    expect(option).to_be_visible()
    expect(celu.locator("#announcement")).to_contain_text(f"of {len(OPERATORS)} operators")
    search.press("ArrowDown")
    search.press("ArrowUp")
    assert search.get_attribute("aria-activedescendant") == option.get_attribute("id")
    search.press("Enter")
    expect(celu.get_by_role("heading", name="ACTIVATION_SOFTPLUS")).to_be_focused()
    assert celu.url.endswith("#operator=ACTIVATION_SOFTPLUS")
    celu.go_back()
    expect(celu.get_by_role("heading", name="ACTIVATION_CELU")).to_be_visible()
    assert page.complaints == []


def test_a_slider_changes_curve_and_result(celu: Page) -> None:
    before = celu.locator(".plot .curve").get_attribute("d")
    celu.get_by_role("slider", name="Alpha").focus()
    for _ in range(40):
        celu.keyboard.press("ArrowRight")
    assert celu.get_by_role("textbox", name="Alpha").input_value() != "1"
    expect(celu.locator(".plot .curve")).not_to_have_attribute("d", before or "")
    expect(celu.get_by_role("region", name="OutputTensor").locator("td").first).not_to_have_text("-0.9816843")


def test_float16_has_steps(celu: Page) -> None:
    for name, value in (("x from", "1"), ("to", "1.02")):
        celu.get_by_role("spinbutton", name=name, exact=True).fill(value)
    celu.get_by_role("combobox", name="Computed on").select_option("FLOAT16")
    expect(celu.get_by_role("img", name="Curve of ACTIVATION_CELU on FLOAT16")).to_be_visible()
    drawn = celu.locator(".plot .curve").get_attribute("d") or ""
    assert 15 <= drawn.count("V") <= 25  # from 1 to 1.02 there are 20 float16
    assert celu.locator(".plot .reference").count() == 1


def test_what_is_wrong_stands_beside_its_field(celu: Page) -> None:
    alpha = celu.get_by_role("textbox", name="Alpha")
    alpha.fill("abc")
    expect(alpha).to_have_attribute("aria-invalid", "true")
    expect(alpha).to_have_accessible_description(
        'Minus the limit for very negative x. Not 0. Alpha is "abc"; it must be a number.'
    )
    alpha.fill("2")
    expect(alpha).not_to_have_attribute("aria-invalid", "true")
    sizes = celu.get_by_role("textbox", name="Sizes")
    sizes.fill("-1")
    expect(celu.get_by_text('Sizes[0] is "-1"; it must be an integer.')).to_be_visible()
    sizes.fill("10000, 10000, 10000")  # too large to be asked about as one types
    expect(celu.get_by_text('Sizes[0] is "-1"; it must be an integer.')).to_have_count(0)
    sizes.fill("1, 1, 2, 4")
    expect(celu.get_by_role("button", name="Use the sizes [6]")).to_be_visible()
    expect(celu.get_by_text("32 bytes").first).to_be_visible()
    celu.get_by_role("button", name="Use the sizes [6]").click()
    expect(sizes).to_have_value("6")
    expect(celu.locator(".numbers td")).to_have_count(6)


def test_numbers_that_are_none(celu: Page) -> None:
    celu.get_by_role("textbox", name="Numbers").first.fill("1, 2, x")
    expect(celu.get_by_text("“x” is no number.").first).to_be_visible()


PASTE = """(area, text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    area.dispatchEvent(new ClipboardEvent("paste", { clipboardData, cancelable: true }));
}"""


def test_pasted_tables(celu: Page) -> None:
    numbers_of = celu.get_by_role("textbox", name="Numbers").first
    numbers_of.fill("1;2;3\n-4;5;6\n7;8;9")
    celu.get_by_role("button", name="Use the sizes [3, 3]").click()
    expect(celu.locator(".numbers td")).to_have_text(["1", "2", "3", "-0.9816843", "5", "6", "7", "8", "9"])
    long = celu.get_by_text("The tensors are too long to be copied")
    expect(long).to_have_count(0)
    numbers_of.select_text()
    numbers_of.evaluate(PASTE, "1,2,3,4\n" * 5000)
    celu.get_by_role("button", name="Use the sizes [5000, 4]").click()
    expect(celu.get_by_text("of 20000 elements.")).to_be_visible()
    expect(long).to_be_visible()


def test_a_long_graph_is_pasted(server: RunningServer, page: Tab) -> None:
    opened = go(page, server, "graph")
    document = opened.locator("textarea.json")
    text = document.input_value()
    document.select_text()
    document.evaluate(PASTE, "\n" * 5000 + text.replace('"relu"', '"last"'))
    expect(opened.locator("svg.graph")).to_contain_text("last")


def test_memory_is_a_picture(celu: Page) -> None:
    celu.get_by_role("textbox", name="Sizes").fill("2, 3")
    celu.get_by_role("textbox", name="Strides").fill("0, 1")
    celu.get_by_role("textbox", name="Numbers").first.fill("[1, 2, 3]")
    celu.get_by_text("Memory: which element lies where").click()
    expect(celu.get_by_role("img", name="6 elements in 3 places, 3 read more than once.")).to_be_visible()
    expect(celu.locator(".numbers td")).to_have_text(["1", "2", "3", "1", "2", "3"])


def test_elements_are_made(celu: Page) -> None:
    cells = celu.locator(".numbers td")
    celu.get_by_role("combobox", name="Elements").select_option("random")
    expect(cells.nth(5)).not_to_have_text("4")
    celu.get_by_role("combobox", name="Elements").select_option("special")
    expect(cells).to_have_text(["0", "1e-45", "1.1754944e-38", "1", "1.0000001", "3.4028235e+38"])
    celu.get_by_role("combobox", name="Elements").select_option("range")
    celu.get_by_role("spinbutton", name="From", exact=True).fill("1")
    celu.get_by_role("spinbutton", name="To", exact=True).last.fill("6")
    expect(cells).to_have_text(["1", "2", "3", "4", "5", "6"])


def test_a_file_is_taken_and_the_result_is_saved(celu: Page, tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.array([[1, -1], [2, -np.inf]], np.float16))
    celu.get_by_label("File for InputTensor").set_input_files(file)
    expect(celu.get_by_role("textbox", name="Sizes")).to_have_value("2, 2")
    expect(celu.locator(".numbers td")).to_have_text(["1", "-0.6323", "2", "-1"])
    with celu.expect_download() as started:
        celu.get_by_role("button", name="Download .npy").click()
    saved = np.load(io.BytesIO(Path(started.value.path()).read_bytes()))
    assert saved.dtype == np.float16
    assert saved.tolist() == [[1, float(np.float16(-0.6323))], [2, -1]]


PICTURE = """() => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 3, height: 2 });
    const context = canvas.getContext("2d");
    context.fillStyle = "#ff0033";
    context.fillRect(0, 0, 3, 2);
    return canvas.toDataURL("image/png").split(",")[1];
}"""


def test_an_image_is_a_tensor(celu: Page, tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(b64decode(celu.evaluate(PICTURE)))
    celu.get_by_label("File for InputTensor").set_input_files(file)
    expect(celu.get_by_role("textbox", name="Sizes")).to_have_value("1, 3, 2, 3")
    expect(celu.locator(".numbers td")).to_have_text(["1"] * 6 + ["0"] * 6 + ["0.2"] * 6)
    celu.get_by_role("combobox", name="View of OutputTensor").select_option("image")
    expect(celu.get_by_role("img", name="OutputTensor as an image")).to_be_visible()
    pixel = "[...document.querySelector('canvas.heat').getContext('2d').getImageData(1, 1, 1, 1).data]"
    assert celu.evaluate(pixel) == [255, 0, 51, 255]


def test_results_in_other_views_and_beside_another_type(celu: Page) -> None:
    celu.get_by_role("combobox", name="Compare with").select_option("FLOAT16")
    expect(celu.get_by_text("Beside FLOAT16, rounded: 4 of 6 elements are equal")).to_be_visible()
    one, other = (ulps_between(*each) for each in zip(CELU_32, CELU_16, strict=True))
    expect(celu.get_by_text(f"the largest difference is {one} ULP of FLOAT32, at [0,0,0,0].")).to_be_visible()
    expect(celu.locator(".numbers td small")).to_have_text([f"{one} ULP", f"{other} ULP"])
    view = celu.get_by_role("combobox", name="View of OutputTensor")
    view.select_option("heat")
    expect(celu.get_by_role("img", name="Heat map of OutputTensor")).to_be_visible()
    expect(celu.get_by_role("img", name=f"Difference of OutputTensor in ULP: from 0 (dark) to {one}")).to_be_visible()
    view.select_option("plot")
    expect(celu.get_by_role("img", name="Plot of OutputTensor")).to_be_visible()
    assert celu.get_by_role("img", name="Plot of OutputTensor").locator("path.reference").count() == 1


CELU_32 = np.array([-0.9816843, -0.86466473], np.float32)
CELU_16 = CELU_32.astype(np.float16).astype(np.float32)


def ulps_between(one: np.float32, other: np.float32) -> int:
    """How many float32 apart numbers of one sign are."""
    return abs(int(one.view(np.int32)) - int(other.view(np.int32)))


def test_results_beside_those_of_another_device(server: RunningServer, page: Tab) -> None:
    """One that the tests' machine has not: it is told of, and its answers are the others but for one bit."""

    def tell(route: Route) -> None:
        told = route.fetch().json()
        route.fulfill(json=told | {"devices": [*told["devices"], told["devices"][0] | {"name": "cuda:0"}]})

    def answer(route: Route) -> None:
        request: dict[str, Any] = route.request.post_data_json or {}
        if request.get("device") != "cuda:0":
            route.continue_()
            return
        made = route.fetch(post_data=json.dumps(request | {"device": "auto"})).json()
        output = made["outputs"]["OutputTensor"]
        data = np.frombuffer(bytearray(b64decode(output["data"])), np.uint32)
        data[0] ^= 1
        output["data"] = b64encode(data.tobytes()).decode()
        made["execution"]["device"] = "cuda:0"
        route.fulfill(json=made)

    page.page.route("**/v1/capabilities", tell)
    page.page.route("**/v1/dispatch", answer)
    try:
        opened = go(page, server)
        opened.get_by_role("combobox", name="Compare with").select_option("cuda:0")
        told = "Beside cuda:0: 5 of 6 elements are equal; the largest difference is 1 ULP of FLOAT32, at [0,0,0,0]."
        expect(opened.get_by_text(told)).to_be_visible()
        expect(opened.locator(".numbers td small")).to_have_text(["1 ULP"])
        assert page.complaints == []
    finally:
        page.page.unroute_all(behavior="wait")


def test_the_same_request_elsewhere(celu: Page, server: RunningServer) -> None:
    code = celu.get_by_label("The request", exact=True)
    expect(code).to_contain_text(f"curl -s '{server.url}/v1/dispatch'")
    for language, part in (("python", "msgpack.packb"), ("typescript", "await fetch"), ("triton", "triton.InferInput")):
        celu.get_by_role("combobox", name="Language").select_option(language)
        expect(code).to_contain_text(part)


def told(link: str) -> bytes:
    """What a link says of the page, which changes a moment after it."""
    return urlsafe_b64decode(link.partition("#operator/")[2] + "==")


def test_a_link_opens_all_of_it_again(celu: Page, page: Tab, server: RunningServer) -> None:
    celu.get_by_role("textbox", name="Alpha").fill("2.5")
    celu.get_by_role("textbox", name="Numbers").first.fill("7, -7, 1, 2, 3, 4")
    celu.get_by_role("combobox", name="Compare with").select_option("FLOAT16")
    celu.get_by_role("combobox", name="View of OutputTensor").select_option("plot")
    celu.wait_for_url(lambda url: all(each in told(url) for each in (b"2.5", b"7, -7, 1", b"FLOAT16", b"plot")))
    link = celu.url
    go(page, server, "live")
    page.open(link)
    expect(celu.get_by_role("textbox", name="Alpha")).to_have_value("2.5")
    expect(celu.get_by_role("textbox", name="Numbers").first).to_have_value("7, -7, 1, 2, 3, 4")
    expect(celu.get_by_role("combobox", name="Compare with")).to_have_value("type FLOAT16")
    expect(celu.get_by_role("img", name="Plot of OutputTensor")).to_be_visible()
    celu.get_by_role("combobox", name="View of OutputTensor").select_option("table")
    assert numbers(celu)[0] == "7"


def test_lists_structures_and_choices(server: RunningServer, page: Tab) -> None:
    opened = go(page, server, "operator=JOIN")
    expect(opened.locator("legend", has_text="InputTensors[1]")).to_be_visible()
    opened.get_by_role("button", name="One more").click()
    expect(opened.locator("legend", has_text="InputTensors[2]")).to_be_visible()
    expect(opened.get_by_text("On numpy (cpu)")).to_be_visible()
    opened = go(page, server, "operator=GEMM")
    opened.get_by_role("checkbox", name="Give FusedActivation").check()
    opened.get_by_role("combobox", name="FusedActivation").select_option("ACTIVATION_RELU")
    opened.get_by_role("checkbox", name="Give CTensor").uncheck()
    expect(opened.get_by_label("The request", exact=True)).to_contain_text('"Type": "ACTIVATION_RELU"')
    expect(opened.get_by_label("The request", exact=True)).not_to_contain_text("CTensor")
    expect(opened.get_by_role("region", name="OutputTensor").locator("td").first).to_have_text("0")
    assert page.complaints == []


def test_operators_of_each_kind_are_computed(server: RunningServer, page: Tab) -> None:
    """That all examples are right is tested without a browser."""
    for name in (
        "CONVOLUTION",
        "LSTM",
        "FILL_VALUE_CONSTANT",
        "RANDOM_GENERATOR",
        "QUANTIZE",
        "SPLIT",
        "ELEMENT_WISE_BIT_NOT",
        "CAST",
        "MAX_POOLING2",
    ):
        opened = go(page, server, f"operator={name}")
        expect(opened.get_by_text("On numpy (cpu)"), name).to_be_visible()
        assert page.complaints == [], name


def test_the_matrix_leads_to_operators(server: RunningServer, page: Tab) -> None:
    opened = go(page, server, "matrix")
    expect(opened.locator("tbody tr")).to_have_count(len(OPERATORS))
    opened.get_by_role("combobox", name="Added by feature level").select_option("5_1")
    expect(opened.get_by_text("Feature level 5_1 added something to")).to_be_visible()
    assert opened.locator("td.new").count() > 0
    opened.get_by_role("searchbox", name="Search").fill("celu")
    opened.get_by_role("combobox", name="Added by feature level").select_option("")
    opened.get_by_role("link", name="ACTIVATION_CELU on FLOAT16, from 3_0").click()
    expect(opened.get_by_role("heading", name="ACTIVATION_CELU")).to_be_visible()
    assert page.complaints == []


def test_the_live_panel(server: RunningServer, page: Tab, client: httpx.Client) -> None:
    opened = go(page, server, "live")
    expect(opened.get_by_role("rowheader", name="numpy")).to_be_visible()
    for _ in range(20):
        client.get("/v1/operators/GEMM").raise_for_status()
    expect(opened.locator("dd").first).to_have_text(re.compile(r"\d"))
    expect(opened.locator("dt")).to_have_text(
        [
            "Requests/s",
            "Median latency",
            "99th percentile",
            "Waiting",
            "Running",
            "Memory of requests",
            "Kept buffers",
            "Connections",
            "Graphs",
            "Workers",
            "Up",
        ]
    )
    assert page.complaints == []


def test_a_graph_is_drawn_kept_dispatched_and_dropped(server: RunningServer, page: Tab, client: httpx.Client) -> None:
    opened = go(page, server, "graph")
    expect(opened.get_by_role("img", name="Graph of 3 nodes and 4 edges")).to_be_visible()
    assert opened.locator("rect.group").count() == 0
    others = [each["id"] for each in client.get("/v1/graphs").json()]  # of earlier tests
    opened.get_by_role("button", name="Keep").click()
    expect(opened.get_by_role("img", name="Graph of 3 nodes and 4 edges, in 1 kernels")).to_be_visible()
    (kept,) = [each for each in client.get("/v1/graphs").json() if each["id"] not in others]
    described = client.get(f"/v1/graphs/{kept['id']}").json()
    assert opened.locator("rect.group").count() == len(described["kernels"])
    opened.get_by_role("button", name="Time the kernels").click()
    expect(opened.locator("#announcement")).to_contain_text("The kernels take")
    (taken,) = opened.get_by_role("region", name="Kernels").locator("td:last-child").all_inner_texts()
    assert re.fullmatch(r"[\d.]+ [nµm]?s", taken)
    opened.get_by_role("combobox", name="Elements").select_option("text")
    opened.get_by_role("textbox", name="Numbers").first.fill("-4 -2 0 1 2 4")
    opened.get_by_role("button", name="Dispatch").click()
    assert numbers(opened, "y") == ["0", "0", "3", "2", "4", "7"]
    go(page, server, f"graph={kept['id']}")
    expect(opened.get_by_role("img", name="Graph of 3 nodes and 4 edges, in 1 kernels")).to_be_visible()
    opened.get_by_role("button", name="Drop it").click()
    expect(opened.get_by_text("Keep the graph to see how it is fused")).to_be_visible()
    assert client.get(f"/v1/graphs/{kept['id']}").status_code == 404
    assert page.complaints == []


def test_a_graph_is_built_and_its_refusal_shown(server: RunningServer, page: Tab) -> None:
    opened = go(page, server, "graph")
    opened.get_by_role("combobox", name="Add an operator").fill("tanh")
    opened.get_by_role("option", name="ACTIVATION_TANH").first.click()
    expect(opened.get_by_role("img", name="Graph of 4 nodes and 4 edges")).to_be_visible()
    opened.get_by_role("button", name="Keep").click()
    expect(opened.get_by_role("alert").filter(has_text="tanh")).to_be_visible()
    opened.get_by_role("combobox", name="Edge from").select_option(label="relu.OutputTensor")
    opened.get_by_role("combobox", name="to", exact=True).select_option(label="tanh.InputTensor")
    opened.get_by_role("button", name="Add the edge").click()
    expect(opened.get_by_role("img", name="Graph of 4 nodes and 5 edges")).to_be_visible()


def test_a_key_is_asked_for_once_and_forgotten(tmp_path: Path, page: Tab) -> None:
    with running_server(tmp_path / "log", DMLSERVE_API_KEYS="the-key") as guarded:
        opened = go(page, guarded)
        dialog = opened.get_by_role("dialog")
        expect(dialog).to_be_visible()
        opened.get_by_label("Key", exact=True).fill("wrong")
        opened.keyboard.press("Enter")
        expect(dialog).to_contain_text("The API key is not valid.")
        opened.get_by_label("Key", exact=True).fill("the-key")
        opened.get_by_role("button", name="Use it").click()
        expect(opened.get_by_text("On numpy (cpu)")).to_be_visible()
        expect(opened.get_by_label("The request", exact=True)).to_contain_text("$DMLSERVE_KEY")
        opened.get_by_role("link", name="Live").click()
        expect(opened.get_by_role("rowheader", name="numpy")).to_be_visible()
        assert not dialog.is_visible()
        kept = opened.evaluate(
            "() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )
        assert "the-key" not in kept
        opened.reload()
        expect(dialog).to_be_visible()


def test_nothing_foreign_is_run(celu: Page, page: Tab) -> None:
    for made in ("{textContent: 'window.foreign = 1'}", "{src: 'data:text/javascript,window.foreign=1'}"):
        with pytest.raises(Exception, match="TrustedScript"):
            celu.evaluate(f"() => document.body.append(Object.assign(document.createElement('script'), {made}))")
    with pytest.raises(Exception, match="TrustedHTML"):
        celu.evaluate("() => { document.body.innerHTML = '<b>x</b>'; }")
    assert celu.evaluate("() => window.foreign") is None
    assert len(page.complaints) == 3


VIEWS = ["", "operator=GEMM", "graph", "matrix", "live"]


@pytest.mark.parametrize("view", VIEWS)
def test_it_fits_a_phone(server: RunningServer, page: Tab, view: str) -> None:
    page.page.set_viewport_size({"width": 360, "height": 740})
    try:
        opened = go(page, server, view)
        opened.evaluate("() => document.querySelectorAll('details').forEach((each) => (each.open = true))")
        assert page.run("document.documentElement.scrollWidth") == 360
        controls = "main input:not([type=checkbox]), main select, main button"
        heights = page.run(f"[...document.querySelectorAll('{controls}')].map((each) => each.offsetHeight)")
        assert min([44, *filter(None, heights)]) >= 44  # a finger's width
    finally:
        page.page.set_viewport_size({"width": 1280, "height": 720})


AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
"""axe-core, which Deque Systems writes: it looks for what keeps people out of a page."""

PAGES = {
    **{f"/#{view}": "main h2" for view in VIEWS},
    "/operators": ".operator",
    "/errors": "dt",
    "/docs": ".json-schema-2020-12",
}
"""With what shows that they are there."""

SWAGGER_UI = ["heading-order", "nested-interactive"]
"""Rules that its markup breaks, and which no style mends."""

LONG = "tbody tr:nth-child(n + 12), .operator:nth-of-type(n + 6), nav li:nth-child(n + 6), .models-jump-to-path"
"""More of the same, which axe would take minutes for."""

COLOURS = """[...document.querySelectorAll(".plot text, .graph text, .formula")].map((element) => {
    let behind = element;
    while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    const { color, fill } = getComputedStyle(element);
    return [element.namespaceURI.endsWith("svg") ? fill : color, getComputedStyle(behind).backgroundColor].join("|");
})"""
"""Of what axe says nothing about: text in pictures, and mathematics."""


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing(server: RunningServer, page: Tab, path: str) -> None:
    """In light and dark, and as narrow as a phone, with all opened that can be."""
    opened = page.page
    schemes: list[Literal["light", "dark"]] = ["light", "dark"]
    opened.set_viewport_size({"width": 360, "height": 740})
    try:
        page.open(f"{server.url}{path}")
        opened.locator(PAGES[path]).first.wait_for()
        opened.evaluate("() => document.querySelectorAll('details').forEach((each) => (each.open = true))")
        opened.evaluate(f"() => document.querySelectorAll('{LONG}').forEach((each) => each.remove())")
        opened.evaluate(AXE)
        rules = {name: {"enabled": False} for name in (SWAGGER_UI if path == "/docs" else [])}
        for scheme in schemes:
            opened.emulate_media(color_scheme=scheme)
            page.wait_for(f"matchMedia('(prefers-color-scheme: {scheme})').matches && !document.getAnimations().length")
            found = opened.evaluate("(rules) => axe.run(document, { rules, resultTypes: ['violations'] })", rules)
            told = [
                (each["id"], node["html"][:200], node["failureSummary"])
                for each in found["violations"]
                for node in each["nodes"]
            ]
            assert not told, (scheme, told[:5])
            assert len(found["passes"]) > 10
            for front, back in {tuple(each.split("|")) for each in page.run(COLOURS)}:
                assert contrast(front, back) >= 4.5, (scheme, front, back)
            if path.startswith("/#"):
                back = page.run("getComputedStyle(document.body).backgroundColor")
                assert (luminance(back) < 0.1) == (scheme == "dark")
    finally:
        opened.emulate_media(color_scheme="null")
        opened.set_viewport_size({"width": 1280, "height": 720})

"""Parts of the page at / as pictures, beside those in `pictures/`: light, dark, and on a phone.

RENEW_PICTURES=1 pytest tests/docs/test_pictures.py    writes them anew; look at what has changed before you keep it

Text is left out, and boxes are made as large as their padding: fonts are other ones on other machines. What is compared
are means of squares of pixels, which hardly know how an edge was smoothed.
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from tests.conftest import RunningServer
from tests.docs.browser import Tab, needs_chromium

pytestmark = needs_chromium

KEPT = Path(__file__).with_name("pictures")

SQUARE = 6
"""Pixels of the squares' sides."""

FAR = 24
"""Of 255, how far a square's mean may be from the kept one's."""

MOST = 0.01
"""The part of the squares that may be farther."""

ALONE = """(part) => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(`
        .alone { position: fixed !important; top: 0; left: 0; z-index: 9; background: var(--page); max-width: none; }
        svg.alone, canvas.alone { width: 320px; }
        svg text { visibility: hidden; }
        table, table * { font-size: 0 !important; line-height: 0 !important; min-width: 0 !important; }
        th, td { padding: 8px !important; position: static !important; }
        td a { padding: 5px !important; }
        tbody tr:nth-child(n + 12) { display: none; }
    `);
    document.adoptedStyleSheets = [sheet];
    part.classList.add("alone");
}"""
"""At a place that no font moves."""


ENDED = """(part) => {
    document.adoptedStyleSheets = [];
    const wasAlone = part.classList.contains("alone");
    part.classList.remove("alone");
    return wasAlone;
}"""
"""Back at its place; whether it had been away, which a part that was drawn anew meanwhile had not."""


def taken(part: Locator) -> Image.Image:
    """A part of the page, as it is drawn, without its text."""
    for _ in range(10):
        part.evaluate(ALONE)
        part.page.mouse.move(359, 739)
        picture = Image.open(io.BytesIO(part.screenshot(animations="disabled"))).convert("RGB")
        if part.evaluate(ENDED):
            return picture
    raise AssertionError("the page draws this part anew again and again")


def squares(picture: Image.Image) -> npt.NDArray[np.float64]:
    pixels = np.asarray(picture, np.float64)
    height, width = (each // SQUARE for each in pixels.shape[:2])
    cut = pixels[: height * SQUARE, : width * SQUARE].reshape(height, SQUARE, width, SQUARE, 3)
    means: npt.NDArray[np.float64] = cut.mean((1, 3))
    return means


def difference(one: Image.Image, other: Image.Image) -> float:
    """The part of the squares that are far from each other; all of them where the sizes differ."""
    if one.size != other.size:
        return 1.0
    return float((abs(squares(one) - squares(other)).max(-1) > FAR).mean())


def compare(name: str, picture: Image.Image, folder: Path) -> None:
    """Fail where `picture` does not look as the one that is kept under this name does."""
    file = KEPT / f"{name}.png"
    if os.environ.get("RENEW_PICTURES"):
        KEPT.mkdir(exist_ok=True)
        picture.quantize(32).save(file, optimize=True)
        return
    far = difference(Image.open(file).convert("RGB"), picture)
    if far > MOST:
        picture.save(folder / file.name)
        pytest.fail(f"{far:.1%} of {file} are not as in {folder / file.name}")


def parts(page: Page, url: str) -> Iterator[tuple[str, Locator]]:
    """Each part with its name, when it is there to be seen."""
    page.goto(f"{url}/#operator=ACTIVATION_CELU")
    expect(page.locator(".plot .curve")).to_be_visible()
    yield "curve", page.locator("svg.plot")
    page.get_by_role("combobox", name="Compare with").select_option("FLOAT16")
    expect(page.locator("td.worst")).to_be_visible()
    yield "result", page.locator("table.numbers")
    page.get_by_role("textbox", name="Sizes").fill("2, 3")
    page.get_by_role("textbox", name="Strides").fill("5, 1")
    page.get_by_role("combobox", name="Elements").select_option("range")
    page.get_by_role("spinbutton", name="From", exact=True).fill("0")
    page.get_by_role("spinbutton", name="To", exact=True).last.fill("7")
    page.get_by_role("combobox", name="Compare with").select_option("")
    expect(page.locator(".numbers td")).to_have_text(["0", "1", "2", "5", "6", "7"])
    page.get_by_text("Memory: which element lies where").click()
    expect(page.get_by_role("img", name="6 elements in 8 places, 2 of them gaps.")).to_be_visible()
    yield "memory", page.locator("svg.memory")
    page.get_by_role("combobox", name="View of OutputTensor").select_option("heat")
    expect(page.get_by_role("img", name="Heat map of OutputTensor: 2")).to_be_visible()
    yield "heat", page.locator("canvas.heat")
    page.goto(f"{url}/#matrix")
    page.get_by_role("combobox", name="Added by feature level").select_option("5_1")
    expect(page.get_by_text("Feature level 5_1 added something to")).to_be_visible()
    yield "matrix", page.locator("table.matrix")
    page.goto(f"{url}/#graph")
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("img", name="Graph of 3 nodes and 4 edges, in 1 kernels")).to_be_visible()
    yield "graph", page.locator("svg.graph")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
def test_parts_look_as_they_did(
    scheme: Literal["light", "dark"], width: int, page: Tab, server: RunningServer, client: httpx.Client, tmp_path: Path
) -> None:
    page.page.set_viewport_size({"width": width, "height": 740})
    page.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    try:
        for name, part in parts(page.page, server.url):
            compare(f"{name}-{scheme}-{width}", taken(part), tmp_path)
    finally:
        page.page.emulate_media(color_scheme="null", reduced_motion="null")
        page.page.set_viewport_size({"width": 1280, "height": 720})
        for each in client.get("/v1/graphs").json():
            client.delete(f"/v1/graphs/{each['id']}")


def test_what_differs_is_seen(server: RunningServer, page: Tab) -> None:
    """Another line, a gap in memory more, a cell in another colour."""
    kept = {name: Image.open(KEPT / f"{name}-light-1280.png").convert("RGB") for name in ("curve", "memory", "result")}
    opened = page.page
    opened.emulate_media(color_scheme="light")
    try:
        opened.goto(f"{server.url}/#operator=ACTIVATION_CELU")
        before = opened.locator(".plot .curve").get_attribute("d")
        opened.get_by_role("textbox", name="Alpha").fill("2.5")
        expect(opened.locator(".plot .curve")).not_to_have_attribute("d", before or "")
        assert difference(kept["curve"], taken(opened.locator("svg.plot"))) > MOST
        assert difference(kept["result"], taken(opened.locator("table.numbers"))) > MOST  # no cell is marked
        opened.get_by_role("textbox", name="Sizes").fill("2, 3")
        opened.get_by_role("textbox", name="Strides").fill("4, 1")
        opened.get_by_role("combobox", name="Elements").select_option("range")
        opened.get_by_text("Memory: which element lies where").click()
        expect(opened.get_by_role("img", name="6 elements in 7 places, 1 of them gaps.")).to_be_visible()
        assert difference(kept["memory"], taken(opened.locator("svg.memory"))) > MOST
    finally:
        opened.emulate_media(color_scheme="null")


def test_a_part_drawn_anew_meanwhile_is_taken_again(server: RunningServer, page: Tab) -> None:
    """A late answer replaces the part after it was put at its place, as a busy machine's may."""
    part = page.page.locator("table.numbers")
    page.page.goto(f"{server.url}/#operator=ACTIVATION_CELU")
    expect(part).to_be_visible()
    before = taken(part)
    part.evaluate(
        """(part) => new MutationObserver((_, observer) => {
            observer.disconnect();
            part.classList.remove("alone");
            part.replaceWith(part.cloneNode(true));
            window.wasDrawnAnew = true;
        }).observe(part, { attributes: true })"""
    )
    assert difference(before, taken(part)) <= MOST
    assert page.run("window.wasDrawnAnew")


def test_the_pictures_are_small_and_all_of_use() -> None:
    files = list(KEPT.iterdir())
    assert len(files) == 6 * 3
    assert sum(file.stat().st_size for file in files) < 150 * 1024

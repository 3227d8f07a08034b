"""/operators: a page of every operator, whole in one answer."""

import gzip
import json
import re
import shlex
import shutil
import subprocess
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from html import unescape
from typing import Annotated, Literal

import httpx
import numpy as np
import orjson
import pytest
from pydantic import Field

from app.contract.constants import DataType, FeatureLevel
from app.devices.cpu.device import NumpyDevice
from app.engine.capabilities import describe
from app.engine.curves import curve
from app.http.web import reference
from app.operators.accuracy import EXACT
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX, InputTensorDesc, Operator
from tests.conftest import RunningServer, ServerFactory
from tests.http.load import metric, wait_until
from tests.http.refusals import error_at, refusal_of
from tests.messages import CELU, CONSTANT_POW, HARD_SIGMOID, output_of, post_msgpack, request
from tests.operators.facts import FAMILIES

NAMES = {operator.short_name(): operator for operator in OPERATORS.values()}
IDENTITY = {"accept-encoding": "identity"}


def sections_of(page: str) -> dict[str, str]:
    """The HTML of each operator, by its anchor."""
    parts = re.split(r'<section class="operator" id="([^"]*)"', page)[1:]
    return dict(zip(parts[::2], (part.partition("</section>")[0] for part in parts[1::2]), strict=True))


def text_of(html: str) -> str:
    """What a reader sees, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html.replace("<wbr>", ""))).split())


@pytest.fixture(scope="module")
def answer(client: httpx.Client) -> httpx.Response:
    response = client.get("/operators", headers=IDENTITY)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    return response


@pytest.fixture(scope="module")
def sections(answer: httpx.Response) -> dict[str, str]:
    return sections_of(answer.text)


def test_every_operator_has_a_section_and_an_entry(answer: httpx.Response, sections: dict[str, str]) -> None:
    assert list(sections) == list(NAMES)
    entries = re.findall(r'<li><a href="#([^"]*)"[^>]*>(.*?)</a>', answer.text)
    assert [name for name, _ in entries] == list(NAMES)
    assert [text_of(shown) for _, shown in entries] == list(NAMES)
    assert text_of(answer.text).count(f"{len(NAMES)} of {len(NAMES)} operators") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_section_tells_everything(sections: dict[str, str], name: str) -> None:
    described, section = describe(NAMES[name]), sections[name]
    text = text_of(f"<{section}")
    assert described["struct"] in text
    for fact in (described["summary"], described["formula"], *described["notes"], *described["in_place"]):
        assert " ".join(fact.split()) in text
    for field in described["fields"]:
        default = field["default"] if isinstance(field["default"], str) else orjson.dumps(field["default"]).decode()
        kind = field["type"] if field["kind"] == "attribute" else field["kind"].replace("_", " ")
        if field["type"] == "DML_TENSOR_DESC[]":
            kind += "[]"
        assert re.sub(r"\s", "", f"{field['name']}{kind}{'required' if field['required'] else default}") in (
            re.sub(r"\s", "", text)
        )
        assert field["description"] in text
    rows = re.findall(r"<tr>(.*?)</tr>", section.partition("Support</h4>")[2], re.DOTALL)[1:]
    shown = [[text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]
    for row in described["support"]:
        for tensor, can in row["tensors"].items():
            counts = can["dimension_counts"]
            (found,) = [
                (dimensions, types)
                for level, dimensions, tensors, types in shown
                if f"DML_FEATURE_LEVEL_{level}" == row["feature_level"]
                if tensors == "all" or tensor in tensors.split(", ")
            ]
            expected = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            assert found == (expected, ", ".join(can["data_types"]))


@pytest.mark.parametrize("name", NAMES)
def test_the_request_of_a_section_can_be_pasted(sections: dict[str, str], client: httpx.Client, name: str) -> None:
    (pasted,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", sections[name], re.DOTALL)
    words = shlex.split(unescape(pasted))
    assert words[:2] == ["curl", "-s"]
    assert words[2] == "http://localhost:8000/v1/dispatch"
    kind, body = words[words.index("-H") + 1], words[words.index("-d") + 1]
    request, example = json.loads(body), describe(NAMES[name])["example"]
    assert request["operator"] == example["operator"]
    assert '"' not in json.dumps([*request["inputs"].values()]), "numbers"
    field, _, value = kind.partition(": ")
    response = client.post("/v1/dispatch", content=body, headers={field: value})
    assert response.status_code == 200, response.text
    outputs = [
        client.post("/v1/dispatch", json=each | {"data": "base64"}).json()["outputs"] for each in (request, example)
    ]
    assert outputs[0] == outputs[1]


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_request_of_a_section_runs_in_a_shell(sections: dict[str, str], server: RunningServer) -> None:
    (pasted,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", sections["ACTIVATION_CELU"], re.DOTALL)
    command = unescape(pasted).replace("http://localhost:8000", server.url)
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["capability"]["operator"] == CELU


@pytest.mark.parametrize("name", [CELU, HARD_SIGMOID, CONSTANT_POW])
def test_a_plot_shows_what_a_dispatch_answers(sections: dict[str, str], client: httpx.Client, name: str) -> None:
    section = sections[name.removeprefix(PREFIX)]
    (path,) = re.findall(r'<path class="curve" d="([^"]*)"', section)
    (start,) = re.findall(r"^M(-?\d+) (-?\d+)", path)
    moves = re.findall(r"l(-?\d+) (-?\d+)", path)
    drawn = np.cumsum([[int(x), int(y)] for x, y in [start, *moves]], axis=0)

    def scale(axis: str, position: str) -> tuple[float, float]:
        """From drawn to meant: factor and offset, by the outermost labels of an axis."""
        (group,) = re.findall(rf'<g class="{axis}"[^>]*>(.*?)</g>', section)
        ticks = [
            (float(at), float(label)) for at, label in re.findall(rf'<text [^>]*{position}="(\d+)"[^>]*>(.*?)<', group)
        ]
        (first, low), (last, high) = ticks[0], ticks[-1]
        return (high - low) / (last - first), low - first * (high - low) / (last - first)

    x_factor, x_offset = scale("x", "x")
    y_factor, y_offset = scale("y", "y")
    x = (drawn[:, 0] * x_factor + x_offset).astype(np.float32)
    y = (drawn[:, 1] + 38) * y_factor + y_offset  # labels stand 38 below their line
    attributes = curve_attributes(name)
    expected = output_of(post_msgpack(client, request(name, {"InputTensor": np.maximum(x, -6)}, attributes)))
    inside = np.isfinite(expected) & (abs(expected) < 7)
    assert inside.sum() > 3
    np.testing.assert_allclose(y[inside], expected[inside], atol=abs(8 * y_factor))


def curve_attributes(name: str) -> dict[str, float]:
    drawn = curve(OPERATORS[name], NumpyDevice(ThreadPoolExecutor(1), 1))
    assert drawn
    return drawn.attributes


def test_operators_of_one_variable_have_a_plot_that_is_named(sections: dict[str, str]) -> None:
    device = NumpyDevice(ThreadPoolExecutor(1), 1)
    for name, section in sections.items():
        plots = re.findall(r'<svg class="plot" [^>]*role="img" aria-label="([^"]*)"', section)
        assert plots == ([f"Curve of {name}"] if curve(NAMES[name], device) else [])
    assert "Curve of ACTIVATION_CELU" in sections["ACTIVATION_CELU"]
    assert "with Alpha = 1.0." in text_of(sections["ACTIVATION_CELU"])


class Hostile(Operator):
    """</p><script>alert("summary")</script>"""

    Type: Literal["DML_OPERATOR_ACTIVATION_HOSTILE", "ACTIVATION_HOSTILE"]
    InputTensor: InputTensorDesc
    Alpha: Annotated[float, Field(description="<b>'\"&")] = 1.0
    support = OPERATORS[CELU].support
    accuracy = EXACT
    formula_text = "x < 0 && x > 1 <img src=x onerror=alert(1)>"
    notes = ("'\"&<b>",)


def test_what_is_shown_is_text() -> None:
    section = reference._section(Hostile, None)
    assert "<script>" not in section.html
    assert "<img" not in section.html
    assert "<b>" not in section.html
    assert "x &lt; 0 &amp;&amp; x &gt; 1 &lt;img src=x onerror=alert(1)&gt;" in section.html
    assert "&#39;&#34;&amp;&lt;b&gt;" in section.html
    escaped = reference._page([section], reference.PageFilter(search='"><script>')).decode()
    assert "<script" not in escaped


class TestAnswer:
    def test_names_no_other_host(self, answer: httpx.Response) -> None:
        assert set(re.findall(r"https?://[\w.:]*", answer.text)) == {"http://localhost:8000"}  # what is to be pasted
        assert not re.findall(r"""(?:src|href|action)="(?!#|data:,|docs"|operators"|\./)""", answer.text)

    def test_may_do_nothing_but_its_own_style_and_script(self, answer: httpx.Response) -> None:
        policy = answer.headers["content-security-policy"]
        for directive in ("default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'"):
            assert directive in policy
        assert "unsafe" not in policy
        for element, directive in (("style", "style-src"), ("script", "script-src")):
            (content,) = re.findall(rf"<{element}>(.*?)</{element}>", answer.text, re.DOTALL)
            digest = b64encode(sha256(content.encode()).digest()).decode()
            assert f"{directive} 'sha256-{digest}'" in policy
        assert not re.findall(r"<[^>]* (?:style|on\w+)=", answer.text)
        assert answer.headers["x-content-type-options"] == "nosniff"

    def test_is_not_sent_to_those_who_have_it(self, client: httpx.Client, answer: httpx.Response) -> None:
        tag = answer.headers["etag"]
        assert answer.headers["cache-control"] == "no-cache"
        for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
            again = client.get("/operators", headers=IDENTITY | {"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert again.headers["cache-control"] == "no-cache"
            assert again.headers["vary"] == "accept-encoding"
        for other in ('"other"', tag.strip('"'), ""):
            again = client.get("/operators", headers=IDENTITY | {"if-none-match": other})
            assert (again.status_code, again.content) == (200, answer.content)

    def test_is_packed_for_those_who_can_unpack(self, client: httpx.Client, answer: httpx.Response) -> None:
        with client.stream("GET", "/operators", headers={"accept-encoding": "br, gzip"}) as packed:
            raw = b"".join(packed.iter_raw())
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == answer.headers["vary"] == "accept-encoding"
        assert packed.headers["etag"] != answer.headers["etag"]  # another representation
        assert gzip.decompress(raw) == answer.content
        assert len(raw) < len(answer.content) / 2
        for refused in ("gzip;q=0", "identity", "br, gzip; q=0.0"):
            assert "content-encoding" not in client.get("/operators", headers={"accept-encoding": refused}).headers

    def test_is_the_same_from_every_process(self, start_server: ServerFactory, answer: httpx.Response) -> None:
        other = start_server("--threads", "1", "--max-tensor-bytes", "4", PYTHONHASHSEED="7")
        response = httpx.get(f"{other.url}/operators", headers=IDENTITY)
        assert response.headers["etag"] == answer.headers["etag"]

    def test_has_a_header_alone(self, client: httpx.Client, answer: httpx.Response) -> None:
        head = client.head("/operators", headers=IDENTITY)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("etag", "content-length", "content-type", "cache-control", "content-security-policy"):
            assert head.headers[name] == answer.headers[name]

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
    def test_is_only_read(self, client: httpx.Client, method: str) -> None:
        response = client.request(method, "/operators")
        refusal_of(response, 405)
        assert "GET" in response.headers["allow"]

    def test_is_counted_under_its_path(self, client: httpx.Client) -> None:
        def counted() -> float:
            return metric(client, "http_requests_total", route="/operators", method="GET", status="200")

        client.get("/operators?search=a")
        wait_until(lambda: counted() > 0)

    def test_can_be_left_out(self, start_server: ServerFactory) -> None:
        running = start_server("--no-docs")
        refusal_of(httpx.get(f"{running.url}/operators"), 404)


class TestFilter:
    """Without scripts the form is sent here."""

    def shown(self, client: httpx.Client, **query: str) -> list[str]:
        response = client.get("/operators", params=query)
        assert response.status_code == 200
        names = list(sections_of(response.text))
        assert re.findall(r'<li><a href="#([^"]*)"', response.text) == names
        assert f"{len(names)} of {len(NAMES)} operators" in text_of(response.text)
        return names

    @pytest.mark.parametrize("family", ["", *FAMILIES])
    @pytest.mark.parametrize("data_type", ["", "INT8", "UINT4"])
    @pytest.mark.parametrize("feature_level", ["", "1_0", "5_1"])
    def test_shows_what_the_api_lists(
        self, client: httpx.Client, family: str, data_type: str, feature_level: str
    ) -> None:
        query = {"family": family, "data_type": data_type, "feature_level": feature_level}
        listed = client.get("/v1/operators", params={name: value for name, value in query.items() if value}).json()
        expected = [operator["Type"].removeprefix(PREFIX) for operator in listed]
        assert self.shown(client, search="", **query) == expected

    @pytest.mark.parametrize(
        ("search", "found"),
        [
            ("celu", True),
            ("CELU", True),
            ("  activation_celu ", True),
            ("exponential differentiable", True),
            ("exp(x / Alpha)", True),
            ("celu slope", False),
            ("<", False),
        ],
    )
    def test_searches_name_summary_and_formula(self, client: httpx.Client, search: str, found: bool) -> None:
        assert ("ACTIVATION_CELU" in self.shown(client, search=search)) == found

    def test_keeps_what_was_chosen(self, client: httpx.Client) -> None:
        query = {"family": "ACTIVATION", "data_type": "INT8", "feature_level": "5_1", "search": 'a"<b'}
        page = client.get("/operators", params=query).text
        assert re.findall(r"<option selected>(.*?)</option>", page) == ["ACTIVATION", "INT8", "5_1"]
        assert 'name="search" value="a&#34;&lt;b"' in page
        assert "<script" not in page  # which could not show what was left out

    def test_an_empty_form_gives_the_whole_page(self, client: httpx.Client, answer: httpx.Response) -> None:
        for query in ("?", "?search=&family=&data_type=&feature_level=", "?feature_level=6_4"):
            again = client.get(f"/operators{query}", headers=IDENTITY)
            assert again.headers["etag"] == answer.headers["etag"]

    @pytest.mark.parametrize(
        ("name", "value", "allowed"),
        [
            ("family", "celu", FAMILIES),
            ("data_type", "INT", list(DataType)),
            ("feature_level", "9_9", list(FeatureLevel)),
            ("colour", "red", ["data_type", "family", "feature_level", "search"]),
        ],
    )
    def test_unknown_values(self, client: httpx.Client, name: str, value: str, allowed: list[str]) -> None:
        assert error_at(f"/{name}", client.get("/operators", params={name: value}))["allowed"] == allowed

    def test_a_long_search(self, client: httpx.Client) -> None:
        assert self.shown(client, search="x" * reference.MOST) == []
        error_at("/search", client.get("/operators", params={"search": "x" * (reference.MOST + 1)}))

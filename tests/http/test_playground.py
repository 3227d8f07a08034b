"""The page at / and what it is made of, as it is sent. tests/docs looks at it in a browser."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from app.http.web.playground import MEDIA_TYPES
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.http.refusals import refusal_of

STATIC = Path(__file__).parents[2] / "app" / "http" / "web" / "static"
FILES = sorted(path.name for path in STATIC.iterdir())
IDENTITY = {"accept-encoding": "identity"}


@pytest.fixture(scope="module")
def page(client: httpx.Client) -> httpx.Response:
    return client.get("/", headers=IDENTITY)


def test_the_page_may_run_its_own_scripts_and_ask_its_own_service(page: httpx.Response) -> None:
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(each.strip().split(" ", 1) for each in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert {policy[each] for each in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert not re.findall(r"<[^>]* (?:style|on\w+)=|<style|<script(?! type=\"module\" src=)|https?:", page.text)


def test_all_that_it_names_is_there(client: httpx.Client, page: httpx.Response) -> None:
    named = set(re.findall(r'(?:src|href)="(static/[^"]*)"', page.text))
    for source in STATIC.glob("*.js"):
        named |= {f"static/{name}" for name in re.findall(r'"\./(\w+\.js)"', source.read_text())}
    assert {f"static/{name}" for name in FILES} - named <= {"static/index.html", "static/docs.js", "static/docs.css"}
    assert named <= {f"static/{name}" for name in FILES}
    preloaded = set(re.findall(r'rel="modulepreload" href="static/([^"]*)"', page.text))
    assert preloaded == needed("operator_view.js") | {"operator_view.js"}


def needed(name: str) -> set[str]:
    """The modules that one imports, and those that they do."""
    found: set[str] = set()
    left = {name}
    while left:
        imports = set(re.findall(r'^import .*?"\./(\w+\.js)"', (STATIC / left.pop()).read_text(), re.MULTILINE))
        left |= imports - found
        found |= imports
    return found


@pytest.mark.parametrize("name", [name for name in FILES if name != "index.html"])
def test_a_file(client: httpx.Client, name: str) -> None:
    content = (STATIC / name).read_bytes()
    plain = client.get(f"/static/{name}", headers=IDENTITY)
    assert plain.content == content
    assert plain.headers["content-type"] == MEDIA_TYPES[Path(name).suffix]
    assert plain.headers["x-content-type-options"] == "nosniff"
    assert client.get(f"/static/{name}", headers={"if-none-match": plain.headers["etag"]} | IDENTITY).status_code == 304
    with client.stream("GET", f"/static/{name}", headers={"accept-encoding": "gzip"}) as packed:
        raw = b"".join(packed.iter_raw())
    if packed.headers.get("content-encoding") == "gzip":
        assert packed.headers["etag"] != plain.headers["etag"]
        raw = gzip.decompress(raw)
    assert raw == content
    head = client.head(f"/static/{name}", headers=IDENTITY)
    assert (head.content, head.headers["content-length"]) == (b"", str(len(content)))


def test_what_the_scripts_hold_is_small() -> None:
    """All that may ever be loaded, not compressed, with room for the documents that are asked for."""
    assert sum((STATIC / name).stat().st_size for name in FILES) < 200 * 1024


def test_the_catalog_says_what_the_api_does(client: httpx.Client) -> None:
    catalog = client.get("/operators.json").json()
    listed = client.get("/v1/operators").json()
    assert [each["name"] for each in catalog["operators"]] == [each["Type"].removeprefix(PREFIX) for each in listed]
    for level, data_type in (("1_0", "FLOAT32"), ("3_0", "INT8"), ("5_1", "UINT64")):
        of_api = client.get("/v1/operators", params={"feature_level": level, "data_type": data_type}).json()
        made = []
        for each in catalog["operators"]:
            rows = [row for row in each["support"] if row["level"] <= level]
            if rows and any(data_type in types for _, types, _ in rows[-1]["groups"]):
                made.append(each["name"])
        assert made == [each["Type"].removeprefix(PREFIX) for each in of_api]


@pytest.mark.parametrize("name", ["ACTIVATION_CELU", "GEMM", "JOIN", "ACTIVATION_SOFTMAX", "SLICE1"])
def test_what_a_form_is_made_of(client: httpx.Client, name: str) -> None:
    document = client.get(f"/operators/{name}.json").json()
    assert document["description"] == client.get(f"/v1/operators/{name}").json()
    assert list(document["schema"]["properties"]) == list(OPERATORS[PREFIX + name].model_fields)
    assert (document["curve"] is not None) == (name == "ACTIVATION_CELU")
    assert client.get(f"/operators/{PREFIX}{name}.json").json() == document


def test_what_is_not_there(client: httpx.Client) -> None:
    for path in (
        "/operators/NOTHING.json",
        "/operators/.json",
        "/operators/GEMM",
        "/static/..%2fplayground.py",
        "/static/a/b",
    ):
        refusal_of(client.get(path), 404)
    refusal_of(client.post("/"), 405)
    for path in ("/operators/relu.json", "/v1/operators/relu"):
        assert refusal_of(client.get(path), 404)["detail"].endswith("Did you mean ACTIVATION_RELU?")

"""The architecture page, app/README.md: it names what is there, and where it stands."""

import re
from pathlib import Path

import pytest

from tests.packaging.test_floors import FLOOR_OF, HALLS

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "app"
PAGE = (APP / "README.md").read_text()
PICTURE = PAGE.split("```")[1]
ROOMS = PAGE.split("## The rooms")[1].split("## ")[0]

WAY = [
    "http/server/connection.py",
    "http/server/framing.py",
    "http/server/exchange.py",
    "http/server/reader.py",
    "http/server/turn.py",
    "http/core/exchange.py",
    "http/telemetry/requests.py",
    "http/core/cors.py",
    "http/core/auth.py",
    "http/core/problems.py",
    "http/core/kept.py",
    "http/core/routes.py",
    "http/native/dispatch.py",
    "http/inference/endpoints.py",
    "http/core/bodies.py",
    "codecs/request_cache.py",
    "codecs/json.py",
    "codecs/msgpack.py",
    "contract/validation.py",
    "engine/service.py",
    "operators/compiled.py",
    "formula/structures.py",
    "devices/placement.py",
    "devices/cpu/device.py",
    "devices/cuda/device.py",
    "http/core/answers.py",
    "http/server/sender.py",
]
"""From socket to kernel and back."""

NAMED = sorted(set(re.findall(r"(?<![\w/])((?:[a-z_]+/)+(?:[a-z_]+\.[a-z]+)?|[a-z_]+\.py)", PAGE)))


def test_names_are_found_in_the_page() -> None:
    assert {*WAY, "contract/", "main.py", "http/core/asgi.py", "tests/operators/facts.json"} <= set(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_exists(name: str) -> None:
    path = (ROOT if name.startswith("tests/") else APP) / name
    assert path.exists()
    assert path.is_dir() == name.endswith("/")


def test_the_picture_has_the_files_in_their_order() -> None:
    assert re.findall(r"^    \|      (\S+)   ", PICTURE, re.MULTILINE) == WAY


def test_the_picture_fits_a_terminal() -> None:
    assert max(map(len, PICTURE.splitlines())) <= 120
    assert PICTURE.isascii()


def test_every_room_stands_on_its_floor() -> None:
    rows = [line.split("|")[1] for line in ROOMS.splitlines() if line.startswith("| `")]
    named = [[_module(name) for name in re.findall(r"`(.+?)`", row)] for row in rows]
    floors = [{FLOOR_OF[room] for room in row} for row in named]
    assert [len(each) for each in floors] == [1] * len(rows), "a row is of one floor"
    assert floors == sorted(floors, key=min), "from the ground up"
    assert sorted(room for row in named for room in row) == sorted(FLOOR_OF.keys() - HALLS)


def _module(name: str) -> str:
    return "app." + name.removesuffix(".py").rstrip("/").replace("/", ".")


def test_every_folder_is_named() -> None:
    """Two levels deep: rooms, and what is in the halls."""
    folders = {path.parent.relative_to(APP) for path in APP.glob("*/**/*.py")}
    for folder in {Path(*each.parts[:2]) for each in folders}:
        assert f"{folder}/" in NAMED or any(name.startswith(f"{folder}/") for name in NAMED), folder


def test_the_operator_that_is_shown_is_the_one_in_the_code() -> None:
    (shown,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    sources = [path.read_text() for path in (APP / "operators").rglob("*.py")]
    assert any(shown in source for source in sources)

"""The heap on huge pages, on Linux that has them."""

import ctypes
import mmap
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.memory import huge_pages
from tests.conftest import ServerFactory

MIB = 1 << 20
MADV_COLLAPSE = 25
"""As Linux has it: a test that asked the module would be skipped where that has another number."""


def huge_bytes(process: int | str) -> int:
    """Of a process' own memory, how much is on huge pages."""
    (kilobytes,) = re.findall(
        r"^AnonHugePages: +(\d+) kB$", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE
    )
    return int(kilobytes) << 10


def _written() -> mmap.mmap:
    memory = mmap.mmap(-1, 16 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, len(memory), mmap.PAGESIZE):
        memory[place : place + 8] = place.to_bytes(8, "little")
    return memory


@pytest.fixture
def written() -> mmap.mmap:
    """Memory that was written into. The test is skipped where Linux moves none to huge pages."""
    try:
        _written().madvise(MADV_COLLAPSE)
    except OSError:
        pytest.skip("Linux before 6.1, or without huge pages")
    return _written()


def test_what_is_there_moves_to_huge_pages(written: mmap.mmap) -> None:
    before = huge_bytes("self")
    assert huge_pages.collapse() >= 7
    assert huge_bytes("self") - before >= 14 * MIB
    for place in range(0, len(written), mmap.PAGESIZE):
        assert written[place : place + 8] == place.to_bytes(8, "little")


@pytest.mark.usefixtures("written")
def test_what_is_not_there_stays_away() -> None:
    """Memory that nobody wrote into is not given any."""
    huge_pages.collapse()
    before = huge_bytes("self")
    with mmap.mmap(-1, 256 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        huge_pages.collapse()
        assert huge_bytes("self") - before < 64 * MIB


MAPS = """\
00200000-00700000 rw-p 00000000 00:00 0                          [heap]
00a00000-00c00000 rw-p 00000000 00:00 0 (nothing)
7f0000100000-7f0000600000 rw-p 00000000 00:00 0 (nothing)
7f0001000000-7f0002000000 r--p 00000000 00:00 0 (nothing)
7f0003000000-7f0004000000 rw-p 00000000 08:01 1234               /usr/lib/libc.so.6
7f0005000000-7f0006000000 rw-p 00001000 00:00 0 (nothing)
7ffd00000000-7ffd00800000 rw-p 00000000 00:00 0                  [stack]
""".replace("(nothing)", "")


def test_what_is_all_of_a_page_and_no_file_s_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def madvise(page: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        assert (size.value, advice) == (2 * MIB, MADV_COLLAPSE)
        asked.append(page.value or 0)
        return -1 if len(asked) == 1 else 0

    monkeypatch.setattr(huge_pages, "Path", lambda _: SimpleNamespace(read_text=lambda: MAPS))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(madvise=madvise))
    assert huge_pages.collapse() == 4
    assert asked == [0x200000, 0x400000, 0xA00000, 0x7F0000200000, 0x7F0000400000]


def test_nothing_is_done_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huge_pages, "Path", lambda _: tmp_path / "maps")
    assert huge_pages.collapse() == 0


def test_nothing_is_done_where_linux_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_MADV_COLLAPSE", 250)
    assert huge_pages.collapse() == 0


@pytest.mark.usefixtures("written")
def test_the_service_is_on_huge_pages_when_it_is_ready(start_server: ServerFactory) -> None:
    """Which Linux may take from one that has been idle."""
    assert huge_bytes(start_server().process.pid) >= 16 * MIB

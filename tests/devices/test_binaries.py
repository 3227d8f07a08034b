"""Compiled code on disk: what is kept, what is believed, and what goes."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from app.devices import binaries
from app.devices.binaries import Binaries, cache_folder
from app.devices.cpu.llvm import compiler
from app.devices.cpu.llvm.compiler import Compiler
from app.engine.service import Service
from app.settings import Settings

NOTHING = "define void @kernel(ptr %frame) {\nret void\n}"


def key(number: int, ending: str = "o") -> str:
    return f"{number:064x}.{ending}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "kernels"


def test_what_one_writes_another_one_reads(folder: Path) -> None:
    one, other = Binaries(folder), Binaries(folder)
    assert other.read(key(1)) is None
    one.write(key(1), b"code")
    assert other.read(key(1)) == b"code"
    assert other.read(key(2)) is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in folder.iterdir()] == [key(1)]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"x" + data[1:]])
def test_a_damaged_file_is_not_believed(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    kept, file = Binaries(folder), folder / key(1)
    kept.write(key(1), b"code")
    file.write_bytes(damage(file.read_bytes()))
    assert kept.read(key(1)) is None
    kept.write(key(1), b"code")
    assert kept.read(key(1)) == b"code"


def test_a_file_under_another_name_is_not_believed(folder: Path) -> None:
    kept = Binaries(folder)
    kept.write(key(1), b"code")
    (folder / key(1)).rename(folder / key(2))
    assert kept.read(key(2)) is None


@pytest.mark.parametrize(("owner", "user", "is_believed"), [(5, 5, True), (0, 5, True), (6, 5, False), (5, 0, False)])
def test_the_code_of_others_is_not_executed(folder: Path, owner: int, user: int, is_believed: bool) -> None:
    kept = Binaries(folder)
    kept.write(key(1), b"code")
    known = os.stat(folder / key(1))
    owned = os.stat_result([*known[:4], owner, *known[5:10]])
    with mock.patch.object(os, "fstat", return_value=owned), mock.patch.object(os, "geteuid", return_value=user):
        assert kept.read(key(1)) == (b"code" if is_believed else None)


def test_what_a_full_disk_has_of_a_binary_is_removed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Binaries(folder)
    with mock.patch.object(os, "replace", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        kept.write(key(1), b"code")
    assert not [*folder.iterdir()]
    assert "No space left on device" in caplog.text


def test_a_folder_that_cannot_be_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Binaries(tmp_path / "file")
    for number in range(2):
        kept.write(key(number), b"code")
        assert kept.read(key(number)) is None
    assert caplog.text.count("compiled kernels are not kept") == 1


def test_a_folder_that_cannot_be_written_is_read_and_written_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(binaries, "monotonic", lambda: now)
    kept = Binaries(folder)
    kept.write(key(1), b"code")
    with mock.patch.object(os, "replace", side_effect=OSError(errno.EROFS, "Read-only file system")):
        kept.write(key(2), b"code")
    assert kept.read(key(1)) == b"code"
    kept.write(key(2), b"code")
    assert kept.read(key(2)) is None, "it rests"
    now += binaries.REST_SECONDS
    kept.write(key(2), b"code")
    assert kept.read(key(2)) == b"code"


def test_what_is_no_file_is_neither_waited_for_nor_read(folder: Path) -> None:
    """Others may put into a folder that is theirs, too, a pipe, or a link to a file that never ends."""
    kept = Binaries(folder)
    kept.write(key(1), b"code")
    os.mkfifo(folder / key(2))
    (folder / key(3)).symlink_to("/dev/zero")
    (folder / key(4)).mkdir()
    (folder / key(1)).rename(folder / "elsewhere")
    (folder / key(1)).symlink_to(folder / "elsewhere")
    for number in range(1, 5):
        assert kept.read(key(number)) is None
    kept.write(key(1), b"code")
    assert kept.read(key(1)) == b"code"


def test_the_least_recently_used_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter, when there would be more than is kept; files of others stay, however old they are."""
    monkeypatch.setattr(binaries, "MOST_BYTES", 8 * 132)
    folder.mkdir(parents=True)
    others = [folder / name for name in ("model.onnx", f"{3:064x}", f"{4:064x}.obj")]
    for each in others:
        each.write_bytes(bytes(1000))
        os.utime(each, (1, 1))
    kept = Binaries(folder)
    begun = time.time() - 100
    for number in range(8):
        kept.write(key(number, "o" if number % 2 else "cubin"), bytes(100))
        os.utime(folder / key(number, "o" if number % 2 else "cubin"), (begun + number, begun + number))
    assert kept.read(key(0, "cubin")), "which makes it the latest"
    kept.write(key(8), bytes(100))
    left = {each.name for each in folder.iterdir()} - {each.name for each in others}
    assert left == {key(number, "o" if number % 2 else "cubin") for number in (0, 4, 5, 6, 7)} | {key(8)}
    assert all(each.exists() for each in others)


def test_what_a_process_left_half_written_goes_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "MOST_BYTES", 500)
    folder.mkdir(parents=True)
    left = folder / f"{key(1)}.u8x2"
    left.write_bytes(bytes(600))
    Binaries(folder).write(key(2), b"code")
    assert not left.exists()


def test_folders_and_links_are_no_binaries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "MOST_BYTES", 500)
    (folder / key(1)).mkdir(parents=True)
    large = folder / "model.onnx"
    large.write_bytes(bytes(600))
    (folder / key(2)).symlink_to(large)
    kept = Binaries(folder)
    for number in range(3, 9):
        kept.write(key(number), bytes(100))
    assert kept.read(key(8)), "which is not given up"
    assert {key(1), key(2), large.name} < {each.name for each in folder.iterdir()}


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_another_process_may_remove_some_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_looked_at: bool
) -> None:
    kept = Binaries(folder)
    for number in range(5):
        kept.write(key(number), bytes(100))
        os.utime(folder / key(number), (number, number))
    scan = os.scandir

    def scan_and_remove(path: Path) -> Iterator["os.DirEntry[str]"]:
        found = sorted(scan(path), key=lambda each: each.name)
        if not is_looked_at:
            (path / key(0)).unlink()
        yield from found
        if is_looked_at:
            (path / key(0)).unlink()

    monkeypatch.setattr(os, "scandir", scan_and_remove)
    monkeypatch.setattr(binaries, "MOST_BYTES", 500)
    kept.write(key(5), bytes(100))
    assert set(os.listdir(folder)) == {key(3), key(4), key(5)}  # not by `scandir`, as some Pythons list a folder


def test_others_writes_are_counted_before_anything_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "MOST_BYTES", 8 * 132)
    one, other = Binaries(folder), Binaries(folder)
    for number in range(0, 16, 2):
        one.write(key(number), bytes(100))
        other.write(key(number + 1), bytes(100))
    assert sum(each.stat().st_size for each in folder.iterdir()) <= 2 * 8 * 132
    one.write(key(16), bytes(100))
    assert sum(each.stat().st_size for each in folder.iterdir()) <= 8 * 132


def test_where_binaries_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder("") == Path("/caches/dmlserve/kernels")
    assert cache_folder("/other") == Path("/other")
    assert cache_folder("none") is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder("") == Path("/home/someone/.cache/dmlserve/kernels")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert cache_folder("") is None, "the user has no home"


def test_loops_are_compiled_by_one_process_only(folder: Path) -> None:
    assert Compiler(Binaries(folder)).function(NOTHING)
    with mock.patch.object(Compiler, "_emitted", side_effect=AssertionError("compiled again")):
        again = Compiler(Binaries(folder))
        again.function(NOTHING)(0)
        with pytest.raises(AssertionError, match="compiled again"):
            again.function(f"{NOTHING}\n; another one")


def test_a_process_that_starts_adds_nothing_to_what_another_one_kept(folder: Path) -> None:
    """Code that had an address in it would be another one in each."""
    program = "import sys, pathlib, app.devices.binaries as b, app.devices.cpu.llvm.compiler as c; "
    program += "c.Compiler(b.Binaries(pathlib.Path(sys.argv[1])))"
    kept = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, str(folder)], check=True, timeout=60)
        kept.append({each.name for each in folder.iterdir()})
    assert kept[0] == kept[1]


DIFFERENCES: dict[str, Callable[[Compiler], Any]] = {
    "version": lambda _: mock.patch.object(Compiler, "version", "99.1"),
    "features": lambda _: mock.patch.object(Compiler, "_features_for", return_value="+none"),
    "processor": lambda made: mock.patch.object(made, "_processor", "another"),
    "passes": lambda _: mock.patch.object(compiler, "_passes", return_value="others"),
}


@pytest.mark.parametrize("other", DIFFERENCES)
def test_what_another_compiler_made_is_not_taken(folder: Path, other: str) -> None:
    made = Compiler(Binaries(folder))
    before = made._key(NOTHING)
    assert made._key(NOTHING) == before != made._key(f"{NOTHING}\n; another one")
    with DIFFERENCES[other](made):
        assert made._key(NOTHING) != before


def test_a_service_keeps_them_where_the_setting_says(folder: Path) -> None:
    Service(Settings(gpus="none", threads=1, kernel_cache=str(folder)))
    assert {each.suffix for each in folder.iterdir()} == {".o"}

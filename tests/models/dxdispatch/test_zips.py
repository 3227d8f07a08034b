"""Zips in memory, and what is written: memory that is accounted for, and which of the files is the model."""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from unittest import mock

import httpx
import pytest

from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryShare, RequestOver
from app.models.dxdispatch import archive, files, values
from app.models.dxdispatch.archive import members
from app.models.dxdispatch.files import FolderFiles, NotWritten, SentFiles
from tests.http.load import metric, wait_until
from tests.models.dxdispatch.models import add, lines, post, problem, zipped

MODEL = json.dumps(add())


@pytest.fixture
def memory() -> Iterator[MemoryShare]:
    with MemoryAccount(1 << 30).open() as opened:
        yield opened


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 64, 1 << 20])
def test_members_are_counted_before_they_are_read(
    memory: MemoryShare, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Wherever the pieces end that are searched for them."""
    monkeypatch.setattr(archive, "SEARCHED", piece)
    sent = zipped({f"{'n' * number}.dat": b"some" for number in range(1, 21)})
    found = members(sent, memory)
    assert list(found) == [f"{'n' * number}.dat" for number in range(1, 21)]
    assert memory.held == 20 * (1 << 11) + min(4 * len(sent), 20 * (1 << 17))


def test_folders_are_no_files(memory: MemoryShare) -> None:
    sent = zipped({"a/": b"", "a/x.dat": b"some", "b/": b"", "y.dat": b"some"})
    assert list(members(sent, memory)) == ["a/x.dat", "y.dat"]


def test_more_members_than_may_be(memory: MemoryShare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_MEMBERS", 3)
    assert len(members(zipped(dict.fromkeys("abc", b"")), memory)) == 3
    with pytest.raises(Unreadable, match="more than 3 files"):
        members(zipped(dict.fromkeys("abcd", b"")), memory)


def test_a_member_is_read_while_the_request_lasts(memory: MemoryShare) -> None:
    member = members(zipped({"x.dat": b"some"}), memory)["x.dat"]
    held = memory.held
    assert bytes(member.read(4, "max_tensor_bytes", memory)) == b"some"
    assert memory.held == held + 4
    with pytest.raises(LimitExceeded, match=r"Bytes of x\.dat"):
        member.read(3, "max_tensor_bytes", memory)
    memory.close()
    with pytest.raises(RequestOver):
        member.read(4, "max_tensor_bytes", memory)


def test_a_file_of_a_folder_is_no_larger_than_may_be(memory: MemoryShare, tmp_path: Path) -> None:
    (tmp_path / "x.dat").write_bytes(b"some")
    found = FolderFiles(tmp_path, tmp_path)
    assert bytes(found.read("x.dat", 4, "max_tensor_bytes", memory)) == b"some"
    with pytest.raises(LimitExceeded, match=r"Bytes of x\.dat: 4, where max_tensor_bytes allows 3"):
        found.read("x.dat", 3, "max_tensor_bytes", memory)
    assert memory.held == 4


def test_what_takes_long_asks_whether_the_request_is_over(
    memory: MemoryShare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module, name in ((archive, "SEARCHED"), (archive, "_PIECE"), (files, "_BLOCK"), (values, "_STEP")):
        monkeypatch.setattr(module, name, 10)
    (tmp_path / "x.dat").write_bytes(bytes(100))
    sent = zipped({"x.dat": bytes(100)})
    with mock.patch.object(MemoryShare, "ensure_open") as asked:
        member = members(sent, memory)["x.dat"]
        assert asked.call_count >= len(sent) // 10
        for work in (
            lambda: member.read(100, "max_tensor_bytes", memory),
            lambda: FolderFiles(tmp_path, tmp_path).read("x.dat", 100, "max_tensor_bytes", memory),
            lambda: values.shown(memoryview(bytes(100)), DataType.UINT8, False, memory),
        ):
            asked.reset_mock()
            work()
            assert asked.call_count >= 10


def test_a_body_is_a_file_that_begins_somewhere() -> None:
    file = archive._Body(b"12345")
    assert (file.seek(-2, 2), file.read(), file.tell(), file.read(1)) == (3, b"45", 5, b"")
    with pytest.raises(OSError, match="before the beginning"):
        file.seek(-6, 2)
    assert file.tell() == 5


@pytest.mark.parametrize("said", [3, 5])
def test_a_member_is_as_long_as_the_zip_says(memory: MemoryShare, said: int) -> None:
    sent = bytearray(zipped({"x.dat": b"some"}))
    sent[sent.rindex(b"PK\x01\x02") + 24] = said
    with pytest.raises(Unreadable, match=r"^x\.dat in the zip "):
        members(bytes(sent), memory)["x.dat"].read(5, "max_tensor_bytes", memory)


def test_an_encrypted_member_is_not_read(memory: MemoryShare) -> None:
    sent = bytearray(zipped({"x.dat": b"some"}))
    sent[sent.rindex(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(Unreadable, match=r"^x\.dat in the zip is encrypted; send it as it is\.$"):
        members(bytes(sent), memory)["x.dat"].read(4, "max_tensor_bytes", memory)


def test_what_is_written_twice_is_held_once(memory: MemoryShare) -> None:
    sent = SentFiles({}, memory, PurePosixPath())
    for data in (b"first", b"second", b"last"):
        sent.write("folder/./out.dat", memoryview(data))
        sent.write("other.dat", memoryview(data))
        assert memory.held == 2 * len(data)
    assert {name: bytes(each) for name, each in sent.written.items()} == {
        "folder/out.dat": b"last",
        "other.dat": b"last",
    }
    with pytest.raises(NotWritten, match="does not stay within the folder"):
        sent.write("../out.dat", memoryview(b""))


def test_which_file_is_the_model(client: httpx.Client) -> None:
    """The only one that is called model.json, or else the only one that may be."""
    for names in (["a.json"], ["A.JSON", "b.txt"], ["model.json", "b.json"], ["b.json", "folder/model.json"]):
        files = {
            name: MODEL if name.lower() in ("a.json", "model.json", "folder/model.json") else "{}" for name in names
        }
        assert lines(client, zipped(files)) == ["Resource 'Out': 6, 10, -2"]
    for names in (["a.json", "b.json"], ["a/model.json", "b/model.json"]):
        told = problem(client, zipped(dict.fromkeys(names, MODEL)))
        assert told == {"/model": "The zip has 2 .json files; the query's model says which one is the model."}
    assert post(client, zipped({"a.json": MODEL, "b.json": "{}"}), model="./a.json").status_code == 200
    told = problem(client, zipped({"a.json": MODEL}), model="c.json")
    assert told == {"/model": "The zip has no file c.json."}
    told = problem(client, zipped({"a.json": MODEL}), model="../a.json")
    assert told == {"/model": "../a.json does not stay within the folder; give a relative path without '..'."}
    told = problem(client, add(), model="a.json")
    assert told == {"/model": "model names a file in a zip; the body is the model itself."}


def test_nothing_is_held_afterwards(client: httpx.Client) -> None:
    def held() -> float:
        return metric(client, "memory_bytes")

    before = held()
    for sent, status in ((zipped({"model.json": MODEL}), 200), (zipped({"model.json": "{}"}), 422)):
        assert post(client, sent).status_code == status
        wait_until(lambda: held() == before)


def test_dispatches_that_ran_are_counted(client: httpx.Client) -> None:
    def counted() -> float:
        return metric(client, "dispatches_total", operator="DML_OPERATOR_ELEMENT_WISE_ADD", device="numpy")

    before, model = counted(), add()
    model["commands"] *= 3
    assert post(client, model).status_code == 200
    wait_until(lambda: counted() == before + 3)


@pytest.mark.parametrize("kind", ["application/octet-stream", "application/zip", "application/x-zip-compressed"])
def test_names_of_zips(client: httpx.Client, kind: str) -> None:
    sent = zipped({"model.json": MODEL})
    assert client.post("/v1/dxdispatch", content=sent, headers={"content-type": kind}).status_code == 200
    told = client.post("/v1/dxdispatch", content=sent, headers={"content-type": "application/gzip"})
    assert told.status_code == 415
    assert "application/zip" in told.json()["detail"]

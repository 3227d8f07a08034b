"""What a repository has of its models, without a server."""

import asyncio
import ctypes
import errno
import gc
import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn

import httpx
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from app.contract.violations import ContractError, Violation
from app.devices.device import Cancelled
from app.engine.service import Service
from app.engine.workers import Ticket
from app.http.core.asgi import Application
from app.http.core.keys import Keys
from app.http.server.limit import ConnectionLimit
from app.main import create_app, handler_of
from app.memory.accounts import MemoryExhausted, MemoryShare
from app.models.onnx import files, reading
from app.models.onnx.errors import NotSupported
from app.models.onnx.importer import PARTS_BYTES, import_model
from app.models.onnx.reading import Unreadable
from app.models.repository import config, layout
from app.models.repository.config import BadConfig, parse, text_in
from app.models.repository.model import LoadedModel, blaming_nodes, pausing, read
from app.models.repository.repository import NotReady, Repository, UnknownModel
from app.models.repository.switches import UNTOUCHED, LocalSwitches, SharedSwitches, Switch
from app.settings import Settings, Unusable
from tests.models.documents import affine, model, put, with_external_data


class Opened:
    """A service with the models of a folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.service = Service(Settings(threads=1, gpus="none", llvm=False, models=str(folder), **settings))
        self.service.open()
        self.repository = Repository(self.service)
        self.repository.open()

    def close(self) -> None:
        self.repository.close()
        assert self.service.memory.used == 0
        self.service.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    put(tmp_path / "affine.onnx", affine())
    put(tmp_path / "versions" / "1" / "model.onnx", affine())
    put(tmp_path / "versions" / "2" / "model.onnx", affine())
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    made = Opened(tmp_path)
    yield made
    made.close()


def test_why_a_model_is_not_found(opened: Opened) -> None:
    known = opened.repository.known
    with pytest.raises(UnknownModel, match=r"^There is no model other\.$"):
        known("other", None)
    with pytest.raises(UnknownModel, match=r"^Model versions has no version 7; there is 1, 2\.$"):
        known("versions", "7")
    with pytest.raises(NotReady, match=r"^Model broken is not ready: It is no ONNX model"):
        known("broken", None)
    assert known("versions", None).version == "2"
    assert opened.repository.versions("versions") == ["1", "2"]
    assert opened.repository.versions("broken") == opened.repository.versions("other") == []
    for name in ("other", "../affine"):
        with pytest.raises(UnknownModel, match="There is no model"):
            asyncio.run(opened.repository.load(name))
        with pytest.raises(UnknownModel, match="There is no model"):
            asyncio.run(opened.repository.unload(name))


def test_without_a_folder_there_is_nothing_to_load() -> None:
    repository = Repository(Service(Settings(gpus="none", llvm=False)))
    repository.open()
    assert list(repository.all()) == []
    for switch in (repository.load, repository.unload):
        with pytest.raises(UnknownModel, match=r"^There is no folder of models; .* with --models\.$"):
            asyncio.run(switch("other"))


def test_what_is_unloaded_says_how_to_load_it(opened: Opened) -> None:
    async def main() -> None:
        await opened.repository.unload("affine")
        assert opened.repository.ready("affine") == []  # at once, not when it is asked for again
        with pytest.raises(NotReady, match=r"not loaded; POST /v2/repository/models/affine/load loads it\.$"):
            await opened.repository.find("affine", None)
        assert opened.repository.has("affine")
        await opened.repository.load("affine")
        assert (await opened.repository.find("affine", "1")).called == "affine:1"

    asyncio.run(main())


def test_what_cannot_be_loaded_again_is_served_as_it_was(opened: Opened, tmp_path: Path) -> None:
    """As Triton has it, each version by itself; with none left all of them."""
    repository, newest = opened.repository, tmp_path / "versions" / "2" / "model.onnx"
    affine_before, first, second = (
        repository.known(*each) for each in (("affine", None), ("versions", "1"), ("versions", "2"))
    )

    def load(name: str, refused: str = "") -> None:
        if not refused:
            asyncio.run(repository.load(name))
            return
        with pytest.raises(NotReady, match=f"^Model {name} is served as it was, and cannot be loaded again: {refused}"):
            asyncio.run(repository.load(name))

    (tmp_path / "affine.onnx").write_bytes(b"no model")
    load("affine", "It is no ONNX model")
    assert repository.known("affine", None) is affine_before
    repository.compile(affine_before, ((1, 3),), lambda: False)
    put(tmp_path / "affine.onnx", affine())
    load("affine")
    assert repository.known("affine", None) is not affine_before
    assert affine_before.is_closed
    assert repository.compiled_sizes() == []
    whole = newest.read_bytes()
    newest.write_bytes(b"no model")
    load("versions", "It is no ONNX model")
    assert repository.known("versions", "2") is second
    assert repository.known("versions", "1") is not first
    assert repository.versions("versions") == ["1", "2"]
    (tmp_path / "versions" / "config.pbtxt").write_text("no config")
    load("versions", "config")
    assert repository.known("versions", None) is second
    (tmp_path / "versions" / "config.pbtxt").unlink()
    newest.write_bytes(whole)
    load("versions")
    assert repository.known("versions", "2") is not second
    asyncio.run(repository.unload("versions"))
    assert repository.ready("versions") == []


def test_the_newest_version_that_is_ready_goes_without_saying(tmp_path: Path) -> None:
    put(tmp_path / "some" / "1" / "model.onnx", affine())
    put(tmp_path / "some" / "2" / "model.onnx", affine())
    (tmp_path / "some" / "3").mkdir()
    (tmp_path / "some" / "3" / "model.onnx").write_bytes(b"no model")
    made = Opened(tmp_path)
    assert made.repository.known("some", None).version == "2"
    with pytest.raises(NotReady, match=r"^Model some is not ready: It is no ONNX model"):
        made.repository.known("some", "3")
    made.close()


def test_what_is_unloaded_while_it_is_compiled_is_not_kept(opened: Opened) -> None:
    """It is for who waits for it."""
    repository, used = opened.repository, opened.service.memory.used
    model = repository.known("affine", None)
    asyncio.run(repository.unload("affine"))
    repository.compile(model, ((1, 3),), lambda: False)
    assert repository.compiled_sizes() == []
    assert opened.service.memory.used <= used


def test_what_other_processes_said_before_this_one_began(tmp_path: Path) -> None:
    put(tmp_path / "models" / "affine.onnx", affine())
    service = Service(Settings(threads=1, gpus="none", llvm=False, models=str(tmp_path / "models")))
    service.open()
    ours, theirs = (SharedSwitches(tmp_path / "switches") for _ in range(2))
    theirs.set("affine", is_loaded=False)
    repository = Repository(service, ours)
    repository.open()
    with pytest.raises(NotReady, match="not loaded"):
        repository.known("affine", None)
    put(tmp_path / "models" / "later.onnx", affine())
    assert not repository.has("later")
    theirs.set("later", is_loaded=True)
    assert repository.has("later")
    assert asyncio.run(repository.find("later", None)).called == "later:1"
    repository.close()
    service.close()


def test_a_file_that_is_gone_when_another_process_has_it_loaded(tmp_path: Path) -> None:
    put(tmp_path / "models" / "affine.onnx", affine())
    service = Service(Settings(threads=1, gpus="none", llvm=False, models=str(tmp_path / "models")))
    service.open()
    ours, theirs = (SharedSwitches(tmp_path / "switches") for _ in range(2))
    repository = Repository(service, ours)
    repository.open()

    async def main() -> None:
        first = await repository.find("affine", None)
        theirs.set("affine", is_loaded=True)
        assert await repository.find("affine", None) is not first
        theirs.set("affine", is_loaded=False)
        with pytest.raises(NotReady, match="not loaded"):
            await repository.find("affine", None)
        shutil.rmtree(tmp_path / "models")
        theirs.set("affine", is_loaded=True)
        with pytest.raises(NotReady, match=r"not ready: its file is gone\.$"):
            await repository.find("affine", None)

    asyncio.run(main())
    repository.close()
    assert service.memory.used == 0
    service.close()


def test_a_load_that_an_unload_overtakes_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for rightly, and the model is not there."""
    put(tmp_path / "affine.onnx", affine())
    service, switches = Service(Settings(threads=1, gpus="none", llvm=False, models=str(tmp_path))), LocalSwitches()
    service.open()
    made = create_app(service.settings, service, ConnectionLimit(), switches=switches)
    application: Any = Application(handler_of(made, service.settings, Keys("", "")), made)
    read_it = Repository._read

    def unloaded_meanwhile(self: Repository, name: str, ticket: Ticket[None]) -> Any:
        switches.set(name, is_loaded=False)
        return read_it(self, name, ticket)

    monkeypatch.setattr(Repository, "_read", unloaded_meanwhile)

    async def load() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://service") as client:
            return await client.post("/v2/repository/models/affine/load")

    answer = asyncio.run(load())
    message = "Another request unloaded model affine while this one loaded it; load it again."
    assert (answer.status_code, answer.json()) == (409, {"error": message})
    assert service.memory.used == 0
    service.close()


def test_switches_of_one_process() -> None:
    switches = LocalSwitches()
    assert switches.get("some") == UNTOUCHED
    for generation, is_loaded in ((1, False), (2, True)):
        switches.set("some", is_loaded=is_loaded)
        assert switches.get("some") == Switch(generation, is_loaded)


def test_switches_that_processes_share(tmp_path: Path) -> None:
    one, other = (SharedSwitches(tmp_path / "switches") for _ in range(2))
    assert one.get("some") == UNTOUCHED
    one.set("some", is_loaded=False)
    first = one.get("some")
    assert (first, first.is_loaded) == (other.get("some"), False)
    other.set("some", is_loaded=True)
    second = one.get("some")
    assert (second, second.is_loaded) == (other.get("some"), True)
    assert len({UNTOUCHED.generation, first.generation, second.generation}) == 3
    assert (tmp_path / "switches" / "some").stat().st_mode & 0o777 == 0o600
    opened = len(os.listdir("/proc/self/fd"))
    one.set("x" * 128, is_loaded=False)
    assert len(os.listdir("/proc/self/fd")) == opened
    assert not one.get("x" * 128).is_loaded
    (tmp_path / "outside").write_bytes(b"+")
    (tmp_path / "switches" / ("x" * 129)).write_bytes(b"+")
    for name in ("../outside", "so\0me", "x" * 129, "", ".", ".."):
        assert one.get(name) == UNTOUCHED


def test_what_is_said_after_their_folder_was_removed_is_something_else(tmp_path: Path) -> None:
    one, other = (SharedSwitches(tmp_path / "switches") for _ in range(2))
    one.set("some", is_loaded=True)
    before = one.get("some")
    shutil.rmtree(tmp_path / "switches")
    other.set("some", is_loaded=False)
    after = one.get("some")
    assert (after.is_loaded, after == other.get("some"), after.generation == before.generation) == (False, True, False)
    shutil.rmtree(tmp_path / "switches")
    assert one.get("some") == UNTOUCHED


def test_what_is_dropped_has_what_was_judged_forgotten(tmp_path: Path) -> None:
    put(tmp_path / "affine.onnx", affine())
    made = Opened(tmp_path, max_model_graphs=1)
    loaded = made.repository.known("affine", None)
    made.repository.compile(loaded, ((1, 3),), lambda: False)
    key = loaded.cache_key
    assert made.repository.compile(loaded, ((1, 3),), lambda: False).sizes == ((1, 3),)
    assert loaded.cache_key is key
    made.repository.compile(loaded, ((2, 3),), lambda: False)
    assert loaded.cache_key is not key
    assert made.repository.compiled_sizes() == [(loaded, ((2, 3),))]
    made.close()


def test_batches_of_what_is_warmed_are_compiled_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path / "rows.onnx", model("m (float[n,2] x) => (float[n,2] y) { y = Neg(x) }"))
    single = model("m (float[n,2] x) => (float[n,2] y) { y = Reshape(x, k) }", k=np.array([1, 2]))
    put(tmp_path / "single.onnx", single)
    with caplog.at_level(logging.WARNING, "app"):
        made = Opened(tmp_path, max_batch=4, warm="rows=1x2; single=1x2")
    sizes = {(loaded.name, rows) for loaded, ((rows, _),) in made.repository.compiled_sizes()}
    assert sizes == {("rows", 1), ("rows", 2), ("rows", 4), ("single", 1)}
    assert isinstance(made.repository.known("single", None), LoadedModel)
    assert "Batches of model single:1 cannot be compiled: " in caplog.text
    made.close()


def test_a_model_that_cannot_be_loaded_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with caplog.at_level(logging.WARNING, "app"):
        Opened(tmp_path).close()
    assert "Model broken:1 cannot be loaded: It is no ONNX model" in caplog.text


def test_a_model_that_is_not_read_takes_no_memory(opened: Opened, tmp_path: Path) -> None:
    before = opened.service.memory.used
    put(tmp_path / "nibbles", model("m (int4[2] x) => (float[2] y) { y = Cast<to=1>(x) }"))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    put(tmp_path / "given", model("m (float[2] x) => (uint4[2] y) { y = Cast<to=21>(x) }"))
    for file, error, why in (
        ("gone", Unreadable, r"^It cannot be read: No such file or directory\.$"),
        ("folder", Unreadable, r"^It cannot be read: Is a directory\.$"),
        ("pipe", Unreadable, r"^It cannot be read: it is no file\.$"),
        ("nibbles", NotSupported, r"^x \(tensor\): the protocol has no data type for int4$"),
        ("given", NotSupported, r"^y \(tensor\): the protocol has no data type for uint4$"),
    ):
        with pytest.raises(error, match=why):
            read("m", "1", tmp_path / file, None, opened.service, lambda: False)
    (tmp_path / "config").write_text('name: "other"')
    with pytest.raises(BadConfig, match="in the folder"):
        read("m", "1", tmp_path / "affine.onnx", tmp_path / "config", opened.service, lambda: False)
    assert opened.service.memory.used == before


def test_a_file_that_breaks_off_takes_no_memory(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    before = opened.service.memory.used
    monkeypatch.setattr("app.models.repository.model.read_model", fail)
    with pytest.raises(Unreadable, match=r"^It cannot be read: Input/output error\.$"):
        read("m", "1", tmp_path / "affine.onnx", None, opened.service, lambda: False)
    assert opened.service.memory.used == before


def test_a_file_may_be_as_large_as_the_limit(opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "affine.onnx"
    size = file.stat().st_size
    monkeypatch.setattr(opened.service.settings, "max_model_bytes", size)
    read("m", "1", file, None, opened.service, lambda: False).close()
    monkeypatch.setattr(opened.service.settings, "max_model_bytes", size - 1)
    with pytest.raises(Unreadable, match=rf"^It has {size} bytes, where max_model_bytes allows {size - 1}\.$"):
        read("m", "1", file, None, opened.service, lambda: False)


def test_external_data_are_charged_before_they_are_read(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = opened.service.memory
    asked: list[Path] = []

    def noted(file: Path) -> BinaryIO:
        asked.append(file)
        return files.opened(file)

    monkeypatch.setattr(reading, "opened", noted)
    (tmp_path / "weights").write_bytes(np.ones(3, np.float32).tobytes())
    put(file := tmp_path / "outside", with_external_data(tmp_path, "weights"))
    monkeypatch.setattr("app.models.repository.model.PARTS_BYTES", 1)  # else what is kept is more than what is read
    needed = memory.used + file.stat().st_size + 12
    monkeypatch.setattr(memory, "limit", needed - 1)
    with pytest.raises(MemoryExhausted):
        read("m", "1", file, None, opened.service, lambda: False)
    assert asked == []
    monkeypatch.setattr(memory, "limit", needed)
    made = read("m", "1", file, None, opened.service, lambda: False)
    assert len(asked) == 1
    assert memory.used == needed - file.stat().st_size + len(made.operators)
    made.close()


def _anonymous_bytes() -> int:
    """Of this process' memory, how much is of no file and not free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    (kilobytes,) = re.findall(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kilobytes) << 10


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="RssAnon and malloc_trim")
@pytest.mark.parametrize("form", ["raw", "numbers", "node", "external"])
def test_weights_are_there_once(tmp_path: Path, form: str) -> None:
    """Nor does protobuf keep those that it had, or the file."""
    count = 8 << 20
    weights = np.random.default_rng(0).random(count, np.float32)
    made = model(f"m (float[{count}] x) => (float[{count}] y) {{ y = Add(x, w) }}")
    tensor = numpy_helper.from_array(weights, "w")
    if form == "node":
        made.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
    else:
        made.graph.initializer.append(tensor)
    if form == "numbers":
        tensor = made.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.float_data.extend(weights)
    file, folder = tmp_path / "m.onnx", tmp_path / "none"
    folder.mkdir()
    onnx.save(made, file, save_as_external_data=form == "external", location="data")
    del made, tensor
    opened = Opened(folder, max_memory_bytes=1 << 30)
    try:
        put(folder / "first", affine())  # so that modules are there
        read("first", "1", folder / "first", None, opened.service, lambda: False).close()
        before, size = _anonymous_bytes(), weights.nbytes
        loaded = read("m", "1", file, None, opened.service, lambda: False)
        assert loaded.weight_bytes == size
        assert opened.service.memory.used == size + PARTS_BYTES * len(loaded.operators)
        assert _anonymous_bytes() - before < 1.25 * size
        loaded.close()
    finally:
        opened.close()


def test_sizes_that_a_model_cannot_have_take_no_memory(opened: Opened) -> None:
    before = opened.service.memory.used
    with pytest.raises(ContractError, match=r"^affine:1 cannot be compiled for these sizes: x is 2x4") as raised:
        opened.repository.compile(opened.repository.known("affine", None), ((2, 4),), lambda: False)
    assert [each.path for each in raised.value.violations] == [("inputs",)]
    assert opened.service.memory.used == before


def test_what_fails_while_it_is_compiled_takes_no_memory(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Service, __: object, memory: MemoryShare, *___: object) -> None:
        memory.take(1 << 10)
        raise RuntimeError("a fault of ours")

    before = opened.service.memory.used
    monkeypatch.setattr(Service, "compile", fail)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        opened.repository.compile(opened.repository.known("affine", None), ((2, 3),), lambda: False)
    assert opened.service.memory.used == before


def test_onnx_nodes_are_blamed_for_what_directml_refuses() -> None:
    made = model("m (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) a = Abs(x) z = Exp(a) }")
    made.graph.node[1].name = "positive"
    imported = import_model(made, {})
    place = imported.graph.labels.index("positive")

    def refuse(*paths: tuple[str | int, ...]) -> None:
        raise ContractError([Violation(path, "It cannot be.") for path in paths])

    paths: list[tuple[str | int, ...]]
    paths = [("graph", "Nodes", place, "Desc", "InputTensor"), ("Nodes", place), ("Nodes", place, "Desc")]
    for path in paths:
        with pytest.raises(NotSupported) as raised:
            blaming_nodes(imported, partial(refuse, path, path))
        assert str(raised.value) == "positive (Abs, opset 17): It cannot be"
    paths = [("graph",), (), ("Nodes",), ("OutputEdges", place), ("graph", "InputEdges", place, "GraphInput")]
    for path in paths:
        with pytest.raises(NotSupported) as raised:
            blaming_nodes(imported, partial(refuse, path))
        assert str(raised.value) == "the graph (graph): It cannot be"


def denied(*_: object, **__: object) -> NoReturn:
    raise PermissionError(13, "Permission denied")


def test_folders_that_are_not_ours_to_read_have_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a volume is mounted there is lost+found, which is root's."""
    put(tmp_path / "affine.onnx", affine())
    put(tmp_path / "some" / "1" / "model.onnx", affine())
    monkeypatch.setattr(layout, "_numbers", lambda folder: denied() if folder.name == "some" else [])
    assert layout.names_in(tmp_path) == ["affine"]
    assert caplog.messages == ["There are no models in the folder 'some': Permission denied."]
    assert layout.find(tmp_path, "some") is None


def test_a_folder_of_models_that_is_not_ours_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(Unusable, match=rf"^The folder {tmp_path} cannot be read: Permission denied\.$"):
        Repository(Service(Settings(models=str(tmp_path), gpus="none", llvm=False)))


def test_no_more_is_read_of_a_config_than_it_may_have(tmp_path: Path) -> None:
    (file := tmp_path / "config.pbtxt").touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(BadConfig, match="more than the 1048576 characters that are allowed"):
        parse(text_in(file))


def test_what_became_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no file"):
        text_in(tmp_path / "pipe")


def test_a_config_that_cannot_be_read_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "some" / "1" / "model.onnx", affine())
    (tmp_path / "some" / "config.pbtxt").write_text("")

    monkeypatch.setattr(config, "opened", denied)
    assert layout.names_in(tmp_path) == ["some"]
    with pytest.raises(BadConfig, match=r"^config\.pbtxt cannot be read: Permission denied\.$"):
        layout.find(tmp_path, "some")


def test_a_config_that_notepad_wrote(tmp_path: Path) -> None:
    """With a byte order mark, as protobuf takes it."""
    (file := tmp_path / "config.pbtxt").write_bytes(b'\xef\xbb\xbfname: "some"\r\n')
    assert parse(text_in(file)) == {"name": ["some"]}


def test_who_imports_a_model_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each two milliseconds, and ends where nobody waits for it any more."""
    now, slept, ends = [0], list[int](), [False]
    clock = SimpleNamespace(perf_counter=lambda: now[0] / (1 << 11), sleep=lambda seconds: slept.append(now[0]))
    monkeypatch.setattr("app.models.repository.model.time", clock)
    pause = pausing(lambda: ends[0])
    for now[0] in range(16):
        pause()
    assert slept == [5, 10, 15]
    ends[0] = True
    with pytest.raises(Cancelled):
        pause()

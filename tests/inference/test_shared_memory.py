"""Triton's system shared memory: regions by name, and nothing outside them."""

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.contract.violations import ContractError
from app.http.inference.shared_memory import MAX_REGIONS, Region, most_regions
from app.memory.accounts import MemoryAccount
from tests.conftest import COMMAND, RunningServer, ServerFactory, running_server
from tests.inference.wire import CELU, RELU, X, behind, error_of, listed, post, split, tensor
from tests.messages import Array

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no POSIX shared memory")

STATUS, UNREGISTER = "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/unregister"


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with shared memory."""
    with running_server(tmp_path_factory.mktemp("sharing") / "log", "--shared-memory") as running:
        yield running


@pytest.fixture
def client(sharing: RunningServer) -> Iterator[httpx.Client]:
    """A client of `sharing`, which forgets its regions afterwards."""
    with httpx.Client(base_url=sharing.url, timeout=30) as opened:
        yield opened
        assert opened.post(UNREGISTER).status_code == 200


@dataclass(frozen=True)
class Memory:
    """A shared memory object."""

    name: str
    buf: memoryview


@pytest.fixture
def memory() -> Iterator[Memory]:
    """One page, full of 255."""
    made = SharedMemory(f"dmlserve-test-{uuid.uuid4()}", create=True, size=4096)
    assert made.buf is not None
    made.buf[:] = b"\xff" * 4096
    yield Memory(made.name, made.buf)
    made.close()
    made.unlink()


def register(client: httpx.Client, name: str, key: str, byte_size: int, offset: int = 0) -> httpx.Response:
    document = {"key": key, "offset": offset, "byte_size": byte_size}
    return client.post(f"/v2/systemsharedmemory/region/{name}/register", json=document)


def shared(region: str, byte_size: int, offset: int = 0) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": byte_size, "shared_memory_offset": offset}


def put(memory: Memory, array: Array, offset: int) -> None:
    memory.buf[offset : offset + array.nbytes] = array.tobytes()


def test_inputs_and_outputs(client: httpx.Client, memory: Memory) -> None:
    put(memory, X, 100)
    before = bytes(memory.buf)
    assert register(client, "in", memory.name, 50, 90).status_code == 200
    assert register(client, "out", f"/{memory.name}", 200, 1000).status_code == 200
    outputs = [{"name": "OutputTensor", "parameters": shared("out", 24, 8)}]
    document = {"inputs": [tensor("InputTensor", X, parameters=shared("in", 24, 10))], "outputs": outputs}
    answer, data = split(post(client, CELU, document))
    assert data == b""
    assert answer["outputs"] == [
        {"name": "OutputTensor", "datatype": "FP32", "shape": [2, 3], "parameters": shared("out", 24, 8)}
    ]
    expected = np.where(X > 0, X, np.expm1(X))
    found = np.frombuffer(bytes(memory.buf[1008:1032]), np.float32).reshape(2, 3)
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-6)
    after = bytes(memory.buf)
    assert after[:1008] + after[1032:] == before[:1008] + before[1032:]  # nothing else was written


def test_mixed_with_other_forms(client: httpx.Client, memory: Memory) -> None:
    x = X.astype(np.float16)
    put(memory, x, 0)
    register(client, "r", memory.name, 4096)
    inputs = [behind("SlopeTensor", x), tensor("InputTensor", x, parameters=shared("r", 12))]
    _, data = split(post(client, RELU, {"inputs": inputs, "parameters": {"in_place": "InputTensor"}}, x.tobytes()))
    np.testing.assert_array_equal(np.frombuffer(data, np.float16).reshape(2, 3), np.where(x >= 0, x, x * x))
    assert bytes(memory.buf[:12]) == x.tobytes(), "a client's input is not written to"


def test_status(client: httpx.Client, memory: Memory) -> None:
    assert client.get(STATUS).json() == []
    register(client, "a", memory.name, 16)
    register(client, "b", memory.name, 16, 32)
    listed = [
        {"name": "a", "key": memory.name, "offset": 0, "byte_size": 16},
        {"name": "b", "key": memory.name, "offset": 32, "byte_size": 16},
    ]
    assert client.get(STATUS).json() == listed
    assert client.get("/v2/systemsharedmemory/region/b/status").json() == listed[1:]
    assert error_of(client.get("/v2/systemsharedmemory/region/c/status"), 404) == "There is no region c."
    for _ in range(2):
        assert client.post("/v2/systemsharedmemory/region/a/unregister").status_code == 200
    assert client.get(STATUS).json() == listed[1:]
    assert "system_shared_memory" in client.get("/v2").json()["extensions"]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "..",
        "../etc/passwd",
        "/../etc/passwd",
        "a/b",
        "//a",
        "sem.lock",
        "/sem.lock",
        ".hidden",
        "a\x00b",
        "a b",
        "x" * 300,
    ],
)
def test_keys_that_are_no_names(client: httpx.Client, key: str) -> None:
    assert "is no name of a shared memory object" in error_of(register(client, "r", key, 16))


def test_a_key_that_leads_elsewhere(client: httpx.Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    link = Path("/dev/shm") / f"dmlserve-test-{uuid.uuid4()}"
    link.symlink_to(secret)
    try:
        assert "cannot be opened" in error_of(register(client, "r", link.name, 16))
    finally:
        link.unlink()
    os.mkfifo(link)
    try:
        assert "is no shared memory object" in error_of(register(client, "r", link.name, 16))
    finally:
        link.unlink()
    link.mkdir()
    try:
        assert "cannot be opened" in error_of(register(client, "r", link.name, 16))
    finally:
        link.rmdir()
    assert "No such file" in error_of(register(client, "r", link.name, 16))


@pytest.mark.parametrize(("byte_size", "offset"), [(4097, 0), (1, 4096), (4096, 1), (1, 2**63), (2**64 - 1, 1)])
def test_a_region_that_is_not_all_in_the_object(
    client: httpx.Client, memory: Memory, byte_size: int, offset: int
) -> None:
    said = error_of(register(client, "r", memory.name, byte_size, offset))
    assert said == f"{memory.name} has 4096 bytes; {byte_size} at offset {offset} are not all in it."


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "key is missing"),
        ({"key": "k", "byte_size": 0}, "byte_size is 0; it must be >= 1."),
        ({"key": "k", "byte_size": 4, "offset": -1}, "offset is -1; it must be >= 0."),
        ({"key": 1, "byte_size": 4}, "key is 1; it must be a string."),
        ({"key": "k", "byte_size": 4, "flags": 1}, "flags is not a field here"),
        (None, "The document is null; it must be an object."),
    ],
)
def test_registrations_that_are_none(client: httpx.Client, document: dict[str, Any] | None, said: str) -> None:
    response = client.post("/v2/systemsharedmemory/region/r/register", content=json.dumps(document))
    assert error_of(response).startswith(said)


def test_a_name_is_registered_once(client: httpx.Client, memory: Memory) -> None:
    assert register(client, "r", memory.name, 16).status_code == 200
    assert error_of(register(client, "r", memory.name, 32), 409).startswith("There is a region r already")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (shared("other", 24), "There is no region other; register it before its use."),
        (shared("r", 24, 80), "Region r has 100 bytes; 24 at offset 80 are not all in it."),
        (shared("r", 2**40), "Region r has 100 bytes;"),
        (shared("r", 20), "Data for InputTensor are 20 bytes; FLOAT32 [2, 3] is 24 bytes."),
        ({"shared_memory_region": "r"}, "InputTensor has a shared_memory_region without shared_memory_byte_size"),
        (shared("r", 24) | {"binary_data_size": 24}, "InputTensor has binary_data_size and shared_memory_region;"),
    ],
)
def test_inputs_that_are_not_all_in_their_region(
    client: httpx.Client, memory: Memory, parameters: dict[str, Any], said: str
) -> None:
    register(client, "r", memory.name, 100)
    document = {"inputs": [tensor("InputTensor", X, parameters=parameters)]}
    assert error_of(post(client, CELU, document)).startswith(said)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (shared("other", 24), "There is no region other; register it before its use."),
        (shared("r", 24, 80), "Region r has 100 bytes; 24 at offset 80 are not all in it."),
        (shared("r", 40, 70), "Region r has 100 bytes; 40 at offset 70 are not all in it."),
        (shared("r", 20), "OutputTensor is 24 bytes; shared_memory_byte_size is 20."),
        ({"shared_memory_region": "r"}, "OutputTensor has a shared_memory_region without shared_memory_byte_size"),
        (shared("r", 24) | {"binary_data": True}, "OutputTensor has binary_data and shared_memory_region;"),
    ],
)
def test_outputs_that_are_not_all_in_their_region(
    client: httpx.Client, memory: Memory, parameters: dict[str, Any], said: str
) -> None:
    register(client, "r", memory.name, 100)
    document = {"inputs": [listed("InputTensor", X)], "outputs": [{"name": "OutputTensor", "parameters": parameters}]}
    assert error_of(post(client, CELU, document)).startswith(said)
    assert bytes(memory.buf) == b"\xff" * 4096


def split_into(client: httpx.Client, places: dict[str, dict[str, Any]]) -> httpx.Response:
    """X, of which the first column and the other two go where `places` say."""
    sizes = {"OutputTensors[0].Sizes": [2, 1], "OutputTensors[1].Sizes": [2, 2]}
    types = {f"{name}.DataType": "FLOAT32" for name in places}
    document = {
        "inputs": [listed("InputTensor", X)],
        "parameters": {"Axis": 1} | sizes | types,
        "outputs": [{"name": name, "parameters": parameters} for name, parameters in places.items()],
    }
    return post(client, "/v2/models/split/infer", document)


def test_no_output_is_written_if_another_does_not_fit(client: httpx.Client, memory: Memory) -> None:
    register(client, "r", memory.name, 100)
    places = {"OutputTensors[0]": shared("r", 8), "OutputTensors[1]": shared("r", 16, 90)}
    assert "16 at offset 90 are not all in it" in error_of(split_into(client, places))
    assert bytes(memory.buf) == b"\xff" * 4096


@pytest.mark.parametrize(("first", "second"), [(8, 0), (0, 4), (0, 0)])
def test_outputs_that_overlap(client: httpx.Client, memory: Memory, first: int, second: int) -> None:
    """The one that is written first would not be what was computed."""
    register(client, "r", memory.name, 100)
    places = {"OutputTensors[0]": shared("r", 8, first), "OutputTensors[1]": shared("r", 16, second)}
    said = error_of(split_into(client, places))
    assert said.endswith("no two outputs may overlap.")
    assert f"begins at offset {max(first, second)} of region r" in said
    assert bytes(memory.buf) == b"\xff" * 4096
    places["OutputTensors[1]"]["shared_memory_offset"] = first + 8  # right behind the other one
    assert split_into(client, places).status_code == 200
    assert bytes(memory.buf[first : first + 24]) == np.hstack([X[:, :1].ravel(), X[:, 1:].ravel()]).tobytes()
    register(client, "s", memory.name, 100, 1000)
    places["OutputTensors[1]"] = shared("s", 16, second)  # another one has its own offsets
    assert split_into(client, places).status_code == 200
    assert bytes(memory.buf[1000 + second :][:16]) == X[:, 1:].tobytes()


def test_an_object_that_shrinks(client: httpx.Client, sharing: RunningServer, memory: Memory) -> None:
    """Mapped memory would end the process at the first access to what is gone."""
    register(client, "r", memory.name, 4096)
    os.truncate(f"/dev/shm/{memory.name}", 10)
    document = {"inputs": [tensor("InputTensor", X, parameters=shared("r", 24))]}
    assert "has become smaller since; register it again." in error_of(post(client, CELU, document))
    outputs = [{"name": "OutputTensor", "parameters": shared("r", 24, 100)}]
    document = {"inputs": [listed("InputTensor", X)], "outputs": outputs}
    for left in (10, 100 + 23):
        os.truncate(f"/dev/shm/{memory.name}", left)
        assert "has become smaller since; register it again." in error_of(post(client, CELU, document))
        assert os.stat(f"/dev/shm/{memory.name}").st_size == left
    os.truncate(f"/dev/shm/{memory.name}", 100 + 24)
    assert post(client, CELU, document).status_code == 200
    assert sharing.process.poll() is None
    os.truncate(f"/dev/shm/{memory.name}", 4096)


def test_an_object_that_is_leased_is_not_waited_for(client: httpx.Client) -> None:
    """The system would hold up who opens it for 45 s, and here that is everybody."""
    object_ = Path(f"/dev/shm/dmlserve-test-{uuid.uuid4()}")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the system asks for the lease
    try:
        object_.write_bytes(bytes(16))
        with object_.open("rb") as file:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                pytest.skip(f"the system leases no files: {error}")
            said = error_of(register(client, "r", object_.name, 16))
        assert "cannot be opened: Resource temporarily unavailable" in said
    finally:
        object_.unlink()
        signal.signal(signal.SIGIO, before)


def test_a_region_by_itself_lets_nobody_beyond_its_end(tmp_path: Path) -> None:
    """Whoever asks for it without having judged the request before, too."""
    object_ = tmp_path / "object"
    object_.write_bytes(b"\xff" * 40)
    with object_.open("r+b", buffering=0) as file, MemoryAccount(100).open() as share:
        region = Region("r", "object", 10, 20, file.fileno())
        region.write(16, memoryview(b"1234"))
        assert bytes(region.read(16, 4, share)) == b"1234"
        with pytest.raises(ContractError, match="4 at offset 17 are not all in it"):
            region.write(17, memoryview(b"1234"))
        with pytest.raises(ContractError, match="4 at offset 17 are not all in it"):
            region.read(17, 4, share)
    assert object_.read_bytes() == b"\xff" * 26 + b"1234" + b"\xff" * 10


def test_a_region_that_the_system_has_no_memory_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object's memory is taken when it is written to, and /dev/shm may be full by then."""
    (tmp_path / "object").write_bytes(bytes(100))

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (tmp_path / "object").open("r+b") as file:
        region = Region("r", "object", 0, 20, file.fileno())
        monkeypatch.setattr(os, "pwrite", fail)
        with pytest.raises(ContractError, match=r"^Region r cannot be written: No space left on device\.$"):
            region.write(0, memoryview(b"x" * 10))


def test_files_are_closed(client: httpx.Client, sharing: RunningServer, memory: Memory) -> None:
    def opened() -> int:
        links = Path(f"/proc/{sharing.process.pid}/fd").iterdir()
        return sum(memory.name in os.readlink(link) for link in links)

    for number in range(5):
        register(client, f"r{number}", memory.name, 16)
    assert opened() == 5
    client.post("/v2/systemsharedmemory/region/r0/unregister")
    assert opened() == 4
    assert error_of(register(client, "r9", memory.name, 5000))
    client.post(UNREGISTER)
    assert opened() == 0


def test_regions_are_counted(client: httpx.Client, memory: Memory) -> None:
    for number in range(1024):
        assert register(client, f"r{number}", memory.name, 16).status_code == 200
    assert error_of(register(client, "more", memory.name, 16)) == "There are 1024 regions, the most there may be."


def test_processes_without_a_limit_of_files_have_as_many_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert most_regions() == MAX_REGIONS


def test_regions_leave_descriptors_for_connections(memory: Memory, tmp_path: Path) -> None:
    """Each holds one, so there are fewer where the process may have few."""
    limited = ("sh", "-c", 'ulimit -n 240; exec "$0" "$@"', COMMAND)
    with running_server(tmp_path / "log", "--shared-memory", command=limited) as server:
        with httpx.Client(base_url=server.url) as client:
            for number in range(30):
                assert register(client, f"r{number}", memory.name, 16).status_code == 200
            refused = error_of(register(client, "more", memory.name, 16))
            assert refused == "There are 30 regions, the most there may be."
        for _ in range(60):
            assert httpx.get(f"{server.url}/health/live").status_code == 200


def test_it_is_off_by_default(start_server: ServerFactory, memory: Memory) -> None:
    server = start_server()
    with httpx.Client(base_url=server.url) as closed:
        assert error_of(register(closed, "r", memory.name, 16), 404).startswith("Shared memory is off")
        document = {"inputs": [tensor("InputTensor", X, parameters=shared("r", 24))]}
        assert error_of(post(closed, CELU, document)).startswith("InputTensor is in shared memory, which is off here")
        outputs = [{"name": "OutputTensor", "parameters": shared("r", 24)}]
        document = {"inputs": [listed("InputTensor", X)], "outputs": outputs}
        assert error_of(post(closed, CELU, document)).startswith("OutputTensor is in shared memory, which is off")
        assert "system_shared_memory" not in closed.get("/v2").json()["extensions"]


def test_it_is_for_one_worker(tmp_path: Path) -> None:
    """Another worker would not know a region that was registered with this one."""
    flags = ["--shared-memory", "--workers", "2"]
    done = subprocess.run([COMMAND, "serve", *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr
        == "Error: --shared-memory is True, but regions are registered with one process, so give one worker.\n"
    )

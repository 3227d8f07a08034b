"""Inferences over tensors that a client has on the GPU, in regions of CUDA shared memory.

    python tests/benchmarks/gpu_shared_memory.py [--rounds 30]

HARD_SIGMOID of float32, from one region to another, over one connection on 127.0.0.1: what a request takes, from the
first byte sent to the last received, beside the kernel's own time over the same bytes of this process, and beside
tensors in the request and the answer, up to 64 MiB; microseconds. What the service needs for the dispatch, from its
statistics, is without the request's way there and back. The first answer of each is checked.

A client that sleeps until its answer comes must be woken, which on a virtual machine takes long once its processor has
gone to sleep, too: after 0.2 ms. So there is also one that does not sleep.
"""

import argparse
import base64
import contextlib
import http.client
import json
import socket
import sys
from statistics import median
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import options
import servers

from app.devices.cuda.device import CudaDevice
from app.devices.cuda.pinned import PinnedMemory
from app.devices.estimates import hard_sigmoid
from app.devices.placement import find_gpus
from app.settings import MIB, Settings

SIZES = (1 << 12, 1 << 20, 1 << 26, 1 << 30)
MOST_SENT = 1 << 26
BLOCKS = 5
PATH = "/v2/models/activation_hard_sigmoid/infer"


class Client:
    """One connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def computed(self) -> tuple[int, int]:
        """How many dispatches there were, and nanoseconds that they took the service."""
        _, data = self.post(PATH.replace("infer", "stats"), None, {}, "GET")
        told = json.loads(data)["model_stats"][0]["inference_stats"]["compute_infer"]
        return told["count"], told["ns"]

    def post(self, path: str, body: bytes | None, headers: dict[str, str], method: str = "POST") -> tuple[float, bytes]:
        """Seconds, and the answer."""
        started = perf_counter()
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        data = response.read()
        seconds = perf_counter() - started
        if response.status != 200:
            raise SystemExit(f"{response.status}: {data[:500]!r}")
        return seconds, data


class Asking:
    """Another connection, for one request again and again."""

    def __init__(self, url: str, body: bytes) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def seconds(self, *, sleeps: bool) -> float:
        """Of one request, whose client sleeps until there is an answer, or does not."""
        started = perf_counter()
        self._socket.sendall(self._request)
        answer = b""
        while not is_whole(answer):
            with contextlib.suppress(BlockingIOError):
                answer += self._socket.recv(1 << 16, 0 if sleeps else socket.MSG_DONTWAIT)
        seconds = perf_counter() - started
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"{answer[:500]!r}")
        return seconds

    def close(self) -> None:
        self._socket.close()


def is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    return bool(found) and len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])


class Tensors:
    """Two tensors of this process on the GPU, registered as `x` and `y`."""

    def __init__(self, gpu: CudaDevice, client: Client, size: int) -> None:
        gpu.use()
        import cupy

        self._cupy: Any = cupy
        self._client = client
        self.size = size
        self.addresses = [cupy.cuda.runtime.malloc(size) for _ in range(2)]
        self.arrays = [
            cupy.ndarray(
                size // 4,
                np.float32,
                cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, None, gpu.ordinal), 0),
            )
            for address in self.addresses
        ]
        self.arrays[0][:] = cupy.linspace(-5, 5, size // 4, dtype=np.float32)
        cupy.cuda.Device().synchronize()
        for name, address in zip("xy", self.addresses, strict=True):
            handle = base64.b64encode(cupy.cuda.runtime.ipcGetMemHandle(address)).decode()
            document = {"raw_handle": {"b64": handle}, "device_id": gpu.ordinal, "byte_size": size}
            client.post(f"/v2/cudasharedmemory/region/{name}/register", json.dumps(document).encode(), {})
        (self._kernel,) = gpu.kernels(hard_sigmoid(size // 4))
        self._launch = self._kernel.bind(self.addresses)
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def kernel_seconds(self) -> float:
        """Of the kernel alone, by the GPU's clock."""
        start, end = (self._cupy.cuda.Event() for _ in range(2))
        start.record(self._stream)
        self._launch(self._stream)
        end.record(self._stream)
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def close(self) -> None:
        self._client.post("/v2/cudasharedmemory/unregister", b"", {})
        del self.arrays
        for address in self.addresses:
            self._cupy.cuda.runtime.free(address)


def in_regions(size: int) -> bytes:
    def region(name: str) -> dict[str, Any]:
        return {"shared_memory_region": name, "shared_memory_byte_size": size}

    x = {"name": "InputTensor", "datatype": "FP32", "shape": [size // 4], "parameters": region("x")}
    document = {"inputs": [x], "outputs": [{"name": "OutputTensor", "parameters": region("y")}]}
    return json.dumps(document).encode()


def sent(array: Any) -> tuple[bytes, dict[str, str]]:
    parameters = {"binary_data_size": array.nbytes}
    x = {"name": "InputTensor", "datatype": "FP32", "shape": [array.size], "parameters": parameters}
    document = {"inputs": [x], "parameters": {"binary_data_output": True, "device": "cuda:0"}}
    text = json.dumps(document).encode()
    return text + array.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


def measure(tensors: Tensors, client: Client, rounds: int) -> str:
    size, body = tensors.size, in_regions(tensors.size)
    x, y = tensors.arrays
    client.post(PATH, body, {})
    np.testing.assert_allclose(y[:4096].get(), np.clip(0.2 * x[:4096].get() + 0.5, 0, 1), rtol=1e-6)
    body_sent = sent(x.get()) if size <= MOST_SENT else None
    asking = Asking(client.url, body)
    asleep, awake, alone, over, inside = [], [], [], [], []
    for _ in range(BLOCKS):
        # In blocks, since a GPU takes some 200 us to turn from one process to another.
        alone.append(median(tensors.kernel_seconds() for _ in range(rounds)))
        client.post(PATH, body, {})
        count, nanoseconds = client.computed()
        awake.append(median(asking.seconds(sleeps=False) for _ in range(rounds)))
        after = client.computed()
        inside.append((after[1] - nanoseconds) / (after[0] - count) / 1e9)
        asleep.append(median(asking.seconds(sleeps=True) for _ in range(rounds)))
        if body_sent:
            over.append(median(client.post(PATH, *body_sent)[0] for _ in range(max(rounds // 10, 1))))
    asking.close()
    microseconds = [f"{1e6 * median(each):.0f}" if each else "" for each in (alone, inside, awake, asleep, over)]
    ratios = [median(n / m for n, m in zip(each, alone, strict=True)) for each in (inside, awake, asleep)]
    return f"| {options.format_size(size)} | {' | '.join(microseconds)} | {' | '.join(f'{n:.2f}' for n in ratios)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    gpus, problems = find_gpus(Settings(staging_bytes=16 * MIB), PinnedMemory(0))
    if not gpus:
        raise SystemExit("; ".join(problems))
    print(gpus[0].facts.description, file=sys.stderr)
    limit = str(1 << 30)
    with servers.service(["--shared-memory", "--no-access-log", "--max-tensor-bytes", limit]) as service:
        client = Client(service.url)
        columns = ["bytes", "kernel", "dispatch", "request", "of a client that sleeps", "with tensors sent"]
        columns += [f"{each} / kernel" for each in ("dispatch", "request", "that of a client that sleeps")]
        print(f"| {' | '.join(columns)} |")
        print(f"|{len(columns) * '--:|'}")
        for size in SIZES:
            tensors = Tensors(gpus[0], client, size)
            try:
                print(measure(tensors, client, arguments.rounds), flush=True)
            finally:
                tensors.close()


if __name__ == "__main__":
    main()

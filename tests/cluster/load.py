"""Load on several replicas, of which some come and go, and what came of it."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import msgpack
import numpy as np

from tests.cluster.ray_cluster import wait_until
from tests.graphs.requests import MSGPACK

CONNECTIONS = 4
ALL_SIZES = (1 << 10, 1 << 16, 1 << 20)
"""Elements of requests of 4 KiB, 256 KiB and 4 MiB."""


class Load:
    """Requests one after the other on each of some connections, and what came of them."""

    def __init__(self, url: str, pause: float, elements: Sequence[int]) -> None:
        self._url = url
        self._elements = elements
        self._pause = pause
        self.results: Counter[str] = Counter()
        self._stop = threading.Event()

    def run(self, number: int) -> None:
        elements = self._elements[number % len(self._elements)]
        x = np.random.default_rng(number).standard_normal(elements).astype(np.float32)
        operator = {"Type": "ACTIVATION_RELU", "InputTensor": {"DataType": "FLOAT32", "Sizes": [elements]}}
        body = msgpack.packb({"operator": operator, "inputs": {"InputTensor": x.tobytes()}})
        y = np.maximum(x, 0).tobytes()
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._stop.is_set():
                time.sleep(self._pause)
                try:
                    response = client.post("/v1/dispatch", content=body, headers=MSGPACK)
                except httpx.TransportError as error:
                    self.results[type(error).__name__] += 1
                    continue
                is_right = response.status_code == 200 and y in response.content
                self.results["right" if is_right else f"{response.status_code} {response.text[:200]}"] += 1

    @property
    def failed(self) -> int:
        return self.results.total() - self.results["right"]

    def wait_for_more(self) -> None:
        """Until all connections have had an answer."""
        before = self.results["right"]
        wait_until(lambda: self.results["right"] > before + 10 * CONNECTIONS)

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def load(url: str, pause: float = 0.01, elements: Sequence[int] = (1 << 10,)) -> Iterator[Load]:
    """Requests of so many `elements`, each connection of another size."""
    made = Load(url, pause, elements)
    with ThreadPoolExecutor(CONNECTIONS) as pool, ExitStack() as stack:
        stack.callback(made.stop)
        running = [pool.submit(made.run, number) for number in range(CONNECTIONS)]
        made.wait_for_more()
        yield made
        made.wait_for_more()
        made.stop()
        for each in running:
            each.result()

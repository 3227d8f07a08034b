"""What takes long for one request asks again and again whether the request is not over."""

import gzip
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.codecs.base64 import BLOCK, Slashed
from app.codecs.codec import Span
from app.codecs.json import JsonCodec
from app.codecs.number_writing import write_numbers
from app.codecs.numbers import read_numbers
from app.codecs.structure import SEARCHED
from app.contract.constants import DataType
from app.http.core.compression import compress, decompress
from app.http.inference.requests import _cut
from app.http.inference.tensors import elements_of
from app.memory.accounts import MemoryAccount, MemoryShare, RequestOver

JSON = JsonCodec()
SIZE = 16 * BLOCK
TEXT = b"A" * SIZE
DOCUMENT = b'{"inputs": {"a": "' + TEXT + b'"}}'
NUMBERS = b"[" + b"1," * (SIZE // 2) + b"1]"
INFERENCE = b'{"inputs": [{"data": ' + NUMBERS + b"}]}"
PATH = ("inputs", "a")


class Fleeting(MemoryShare):
    """Of a request that is over after some questions."""

    def __init__(self, questions: int) -> None:
        super().__init__(MemoryAccount(1 << 40))
        self.left = questions

    def ensure_open(self) -> None:
        self.left -= 1
        if self.left < 0:
            self.close()
        super().ensure_open()


def tensor(text: bytes) -> memoryview:
    return memoryview(bytearray(text))


WORK: dict[str, Callable[[MemoryShare], Any]] = {
    "search": lambda memory: JSON.decode(DOCUMENT, 1 << 10, 9, memory),
    "decode": lambda memory: JSON.binary(tensor(TEXT), Span(0, SIZE), PATH, memory),
    "unescape": lambda memory: JSON.binary(tensor(b"\\/" * (SIZE // 2)), Slashed(0, SIZE), PATH, memory),
    "cut": lambda memory: _cut(memoryview(INFERENCE), 0, len(INFERENCE), 1 << 10, memory),
    "read": lambda memory: read_numbers(elements_of("a", "UINT8"), memoryview(NUMBERS), [SIZE // 2 + 1], memory),
    "write": lambda memory: list(write_numbers("a", memoryview(bytes(SIZE)), DataType.UINT8, memory)),
    "decompress": lambda memory: decompress(gzip.compress(bytes(SIZE)), b"gzip", SIZE, memory),
    "compress": lambda memory: compress([np.random.default_rng(1).bytes(SIZE)], b"gzip", memory),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_of_each_kind(work: Callable[[MemoryShare], Any]) -> None:
    work(MemoryAccount(1 << 40).open())
    for questions in (0, 1, 3, 5, SIZE // SEARCHED // 2):
        with pytest.raises(RequestOver):
            work(Fleeting(questions))

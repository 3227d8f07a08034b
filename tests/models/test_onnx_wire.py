"""What an ONNX file will take is known before it is parsed."""

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.codecs.structure import PARSED
from app.devices.device import Cancelled
from app.engine.service import Service
from app.http.native import onnx_graphs
from app.http.native.onnx_graphs import keep_onnx, of_query
from app.memory.accounts import LimitExceeded, MemoryAccount
from app.models.onnx.wire import parsed_bytes
from app.settings import Settings
from tests.models.documents import model

MANY = 1 << 20
"""Bytes of a tensor, which are data wherever it is."""


def nothing() -> None:
    pass


def small() -> ModelProto:
    return model("m (float[2] x) => (float[2] y) { y = Neg(x) }")


def large() -> TensorProto:
    return numpy_helper.from_array(np.zeros(MANY // 4, np.float32), "w")


def in_graph(made: ModelProto) -> None:
    made.graph.initializer.append(large())


def in_node(made: ModelProto) -> None:
    made.graph.node.append(helper.make_node("Constant", [], ["w"], value=large()))


def in_branch(made: ModelProto) -> None:
    branch = helper.make_graph([helper.make_node("Constant", [], ["w"], value=large())], "b", [], [])
    made.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))


def as_floats(made: ModelProto) -> None:
    made.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [MANY // 4], np.zeros(MANY // 4)))


def sparse(made: ModelProto) -> None:
    indices = numpy_helper.from_array(np.arange(4), "i")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(large(), indices, [MANY // 4]))


def told(made: ModelProto) -> None:
    made.graph.node[0].doc_string = "a" * MANY


@pytest.mark.parametrize("put", [in_graph, in_node, in_branch, as_floats, sparse, told])
def test_data_are_no_structure(put: object) -> None:
    made = small()
    assert callable(put)
    put(made)
    file = made.SerializeToString()
    assert parsed_bytes(file, 1 << 10, nothing) < 3 * len(file) + PARSED << 10


def test_packed_integers_are_unpacked() -> None:
    made = small()
    made.graph.initializer.append(helper.make_tensor("w", TensorProto.INT64, [MANY], np.ones(MANY, np.int64)))
    file = made.SerializeToString()
    assert 16 * MANY < parsed_bytes(file, 1 << 10, nothing) - 3 * len(file) < 16 * MANY + PARSED << 10


def units() -> Iterator[tuple[str, bytes]]:
    """What is two bytes each of a graph, and becomes an object, or many."""
    yield "nodes", b"\x0a\x00"
    yield "initializers", b"\x2a\x00"
    yield "attributes", b"\x0a\xd0\x0f" + b"\x2a\x00" * 1000
    yield "dimensions", b"\x2a\xd0\x0f" + b"\x08\x01" * 1000


def bomb(unit: bytes, size: int) -> bytes:
    graph = unit * (size // len(unit))
    return b"\x3a" + bytes([len(graph) & 0x7F | 0x80, len(graph) >> 7 & 0x7F | 0x80, len(graph) >> 14]) + graph


@pytest.mark.parametrize("unit", [unit for _, unit in units()], ids=[name for name, _ in units()])
def test_each_byte_of_structure_counts(unit: bytes) -> None:
    file = bomb(unit, 1 << 16)
    assert parsed_bytes(file, len(file), nothing) >= PARSED * (len(file) - len(unit))
    with pytest.raises(LimitExceeded, match="max_graph_structure_bytes"):
        parsed_bytes(file, 1 << 15, nothing)


def test_it_may_be_cancelled() -> None:
    asked = count()

    def pause() -> None:
        if next(asked) == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        parsed_bytes(bomb(b"\x0a\x00", 1 << 16), 1 << 20, pause)


@pytest.mark.parametrize(
    "text", [b"", b"\xff" * 20, b"\x3a", b"\x3a\xff", b"\x3a\x05\x0a", b"\x0b\x0b\x0c", b"\x39\x00"]
)
def test_what_is_no_protobuf_is_for_the_parser_to_refuse(text: bytes) -> None:
    assert parsed_bytes(text, 1 << 10, nothing) < 10_000


def test_memory_is_held_before_a_file_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(Settings(gpus="none", llvm=False))
    account = MemoryAccount(1 << 20)
    monkeypatch.setattr(onnx_graphs, "read_model", lambda *_, **__: pytest.fail("it was parsed"))
    with account.open() as memory, pytest.raises(LimitExceeded, match="max_memory_bytes"):
        keep_onnx(service, memoryview(bomb(b"\x0a\x00", 1 << 16)), of_query(b""), memory, lambda: False)
    assert account.used == 0


def test_memory_is_held_for_what_a_file_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constants, and what judging its nodes takes."""
    service = Service(Settings(gpus="none", llvm=False))
    held: list[int] = []

    def judged(_: object) -> None:
        held.append(memory.held)
        raise Cancelled

    monkeypatch.setattr(onnx_graphs, "request_of", judged)
    made = model("m (float[1] x) => (float[n] y) { y = Add(x, w) }", w=np.ones(MANY // 4, np.float32))
    account = MemoryAccount(1 << 30)
    with account.open() as memory, pytest.raises(Cancelled):
        keep_onnx(service, memoryview(made.SerializeToString()), of_query(b""), memory, lambda: False)
    assert MANY < held[0] < 2 * MANY
    assert account.used == 0

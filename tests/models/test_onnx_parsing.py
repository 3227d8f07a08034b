"""ONNX files in pieces are what protobuf makes of them at once."""

import random
import sys
from collections.abc import Iterator
from types import FrameType

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.models.onnx import parsing
from app.models.onnx.parsing import PIECE, Malformed, Raw, parse
from app.models.onnx.reading import Unreadable, read_model
from tests.models.documents import model


def initializers() -> Iterator[TensorProto]:
    chance = np.random.default_rng(0)
    yield numpy_helper.from_array(chance.random(300, np.float32), "raw")
    yield helper.make_tensor("floats", TensorProto.FLOAT, [50], chance.random(50))
    yield helper.make_tensor("doubles", TensorProto.DOUBLE, [50], chance.random(50))
    yield helper.make_tensor("ints", TensorProto.INT64, [60], [(-1) ** n << n for n in range(60)])
    yield TensorProto(
        name="strings", data_type=TensorProto.STRING, dims=[40], string_data=[b"ab" * n for n in range(40)]
    )
    yield helper.make_tensor("small", TensorProto.INT32, [1], [7])


def example() -> ModelProto:
    """All kinds of fields, some of them long, in graphs within graphs."""
    made = model("m (float[2] x) => (float[2] y) { y = Neg(x) }")
    branch = helper.make_graph(
        [helper.make_node("Constant", [], [f"c{n}"], value=each) for n, each in enumerate(initializers())], "b", [], []
    )
    made.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    made.graph.node.append(helper.make_node("Sum", [f"i{n}" for n in range(50)], ["s"], axes=list(range(-50, 50))))
    made.graph.initializer.extend(initializers())
    made.graph.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [*range(100), "free"]))
    made.graph.doc_string = "told " * 50
    made.functions.append(
        helper.make_function("d", "f", ["a"], ["b"], [helper.make_node("Exp", ["a"], ["b"])] * 20, [])
    )
    made.metadata_props.add(key="k" * 60, value="v" * 70)
    return made


def whole(data: bytes) -> ModelProto:
    """Of pieces, with the data of tensors."""
    raw: Raw = []
    made = parse(data, raw)
    for tensor, view in raw:
        tensor.raw_data = bytes(view)
    return made


@pytest.mark.parametrize("piece", [1, 8, 30, 100, 500, PIECE])
def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(parsing, "PIECE", max(piece, 8))
    file = example().SerializeToString()
    assert whole(file) == ModelProto.FromString(file)


def test_numbers_that_are_fields_each_are_passed_without_calls() -> None:
    """As trees have them, by the million."""
    made = model("m (float[2] x) => (float[2] y) { y = Neg(x) }")
    made.graph.node.append(helper.make_node("Sum", ["x"], ["s"], small=[*range(100)] * 2000, floats=[0.5] * 1000))
    file = made.SerializeToString()
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        parsed = whole(file)
    finally:
        sys.setprofile(None)
    assert parsed == made
    assert calls < 10_000


@pytest.mark.parametrize("piece", [8, 40, 200])
def test_what_is_malformed_is_refused_in_pieces_too(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """What protobuf takes for unknown fields, and keeps, may be refused or left out."""
    monkeypatch.setattr(parsing, "PIECE", piece)
    chance, file = random.Random(piece), example().SerializeToString()
    refused = 0
    for _ in range(1000):
        place = chance.randrange(len(file))
        changed = file[:place] + chance.randbytes(chance.randrange(3)) + file[place + chance.randrange(3) :]
        try:
            made = whole(changed)
        except (Malformed, DecodeError):
            refused += 1
            continue
        expected = ModelProto.FromString(changed)
        for each in (made, expected):
            each.DiscardUnknownFields()
        assert made == expected
    assert 100 < refused < 950


def bomb(unit: bytes, size: int, around: bytes) -> bytes:
    """Many of a field of two bytes, in a graph and, `around` them, more."""
    made = unit * (size // len(unit))
    for tag in (*reversed(around), 0x3A):
        made = bytes([tag]) + parsing._as_varint(len(made)) + made
    return made


@pytest.mark.parametrize(
    ("unit", "around"),
    [
        (b"\x0a\x00", b""),  # nodes
        (b"\x0a\x00", b"\x0a\x2a\x32"),  # of a graph of an attribute of a node
        (b"\x0a\x00", b"\x5a\x12\x0a\x12"),  # dimensions of an input
        (b"\x08\x01", b"\x2a"),  # numbers of an initializer, by themselves
        (b"\x01\x02", b"\x2a\x3a"),  # and packed
    ],
)
def test_no_call_parses_more_than_a_piece(monkeypatch: pytest.MonkeyPatch, unit: bytes, around: bytes) -> None:
    longest = 0

    def noted(message: object, data: bytes) -> None:
        nonlocal longest
        longest = max(longest, len(data))
        plain(message, data)

    plain = parsing._parse
    monkeypatch.setattr(parsing, "_parse", noted)
    monkeypatch.setattr(parsing, "PIECE", 1 << 10)
    file = bomb(unit, 1 << 16, around)
    assert parse(file, []) == ModelProto.FromString(file)
    assert 1 << 9 < longest <= (1 << 10) + 4


def test_messages_nest_as_deep_as_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "PIECE", 64)
    with pytest.raises(Malformed, match="nest deeper than 100"):
        parse(bomb(b"\x0a\x00", 200, b"\x0a\x2a\x32" * 40), [])
    assert parse(bomb(b"\x0a\x00", 200, b"\x0a\x2a\x32" * 20), [])


def test_a_group_is_refused() -> None:
    with pytest.raises(Unreadable, match="field 1 is a group"):
        read_model(b"\x0b\x0c")


def large(count: int = PIECE) -> ModelProto:
    made = model("m (float[2] x) => (float[2] y) { y = Neg(x) }")
    made.graph.initializer.append(numpy_helper.from_array(np.arange(count, dtype=np.float32).reshape(2, -1), "w"))
    return made


def test_large_initializers_stay_where_they_are() -> None:
    file = large().SerializeToString()
    arrays: dict[str, np.ndarray] = {}
    made = read_model(file, arrays=arrays)
    assert np.shares_memory(arrays["w"], np.frombuffer(file, np.uint8))
    np.testing.assert_array_equal(arrays["w"], np.arange(PIECE, dtype=np.float32).reshape(2, -1))
    assert [(each.name, each.ByteSize()) for each in made.graph.initializer] == [("w", 3)]
    assert read_model(file) == large()


def test_many_packed_numbers_are_in_the_model_no_more() -> None:
    made = model("m (float[2] x) => (float[2] y) { y = Neg(x) }")
    many = TensorProto(name="w", data_type=TensorProto.INT32, dims=[PIECE + 1], int32_data=np.arange(PIECE + 1))
    wrong = TensorProto(name="v", data_type=TensorProto.INT32, dims=[7], int32_data=np.arange(PIECE + 1))
    made.graph.initializer.extend([many, wrong])
    arrays: dict[str, np.ndarray] = {}
    read = read_model(made.SerializeToString(), arrays=arrays)
    np.testing.assert_array_equal(arrays.pop("w"), np.arange(PIECE + 1))
    assert not arrays
    assert list(read.graph.initializer) == [TensorProto(name="w"), wrong]


def test_initializers_that_are_no_array_are_read_as_others() -> None:
    """The importer says what is wrong with them."""
    made = large()
    made.graph.initializer[0].dims[0] = 3
    bfloats = numpy_helper.from_array(np.zeros(PIECE, np.uint16), "b")
    bfloats.data_type = TensorProto.BFLOAT16
    made.graph.initializer.append(bfloats)
    arrays: dict[str, np.ndarray] = {}
    assert read_model(made.SerializeToString(), arrays=arrays) == made
    assert not arrays


def test_data_that_come_twice_are_refused() -> None:
    made = large()
    file = made.SerializeToString()
    more = made.graph.initializer[0]
    twice = more.SerializeToString() + TensorProto(raw_data=b"1234").SerializeToString()
    graph = b"\x2a" + parsing._as_varint(len(twice)) + twice
    with pytest.raises(Unreadable, match="has its data twice"):
        read_model(file + b"\x3a" + parsing._as_varint(len(graph)) + graph)

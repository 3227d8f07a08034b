"""JSON numbers to elements and back, for each data type and shape, without a server."""

import json
import math
import re
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest

from app.codecs import nesting, number_text
from app.codecs.number_text import Elements
from app.codecs.number_writing import write_nested, write_numbers
from app.codecs.numbers import Numbers, read_numbers
from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.contract.violations import ContractError
from app.http.inference.tensors import DATATYPES, elements_of
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryShare
from tests.messages import Array

INTEGERS = [name for name in DATATYPES if "INT" in name]
TYPES = {name: np.dtype(data_type.value.lower()) for name, data_type in DATATYPES.items()}


def read(text: str, shape: list[int], datatype: str, limit: int = 1 << 30) -> Array:
    account = MemoryAccount(limit)
    with account.open() as memory:
        data = read_numbers(elements_of("X", datatype), memoryview(text.encode()), shape, memory)
        assert memory.held == data.nbytes
    return np.frombuffer(data, TYPES[datatype]).reshape(shape)


def write(array: Array, datatype: str) -> str:
    with MemoryAccount(1 << 30).open() as memory:
        data = np.ascontiguousarray(array).data.cast("B")
        return b"".join(map(bytes, write_numbers("X", data, DATATYPES[datatype], memory))).decode()


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_exact_to_their_ends(datatype: str) -> None:
    info = np.iinfo(TYPES[datatype])
    for values in ([info.min, info.max], [info.max, 0, 1], [info.min]):
        text = json.dumps(values)
        np.testing.assert_array_equal(read(text, [len(values)], datatype), np.array(values, TYPES[datatype]))
        assert json.loads(write(np.array(values, TYPES[datatype]), datatype)) == values
    for outside in (info.min - 1, info.max + 1, 10**25, -(10**25)):
        with pytest.raises(ContractError, match=f"is no {datatype}; that is {info.min} to {info.max}"):
            read(json.dumps([0, outside]), [2], datatype)
    for text in ("[0.0]", "[1e0]", "[1E0]"):
        with pytest.raises(ContractError, match=f"{datatype} takes whole numbers"):
            read(text, [1], datatype)


@pytest.mark.parametrize(("data_type", "least", "most"), [(DataType.INT4, -8, 7), (DataType.UINT4, 0, 15)])
def test_4_bits_are_exact_to_their_ends(data_type: DataType, least: int, most: int) -> None:
    elements = Elements("X", (), data_type, data_type.value)
    with MemoryAccount(1 << 30).open() as memory:
        data = read_numbers(elements, memoryview(f"[{least},{most},1]".encode()), [3], memory)
        assert bytes(data) == bytes([least & 0xF | (most & 0xF) << 4, 1])
        for outside in (least - 1, most + 1, -200, 300):
            with pytest.raises(ContractError, match=f"{outside}, which is no {data_type}; that is {least} to {most}"):
                read_numbers(elements, memoryview(f"[0,{outside}]".encode()), [2], memory)


def test_the_first_that_is_not_whole_is_told() -> None:
    with pytest.raises(ContractError, match="hold 1e1; INT8 takes whole numbers"):
        read("[0, 1e1, 2.5, 3E0]", [4], "INT8")


def test_bool() -> None:
    np.testing.assert_array_equal(read("[[true, false], [1, 0]]", [2, 2], "BOOL"), [[1, 0], [1, 0]])
    memory = MemoryAccount(1 << 20).open()
    booleans = write_numbers("X", memoryview(bytes([0, 1, 2, 255])), DataType.UINT8, memory, has_booleans=True)
    assert b"".join(map(bytes, booleans)) == b"[false,true,true,true]"
    memory.close()
    for text, said in (("[2]", "is no BOOL; that is true or false"), ("[yes]", "hold yes; they must be true or false")):
        with pytest.raises(ContractError, match=said):
            read(text, [1], "BOOL")
    for text in ("[2]", "[-1]", "[1true]", "[truefalse]", "[-false]", "[-true]", "[false0]"):
        with pytest.raises((ContractError, Unreadable)):
            read(text, [1], "BOOL")


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_every_float_comes_back(datatype: str) -> None:
    dtype = TYPES[datatype]
    bits = np.random.default_rng(3).integers(0, 1 << 63, 100_000, np.uint64)
    x = (bits >> np.uint64(32)).astype(np.uint32).view(np.float32) if datatype == "FP32" else bits.view(np.float64)
    x = np.concatenate([x[np.isfinite(x)], np.array([0, -0.0, np.finfo(dtype).max, np.finfo(dtype).tiny], dtype)])
    again = read(write(x, datatype), [x.size], datatype)
    np.testing.assert_array_equal(again.view(f"u{dtype.itemsize}"), x.view(f"u{dtype.itemsize}"))


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize(
    "text", ["[-0]", "[ 1, -0 ,0]", "[[-0],[0.5]]", "[-0e0,-0.0,-0]", "[-0,-0.25,-0,7]", "[-0,1e-0,2E-0]"]
)
def test_minus_0_keeps_its_sign_as_an_integer_too(text: str, datatype: str) -> None:
    wanted = np.array(json.loads(text, parse_int=float), TYPES[datatype])
    made = read(text, list(wanted.shape), datatype).reshape(wanted.shape)
    np.testing.assert_array_equal(np.signbit(made), np.signbit(wanted))
    np.testing.assert_array_equal(made, wanted)
    with pytest.raises(Unreadable, match="leading zero"):
        read("[-0,-00]", [2], datatype)


def test_what_rounds_beyond_the_largest_is_refused() -> None:
    assert read("[3.4028235e38]", [1], "FP32") == np.finfo(np.float32).max
    with pytest.raises(ContractError, match="is no FP32"):
        read("[3.4028236e38]", [1], "FP32")


@pytest.mark.parametrize("number", ["1e400", "-1E+400", "1" + "0" * 400, "0.1e999"])
def test_what_is_beyond_double_precision_is_a_number_too(number: str) -> None:
    """JSON has no range, so it is told as what is beyond the range of a type is."""
    told = {"FP64": "1.7976931348623157e+308", "FP32": "3.4028234663852886e+38"}
    if number.isdecimal():
        told |= {"INT8": "-128 to 127", "UINT64": "0 to 18446744073709551615", "BOOL": "true or false"}
    for datatype, allowed in told.items():
        with pytest.raises(ContractError) as refused:
            read(f"[0, {number}]", [2], datatype)
        (violation,) = refused.value.violations
        assert violation.message.startswith(f"Data of X hold {number[:77]}")
        assert len(violation.message) < 300
        assert allowed in str(violation.allowed)


@pytest.mark.parametrize("text", ["[1e400,-00]", "[01e400]", "[1e400.]", "[x1e400]", "[1e400 1]"])
def test_what_is_no_number_beside_one_that_is_beyond(text: str) -> None:
    with pytest.raises((ContractError, Unreadable)):
        read(text, [text.count(",") + 1], "FP64")


@pytest.mark.parametrize("shape", [[1], [7], [1, 1, 1], [2, 3, 4], [1, 5, 1, 2], [2] * 8, [300, 400]])
@pytest.mark.parametrize("space", ["", " \n\t"])
def test_shapes(shape: list[int], space: str) -> None:
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    for values in (x.tolist(), x.reshape(-1).tolist()):
        text = (
            json.dumps(values, separators=(f"{space},{space}", ":")).replace("[", f"[{space}").replace("]", f"{space}]")
        )
        np.testing.assert_array_equal(read(text, shape, "INT32"), x)
    if len(shape) > 1:
        with pytest.raises(ContractError, match="values in other lists"):
            read(json.dumps([x.tolist()]), shape, "INT32")


@pytest.mark.parametrize(
    "text",
    ["[]", "[[]]", "[,]", "[1,]", "[ ]", "[1,2", "[[1],2]", "[1],[2]", "[1[,]2]", "[1[],[2]]", "[[]1,[2]]", "[1 1,2]"],
)
def test_what_is_no_array_of_two_numbers(text: str) -> None:
    for shape in ([2], [1, 2], [2, 1]):
        with pytest.raises((ContractError, Unreadable)):
            read(text, shape, "FP32")


@pytest.mark.parametrize("block", [9, 12, 16])
@pytest.mark.parametrize("shape", [[1], [6], [1, 6], [3, 2], [2, 1, 3], [1, 2, 3, 1], [6, 1]])
def test_wherever_blocks_end(monkeypatch: pytest.MonkeyPatch, shape: list[int], block: int) -> None:
    """Each text that is a bracket, comma or digit away from the right one is read or refused as in one block."""
    x = np.arange(math.prod(shape), dtype=np.int8).reshape(shape)
    outcomes = []
    for size in (1 << 16, block):
        for module in (number_text, nesting):
            monkeypatch.setattr(module, "BLOCK", size)
        outcome = []
        for text in (json.dumps(x.tolist()), json.dumps(x.reshape(-1).tolist(), separators=(",", ":"))):
            np.testing.assert_array_equal(read(text, shape, "INT8"), x)
            for place in range(len(text)):
                for spoilt in ("", "[", "]", ",", "1", " ", ".", "x"):
                    for end in (place, place + 1):
                        try:
                            outcome.append(read(text[:place] + spoilt + text[end:], shape, "INT8").tolist())
                        except (ContractError, Unreadable):
                            outcome.append("refused")
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]


def test_a_number_is_not_of_any_length() -> None:
    with pytest.raises(Unreadable, match="65536 bytes without a comma"):
        read("[1" + "0" * 70_000 + "]", [1], "FP32")


def test_memory_is_held_before_it_is_used() -> None:
    with pytest.raises(LimitExceeded):
        read("[0]", [1 << 20], "FP32", limit=1 << 20)
    with pytest.raises(LimitExceeded):
        read(f"[{'0,' * 100_000}0]", [100_001], "UINT8", limit=1 << 18)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[1, 123456789x12, 2]", "123456789x12"),
        ("[\u00e4]", r"\xc3\xa4"),
        (f"[{'1' * 30}x{'2' * 30}]", f"{'1' * 20}x{'2' * 19}"),
    ],
)
def test_what_is_no_number_is_shown_unless_it_is_long(text: str, shown: str) -> None:
    with pytest.raises(ContractError, match=re.escape(f"Data of X hold {shown}; they must be numbers.")):
        read(text, [1], "FP32")


def test_many_more_than_there_may_be_are_not_counted() -> None:
    with pytest.raises(ContractError, match=r"are more than \d+ values; shape \[1\] takes 1\."):
        read(f"[{'0,' * 200_000}0]", [1], "FP32")


def shape_of(text: str, limit: int = 1 << 30) -> list[int]:
    with MemoryAccount(limit).open() as memory:
        return Numbers(memoryview(text.encode())).shape(("inputs", "X"), memory)


@pytest.mark.parametrize("block", [5, 6, 7, 11, 64])
def test_how_lists_nest_is_found_piece_by_piece(block: int) -> None:
    """Each piece ends behind a comma, wherever the brackets lie."""
    with mock.patch.object(nesting, "BLOCK", block):
        assert shape_of(json.dumps(np.zeros((3, 4, 5), int).tolist())) == [3, 4, 5]
        with pytest.raises(ContractError, match="ragged"):
            shape_of("[[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2]]")


def test_lists_are_as_deep_as_a_tensor_has_dimensions() -> None:
    assert shape_of("[" * 8 + "1,2" + "]" * 8) == [1] * 7 + [2]
    with pytest.raises(ContractError, match="are lists 9 deep; a tensor has at most 8 dimensions"):
        shape_of("[" * 9 + "1,2" + "]" * 9)


def test_what_telling_a_shape_takes() -> None:
    text = f"[{'0,' * 999}0]"
    assert shape_of(text, 2 * len(text)) == [1000]
    with pytest.raises(LimitExceeded, match="max_memory_bytes"):
        shape_of(text, 2 * len(text) - 1)


def test_strings_are_numbers_only_where_they_may_be() -> None:
    for text in ('["NaN"]', '["-Infinity"]', '["1"]'):
        with pytest.raises(ContractError, match="they must be numbers"):
            read(text, [1], "FP32")


def test_lists_in_a_list_wherever_blocks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = ["[1]", "[[2, 3], [4, 5]]", "[ 6 ]", f"[{'7,' * 20}7]"]
    text = memoryview(f" [{' , '.join(inner)} ] ".encode())
    for block in range(1, 70):
        monkeypatch.setattr(nesting, "BLOCK", block)
        with MemoryAccount(1 << 30).open() as memory:
            found = Numbers(text).split(("inputs", "X"), memory)
        assert [bytes(each.text).decode() for each in found] == inner


def test_an_empty_list_is_one() -> None:
    with MemoryAccount(1 << 30).open() as memory:
        for text in (b"[]", b" [ \n] "):
            assert Numbers(memoryview(text)).split(("inputs", "X"), memory) == []
        for text in (b"[1]", b"[,]"):
            with pytest.raises(ContractError, match="must be a list"):
                Numbers(memoryview(text)).split(("inputs", "X"), memory)


def test_others_have_their_turn() -> None:
    with (
        MemoryAccount(1 << 30).open() as memory,
        mock.patch.object(MemoryShare, "ensure_open") as asked,
    ):

        def turns(work: Callable[[], object]) -> int:
            asked.reset_mock()
            work()
            return asked.call_count

        x = np.zeros((4, 1 << 17), np.float32)
        text = memoryview(json.dumps(x.tolist()).encode())
        blocks = len(text) // number_text.BLOCK
        assert turns(lambda: read_numbers(elements_of("X", "FP32"), text, [*x.shape], memory)) >= 2 * blocks
        assert turns(lambda: Numbers(text).shape(("inputs", "X"), memory)) >= blocks + 8
        assert turns(lambda: Numbers(text).split(("inputs", "X"), memory)) >= blocks
        assert turns(lambda: list(write_numbers("X", x.data.cast("B"), DataType.FLOAT32, memory))) >= 16


def test_what_is_written_is_held() -> None:
    """And while it is made, as much as it may come to."""
    with MemoryAccount(1 << 30).open() as memory:
        made = b"".join(map(bytes, write_numbers("X", memoryview(bytes(1000)), DataType.UINT8, memory)))
        assert len(made) - 2 <= memory.held <= len(made)
    for limit in (26 * 1000, 26 * 1000 + 2001):
        with MemoryAccount(limit).open() as memory:
            writing = write_numbers("X", memoryview(bytes(1000)), DataType.UINT8, memory)
            if limit > 26 * 1000:
                assert len(list(writing)) == 2
            else:
                with pytest.raises(LimitExceeded, match="max_memory_bytes"):
                    list(writing)


@pytest.mark.parametrize("sizes", [[2, 3, 80_000], [1, 1, 80_000], [3, 1 << 15], [3, 1 << 16]])
def test_rows_longer_than_a_piece_are_in_several(sizes: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    x[..., 0], x[..., -1] = np.nan, -np.inf
    with MemoryAccount(1 << 30).open() as memory:
        desc = TensorDesc(DataType=DataType.FLOAT32, Sizes=sizes)
        pieces = [*map(bytes, write_nested(x.data.cast("B"), desc, memory))]
        held = memory.held
    assert max(map(len, pieces)) <= 26 << 15
    text = b"".join(pieces)
    assert 0.999 * len(text) < held <= len(text)
    np.testing.assert_array_equal(np.array(json.loads(text), np.float32), x, strict=True)


def test_what_is_written_of_4_bits_is_held_in_a_byte_each() -> None:
    desc, data = TensorDesc(DataType=DataType.INT4, Sizes=[1 << 17]), memoryview(bytes(1 << 16))
    with MemoryAccount(1 << 30).open() as memory:
        writing = write_nested(data, desc, memory)
        begun = len(next(writing))
        assert memory.held >= begun + (1 << 17)
        assert abs(begun + sum(map(len, writing)) - memory.held) < 10


def test_what_is_held_while_they_are_read_does_not_grow_with_them() -> None:
    text, needed = f"[{'0,' * 99_999}0]", 100_000 + (32 << 16)
    assert read(text, [100_000], "UINT8", limit=needed).size == 100_000
    with pytest.raises(LimitExceeded, match="max_memory_bytes"):
        read(text, [100_000], "UINT8", limit=needed - 1)

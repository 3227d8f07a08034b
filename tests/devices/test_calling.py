"""Compiled loops called over buffers: addresses where they belong, and nothing beyond a buffer's end."""

import ctypes
import sys
from array import array
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm.calling import NO_BOUNDS, UNREAD
from app.devices.cpu.llvm.compiler import Compiler
from tests.devices.test_numpy_device import never
from tests.messages import CELU, PARAMETERIZED_RELU
from tests.operators.descriptors import compiled, descriptor

COMPILER = Compiler()
SOFTMAX = "DML_OPERATOR_ACTIVATION_SOFTMAX"
COPY = COMPILER.function(
    """define void @kernel(ptr %frame) {
  %first.at = getelementptr i64, ptr %frame, i64 1
  %first = load ptr, ptr %first.at
  %second = load ptr, ptr %frame
  %value = load i64, ptr %second
  store i64 %value, ptr %first
  ret void
}"""
)
"""Copies the number at the first address of its frame to the second one."""


def bounds(*places: int, least: int = 8) -> "array[int]":
    return array("q", [*places, *[least] * len(places)])


def test_addresses_are_set_in_a_copy_of_the_frame() -> None:
    frame, given, made = array("q", [0, 0, 7]), memoryview(b"12345678"), memoryview(bytearray(9))
    call, address = COMPILER.call_over, COPY.address
    assert call(address, bounds(0, 1), frame, given, made) is None  # type: ignore[func-returns-value]
    assert bytes(made) == b"12345678\0"
    assert list(frame) == [0, 0, 7]


def test_what_is_not_read_has_no_place() -> None:
    given, made = memoryview(b"12345678"), memoryview(bytearray(8))
    COMPILER.call_over(COPY.address, bounds(0, 1, UNREAD), array("q", [0, 0]), given, made, memoryview(bytearray(8)))
    assert bytes(made) == b"12345678"


@pytest.mark.parametrize("place", [2, 13, 1 << 40])
def test_a_place_beyond_the_frame_is_not_written(place: int) -> None:
    """Or it would be a word of the stack, such as whose buffer is to be given back, or of nobody's memory."""
    given, made = memoryview(b"12345678"), memoryview(bytearray(8))
    COMPILER.call_over(COPY.address, bounds(0, place, 1), array("q", [0, 0]), given, memoryview(b"unread!!"), made)
    assert bytes(made) == b"12345678"


def test_what_cannot_be_called_is_refused_and_every_buffer_is_given_back() -> None:
    call, frame, address = COMPILER.call_over, array("q", [0, 0]), COPY.address
    given, made = bytearray(8), bytearray(8)
    with pytest.raises(ValueError, match="ends before its tensor"):
        call(address, bounds(0, 1, least=9), frame, memoryview(given), memoryview(made))
    with pytest.raises(BufferError):
        call(address, bounds(0, 1), frame, memoryview(given), memoryview(bytes(8)))
    with pytest.raises(TypeError):
        call(address, bounds(0, 1), frame, 8, memoryview(made))  # type: ignore[arg-type]
    for wrong in (bounds(0), bounds(0, 1, 1), array("q")):
        with pytest.raises(TypeError, match="as many bounds as buffers"):
            call(address, wrong, frame, memoryview(given), memoryview(made))
    with pytest.raises(TypeError):
        call("address", bounds(0, 1), frame, memoryview(given), memoryview(made))  # type: ignore[arg-type]
    with pytest.raises(SystemError):  # where there is no function
        call(0, bounds(0, 1), frame, memoryview(given), memoryview(made))
    for few in ((), (address,), (address, bounds())):
        with pytest.raises(TypeError, match="as many bounds as buffers"):
            call(*few)
    assert bytes(made) == bytes(8)
    for each in (given, made, frame):
        each.extend(each)  # which raises while somebody has its buffer


@pytest.mark.usefixtures("_no_collections")  # which let go of what other tests left, None among it
def test_references_are_where_they_were() -> None:
    given, made, frame, between = memoryview(b"12345678"), memoryview(bytearray(8)), array("q", [0, 0]), bounds(0, 1)
    counted = given, made, frame, between, None
    before = [sys.getrefcount(each) for each in counted]
    for _ in range(1000):
        COMPILER.call_over(COPY.address, between, frame, given, made)
        with pytest.raises(BufferError):
            COMPILER.call_over(COPY.address, between, frame, made, given)
    after = [sys.getrefcount(each) for each in counted]
    assert max(abs(now - then) for now, then in zip(after, before, strict=True)) < 500  # None is everybody's


def test_other_threads_have_the_interpreter_meanwhile() -> None:
    look = COMPILER.function(
        """declare i32 @PyGILState_Check()
define void @kernel(ptr %frame) {
  %made = load ptr, ptr %frame
  %is.held = call i32 @PyGILState_Check()
  store i32 %is.held, ptr %made
  ret void
}"""
    )
    made = bytearray(b"\xff" * 4)
    COMPILER.call_over(look.address, bounds(0, least=4), array("q", [0]), memoryview(made))
    assert bytes(made) == bytes(4)


def test_a_frame_may_be_all_there_is() -> None:
    made = (ctypes.c_int64 * 2)(5, 0)
    frame = array("q", [ctypes.addressof(made), ctypes.addressof(made) + 8])
    COMPILER.call_over(COPY.address, NO_BOUNDS, frame)
    assert list(made) == [5, 5]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("elements", [1024, 1 << 20])
@pytest.mark.parametrize("name", [CELU, PARAMETERIZED_RELU, SOFTMAX])
def test_no_kernel_goes_beyond_a_buffer(name: str, elements: int, threads: int) -> None:
    device = NumpyDevice(ThreadPoolExecutor(1), threads, COMPILER, least=1)
    operator = compiled(descriptor(name, {"DataType": "FLOAT32", "Sizes": [elements // 64, 64]}))
    kernel = device.prepare(operator)
    inputs = [np.ones(elements, np.float32).view(np.uint8).data for _ in operator.inputs]
    made = memoryview(bytearray(4 * elements))
    kernel.dispatch(inputs, [made], never)
    assert bytes(made) != bytes(len(made))
    for number in range(len(inputs)):
        with pytest.raises(ValueError, match="ends before its tensor"):
            kernel.dispatch([*inputs[:number], inputs[number][:-1], *inputs[number + 1 :]], [made], never)
    with pytest.raises(ValueError, match="ends before its tensor"):
        kernel.dispatch(inputs, [made[:-1]], never)
    with pytest.raises(BufferError):
        kernel.dispatch(inputs, [memoryview(bytes(len(made)))], never)


@pytest.mark.parametrize("name", [CELU, SOFTMAX])
def test_nor_does_one_that_numpy_computes(name: str) -> None:
    operator = compiled(descriptor(name, {"DataType": "FLOAT32", "Sizes": [2, 8]}))
    kernel = NumpyDevice(ThreadPoolExecutor(1), 1).prepare(operator)
    given, made = memoryview(bytearray(64)), memoryview(bytearray(64))
    for buffers in (([given[:-1]], [made]), ([given], [made[:-1]])):
        with pytest.raises((TypeError, ValueError), match="buffer"):
            kernel.dispatch(*buffers, never)


@pytest.mark.parametrize("count", [61, 62, 1000])
def test_any_number_of_buffers(count: int) -> None:
    """Around the 64 arguments that have a place on the stack, and not all of them in the frame."""
    given, made, others = memoryview(b"12345678"), memoryview(bytearray(8)), [memoryview(bytearray(8))] * (count - 2)
    between = bounds(0, *[UNREAD] * (count - 2), 1)
    COMPILER.call_over(COPY.address, between, array("q", [0, 0]), given, *others, made)
    assert bytes(made) == b"12345678"
    for _ in range(100):
        with pytest.raises(BufferError):
            COMPILER.call_over(COPY.address, between, array("q", [0, 0]), given, *others, memoryview(bytes(8)))

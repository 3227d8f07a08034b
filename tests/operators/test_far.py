"""Elements that lie more than 2^31 elements apart are computed as those are that lie together.

Memory that nothing touches costs nothing: on the host it is mapped without being reserved, on a GPU it lies there
already, as clients' tensors do by CUDA shared memory.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contract.tensors import TensorDesc, packed_strides
from app.devices.cpu.device import NumpyDevice
from app.devices.device import OnDevice
from app.engine.capabilities import example
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator
from tests.devices.test_numpy_device import never
from tests.gpu import first_gpu
from tests.operators.conftest import compiler
from tests.operators.descriptors import compiled, descriptor, example_data, refusals

FAR = (1 << 31) + 5
UNRESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python tells from 3.13 on

Run = Callable[[CompiledOperator, Mapping[str, Array]], dict[str, Array]]


def reach_bytes(desc: TensorDesc) -> int:
    """A multiple of 4, as tensors have it."""
    return -(-desc.reach * numpy_type(desc.DataType).itemsize // 4) * 4


def in_bytes(desc: TensorDesc) -> tuple[int, ...]:
    return tuple(step * numpy_type(desc.DataType).itemsize for step in desc.strides)


def on_host(operator: CompiledOperator, tensors: Mapping[str, Array]) -> dict[str, Array]:
    memory = [mmap.mmap(-1, reach_bytes(desc), UNRESERVED) for desc in (operator.inputs | operator.outputs).values()]
    there = {
        name: np.ndarray(desc.Sizes, numpy_type(desc.DataType), each, 0, in_bytes(desc))
        for (name, desc), each in zip((operator.inputs | operator.outputs).items(), memory, strict=True)
    }
    for name, each in tensors.items():
        there[name][...] = each
    count = len(operator.inputs)
    buffers = [memoryview(each) for each in memory]
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 2, compiler(), least=1)
        device.prepare(operator).dispatch(buffers[:count], buffers[count:], never)
    return {name: there[name].copy() for name in operator.outputs}


def on_gpu(operator: CompiledOperator, tensors: Mapping[str, Array]) -> dict[str, Array]:
    gpu = first_gpu()
    gpu.use()
    import cupy

    there: dict[str, Any] = {}
    bindings = []
    for name, desc in (operator.inputs | operator.outputs).items():
        memory = cupy.cuda.Memory(reach_bytes(desc))
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        there[name] = cupy.ndarray(tuple(desc.Sizes), numpy_type(desc.DataType), pointer, in_bytes(desc))
        there[name][...] = cupy.asarray(tensors[name]) if name in tensors else 0
        bindings.append(OnDevice(memory.ptr, memory.size, memory))
    cupy.cuda.runtime.deviceSynchronize()
    count = len(operator.inputs)
    gpu.resident(operator).dispatch(bindings[:count], bindings[count:], never)
    return {name: there[name].get() for name in operator.outputs}


def far(desc: TensorDesc) -> Iterator[dict[str, Any]]:
    """The tensor with the coordinates of its first dimension, and of its last, so far apart."""
    wide = [axis for axis, size in enumerate(desc.Sizes) if size > 1]
    for axis in sorted({*wide[:1], *wide[-1:]}):
        rest = [1 if other == axis else size for other, size in enumerate(desc.Sizes)]
        strides = list(packed_strides(rest))
        strides[axis] = FAR // (desc.Sizes[axis] - 1) + 1
        yield {"DataType": desc.DataType, "Sizes": list(desc.Sizes), "Strides": strides}


def given(kind: str, operator: CompiledOperator) -> dict[str, Array]:
    data = example_data(kind)
    return {
        name: np.ndarray(desc.Sizes, numpy_type(desc.DataType), data[name], 0, in_bytes(desc))
        for name, desc in operator.inputs.items()
    }


def placed(document: dict[str, Any], name: str, desc: dict[str, Any]) -> dict[str, Any]:
    """With that descriptor for the tensor of this name, which may be one of an array."""
    field, _, place = name.removesuffix("]").partition("[")
    if not place:
        return document | {field: desc}
    return document | {field: [desc if n == int(place) else each for n, each in enumerate(document[field])]}


def check(document: dict[str, Any], tensors: Mapping[str, Array], run: Run) -> None:
    packed = compiled(document)
    right = run(packed, tensors)
    for name, desc in (packed.inputs | packed.outputs).items():
        if desc.DataType.bits < 8 or ("[" in name and name.partition("[")[0] not in document):
            continue
        for spread in far(desc):
            asked = placed(document, name, spread)
            if refusals(asked):  # where it must be packed
                continue
            made = run(compiled(asked), tensors)
            for output, each in right.items():
                near = {"rtol": 2e-5, "atol": 1e-6} if each.dtype.kind == "f" else {"rtol": 0}
                np.testing.assert_allclose(made[output], each, **near, err_msg=f"{document['Type']} {name} {spread}")


def check_example(kind: str, run: Run) -> None:
    document = example(OPERATORS[kind])["operator"]
    check(document, given(kind, compiled(document)), run)


@pytest.mark.parametrize("kind", OPERATORS)
def test_far_apart(kind: str) -> None:
    check_example(kind, on_host)


@pytest.mark.gpu
def test_far_apart_on_a_gpu() -> None:
    """One after the other: each has up to 9 GB."""
    for kind in OPERATORS:
        check_example(kind, on_gpu)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sizes", "filters", "dilation"), [((2, 1, 3, 3), (3, 1, 2, 2), 1), ((1, 1, 65, 65), (1, 1, 3, 3), 4)]
)
def test_convolutions_by_cudnn(sizes: tuple[int, ...], filters: tuple[int, ...], dilation: int) -> None:
    """Which fails for such tensors, computes something else, or ends the GPU's context."""
    document = descriptor("DML_OPERATOR_CONVOLUTION", {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]}) | {
        "InputTensor": {"DataType": "FLOAT32", "Sizes": list(sizes)},
        "FilterTensor": {"DataType": "FLOAT32", "Sizes": list(filters)},
        "BiasTensor": None,
        "OutputTensor": None,
        "Dilations": [dilation] * 2,
    }
    rng = np.random.default_rng(3)
    tensors = {"InputTensor": sizes, "FilterTensor": filters}
    check(document, {name: rng.random(each, np.float32) for name, each in tensors.items()}, on_gpu)

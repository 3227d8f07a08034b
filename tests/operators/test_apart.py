"""Elements that lie apart are computed as those are that lie together, to the bit, however many there are."""

from typing import Any

import numpy as np
import pytest

from app.contract.tensors import TensorDesc
from app.devices.cpu.llvm.nest import PIECE
from app.devices.cpu.llvm.nests import GUESSED, STREAMED_PIECE, WHOLE
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import OPERATORS
from app.operators.operator import Role
from tests.operators import arrays, calls
from tests.operators.descriptors import compiled, descriptor, refusals

AT_A_TIME = sorted({GUESSED, PIECE, STREAMED_PIECE, WHOLE})
SIZES = [1, 7, *(each + beside for each in AT_A_TIME for beside in (-1, 0, 1)), 3 * max(AT_A_TIME) + 77]
TYPES = (("FLOAT32", "UINT8"), ("FLOAT16", "INT64"))
"""Operators have these in turns, and the others where they have none of them: formulas do not know how far apart
elements are, and those of FLOAT16 are those of FLOAT32 between conversions."""
ELEMENT_WISE = [kind for kind, each in OPERATORS.items() if each.family() in ("ACTIVATION", "ELEMENT_WISE")]


def drawn(rng: np.random.Generator, desc: TensorDesc) -> Array:
    """Elements, some of which are too large or too small for most functions."""
    dtype = numpy_type(desc.DataType)
    if dtype.kind == "f":
        return (rng.standard_normal(desc.Sizes) * 10.0 ** rng.integers(-3, 3, desc.Sizes)).astype(dtype)
    return rng.integers(0, 100, desc.Sizes).astype(dtype)


def spread(array: Array, step: int) -> Array:
    """The same elements, `step` apart."""
    if array.size == 1:
        return array
    made = np.full((array.size, step), 77, array.dtype)[:, 0]
    made[...] = array
    return made


def bits(array: Array) -> bytes:
    """All NaNs are one: their signs are anybody's."""
    return np.where(array != array, array.dtype.type(7), array).tobytes()


def documents(kind: str) -> list[dict[str, Any]]:
    """With packed tensors, of TYPES that the operator has, or of the one that fits."""
    turn = ELEMENT_WISE.index(kind)
    for types in (TYPES[turn % 2], TYPES[1 - turn % 2]):
        of_types = [descriptor(kind, {"DataType": each, "Sizes": [1]}) for each in types]
        taken = [each for each in of_types if not refusals(each)]
        if taken:
            return taken
    fitting = descriptor(kind)
    for name in OPERATORS[kind].tensor_names(Role.INPUT):
        if fitting[name]:
            fitting[name] = fitting[name] | {"Sizes": [1]}
    return [fitting]


def of_size(kind: str, document: dict[str, Any], size: int) -> dict[str, Any]:
    names = OPERATORS[kind].tensor_names(Role.INPUT)
    wide = {name: document[name] | {"Sizes": [size]} for name in names if name not in OPERATORS[kind].one_element}
    return document | wide


@pytest.mark.parametrize("on_each_device", ["llvm", pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize("kind", ELEMENT_WISE)
def test_elements_apart(on_each_device: None, kind: str) -> None:
    """Nothing is written between them, either."""
    rng = np.random.default_rng(5)
    for document in documents(kind):
        for size in SIZES:
            asked = of_size(kind, document, size)
            packed = compiled(asked)
            tensors = {name: drawn(rng, desc) for name, desc in packed.inputs.items()}
            right = arrays.run(calls.DEVICE, packed, tensors)
            for step, between in [(1, 2), (2, 1), (3, 3)] if size > 1 else []:
                given = {name: spread(each, between) for name, each in tensors.items()}
                outputs = {
                    name: {"DataType": desc.DataType, "Sizes": list(desc.Sizes), "Strides": [step]}
                    for name, desc in packed.outputs.items()
                }
                operator = compiled(asked | {name: arrays.desc_of(each) for name, each in given.items()} | outputs)
                made = arrays.run(calls.DEVICE, operator, given)
                for name, each in made.items():
                    assert bits(each) == bits(right[name]), (name, document, size, step, between)

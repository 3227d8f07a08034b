"""Along axes that operators tell for batches, items are made apart from one another, and all in the same way."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from app.contract.violations import ContractError
from app.engine.capabilities import example_descriptor
from app.formula.coordinates import Operand, coordinates
from app.formula.values import FLOAT32, INT64, Value, cast, remainder_of_floor, saturate, where
from app.memory.arrays import Array, numpy_type
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator
from app.operators.operator import PREFIX, InputTensorDesc, OutputTensorDesc
from app.operators.parameters import STRUCTURAL, TensorParameters
from app.programs.batch_axes import Reads
from tests.operators import arrays, coordinate_operators
from tests.operators.calls import DEVICE
from tests.operators.descriptors import compiled

Document = dict[str, Any]

MANY = 3

NEVER = {
    *("DIAGONAL_MATRIX", "FILL_VALUE_CONSTANT", "FILL_VALUE_SEQUENCE", "RANDOM_GENERATOR"),
    *("NONZERO_COORDINATES", "DYNAMIC_QUANTIZE_LINEAR", "MAX_UNPOOLING"),
    *("MAX_POOLING_GRAD", "ROI_ALIGN_GRAD", "LOCAL_RESPONSE_NORMALIZATION_GRAD"),
}
"""Operators of which no axis is told; of gradients that are calls nobody asks."""


def of(kind: str, members: Document | None = None, /, **sizes: list[int]) -> Document:
    """The example with other sizes."""
    made = example_descriptor(OPERATORS[PREFIX + kind])
    for name, each in sizes.items():
        made[name] = {"DataType": "FLOAT32", **(made.get(name) or {}), "Sizes": each}
    return made | (members or {})


def recurrent(kind: str, **more: list[int]) -> Document:
    state = {name: [1, 1, MANY, 2] for name in ("HiddenInitTensor", "OutputSingleTensor")}
    return of(
        kind,
        InputTensor=[1, 4, MANY, 2],
        SequenceLengthsTensor=[1, 1, 1, MANY],
        OutputSequenceTensor=[4, 1, MANY, 2],
        **state,
        **more,
    )


def attention(kind: str, mask: list[int]) -> Document:
    query = [MANY, 2, 4]
    integers = {"DataType": "INT32", "Sizes": mask}
    made = of("MULTIHEAD_ATTENTION", QueryTensor=query, KeyTensor=[MANY, 3, 4], ValueTensor=[MANY, 3, 4])
    return made | {"MaskTensor": integers, "MaskType": kind}


OTHERS = [
    recurrent("RNN"),
    recurrent("GRU"),
    recurrent("LSTM", CellMemInitTensor=[1, 1, MANY, 2], OutputCellSingleTensor=[1, 1, MANY, 2]),
    attention("KEY_SEQUENCE_LENGTH", [MANY]),
    attention("KEY_SEQUENCE_END_START", [2, MANY]),
    attention("KEY_QUERY_SEQUENCE_LENGTH_START_END", [3 * MANY + 2]),
    attention("BOOLEAN", [MANY, 2, 2, 3]),
    of("GEMM", {"TransA": "TRANSPOSE", "TransB": "TRANSPOSE"}, ATensor=[2, 3, 4], BTensor=[2, 5, 3], CTensor=[2, 4, 5]),
    of(
        "GEMM",
        {"FusedActivation": {"Type": "ACTIVATION_SOFTMAX1", "Axes": [2]}},
        ATensor=[2, 4, 3],
        BTensor=[2, 3, 5],
        CTensor=[2, 4, 5],
    ),
    of("MATRIX_MULTIPLY_INTEGER", ATensor=[2, 4, 3], BTensor=[2, 3, 5], AZeroPointTensor=[4], BZeroPointTensor=[5]),
    of(
        "MATRIX_MULTIPLY_INTEGER",
        ATensor=[2, 4, 3],
        BTensor=[2, 3, 5],
        AZeroPointTensor=[2, 4, 1],
        BZeroPointTensor=[1, 2, 1, 5],
    ),
    of(
        "DEQUANTIZE",
        {
            "InputTensor": {"DataType": "INT8", "Sizes": [4, 6]},
            "QuantizationTensors": [{"DataType": "FLOAT32", "Sizes": [4, 2]}, {"DataType": "INT8", "Sizes": [1, 2]}],
        },
    ),
    of("GATHER", {"Axis": 1, "IndexDimensions": 1}, InputTensor=[2, 4, 3], IndicesTensor=[1, 1, 3]),
    of("SCATTER", {"Axis": 1}, InputTensor=[4, 3], IndicesTensor=[4, 2], UpdatesTensor=[4, 2]),
    of("SCATTER_ND", InputTensor=[4, 3], IndicesTensor=[2, 1], UpdatesTensor=[2, 3]),
    *[
        of(kind, InputTensor=[MANY, 2, 3, 4], FilterTensor=[1, 2, 2, 2])
        for kind in ("CONVOLUTION", "CONVOLUTION_INTEGER", "QUANTIZED_LINEAR_CONVOLUTION")
    ],
    of("PADDING", {"PaddingMode": "REFLECTION", "StartPadding": [0, 1], "EndPadding": [0, 1]}, InputTensor=[3, 4]),
    of(
        "SLICE_GRAD",
        {"InputWindowOffsets": [0, 1], "InputWindowSizes": [3, 3], "InputWindowStrides": [1, 2]},
        InputGradientTensor=[3, 2],
        OutputGradientTensor=[3, 4],
    ),
]


def operators(kind: str) -> Iterator[CompiledOperator]:
    example = example_descriptor(OPERATORS[kind])
    yield compiled(example)
    yield from (compiled(each) for each in OTHERS if each["Type"] == kind)
    for axis in range(4):
        with suppress(ContractError):  # where tensors that are wider do not go with one another
            yield compiled({name: widened(each, axis) for name, each in example.items()})


def widened(member: Any, axis: int) -> Any:
    """Of a tensor of one place along `axis`, or a list of them, one of several."""
    if isinstance(member, list):
        return [widened(each, axis) for each in member]
    if not isinstance(member, dict) or member.get("Sizes", [])[axis : axis + 1] != [1]:
        return member
    return member | {"Sizes": [MANY if n == axis else size for n, size in enumerate(member["Sizes"])]}


def data_of(operator: CompiledOperator, seed: int) -> dict[str, Array]:
    """Whole numbers may be places."""
    random = np.random.default_rng(seed)
    return {
        name: (
            random.normal(0, 1 + 9 * seed, desc.Sizes)
            if desc.DataType.startswith("FLOAT") and "Lengths" not in name
            else random.integers(0, 3, desc.Sizes)
        ).astype(numpy_type(desc.DataType))
        for name, desc in operator.inputs.items()
    }


def claims(kind: str) -> Iterator[tuple[CompiledOperator, str, int, Reads]]:
    """For outputs that have several places there."""
    for operator in operators(kind):
        for name, output in operator.outputs.items():
            for axis, reads in operator.batch_axes(name).items():
                if output.Sizes[axis] > 1:
                    yield operator, name, axis, reads


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", OPERATORS)
def test_items_are_made_apart(kind: str) -> None:
    checked = [check(*each) for each in claims(kind)]
    assert any(checked) == (kind.removeprefix(PREFIX) not in NEVER)


def check(operator: CompiledOperator, name: str, axis: int, reads: Reads) -> bool:
    """Whether inputs have items there, too. Of some items, each must be the same whatever the others are, and wherever
    it is."""
    count = operator.outputs[name].Sizes[axis]
    data, others = data_of(operator, 0), data_of(operator, 1)
    axes: dict[str, int] = {}
    for each, along in reads.items():
        sizes = operator.inputs[each].Sizes
        found = [own for own, always in along.items() if always and sizes[own] >= count]
        axes |= {each: found[0]} if found else {}
        for own in along:  # what is not an item's is the same for all of them
            if own != axes.get(each):
                for made in (data, others):
                    made[each] = np.repeat(np.take(made[each], [0], own), sizes[own], own)
    items = run(operator, data, name)
    if not axes:
        first = np.take(items, [0], axis)
        assert np.broadcast_to(first, items.shape).tobytes() == items.tobytes(), (operator.operator, name, axis)
        return False
    for place in (0, count - 1):
        changed = dict(data)
        for each, own in axes.items():
            here = [slice(None)] * data[each].ndim
            here[own] = slice(place, place + 1)
            changed[each] = others[each].copy()
            changed[each][*here] = data[each][*here]
        same = np.take(run(operator, changed, name), place, axis)
        assert same.tobytes() == np.take(items, place, axis).tobytes(), (operator.operator, name, axis)
    if all(operator.inputs[each].Sizes[own] == count for each, own in axes.items()):
        rolled = data | {each: np.roll(data[each], 1, own) for each, own in axes.items()}
        np.testing.assert_allclose(np.roll(run(operator, rolled, name), -1, axis), items, 1e-5, 1e-6)
    return True


def run(operator: CompiledOperator, data: Mapping[str, Array], name: str) -> Array:
    return arrays.run(DEVICE, operator, data)[name]


class Counted(coordinate_operators.Unjudged):
    """Elements of a formula that counts along the first axis, or asks how many there are."""

    Type: Literal["DML_OPERATOR_TEST_COUNTED"] = "DML_OPERATOR_TEST_COUNTED"
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Form: Annotated[str, STRUCTURAL]

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        c = coordinates(x.rank)
        match self.Form:
            case "size":
                return x[c] * cast(x.sizes[0], FLOAT32)
            case "choice":
                return where(x.sizes[0] > 2, x[c], -x[c])
            case "coordinate":
                return x[c] + cast(c[0], FLOAT32)
            case "neighbour":
                return x[c] + x[[c[0] + 1, c[1], c[2]]]
            case "diagonal":
                return x[[c[0], c[0], c[2]]]
            case "place":
                return x[[saturate(x[c], INT64), c[1], c[2]]]
        return x[[where((c[0] >= 0) & (c[0] < x.sizes[0]), c[0], 0), remainder_of_floor(c[1], x.sizes[1]), c[2] * 1]]


@pytest.mark.parametrize(
    ("form", "axes"),
    [
        ("size", [1, 2]),
        ("choice", [1, 2]),
        ("coordinate", [1, 2]),
        ("neighbour", [1, 2]),
        ("place", [0, 1, 2]),
        ("diagonal", [0, 1, 2]),
        ("as it is", [0, 1, 2]),
    ],
)
def test_what_a_formula_does_along_an_axis(form: str, axes: list[int]) -> None:
    tensor = {"DataType": "FLOAT32", "Sizes": [3, 3, 3]}
    operator = coordinate_operators.compiled(Counted, {"Form": form, "InputTensor": tensor})
    found = operator.batch_axes("OutputTensor")
    assert [*found] == axes
    if form == "diagonal":  # both must be along which items lie, or all are the same
        assert found[0] == {"InputTensor": {0: True, 1: True}}
    if form == "place":  # elsewhere, too
        assert found[0] == {"InputTensor": {0: False}}
        assert found[1] == {"InputTensor": {1: True}}

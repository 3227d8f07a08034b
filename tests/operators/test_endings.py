"""Endings of products, which a GPU has a kernel for, against what the operator itself makes of the same product."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from app.formula.structures import Structures
from app.memory.arrays import Array
from app.operators import fusion
from app.operators.convolution import floats
from app.operators.endings import Ended
from tests.operators.arrays import desc_of
from tests.operators.calls import compiled, run
from tests.operators.rows import by_numpy, direct_by_numpy, ended

MORE: dict[str, dict[str, Any]] = {
    "ACTIVATION_SOFTMAX": {},
    "ACTIVATION_SOFTMAX1": {"Axes": [1, 3]},
    "ELEMENT_WISE_CLIP": {"Min": -0.5, "Max": 0.75, "ScaleBias": {"Scale": 1.5, "Bias": -0.25}},
}
"""What may be fused into GEMM beyond FUSABLE, or into CONVOLUTION, with attributes."""

KINDS = ("gemm", "convolution")


def activations() -> Iterator[Any]:
    yield pytest.param(None, id="none")
    for kind in fusion.FUSABLE:
        numbers = dict(zip(kind.attribute_names(), (0.75, 1.25, 0.5), strict=False))
        yield pytest.param({"Type": kind.short_name(), **numbers}, id=kind.short_name())
    for name, attributes in MORE.items():
        yield pytest.param({"Type": name, **attributes}, id=name)


def document(kind: str, activation: dict[str, Any] | None) -> dict[str, Any]:
    if kind == "gemm":
        made = {"Type": "GEMM", "TransA": "NONE", "TransB": "TRANSPOSE", "Alpha": 0.75, "Beta": -1.5}
    else:
        made = {"Type": "CONVOLUTION", "Mode": "CROSS_CORRELATION", "Direction": "FORWARD", "GroupCount": 1}
        made |= {name: [1, 1] for name in ("Strides", "Dilations", "StartPadding", "EndPadding")}
        made["OutputPadding"] = [0, 0]
    return made | {"FusedActivation": activation}


def given(kind: str, dtype: str) -> dict[str, Array]:
    """Inputs, the addend last. GEMM's has repeated rows, and CONVOLUTION's bias gaps."""
    rng = np.random.default_rng(7)
    if kind == "gemm":
        a, b = rng.standard_normal((1, 1, 4, 5)).astype(dtype), rng.standard_normal((1, 1, 6, 5)).astype(dtype)
        rows = rng.standard_normal((1, 1, 1, 6)).astype(dtype)
        return {"ATensor": a, "BTensor": b, "CTensor": np.broadcast_to(rows, (1, 1, 4, 6))}
    x, filters = (rng.standard_normal(sizes).astype(dtype) for sizes in ((2, 3, 5, 6), (4, 3, 3, 3)))
    bias = rng.standard_normal((1, 4, 1, 2)).astype(dtype)[..., :1]
    return {"InputTensor": x, "FilterTensor": filters, "BiasTensor": bias}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("activation", list(activations()))
@pytest.mark.parametrize("kind", KINDS)
def test_an_ending_is_what_the_operator_does(
    kind: str, activation: dict[str, Any] | None, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "convolution" and activation and "SOFTMAX" in activation["Type"]:
        pytest.skip("it is fused into GEMM alone")
    stated, inputs = document(kind, activation), given(kind, dtype)
    by_numpy(monkeypatch)
    made = ended(stated, inputs)
    if kind == "convolution" and activation is None:
        assert made is None  # cuDNN adds the bias itself
        return
    assert made is not None
    expected = run(stated, inputs)["OutputTensor"]
    allowed = 4 * np.spacing(np.abs(expected).astype(dtype)).astype(np.float64)
    assert (np.abs(made.astype(np.float64) - expected) <= allowed + 1e-7).all()


def test_what_is_known_is_not_built_again() -> None:
    """Formulas are the same for all sizes and numbers, but not for other activations, types and addends."""
    structures = Structures()

    def program(rows: int, dtype: str, activation: str, alpha: float, *, added: bool = True) -> object:
        tensors = {"ATensor": [1, 1, rows, 5], "BTensor": [1, 1, 6, 5], "CTensor": [1, 1, rows, 6]}
        stated = document("gemm", {"Type": activation, "Alpha": alpha}) | {"Alpha": 1.5 + alpha}
        for name, sizes in tensors.items():
            stated[name] = {"DataType": dtype, "Sizes": sizes} if added or name != "CTensor" else None
        ending = compiled(stated).ending(structures)
        assert ending
        return ending.program

    first = program(3, "FLOAT32", "ACTIVATION_ELU", 0.5)
    assert program(4, "FLOAT32", "ACTIVATION_ELU", 0.25) is first
    others = [
        program(3, "FLOAT16", "ACTIVATION_ELU", 0.5),
        program(3, "FLOAT32", "ACTIVATION_CELU", 0.5),
        program(3, "FLOAT32", "ACTIVATION_ELU", 0.5, added=False),
    ]
    assert len({id(each) for each in (first, *others)}) == 4


def test_what_has_no_ending() -> None:
    plain = {"ATensor": {"DataType": "FLOAT32", "Sizes": [2, 3]}, "BTensor": {"DataType": "FLOAT32", "Sizes": [4, 3]}}
    assert compiled(document("gemm", None) | plain | {"Alpha": 1}).ending(Structures()) is None
    half = {name: desc_of(each) for name, each in given("convolution", "float16").items()}
    padded = document("convolution", {"Type": "ACTIVATION_RELU"}) | half | {"OutputPadding": [0, 1]}
    assert compiled(padded).ending(Structures()) is None  # the zeros are no part of the product
    assert compiled({"Type": "ELEMENT_WISE_ABS", "InputTensor": plain["ATensor"]}).ending(Structures()) is None


@pytest.mark.parametrize(
    ("dtype", "extent", "channels", "width", "groups", "is_left"),
    [
        ("FLOAT32", 1, 256, 3, 1, True),
        ("FLOAT32", 1, 255, 3, 1, False),
        ("FLOAT32", 3, 4, 3, 2, True),
        ("FLOAT32", 3, 256, 3, 1, False),
        ("FLOAT16", 1, 2, 4, 1, True),
        ("FLOAT16", 1, 256, 3, 1, False),  # an odd number of positions
        ("FLOAT16", 3, 256, 4, 1, False),
    ],
)
def test_biases_that_are_left_to_endings(
    dtype: str, extent: int, channels: int, width: int, groups: int, is_left: bool
) -> None:
    """Those that cuDNN is slow with, where the convolution is a product of matrices."""
    sizes = [1, channels, 3, width], [4, channels // groups, extent, extent], [1, 4, 1, 1]
    names = "InputTensor", "FilterTensor", "BiasTensor"
    stated = document("convolution", None) | {"GroupCount": groups}
    stated |= {name: [extent // 2] * 2 for name in ("StartPadding", "EndPadding")}
    stated |= {name: {"DataType": dtype, "Sizes": each} for name, each in zip(names, sizes, strict=True)}
    operator = compiled(stated).operator
    assert isinstance(operator, Ended)
    assert operator.is_ended_apart() is is_left


@pytest.mark.parametrize(
    ("dtype", "extent", "channels", "side", "outputs", "is_left"),
    [
        ("FLOAT32", 3, 128, 16, 128, True),
        ("FLOAT32", 3, 128, 16, 127, False),
        ("FLOAT32", 3, 113, 16, 128, False),  # sums of 1017 terms
        ("FLOAT32", 3, 128, 15, 128, False),
        ("FLOAT16", 3, 64, 16, 512, True),
        ("FLOAT16", 3, 64, 16, 511, False),
        ("FLOAT16", 1, 64, 15, 512, False),  # a product of matrices
        ("FLOAT16", 3, 3, 5, 8, True),  # channels that tensor cores do not take as they are
    ],
)
def test_convolutions_that_are_products_of_packed_rows(
    dtype: str, extent: int, channels: int, side: int, outputs: int, is_left: bool
) -> None:
    """With nothing but the product, which cuDNN is not asked for then."""
    stated = document("convolution", None) | {"InputTensor": {"DataType": dtype, "Sizes": [1, channels, side, side]}}
    stated |= {"FilterTensor": {"DataType": dtype, "Sizes": [outputs, channels, extent, extent]}}
    stated |= {name: [extent // 2] * 2 for name in ("StartPadding", "EndPadding")}
    operator = compiled(stated).operator
    assert isinstance(operator, Ended)
    assert operator.is_ended_apart() is is_left


@pytest.mark.parametrize(
    ("dtype", "extent", "channels", "outputs", "groups", "changed", "is_direct"),
    [
        ("float16", 3, 1, 8, 4, {}, True),
        ("float16", 3, 7, 28, 4, {}, True),  # 63 terms for 7 outputs
        ("float16", 3, 8, 28, 4, {}, False),
        ("float16", 3, 1, 32, 4, {}, False),
        ("float16", 1, 4, 4, 1, {}, False),  # a product of matrices
        ("float16", 3, 1, 8, 4, {"Direction": "BACKWARD"}, False),
        ("float32", 3, 1, 8, 4, {}, False),
    ],
)
def test_halves_of_few_terms_are_added_up_by_one_kernel(
    dtype: str,
    extent: int,
    channels: int,
    outputs: int,
    groups: int,
    changed: dict[str, Any],
    *,
    is_direct: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a bias and an activation, which a library would compute in float32."""
    asked = []

    def direct(*given: Any) -> Array:
        asked.append(given)
        return direct_by_numpy(*given)

    by_numpy(monkeypatch)
    monkeypatch.setattr(floats, "direct", direct)
    rng = np.random.default_rng(3)
    backward = changed.get("Direction") == "BACKWARD"
    sizes = [2, outputs if backward else groups * channels, 5, 6], [outputs, channels, extent, extent]
    bias = [1, groups * channels if backward else outputs, 1, 1]
    names = "InputTensor", "FilterTensor", "BiasTensor"
    inputs = {name: rng.integers(-9, 9, each).astype(dtype) for name, each in zip(names, (*sizes, bias), strict=True)}
    stated = document("convolution", {"Type": "ACTIVATION_RELU"}) | {"GroupCount": groups} | changed
    stated |= {name: [extent // 2] * 2 for name in ("StartPadding", "EndPadding")}
    made = ended(stated, inputs)
    assert bool(asked) is is_direct
    assert made is not None
    np.testing.assert_array_equal(made, run(stated, inputs)["OutputTensor"])

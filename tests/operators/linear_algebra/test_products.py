"""GEMM: against its formula by coordinates on random descriptors, what is special, and what is refused."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import FeatureLevel, MatrixTransform
from app.formula.coordinates import Operand, coordinates, sum_over
from app.formula.values import Value, cast, widen
from app.memory.arrays import Array
from app.operators.linear_algebra.products import Gemm
from app.operators.parameters import TensorParameters
from tests.contract.refusals import check_wording
from tests.operators.arrays import bytes_of, desc_of, laid_out
from tests.operators.calls import DEVICE, compiled, run
from tests.operators.descriptors import refusals

ACTIVATIONS: list[dict[str, Any] | None] = [
    None,
    {"Type": "ACTIVATION_RELU"},
    {"Type": "ACTIVATION_GELU"},
    {"Type": "ACTIVATION_CELU", "Alpha": 0.5},
    {"Type": "ACTIVATION_SOFTPLUS", "Steepness": 2.0},
    {"Type": "ACTIVATION_HARD_SIGMOID", "Alpha": 0.2, "Beta": 0.5},
]
"""Formulas with and without expansions, questions and scalars."""


class GemmByCoordinates(Gemm):
    """The judge: one element after the other."""

    by_coordinates = True
    call = None  # type: ignore[assignment]

    def formula(self, p: TensorParameters, a: Operand, b: Operand, c: Operand | None) -> Value:
        *batch, m, n = coordinates(a.rank)
        depth = a.sizes[-1] if self.TransA is MatrixTransform.NONE else a.sizes[-2]

        def term(k: Value) -> Value:
            left = [m, k] if self.TransA is MatrixTransform.NONE else [k, m]
            right = [k, n] if self.TransB is MatrixTransform.NONE else [n, k]
            return widen(a[[*batch, *left]]) * widen(b[[*batch, *right]])

        made = widen(p.Alpha) * sum_over([depth], term)
        if c:
            made = made + widen(p.Beta) * widen(c[[*batch, m, n]])
        made = cast(made, a.type)
        return self.FusedActivation.formula(p.below("FusedActivation."), made) if self.FusedActivation else made


def random(rng: np.random.Generator, sizes: list[int], dtype: str) -> Array:
    """Packed, with gaps, turned, or repeated along some dimensions."""
    kept = [1 if rng.random() < 0.15 else size for size in sizes]
    made = laid_out(rng, rng.normal(size=kept).astype(dtype))
    return np.broadcast_to(made, sizes)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda each: each["Type"] if each else "none")
def test_gemm_is_its_formula(dtype: str, activation: dict[str, Any] | None) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        batch = [int(each) for each in rng.integers(1, 4, rng.integers(0, 3))]
        m, k, n = (int(each) for each in rng.integers(1, 9, 3))
        turned = [bool(each) for each in rng.integers(0, 2, 2)]
        document = {
            "Type": "GEMM",
            "TransA": "TRANSPOSE" if turned[0] else "NONE",
            "TransB": "TRANSPOSE" if turned[1] else "NONE",
            "Alpha": float(rng.choice([1, 0.5, -2])),
            "Beta": float(rng.choice([1, 0, 0.25])),
            "FusedActivation": activation,
        }
        inputs = {
            "ATensor": random(rng, [*batch, *([k, m] if turned[0] else [m, k])], dtype),
            "BTensor": random(rng, [*batch, *([n, k] if turned[1] else [k, n])], dtype),
            "CTensor": random(rng, [*batch, m, n], dtype) if rng.random() < 0.5 else None,
        }
        made = run(document, inputs)["OutputTensor"]
        judged = run(document, inputs, GemmByCoordinates)["OutputTensor"]
        np.testing.assert_allclose(made, judged, rtol=1e-5 if dtype == "float32" else 1e-3, atol=1e-5)
        out = laid_out(rng, np.zeros_like(made))
        strided = run(document | {"OutputTensor": desc_of(out)}, inputs)["OutputTensor"]
        np.testing.assert_array_equal(strided, made)


PLAIN: dict[str, Any] = {"Type": "GEMM", "TransA": "NONE", "TransB": "NONE", "Alpha": 1, "Beta": 1}


def test_sums_are_in_float32_and_float16_is_rounded_once() -> None:
    """1024 + 2^-4 is lost in FLOAT16, and the sum of 64 such parts is not."""
    a = np.full((1, 65), 2.0**-4, np.float16)
    a[0, 0] = 1024
    made = run(PLAIN, {"ATensor": a, "BTensor": np.ones((65, 1), np.float16)})["OutputTensor"]
    assert made[0, 0] == 1028
    c = np.full((1, 1), -1028, np.float16)
    made = run(PLAIN, {"ATensor": a, "BTensor": np.ones((65, 1), np.float16), "CTensor": c})["OutputTensor"]
    assert made[0, 0] == 0


def test_products_beyond_float16_before_the_rest_brings_them_back() -> None:
    a = np.full((1, 2), 300, np.float16)
    made = run(PLAIN | {"Alpha": 0.25}, {"ATensor": a, "BTensor": a.T})["OutputTensor"]
    assert made[0, 0] == 45000


def test_repeated_operands_are_not_written_out() -> None:
    """Millions of elements, all of one number."""
    a = np.broadcast_to(np.float32(0.5), (1, 1 << 18))
    made = run(PLAIN, {"ATensor": a, "BTensor": np.broadcast_to(np.float32(2), (1 << 18, 300))})["OutputTensor"]
    assert (made == 1 << 18).all()
    assert made.shape == (1, 300)


@pytest.mark.parametrize("is_repeated", [False, True], ids=["rows", "rows_repeated"])
@pytest.mark.parametrize("turned", ["ATensor", "BTensor"])
def test_where_elements_begin_in_a_body_is_not_to_be_seen(turned: str, is_repeated: bool) -> None:
    """Of a turned matrix by a vector NumPy's own copy is added up in another order."""
    rng = np.random.default_rng(7)
    depth = 33
    row, matrix = rng.normal(size=(2, 1, depth)).astype("f"), rng.normal(size=(2, 17, depth)).astype("f")
    if turned == "ATensor":
        a, b = matrix.swapaxes(1, 2).copy(), row.swapaxes(1, 2).copy()
        if is_repeated:
            b = np.broadcast_to(b, (2, depth, 3))
    else:
        a, b = np.broadcast_to(row, (2, 3, depth)) if is_repeated else row, matrix
    operands = {"ATensor": a, "BTensor": b}
    document = PLAIN | {f"Trans{turned[0]}": "TRANSPOSE"}
    document |= {name: desc_of(each) for name, each in operands.items()}
    operator = compiled(document)
    made = [bytearray(operator.outputs["OutputTensor"].data_bytes) for _ in range(2)]
    for begin, each in enumerate(made):
        inputs = [moved(operands[name], begin) for name in operator.inputs]
        DEVICE.prepare(operator).dispatch(inputs, [memoryview(each)], lambda: False)
    assert made[0] == made[1]


def moved(x: Array, begin: int) -> memoryview:
    """The bytes of `x`, which begin so many bytes behind a multiple of 64."""
    data = bytes_of(x)
    memory = np.zeros(len(data) + 128, np.uint8)
    start = -memory.ctypes.data % 64 + begin
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memory[start : start + len(data)].data


@pytest.mark.parametrize("shift", [0, 2], ids=["same", "partly"])
@pytest.mark.parametrize("over", [0, 1, 2])
def test_a_product_may_lie_over_each_of_its_inputs(over: int, shift: int) -> None:
    """As it may in shared memory that a client wrote both into."""
    rng = np.random.default_rng(over)
    arrays = [rng.integers(-8, 8, (5, 5)).astype(np.float32) for _ in range(3)]
    memory = np.zeros(5 * 5 + shift, np.float32)
    memory[:25] = arrays[over].reshape(-1)
    names = ("ATensor", "BTensor", "CTensor")
    kernel = DEVICE.prepare(compiled(PLAIN | {name: desc_of(each) for name, each in zip(names, arrays, strict=True)}))
    given = [bytes_of(memory[:25] if place == over else each) for place, each in enumerate(arrays)]
    kernel.dispatch(given, [memory[shift:].data.cast("B")], lambda: False)
    np.testing.assert_array_equal(memory[shift:].reshape(5, 5), arrays[0] @ arrays[1] + arrays[2])


def test_special_values() -> None:
    a = np.array([[np.inf, 1], [np.nan, 1], [0, 1]], np.float32)
    b = np.array([[1, 0], [1, 1]], np.float32)
    c = np.array([[0, 0], [0, 0], [np.nan, np.inf]], np.float32)
    made = run(PLAIN, {"ATensor": a, "BTensor": b, "CTensor": c})["OutputTensor"]
    np.testing.assert_array_equal(made, [[np.inf, np.nan], [np.nan, np.nan], [np.nan, np.inf]])
    made = run(PLAIN | {"Beta": 0}, {"ATensor": a, "BTensor": b, "CTensor": c})["OutputTensor"]
    assert np.isnan(made[2]).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softmax_as_a_part(dtype: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=sizes).astype(dtype) for sizes in ((2, 1, 4, 5), (2, 1, 5, 6)))
    exact = np.exp(a.astype(float) @ b.astype(float))
    for axes in ([3], [2], [0, 2], [0, 1, 2, 3]):
        fused = {"Type": "ACTIVATION_SOFTMAX1", "Axes": axes, "AxisCount": len(axes)}
        made = run(PLAIN | {"FusedActivation": fused}, {"ATensor": a, "BTensor": b})["OutputTensor"]
        expected = exact / exact.sum(axis=tuple(axes), keepdims=True)
        np.testing.assert_allclose(made, expected, rtol=1e-5 if dtype == "float32" else 1e-3, atol=1e-6)
    a, b = a[:1], b[:1]
    made = run(PLAIN | {"FusedActivation": {"Type": "ACTIVATION_SOFTMAX"}}, {"ATensor": a, "BTensor": b})[
        "OutputTensor"
    ]
    np.testing.assert_allclose(made, exact[:1] / exact[:1].sum(axis=-1, keepdims=True), rtol=1e-3)


@pytest.mark.parametrize("scale_bias", [None, {"Scale": 2.0, "Bias": 1.0}])
def test_clip_as_a_part(scale_bias: dict[str, float] | None) -> None:
    a = np.arange(-3, 3, dtype="f4").reshape(6, 1)
    fused = {"Type": "ELEMENT_WISE_CLIP", "Min": -2, "Max": 1.5, "ScaleBias": scale_bias}
    made = run(PLAIN | {"FusedActivation": fused}, {"ATensor": a, "BTensor": np.ones((1, 1), "f4")})["OutputTensor"]
    np.testing.assert_array_equal(made, np.clip(a * 2 + 1 if scale_bias else a, -2, 1.5))


@pytest.mark.parametrize("rows", [6, 600])
def test_clip_without_a_bound_as_a_part(rows: int) -> None:
    a = np.arange(-3, rows - 3, dtype="f4").reshape(rows, 1)
    for least, most in ((-np.inf, 1.5), (-2, np.inf)):
        fused = {"Type": "ELEMENT_WISE_CLIP", "Min": least, "Max": most}
        made = run(PLAIN | {"FusedActivation": fused}, {"ATensor": a, "BTensor": np.ones((1, 1), "f4")})["OutputTensor"]
        np.testing.assert_array_equal(made, np.clip(a, least, most))


def desc(*sizes: int) -> dict[str, Any]:
    return {"DataType": "FLOAT32", "Sizes": list(sizes)}


SIZES = {"ATensor": desc(2, 1, 3, 4), "BTensor": desc(2, 1, 4, 5)}


@pytest.mark.parametrize(
    ("members", "pointer", "allowed"),
    [
        ({"BTensor": desc(2, 1, 5, 4)}, "/BTensor/Sizes", [2, 1, 4, 4]),
        ({"BTensor": desc(2, 1, 4, 5), "TransB": "TRANSPOSE"}, "/BTensor/Sizes", [2, 1, 4, 4]),
        ({"BTensor": desc(1, 1, 4, 5)}, "/BTensor/Sizes", [2, 1, 4, 5]),
        ({"BTensor": desc(4, 5)}, "/BTensor/Sizes", 4),
        ({"CTensor": desc(2, 1, 3, 1)}, "/CTensor/Sizes", [2, 1, 3, 5]),
        ({"CTensor": desc(3, 5)}, "/CTensor/Sizes", 4),
        ({"OutputTensor": desc(2, 1, 5, 3)}, "/OutputTensor/Sizes", [2, 1, 3, 5]),
        ({"FusedActivation": {"Type": "ACTIVATION_SOFTMAX1", "Axes": [4]}}, "/FusedActivation/Axes/0", "0 to 3"),
        (
            {"FusedActivation": {"Type": "ACTIVATION_SOFTMAX1", "Axes": [3], "AxisCount": 2}},
            "/FusedActivation/AxisCount",
            1,
        ),
        ({"FusedActivation": {"Type": "ACTIVATION_SOFTMAX"}}, "/OutputTensor/Sizes", [1, 1, 3, 5]),
    ],
)
def test_refusals(members: dict[str, Any], pointer: str, allowed: object) -> None:
    document = PLAIN | {"Type": "DML_OPERATOR_GEMM"} | SIZES
    assert refusals(document) == []
    (refusal,) = refusals(document | members)
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == (pointer, allowed)
    assert "InputTensor" not in refusal.message  # which GEMM has none of, nor a fused activation


def test_what_is_no_product_is_told_once() -> None:
    """Nothing can be said of what is added to it, and of its activation."""
    softmax = {"FusedActivation": {"Type": "ACTIVATION_SOFTMAX"}}
    document = PLAIN | {"Type": "DML_OPERATOR_GEMM"} | SIZES | {"CTensor": desc(2, 1, 9, 9)} | softmax
    assert [each.pointer for each in refusals(document | {"BTensor": desc(2, 1, 7, 5)})] == ["/BTensor/Sizes"]


def test_as_many_multiplications_as_terms() -> None:
    assert compiled(PLAIN | SIZES).multiplications == (2 * 1 * 3 * 5) * 4
    turned = {"TransA": "TRANSPOSE", "ATensor": desc(2, 1, 4, 3)}
    assert compiled(PLAIN | SIZES | turned).multiplications == (2 * 1 * 3 * 5) * 4


@pytest.mark.parametrize(
    ("fused", "since"),
    [
        ({"Type": "ACTIVATION_RELU"}, FeatureLevel.V1_0),
        ({"Type": "ACTIVATION_GELU"}, FeatureLevel.V5_1),
        ({"Type": "ELEMENT_WISE_CLIP", "Min": 0, "Max": 1, "ScaleBias": None}, FeatureLevel.V6_0),
        ({"Type": "ACTIVATION_SOFTMAX"}, FeatureLevel.V6_1),
        ({"Type": "ACTIVATION_SOFTMAX1", "Axes": [0]}, FeatureLevel.V6_1),
    ],
)
def test_levels_of_activations(fused: dict[str, Any], since: FeatureLevel) -> None:
    sizes = {"ATensor": desc(1, 1, 3, 4), "BTensor": desc(1, 1, 4, 5)}
    document = PLAIN | {"Type": "DML_OPERATOR_GEMM", "FusedActivation": fused} | sizes
    for level in FeatureLevel:
        assert [each.pointer for each in refusals(document, level)] == (
            [] if level >= since else ["/FusedActivation/Type"]
        )

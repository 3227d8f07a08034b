"""What stands for float64 in kernels, on the CPU: as exact as operators say for attributes and elements of any size."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.contract.validation import validate
from app.engine.capabilities import example
from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.compiled import compile_operator
from tests.devices.cuda_on_cpu import COMPILER, build, build_outputs, far_of
from tests.operators.descriptors import compiled, descriptor
from tests.operators.numerics import cases, reference
from tests.operators.numerics.cases import UNARY, Case, all_float16, float32_inputs, ordinary_float32, random_float32
from tests.operators.numerics.reference import wide
from tests.operators.numerics.ulp import check, distance, rounded

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


def attributes(rng: np.random.Generator) -> float:
    """Mostly about 1, at times of any size that a float32 has."""
    reach = rng.choice([1, 3, 30, 126])
    return float(np.float32(rng.choice([-1, 1]) * 2.0 ** rng.uniform(-reach, reach)))


def drawn_cases(rng: np.random.Generator) -> Iterator[Case]:
    """One of each operator whose attributes scale."""
    a, b = attributes(rng), attributes(rng)
    ends = [each / a for each in cases.EXP_ENDS]
    yield cases._celu(a)
    yield cases._activation("ELU", cases._elu, *cases.EXP_ENDS, Alpha=a)
    yield cases._activation("SCALED_ELU", lambda x, a, g: g * cases._elu(x, a), *cases.EXP_ENDS, Alpha=a, Gamma=b)
    yield cases._activation("SCALED_TANH", lambda x, b, a: b * np.tanh(a * x), 1 / a, 9 / a, Alpha=b, Beta=a)
    yield cases._activation("SOFTPLUS", lambda x, s: reference.softplus(s * x) / s, *ends, Steepness=a)
    yield cases._activation(
        "PARAMETRIC_SOFTPLUS", lambda x, b, a: b * reference.softplus(a * x), *ends, Alpha=b, Beta=a
    )
    swish = "SWISH", lambda x, s: cases._limited(x, x * reference.sigmoid(s * x))
    yield cases._activation(*swish, *ends, SigmoidInputScale=a)
    for kind, (exact, _, bound) in cases.FUNCTIONS.items():
        yield cases._scaled(kind, exact, a, b, max(bound, 1))
    yield cases._scaled_constant_pow(float(np.float32(rng.uniform(-20, 20))), a, b)
    yield cases._scaled_constant_pow(float(rng.integers(-20, 20)), a, b)


def test_attributes_of_any_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    drawn = [(case, data_type) for _ in range(2) for case in drawn_cases(rng) for data_type in ("FLOAT32", "FLOAT16")]
    operators = [
        compiled(descriptor(case.kind, {"DataType": data_type, "Sizes": [8]}, **case.attributes))
        for case, data_type in drawn
    ]
    for (case, data_type), element in zip(drawn, build(tmp_path, operators), strict=True):
        x, bound = inputs_of(case, data_type), case.bound if data_type == "FLOAT32" else min(case.bound, 1)
        actual = element(x)
        with np.errstate(all="ignore"):
            exact = exact_of(case, x)
            check(actual, exact, bound, x)
        zero = actual == 0
        if "POW" in case.kind:
            np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(rounded(exact, actual.dtype)[zero]))


def exact_of(case: Case, x: Array) -> Array:
    """Of angles, which are what float64 makes of them: rounded once."""
    kind = case.kind.rpartition("_")[2]
    if kind not in ("SIN", "COS", "TAN"):
        return case.exact(wide(x))
    scale, bias = (np.float64(np.float32(case.attributes["ScaleBias"][name])) for name in ("Scale", "Bias"))
    return cases.FUNCTIONS[kind][0](wide(scale * x.astype(np.float64) + bias))


def inputs_of(case: Case, data_type: str) -> Array:
    """Special, random and ordinary numbers, and such that their products with the scale are ordinary."""
    if data_type == "FLOAT16":
        return all_float16()[::11]
    scale = case.attributes.get("ScaleBias", {}).get("Scale")
    scale = scale or next(
        (case.attributes[n] for n in ("Beta", "Steepness", "SigmoidInputScale") if n in case.attributes), 0
    )
    scale = scale or 1 / case.attributes.get("Alpha", 1)
    with np.errstate(all="ignore"):
        scaled = (ordinary_float32(1 << 9, 7) / np.float64(scale)).astype(np.float32)
    return np.concatenate([float32_inputs(case), random_float32(1 << 9), ordinary_float32(1 << 9), scaled])


@pytest.mark.parametrize("name", ["CELU Alpha=0.7", "SCALED_ELU Alpha=100 Gamma=3", "SWISH SigmoidInputScale=1.702"])
def test_what_tensors_hold_is_near(tmp_path: Path, name: str) -> None:
    """Zeros, too; and what would not do with floats is far."""
    (case,) = [each for each in UNARY if str(each) == name]
    far = far_of(tmp_path, compiled(descriptor(case.kind, {"DataType": "FLOAT32", "Sizes": [8]}, **case.attributes)))
    assert far, "some may be"
    x = np.concatenate([ordinary_float32(1 << 12), np.zeros(4, np.float32)])
    assert not far(x[np.abs(x) < 30]).any()
    assert far(np.array([-1e-43, np.nan], np.float32)).all()


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
def test_gates_keep_the_sign_of_zero(tmp_path: Path, data_type: str) -> None:
    """A share that is not negative is x's sign, also of a zero and where nothing else is left."""
    gates = [("GELU", {}), *(("SWISH", {"SigmoidInputScale": scale}) for scale in (1.0, 1.702, -1.5))]
    dtype = np.dtype(data_type.lower())
    x = np.array([0.0, -0.0, 6e-8, -6e-8, 12, -12, 20, -20, 104, -104, 65504, -65504, np.inf, -np.inf], dtype)
    operators = [
        compiled(descriptor(f"DML_OPERATOR_ACTIVATION_{name}", {"DataType": data_type, "Sizes": [x.size]}, **given))
        for name, given in gates
    ]
    for element in build(tmp_path, operators):
        np.testing.assert_array_equal(np.signbit(element(x)), np.signbit(x))


@pytest.mark.parametrize("name", ["FLOOR", "CEIL"])
def test_whole_numbers_next_to_sums_of_float16(tmp_path: Path, name: str) -> None:
    """As float64 has them: next to a whole number it is its last digits that count, and it may be beyond float16."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    kind, exact = f"DML_OPERATOR_ELEMENT_WISE_{name}", np.floor if name == "FLOOR" else np.ceil
    sums = [(2.0, -1.5), (-1 / 3, 0.9999), (1.0, 2.0**-60), (1.0, -(2.0**-30)), (1e4, 3.0), (1e-30, 0.0), (-1.0, 0.0)]
    drawn = [{"ScaleBias": {"Scale": scale, "Bias": bias}} for scale, bias in sums]
    operators = [compiled(descriptor(kind, {"DataType": "FLOAT16", "Sizes": [8]}, **each)) for each in drawn]
    for (scale, bias), element in zip(sums, build(tmp_path, operators), strict=True):
        with np.errstate(all="ignore"):
            right = exact(x.astype(float) * np.float64(np.float32(scale)) + np.float64(np.float32(bias)))
            np.testing.assert_array_equal(element(x), right.astype(np.float16))


def test_adam_is_rounded_once(tmp_path: Path) -> None:
    """Also where what is subtracted from 1 is next to it, and where squares are no float32 numbers."""
    kind = OPERATORS["DML_OPERATOR_ADAM_OPTIMIZER"]
    document = json.loads(json.dumps(example(kind)["operator"]))
    rng, count = np.random.default_rng(12), 2000
    x, m, v, g = ((rng.standard_normal(count) * 10 ** rng.uniform(-6, 3, count)).astype(np.float32) for _ in range(4))
    g[:500] = (rng.standard_normal(500) * 10 ** rng.uniform(-44, 19, 500)).astype(np.float32)
    g[500:600], v = 0, np.abs(v)
    t = rng.integers(1, 5000, count).astype(np.float32)
    for beta1, beta2, epsilon in ((0.9, 0.999, 1e-8), (0.0, 0.5, 1e-8), (1 - 2.0**-24, 1 - 2.0**-20, 1e-30)):
        document |= {"Beta1": beta1, "Beta2": beta2, "Epsilon": epsilon}
        elements = build_outputs(tmp_path, compile_operator(validate(kind, document), NEWEST))
        one, two, least, rate = (
            np.longdouble(np.float32(n)) for n in (beta1, beta2, epsilon, document["LearningRate"])
        )
        first, second = one * m + (1 - one) * wide(g), two * v + (1 - two) * wide(g) * wide(g)
        correction = np.sqrt(1 - two ** wide(t)) / (1 - one ** wide(t))
        update = rate * correction * first / (np.sqrt(second) + least)
        for name, exact, largest in (
            ("OutputParametersTensor", x - update, np.abs(x) + np.abs(update)),
            ("OutputFirstMomentTensor", first, np.abs(one * m) + np.abs((1 - one) * g)),
            ("OutputSecondMomentTensor", second, second),
        ):
            actual = elements[name](x, m, v, g, t)
            apart = np.abs(actual.astype(np.longdouble) - exact)
            assert (apart <= np.maximum(0.52 * 2.0**-23 * largest, 2.0**-149)).all(), (name, beta1)


def test_powers_of_infinities_and_zeros(tmp_path: Path) -> None:
    """As IEEE 754 has them, of bases that are computed."""
    exponents = [3.0, -3.0, 0.25, -0.25, 17.0, -17.0, 2.0**25, -(2.0**25), 0.0]
    x = np.array([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-44, -1e-44, 3e38], np.float32)
    scale = {"Scale": 1.0, "Bias": 0.0}
    kind = "DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW"
    operators = [compiled(descriptor(kind, ScaleBias=scale, Exponent=each)) for each in exponents]
    for exponent, element in zip(exponents, build(tmp_path, operators), strict=True):
        with np.errstate(all="ignore"):
            exact = np.power(x.astype(np.float64) + 0.0, exponent).astype(np.float32)
        actual = element(x)
        assert distance(actual, exact).max() <= 2, exponent


def test_scaled_integers_are_truncated_as_in_float64(tmp_path: Path) -> None:
    """Each of 8 and 16 bits, also where the product leaves float32's range or is next to a whole number."""
    rng, tried = np.random.default_rng(13), []
    for data_type in ("INT8", "UINT8", "INT16", "UINT16"):
        for scale in (0.1, -1 / 3, 2.0**-120, 1e38, float(rng.standard_normal())):
            attributes = {"Scale": scale, "Bias": float(rng.choice([0, -0.5, 1e38, 127, 30.1]))}
            kind = "DML_OPERATOR_ELEMENT_WISE_IDENTITY"
            tried.append(compiled(descriptor(kind, {"DataType": data_type, "Sizes": [8]}, ScaleBias=attributes)))
    for operator, element in zip(tried, build(tmp_path, tried), strict=True):
        dtype = np.dtype(operator.stored_types["InputTensor"].lower())
        ends = np.iinfo(dtype)
        x = np.arange(ends.min, ends.max + 1).astype(dtype)
        scale, bias = (np.float64(np.float32(operator.numbers[f"ScaleBias.{name}"])) for name in ("Scale", "Bias"))
        right = np.clip(np.trunc(scale * x + bias), ends.min, ends.max).astype(dtype)
        np.testing.assert_array_equal(element(x), right)

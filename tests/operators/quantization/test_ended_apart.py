"""Products and convolutions of bytes as a GPU makes them, by an ending of sums of signed bytes, against what the
operator itself makes on a CPU."""

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators.convolution import on_gpu
from app.operators.endings import Ended
from tests.gpu import first_gpu
from tests.operators import calls
from tests.operators.arrays import desc_of, laid_out
from tests.operators.calls import compiled, run
from tests.operators.quantization.test_integer_products import convolution, integers, matrices, scales
from tests.operators.rows import by_numpy, ended, product_of

PRODUCTS = ["MATRIX_MULTIPLY_INTEGER", "QUANTIZED_LINEAR_MATRIX_MULTIPLY", "MATRIX_MULTIPLY_INTEGER_TO_FLOAT"]
CONVOLUTIONS = ["CONVOLUTION_INTEGER", "QUANTIZED_LINEAR_CONVOLUTION"]

Given = dict[str, Array | None]


def product(rng: np.random.Generator, kind: str) -> Given:
    """Of any layout, with scales and zero points or without."""
    batch = [int(each) for each in rng.integers(1, 4, rng.integers(0, 3))]
    m, k, n = (int(each) for each in rng.integers(1, 40, 3))
    a, b = (matrices(rng, batch, sizes) for sizes in ([m, k], [k, n]))
    if kind.endswith("FLOAT"):
        b = b.astype(a.dtype)
    rank = 1 if rng.random() < 0.25 else 2 + len(batch)

    def sizes(own: list[int]) -> list[int]:
        if rank == 1:
            return [[1], [max(own)]][rng.integers(2)]
        return [[1] * rank, [*[1] * len(batch), *own], [*batch, *own]][rng.integers(3)]

    def zero(own: list[int], name: str) -> Array | None:
        return laid_out(rng, integers(rng, sizes(own), name)) if rng.random() < 0.7 else None

    made: Given = {"ATensor": a, "AZeroPointTensor": zero([m, 1], a.dtype.name)}
    made |= {"BTensor": b, "BZeroPointTensor": zero([1, n], b.dtype.name)}
    if kind != "MATRIX_MULTIPLY_INTEGER":
        made |= {"AScaleTensor": scales(rng, sizes([m, 1])), "BScaleTensor": scales(rng, sizes([1, n]))}
    if kind.startswith("QUANTIZED"):
        made["OutputScaleTensor"] = scales(rng, sizes([m, 1])) * np.float32(2 ** rng.integers(0, 14))
        made["OutputZeroPointTensor"] = zero([m, 1], str(rng.choice(["int8", "uint8"])))
    if kind.endswith("FLOAT"):
        made["BiasTensor"] = rng.standard_normal([*batch, m, n]).astype(np.float32) if rng.random() < 0.5 else None
    return made


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_numpy(monkeypatch)
    rng, count = np.random.default_rng(41), 0
    for number in range(60):
        given = product(rng, kind)
        made = ended({"Type": kind}, given)
        if made is not None:
            count += 1
            np.testing.assert_array_equal(made, run({"Type": kind}, given)["OutputTensor"], str(number))
    assert count > 50


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("scratch", [256 << 20, 1 << 9])
def test_convolutions(kind: str, scratch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, and few positions at a time."""
    by_numpy(monkeypatch)
    monkeypatch.setattr(on_gpu, "SCRATCH", {"cupy": scratch})
    rng = np.random.default_rng(42)
    for number in range(24):
        document, given = convolution(rng, kind, 1 + number % 2)
        made = ended(document, given)
        if made is None:  # of the product alone
            assert kind == "CONVOLUTION_INTEGER"
            (made,) = product_of(document, given).values()
        np.testing.assert_array_equal(made, run(document, given)["OutputTensor"], str((number, document)))


def test_what_has_no_ending() -> None:
    """Sums of signed bytes, as they are, and those that INT32 may not hold."""
    for name, other, terms, is_ended in (
        ("int8", "int8", 8, False),
        ("uint8", "int8", 8, True),
        ("int8", "uint8", 8, True),
        ("uint8", "int8", 33025, True),
        ("uint8", "int8", 33026, False),
    ):
        given = {"ATensor": np.zeros((2, terms), name), "BTensor": np.zeros((terms, 3), other)}
        operator = compiled({"Type": PRODUCTS[0]} | {each: desc_of(array) for each, array in given.items()}).operator
        assert isinstance(operator, Ended)
        assert operator.is_ended_apart() is is_ended


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*PRODUCTS, *CONVOLUTIONS])
def test_on_a_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(43)
    for number in range(60):
        document, given = {"Type": kind}, product(rng, kind) if kind in PRODUCTS else {}
        if kind in CONVOLUTIONS:
            document, given = convolution(rng, kind, 1 + number % 2)
        expected = run(document, given)["OutputTensor"]
        with monkeypatch.context() as patched:
            patched.setattr(calls, "DEVICE", first_gpu())
            np.testing.assert_array_equal(run(document, given)["OutputTensor"], expected, str((number, document)))

"""LOCAL_RESPONSE_NORMALIZATION and its gradient against loops over regions, and their rules."""

from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators.normalization import local_response
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.descriptors import descriptor, refusals
from tests.operators.runs import Runner, close

KINDS = ("LOCAL_RESPONSE_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION_GRAD")
CASES = pytest.mark.parametrize(
    ("sizes", "cross_channel", "local_size"),
    [
        ((2, 7, 2, 3), True, 3),
        ((1, 7, 2, 1), True, 4),
        ((2, 3, 5, 6), False, 3),
        ((1, 2, 5, 4), False, 4),
        ((2, 3, 1, 2), True, 1),
        ((1, 4, 2, 2), True, 1000),
        ((1, 1, 3, 6), False, 4294967295),
    ],
)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16])


def regions(sizes: tuple[int, ...], local_size: int, *, cross_channel: bool) -> Array:
    """Whether the second element is in the region of the first, for all pairs, in float64."""
    before = (local_size - 1) // 2
    apart = [np.arange(size) - np.arange(size)[:, np.newaxis] for size in sizes]
    matrices = [
        ((each >= -before) & (each <= local_size - 1 - before)) if (axis == 1) == cross_channel and axis else each == 0
        for axis, each in enumerate(apart)
    ]
    whole = np.ones((1, 1))
    for matrix in matrices:
        whole = np.kron(whole, matrix)
    return whole


def attributes(cross_channel: bool, local_size: int) -> dict[str, Any]:
    return {"CrossChannel": cross_channel, "LocalSize": local_size, "Alpha": 0.75, "Beta": 0.625, "Bias": 1.5}


@CASES
@DTYPES
def test_local_response(run: Runner, sizes: tuple[int, ...], cross_channel: bool, local_size: int, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x = laid_out(rng, rng.standard_normal(sizes).astype(dtype))
    made = run(KINDS[0], {"InputTensor": x}, **attributes(cross_channel, local_size))["OutputTensor"]
    flat = x.astype(np.float64).reshape(-1)
    s = 1.5 + 0.75 / local_size * (regions(sizes, local_size, cross_channel=cross_channel) @ flat**2)
    close(made, (flat / s**0.625).reshape(sizes), ulp=1)


@DTYPES
@pytest.mark.parametrize("bias", [1.0, 0.0, -1.0])
def test_the_power_that_most_have(run: Runner, bias: float, dtype: Any) -> None:
    """Of sums above 0, at 0 and below."""
    x = np.random.default_rng(3).standard_normal((1, 7, 5, 4)).astype(dtype)
    x[0, :, 1] = 0
    x[0, 2, 2, 0] = np.inf
    document = attributes(True, 3) | {"Beta": 0.75, "Bias": bias}
    made = run(KINDS[0], {"InputTensor": x}, **document)["OutputTensor"]
    flat = x.astype(np.float64).reshape(-1)
    squares = np.where(regions(x.shape, 3, cross_channel=True) > 0, flat**2, 0).sum(1)
    with np.errstate(all="ignore"):
        close(made, (flat / (bias + 0.75 / 3 * squares) ** 0.75).reshape(x.shape), ulp=1)


@CASES
@DTYPES
@pytest.mark.parametrize("piece", [1, 1 << 22])
@pytest.mark.parametrize("beta", [0.625, 0.75])
def test_gradient(
    run: Runner,
    sizes: tuple[int, ...],
    cross_channel: bool,
    local_size: int,
    dtype: Any,
    beta: float,
    piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_response, "_PIECE", {"numpy": piece, "cupy": piece})
    rng = np.random.default_rng(2)
    x, gradient = (laid_out(rng, rng.standard_normal(sizes).astype(dtype)) for _ in range(2))
    tensors = {"InputTensor": x, "InputGradientTensor": gradient}
    made = run(KINDS[1], tensors, **attributes(cross_channel, local_size) | {"Beta": beta})["OutputGradientTensor"]
    region = regions(sizes, local_size, cross_channel=cross_channel)
    x, gradient = (each.astype(np.float64).reshape(-1) for each in (x, gradient))
    s = 1.5 + 0.75 / local_size * (region @ x**2)
    terms = 2 * 0.75 * beta / local_size * x * (region.T @ (gradient * x * s ** (-beta - 1)))
    whole = gradient * s**-beta - terms
    close(made, whole.reshape(sizes), scale=np.abs(terms).reshape(sizes), ulp=0.51)


def test_the_gradient_is_that_of_the_operator(run: Runner) -> None:
    """By differences."""
    rng = np.random.default_rng(3)
    x, gradient = rng.standard_normal((2, 1, 5, 2, 2)).astype(np.float32)
    members = attributes(True, 4)
    made = run(KINDS[1], {"InputTensor": x, "InputGradientTensor": gradient}, **members)["OutputGradientTensor"]
    for place in ((0, 0, 0, 0), (0, 2, 1, 0), (0, 4, 1, 1)):
        step = np.zeros_like(x)
        step[place] = 2**-6
        high, low = (run(KINDS[0], {"InputTensor": x + sign * step}, **members)["OutputTensor"] for sign in (1, -1))
        np.testing.assert_allclose(made[place], ((high - low) * gradient).sum() * 2**5, atol=2e-4)


def test_special_values(run: Runner) -> None:
    """An infinity and NaN are seen by those in whose regions they are, and by no others."""
    x = np.zeros((1, 9, 1, 1), np.float32)
    x[0, :, 0, 0] = [1, 1, np.inf, 1, 1, np.nan, 1, 1, 1]
    made = run(KINDS[0], {"InputTensor": x}, **attributes(True, 3))["OutputTensor"].reshape(-1)
    assert made[[1, 3]].tolist() == [0, 0]
    assert np.isnan(made[[2, 4, 5, 6]]).all()
    assert (made[[0, 7, 8]] > 0).all()
    ones = np.ones_like(x)
    outputs = run(KINDS[1], {"InputTensor": x, "InputGradientTensor": ones}, **attributes(True, 3))
    made = outputs["OutputGradientTensor"].reshape(-1)
    assert np.isnan(made[[2, 4, 5, 6]]).all()
    assert np.isfinite(made[[0, 8]]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rules(kind: str) -> None:
    (refusal,) = refusals(descriptor("DML_OPERATOR_" + kind, LocalSize=0))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == ("/LocalSize", 0, ">= 1")

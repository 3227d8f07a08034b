"""Convolutions of few terms by one kernel: its forms under NVRTC, which needs no GPU, and on one."""

import itertools

import numpy as np
import pytest

from app.operators.convolution import direct
from app.operators.convolution.direct import Form
from app.operators.convolution.windows import Windows
from tests.gpu import assert_compiles, first_gpu
from tests.operators.rows import direct_by_numpy
from tests.operators.test_packing import tensor

BYTES = ("int8", "uint8")
FORMS = [*(Form(*each) for each in itertools.product(BYTES, BYTES)), Form("float16", "float16")]


@pytest.mark.parametrize("along_row", [None, (3, 1, 1), (5, 2, 1), (2, 3, 4)])
@pytest.mark.parametrize("form", FORMS)
def test_kernels_compile(along_row: tuple[int, int, int] | None, form: Form) -> None:
    assert_compiles(direct.source(form._replace(along_row=along_row)), 80)


@pytest.mark.gpu
def test_sums_are_those_of_numpy() -> None:
    first_gpu()
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(61)
    for number in range(200):
        form, rank = FORMS[number % len(FORMS)], 1 + number % 3
        groups, depth, each, batch = (int(rng.integers(1, most)) for most in (5, 4, 8, 4))
        sizes = [int(size) for size in rng.choice([1, 5, 16, 40], rank)]
        extents, strides, dilations = ([int(one) for one in rng.integers(1, most, rank)] for most in (4, 6, 6))
        starts, positions = ([int(one) for one in rng.integers(low, 30, rank)] for low in (-2, 1))
        windows = Windows(sizes, positions, extents, strides, dilations, [min(start, 3) for start in starts])
        x = tensor(rng, form.x, [batch, groups * depth, *sizes])
        filters = tensor(rng, form.filters, [groups * each, depth, *extents])
        zeros = [
            tensor(rng, name, [count, 1])[:, 0] if rng.random() < 0.6 and form.x in BYTES else None
            for name, count in ((form.x, 1), (form.filters, int(rng.choice([1, groups * each]))))
        ]
        given = [None if zero is None else cupy.asarray(zero) for zero in zeros]
        made = cupy.asnumpy(direct.direct(cupy, cupy.asarray(x), cupy.asarray(filters), windows, (given[0], given[1])))
        expected = direct_by_numpy(np, x, filters, windows, (zeros[0], zeros[1]))
        assert made.dtype == expected.dtype
        np.testing.assert_array_equal(made, expected, str((number, windows)))  # float32 holds these sums of halves

"""Operators that are done as others of fewer dimensions, or of elements by themselves: with the same results."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu.coordinates import CallKernel, CoordinateKernel
from app.devices.cpu.device import NumpyDevice, NumpyKernel
from app.devices.cpu.llvm.totals import STRIP
from app.devices.cpu.simpler import FEW_CHANNELS
from app.devices.device import InTurn
from app.memory.arrays import Array, numpy_type
from tests.devices.test_llvm import COMPILER
from tests.operators.arrays import desc_of
from tests.operators.calls import compiled

RNG = np.random.default_rng(27)


@pytest.fixture(scope="module")
def devices() -> Iterator[list[NumpyDevice]]:
    """One that computes with NumPy, and one with loops."""
    with ThreadPoolExecutor(1) as helpers:
        yield [NumpyDevice(helpers, 1, compiler) for compiler in (None, COMPILER)]


def made(devices: list[NumpyDevice], document: dict[str, Any], given: list[Array]) -> tuple[Any, list[list[Array]]]:
    """The kernel with loops, and what both devices make."""
    operator = compiled(document)
    results = []
    for device in devices:
        kernel = device._kernel(operator, None, 1)
        outputs = [np.zeros(desc.Sizes, numpy_type(desc.DataType)) for desc in operator.outputs.values()]
        buffers = [each.reshape(-1).view(np.uint8).data for each in (*given, *outputs)]
        kernel.dispatch(buffers[: len(given)], buffers[len(given) :], lambda: False)
        results.append(outputs)
    return kernel, results


def quantization(kind: str, sizes: list[int], counts: list[list[int]], name: str, whole: str) -> dict[str, Any]:
    types = [name, whole] if kind == "QUANTIZE" else [whole, name]
    return {
        "Type": kind,
        "QuantizationType": "SCALE_ZERO_POINT" if len(counts) > 1 else "SCALE",
        "InputTensor": {"DataType": types[0].upper(), "Sizes": sizes},
        "OutputTensor": {"DataType": types[1].upper(), "Sizes": sizes},
        "QuantizationTensors": [
            {"DataType": each.upper(), "Sizes": count} for each, count in zip([name, whole], counts, strict=False)
        ],
    }


@pytest.mark.parametrize("kind", ["QUANTIZE", "DEQUANTIZE"])
@pytest.mark.parametrize(("name", "whole"), [("float32", "uint8"), ("float16", "int8")])
@pytest.mark.parametrize("counts", [[[2, 3, 5]], [[2, 3, 5], [2, 1, 5]], [[1, 3, 1], [1, 1, 1]], [[1, 1, 1]]])
def test_blocks(devices: list[NumpyDevice], kind: str, name: str, whole: str, counts: list[list[int]]) -> None:
    sizes = [4, 3, 35]
    numbers = (RNG.integers(-40, 40, sizes) / 2).astype(name)
    bytes_ = RNG.integers(0, 256, sizes).astype(np.uint8).view(whole)
    scale = RNG.choice(np.array([0.5, 1, 0.3, 1e-3], name), counts[0])
    zeros = [RNG.integers(0, 100, each).astype(whole) for each in counts[1:]]
    given = numbers if kind == "QUANTIZE" else bytes_
    kernel, (expected, found) = made(devices, quantization(kind, sizes, counts, name, whole), [given, scale, *zeros])
    assert isinstance(kernel, NumpyKernel)
    np.testing.assert_array_equal(found[0].view(np.uint8), expected[0].view(np.uint8))


def test_blocks_that_do_not_fit_are_of_half_a_byte_or_of_too_many_dimensions(devices: list[NumpyDevice]) -> None:
    for sizes, counts, whole in (
        ([6, 60], [[2, 1], [3, 1]], "uint8"),
        ([6, 60], [[2, 1], [1, 1]], "uint4"),
        ([4] * 8, [[2] * 8], "uint8"),
    ):
        document = quantization("QUANTIZE", sizes, counts, "float32", whole)
        assert isinstance(devices[1]._kernel(compiled(document), None, 1), CallKernel)


def test_a_block_of_one_element(devices: list[NumpyDevice]) -> None:
    document = quantization("QUANTIZE", [1, 1], [[1, 1], [1, 1]], "float32", "uint8")
    x, scale, zero = np.full((1, 1), 7, np.float32), np.full((1, 1), 2, np.float32), np.full((1, 1), 10, np.uint8)
    kernel, (expected, found) = made(devices, document, [x, scale, zero])
    assert isinstance(kernel, NumpyKernel)
    assert expected[0].item() == found[0].item() == 14


@pytest.mark.parametrize(
    ("sizes", "of", "simpler"),
    [
        ([2, 8, 32, 40], [1, 8, 1, 1], [2, 8, 1280]),
        ([1, 16, 32, 40], [1, 16, 1, 1], [16, 1280]),
        ([2, 8, 32, 40], [2, 8, 1, 1], [16, 1280]),
        ([2, 8, 32, 40], [1, 1, 1, 1], [20480]),
        ([2, 8, 32, 40], [2, 1, 32, 1], [2, 8, 32, 40]),
    ],
)
@pytest.mark.parametrize("kind", ["BATCH_NORMALIZATION_GRAD", "BATCH_NORMALIZATION_TRAINING"])
def test_groups(devices: list[NumpyDevice], kind: str, sizes: list[int], of: list[int], simpler: list[int]) -> None:
    """Of small whole numbers, of which sums are exact. What is the same for all terms makes no strips of a total."""
    x, gradient, mean, scale = (RNG.integers(-3, 4, each).astype(np.float32) for each in (sizes, sizes, of, of))
    names = {"InputTensor": x, "InputGradientTensor": gradient, "MeanTensor": mean, "VarianceTensor": abs(mean)}
    if kind.endswith("TRAINING"):
        names = {"InputTensor": x, "ScaleTensor": scale, "BiasTensor": mean}
    else:
        names["ScaleTensor"] = scale
    document = {"Type": kind, "Epsilon": 1.0, **{name: desc_of(each) for name, each in names.items()}}
    kernel, (expected, found) = made(devices, document, list(names.values()))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, 1e-6, 1e-6)
    assert isinstance(kernel, InTurn)
    totals = [each for each in kernel.kernels if isinstance(each, CoordinateKernel)]
    assert len(totals) == 2
    for each in totals:
        assert each._inputs[0].desc.Sizes == simpler
        if len(simpler) < 4:
            assert each._loops
            assert f"i64 {STRIP}, align 64" not in each._loops.code.source


@pytest.mark.parametrize("order", [[0, 2, 3, 1], [3, 1, 0, 2], [2, 0, 1, 3]])
@pytest.mark.parametrize("axes", [[1], [3], [2, 3], [0, 1, 3]])
@pytest.mark.parametrize("function", ["SUM", "MAX", "ARGMAX"])
def test_reductions_go_as_elements_lie(
    devices: list[NumpyDevice], function: str, axes: list[int], order: list[int]
) -> None:
    """In memory the dimensions have another order, in the output perhaps a third one; of positions the first counts."""
    x = RNG.integers(-9, 9, (17, 20, 18, 26)).astype(np.float32)
    lying = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    document = {"Type": "REDUCE", "Function": function, "Axes": axes}
    expected = made(devices, document | {"InputTensor": desc_of(x)}, [x])[1][0][0]
    for place in (order, list(range(4))):
        right = np.ascontiguousarray(expected.transpose(place))
        output = desc_of(right.transpose(np.argsort(place)))
        operator = compiled(document | {"InputTensor": desc_of(lying), "OutputTensor": output})
        kernel = devices[1]._kernel(operator, None, 1)
        if isinstance(kernel, CoordinateKernel):
            reduced = [axis for axis in order if axis in axes]
            assert kernel._inputs[0].desc.is_packed == (function != "ARGMAX" or reduced == sorted(reduced))
        found = np.zeros_like(right)
        kernel.dispatch([lying.transpose(order).reshape(-1).view(np.uint8).data], [found.data.cast("B")], lambda: False)
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("kind", ["BATCH_NORMALIZATION_GRAD", "BATCH_NORMALIZATION_TRAINING"])
def test_so_do_normalizations_of_a_batch(devices: list[NumpyDevice], kind: str) -> None:
    x, gradient = (RNG.integers(-3, 4, (2, 8, 32, 40)).astype(np.float32) for _ in range(2))
    mean, scale = (RNG.integers(-3, 4, (1, 8, 1, 1)).astype(np.float32) for _ in range(2))
    names = {"InputTensor": x, "InputGradientTensor": gradient, "MeanTensor": mean, "VarianceTensor": abs(mean)}
    made_name = "OutputGradientTensor"
    if kind.endswith("TRAINING"):
        names, made_name = {"InputTensor": x, "BiasTensor": mean}, "OutputTensor"
    names["ScaleTensor"] = scale
    document: dict[str, Any] = {"Type": kind, "Epsilon": 1.0, **{name: desc_of(each) for name, each in names.items()}}
    _, (_, expected) = made(devices, document, [names[name] for name in compiled(document).inputs])
    last = {name: np.ascontiguousarray(each.transpose(0, 2, 3, 1)) for name, each in names.items()}
    document |= {name: desc_of(each.transpose(0, 3, 1, 2)) for name, each in last.items()}
    document[made_name] = document["InputTensor"]
    kernel, (_, found) = made(devices, document, [last[name] for name in compiled(document).inputs])
    assert isinstance(kernel, InTurn)
    totals = [each for each in kernel.kernels if isinstance(each, CoordinateKernel)]
    assert all(each._inputs[0].desc.Sizes == [2560, 8] for each in totals)
    found[0] = found[0].reshape(2, 32, 40, 8).transpose(0, 3, 1, 2)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, 1e-6, 1e-6)


POOLS = ["AVERAGE_POOLING", "AVERAGE_POOLING1", "LP_POOLING", "LP_POOLING1", "MAX_POOLING", "MAX_POOLING1"]


@pytest.mark.parametrize("kind", [*POOLS, "MAX_POOLING2"])
@pytest.mark.parametrize("type_", ["float32", "float16"])
def test_windows_that_are_all_of_the_tensor(devices: list[NumpyDevice], kind: str, type_: str) -> None:
    """They are reductions, with the same bits."""
    x = RNG.standard_normal((20, 64, 7, 9)).astype(type_)
    document: dict[str, Any] = {
        "Type": kind,
        "InputTensor": desc_of(x),
        "WindowSize": [7, 9],
        "Strides": [1, 1],
        "StartPadding": [0, 0],
        "EndPadding": [0, 0],
        "OutputTensor": {"DataType": type_.upper(), "Sizes": [20, 64, 1, 1]},
    }
    if kind in ("AVERAGE_POOLING1", "LP_POOLING1", "MAX_POOLING2"):
        document["Dilations"] = [1, 1]
    if kind.startswith("LP"):
        document["P"] = 1 if kind.endswith("1") else 2
    if kind.startswith("AVERAGE"):
        document["IncludePadding"] = True
    kernel, (expected, found) = made(devices, document, [x])
    assert isinstance(kernel, CoordinateKernel)
    assert kernel._inputs[0].desc.Sizes == [20 * 64, 63]
    np.testing.assert_array_equal(found[0], expected[0])


@pytest.mark.parametrize("function", ["AVERAGE", "MAX"])
@pytest.mark.parametrize("channels", [FEW_CHANNELS - 1, FEW_CHANNELS, FEW_CHANNELS + 1, 70])
@pytest.mark.parametrize("type_", ["float32", "float16"])
def test_regions_of_many_channels(devices: list[NumpyDevice], type_: str, channels: int, function: str) -> None:
    """At each place for all channels, with the bits that each channel has by itself; some of a region is outside."""
    x = RNG.standard_normal((2, channels, 9, 13), np.float32).astype(type_)
    regions = RNG.uniform(-3, 14, (6, 4)).astype(type_)
    batches = RNG.integers(0, 2, 6).astype(np.uint32)
    batches[0] = 7

    def document(of: Array) -> dict[str, Any]:
        return {
            "Type": "ROI_ALIGN1",
            "ReductionFunction": function,
            "InterpolationMode": "LINEAR",
            "SpatialScaleX": 1.0,
            "SpatialScaleY": 0.7,
            "OutOfBoundsInputValue": -2.0,
            "MinimumSamplesPerOutput": 1,
            "MaximumSamplesPerOutput": 3,
            "InputTensor": desc_of(of),
            "ROITensor": desc_of(regions),
            "BatchIndicesTensor": desc_of(batches),
            "OutputTensor": {"DataType": type_.upper(), "Sizes": [6, of.shape[1], 3, 2]},
        }

    kernel, (expected, found) = made(devices, document(x), [x, regions, batches])
    assert isinstance(kernel, CoordinateKernel)
    assert kernel._output.desc.Sizes == ([6, channels, 3, 2] if channels < FEW_CHANNELS else [6, 3, 2, channels])
    np.testing.assert_array_max_ulp(found[0], expected[0], 1)
    for channel in range(channels):
        one = np.ascontiguousarray(x[:, channel : channel + 1])
        _, (_, alone) = made(devices, document(one), [one, regions, batches])
        np.testing.assert_array_equal(found[0][:, channel], alone[0][:, 0])


@pytest.mark.parametrize("type_", ["float32", "float16"])
@pytest.mark.parametrize("channels", [FEW_CHANNELS - 1, FEW_CHANNELS, 70])
def test_maxima_of_regions_of_many_channels(devices: list[NumpyDevice], type_: str, channels: int) -> None:
    """The same; one region is beside the tensor, and some elements are NaN."""
    x = RNG.standard_normal((2, channels, 9, 13)).astype(type_)
    x[RNG.random(x.shape) < 0.02] = np.nan
    regions = np.concatenate([RNG.integers(0, 2, (6, 1)), RNG.integers(-2, 6, (6, 2)), RNG.integers(4, 15, (6, 2))], 1)
    regions[0, 1:] = [20, 20, 25, 25]
    regions = regions.reshape(1, 1, 6, 5).astype(type_)
    document = {
        "Type": "ROI_POOLING",
        "SpatialScale": 1.0,
        "PooledSize": {"Width": 2, "Height": 3},
        "InputTensor": desc_of(x),
        "ROITensor": desc_of(regions),
    }
    kernel, (expected, found) = made(devices, document, [x, regions])
    assert isinstance(kernel, CoordinateKernel)
    assert kernel._output.desc.Sizes == ([6, channels, 3, 2] if channels < FEW_CHANNELS else [6, 3, 2, channels])
    np.testing.assert_array_equal(found[0], expected[0])

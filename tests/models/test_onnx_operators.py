"""ONNX operators that the `onnx` package's suite has not, or not so: onnxruntime's own, older versions, constants."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx.numpy_helper import from_array
from onnx.parser import parse_model

from app.models.onnx.errors import NotSupported
from tests.models.onnx_cases import RNG, Case, bytes_, floats, scalar, told
from tests.models.onnx_runs import Array, run

INFINITE = np.array([[-np.inf, -2.5, -0.0, 0.5, np.inf, np.nan]], np.float32)

EMPTY = np.zeros(0, np.float32)
SAMPLED = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}

OLDER = [
    Case("Clip", [INFINITE], {"min": -1.0, "max": 1.0}, opset=7),
    Case("Clip", [INFINITE], {"min": -1.0}, opset=7),
    Case("Softmax", [floats(2, 3, 4)], {}, opset=11),
    Case("LogSoftmax", [floats(2, 3, 4)], {"axis": -2}, opset=11),
    Case("Hardmax", [floats(2, 3, 4)], {"axis": 1}, opset=11),
    Case("TopK", [floats(3, 5)], {"axis": 1, "k": 2}, opset=9, outputs=2),
    Case("TopK", [floats(3, 5), np.array([3])], {"axis": 0}, known=(1,), opset=10, outputs=2),
    Case("ReduceSum", [floats(2, 3, 4)], {"axes": [0, -1], "keepdims": 0}, opset=11),
    Case("ReduceMax", [bytes_(2, 3, dtype="int8")], {"axes": [1]}, opset=12),
    Case("ReduceL2", [floats(2, 3), np.array([1])], {"keepdims": 0}, known=(1,), opset=18),
    Case("BatchNormalization", [floats(2, 3, 4), *(np.abs(floats(3)) for _ in range(4))], opset=7),
    Case("BatchNormalization", [floats(5), *(np.abs(floats(1)) for _ in range(4))], opset=15),
    Case("Pow", [np.abs(floats(2, 3)), floats(3)], opset=7),
    Case("Mod", [floats(6), floats(6)], {"fmod": 1}, opset=10),
    Case("Upsample", [floats(1, 1, 2, 2), np.array([1, 1, 2, 2], np.float32)], known=(1,), opset=9),
    *(
        Case(
            "BatchNormalization",
            [floats(*sizes, dtype=dtype), *(np.abs(floats(sizes[1], dtype=dtype)) for _ in range(4))],
            {"training_mode": 1, "momentum": 0.7, "epsilon": 0.01},
            (1, 2),
            opset=15,
            outputs=3,
            within=within,
        )
        for sizes in ((4, 3), (2, 3, 2, 2))
        for dtype, within in (("float32", 1e-5), ("float16", 1e-2))
    ),
    Case("GroupNormalization", [floats(2, 4, 3), floats(4), floats(4)], {"num_groups": 2}, opset=21),
]

CHANGED = [
    # In the last version of a kind and the first one of the next.
    Case("Softmax", [floats(2, 3, 4)], {}, opset=12),
    Case("Softmax", [floats(2, 3, 4)], {}, opset=13),
    Case("Clip", [INFINITE], {"max": 1.0}, opset=10),
    Case("Clip", [INFINITE, None, scalar(1)], {}, known=(2,), opset=11),
    Case("Pad", [floats(2, 3), np.array([0, 1, 0, 2]), scalar(7)], {}, known=(1, 2), opset=11),
    Case("ReduceSum", [floats(2, 3, 4)], {"axes": [1]}, opset=12),
    Case("ReduceSum", [floats(2, 3, 4), np.array([1])], {}, known=(1,), opset=13),
    Case("ReduceMin", [floats(2, 3, 4)], {"axes": [1]}, opset=17),
    Case("ReduceMin", [floats(2, 3, 4), np.array([1])], {}, known=(1,), opset=18),
    Case("Upsample", [floats(1, 1, 2, 2)], {"scales": [1.0, 1.0, 2.0, 3.0]}, opset=8),
    Case("Resize", [floats(1, 1, 2, 2), EMPTY, np.array([1, 1, 2, 3], np.float32)], {}, known=(1, 2), opset=11),
    *(
        Case(
            "RoiAlign", [floats(1, 2, 6, 6), np.array([[0, 1, 4, 5]], np.float32), np.array([0])], SAMPLED, opset=opset
        )
        for opset in (15, 16)
    ),
]

WITH_CONSTANTS = [
    *(
        Case("Clip", [INFINITE, scalar(low), scalar(high)], known=known)
        for low, high in ((-1, 1), (1, -1), (-np.inf, 1), (-1, np.inf))
        for known in ((), (1, 2), (2,))
    ),
    Case("Clip", [INFINITE, scalar(0)], known=(1,)),
    Case("Clip", [INFINITE, None, scalar(1)], known=(2,)),
    Case("Clip", [np.array([2**62, 5, -(2**62)]), scalar(-3, "int64"), scalar(2**60, "int64")], known=(1, 2)),
    Case("Pow", [floats(2, 3), scalar(2, "int64")], known=(1,)),
    *(Case("Pow", [np.arange(-4, 4), scalar(each, "int64")], known=(1,)) for each in (0, 1, 2, 5, 12)),
    Case("Pow", [np.arange(-4, 4), np.array([[3.0]], np.float32)], known=(1,)),
    Case("Pow", [floats(3), np.array([[3.0]], np.float32)], known=(1,)),
    Case("Pow", [floats(2, 3), np.array([1, -2, 3])], known=(1,)),
    Case("Pow", [np.arange(-3, 3, dtype=np.int32), scalar(3, "int32")], known=(1,)),
    *(
        Case("Pow", [np.array([2, 1, 0.5], np.float32), np.array([1, 1, each])], known=(1,))
        for each in (1 << 33, -(1 << 33))
    ),
    Case("Relu", [np.array([-(2**62), -1, 0, 3, 2**62])], opset=18),
    Case("Shrink", [np.arange(-4, 5, dtype=np.int8)], {"bias": 1.0, "lambd": 1.5}),
    Case("Cast", [np.array([0, -0.0, 0.5, -3, np.nan, 5e-324])], {"to": 9}),
    Case("Cast", [np.array([0, 1, 2, 255], np.uint8)], {"to": 9}),
    Case("Cast", [np.array([True, False])], {"to": 9}),
    Case(
        "MaxUnpool",
        [floats(1, 1, 2, 2), np.array([[[[0, 2], [5, 8]]]])],
        {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 0, 0, 1]},
    ),
    Case("CumSum", [floats(2, 3, 4), scalar(-2, "int32")], {"reverse": 1, "exclusive": 1}, known=(1,)),
    Case("PRelu", [floats(2, 3, 4), floats(3, 1)], known=(1,)),
    Case("Where", [np.array([[True], [False]]), floats(3), floats(2, 1)], known=(0,)),
    Case("Sum", [floats(2, 1), floats(3), floats(1, 1, 1)]),
    Case("Mean", [floats(2, 1), floats(3), floats(1, 1, 1)]),
    Case("ArgMax", [np.zeros((2, 3), np.float32)], {"axis": -1, "select_last_index": 1, "keepdims": 0}),
    Case("LayerNormalization", [floats(2, 3, 4), floats(3, 4), floats(3, 4)], {"axis": -2}, outputs=2),
    Case("LpNormalization", [np.array([[0, 0], [3, -4]], np.float32)]),
    Case("IsInf", [INFINITE], {"detect_negative": 0, "detect_positive": 0}),
    # Such large ones are not folded.
    Case("Range", [scalar(-5, "int64"), scalar(100_000, "int64"), scalar(3, "int64")], known=(0, 1, 2)),
    Case("Range", [scalar(2.5), scalar(-10_000), scalar(-0.25)], known=(0, 1, 2)),
    Case("CastLike", [np.array([0, 0.5, np.nan], np.float32), np.array([False])], opset=19),
    Case("CastLike", [np.array([0, 0.5, 3], np.float32), bytes_(1)], opset=19),
    Case("IsInf", [INFINITE], {"detect_negative": 0}),
    *(
        Case(type_, [np.array([np.inf, -np.inf, np.nan, -np.nan, 0, 1.7e308, -1.7e308, 5e-324])], attributes)
        for type_, attributes in (
            ("IsNaN", {}),
            ("IsInf", {}),
            ("IsInf", {"detect_negative": 0}),
            ("IsInf", {"detect_positive": 0}),
        )
    ),
]

INDICES = np.array([[3, 0, -1], [4, 2, 2]])


def halves(kind: str, *sizes: int) -> Array:
    """Of 4 bits, of which NumPy has no type of its own."""
    made: Array = bytes_(*sizes).astype(getattr(ml_dtypes, kind))
    return made


WRAPPED = np.array([[1 << 30, -(1 << 31), 3], [7, 1 << 30, -5]])

PRODUCTS = [
    # Of integers, modulo 2 to the power of their bits, as vectors, matrices and in batches.
    *(
        Case("MatMul", [WRAPPED.astype(dtype), WRAPPED.T.astype(dtype)])
        for dtype in ("int32", "uint32", "int64", "uint64")
    ),
    Case("MatMul", [np.arange(12).reshape(2, 1, 2, 3), np.arange(18).reshape(3, 3, 2)], known=(1,)),
    Case("MatMul", [np.arange(3), np.arange(6).reshape(3, 2)]),
    Case("MatMul", [np.arange(12).reshape(2, 2, 3), np.arange(3)]),
    Case("MatMul", [np.arange(3), np.arange(3)]),
    Case("MatMul", [floats(3), floats(3)]),
    Case("MatMul", [floats(3), floats(2, 3, 4)]),
    Case("MatMul", [floats(2, 4, 3), floats(3)]),
    Case("MatMul", [floats(2, 5, 4, 3), floats(3, 6)]),
    Case("MatMul", [floats(2, 1, 4, 3), floats(1, 5, 3, 6)]),
    Case("MatMul", [floats(2, 3, 1, 4, 3), floats(2, 1, 5, 3, 2)]),
    Case("MatMul", [floats(4, 3), floats(2, 1, 5, 3, 2)]),
    Case("MatMul", [floats(2, 3, dtype="float16"), floats(3, 2, dtype="float16")], within=1e-2),
    Case("Gemm", [floats(3, 4), floats(5, 3), floats(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": -2.0}),
    Case("Gemm", [floats(4, 3), floats(3, 5), floats(4, 1)]),
    Case("Gemm", [floats(4, 3), floats(3, 5), scalar(2)], known=(2,)),
    *(
        Case("FusedMatMul", [a, b], {"alpha": 0.5} | attributes, microsoft=True)
        for a, b, attributes in (
            (floats(2, 3, 4), floats(2, 3, 5), {"transA": 1}),
            (floats(2, 4, 3), floats(5, 3), {"transB": 1}),
            (floats(4, 2, 3), floats(2, 3, 5), {"transBatchA": 1}),
            (floats(3, 2, 4), floats(3, 2, 5), {"transA": 1, "transBatchA": 1, "transBatchB": 1}),
        )
    ),
    Case("FusedGemm", [floats(4, 3), floats(3, 5), floats(5)], {"activation": "Relu"}, microsoft=True),
    Case("Trilu", [floats(2, 3, 4), np.array(1)], {"upper": 0}, known=(1,), microsoft=True),
    Case(
        "FusedGemm",
        [floats(4, 3), floats(3, 5), floats(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.3},
        microsoft=True,
    ),
    *(
        Case(
            "MatMulNBits",
            [floats(2, 3, depth), bytes_(5, -(-depth // 32), 16), floats(5 * -(-depth // 32)), zero],
            {"K": depth, "N": 5, "bits": 4, "block_size": 32},
            known=known,
            microsoft=True,
            within=1e-4,
        )
        for depth, zero, known in (
            (64, None, (1, 2)),
            (64, bytes_(5), ()),
            (80, None, ()),
            (80, bytes_(5 * 2), (3,)),
        )
    ),
    *(
        Case(
            "MatMulNBits",
            [floats(2, 3, 80), bytes_(5, 3, bits * 4), floats(5, 3), zero, None, floats(5)],
            {"K": 80, "N": 5, "bits": bits, "block_size": 32},
            (1, 2, 3, 5),
            microsoft=True,
            within=1e-3,
        )
        for bits, zero in ((4, None), (4, bytes_(5, 2)), (8, None), (8, bytes_(5, 3)))
    ),
    *(
        Case(
            "MatMulBnb4",
            [floats(2, 3, 64), bytes_(20 * 32), floats(20 * 4)],
            {"K": 64, "N": 20, "block_size": 16, "quant_type": kind},
            known=(1, 2),
            microsoft=True,
            within=1e-4,
        )
        for kind in (0, 1)
    ),
    *(
        Case("GatherBlockQuantized", [data, INDICES, floats(5, *scales), zero], attributes, (0, 2, 3), 21, True)
        for data, scales, zero, attributes in (
            (bytes_(5, 32), (4,), None, {"block_size": 16}),
            (bytes_(5, 24), (3,), bytes_(5, 2), {"block_size": 16}),
            (bytes_(5, 3, 16), (3, 2), bytes_(5, 3, 1), {"block_size": 16, "quantize_axis": 2}),
            (bytes_(5, 32), (1,), bytes_(5, 1), {"block_size": 32, "bits": 8}),
            (halves("uint4", 5, 32), (2,), None, {"block_size": 16}),
            (halves("uint4", 5, 32, 2), (2, 2), halves("uint4", 5, 2, 2), {"block_size": 16}),
            (halves("int4", 5, 32), (2,), halves("int4", 5, 2), {"block_size": 16}),
        )
    ),
]

ACTIVATIONS = [
    *(Case(type_, [floats(3, 4)], microsoft=True) for type_ in ("Gelu", "FastGelu", "QuickGelu")),
    *(Case(type_, [floats(3, 4), floats(4)], microsoft=True) for type_ in ("BiasGelu", "FastGelu")),
    Case("QuickGelu", [floats(3, 4)], {"alpha": 2.0}, microsoft=True),
    Case("Gelu", [floats(3, 4)], {"approximate": "tanh"}, opset=20),
    *(Case(type_, [floats(3, 4)], opset=18) for type_ in ("Selu", "Celu", "HardSwish", "Mish", "Softplus", "Shrink")),
    Case("SimplifiedLayerNormalization", [floats(2, 3, 4), floats(4)]),
    Case("SimplifiedLayerNormalization", [floats(2, 3, 4), floats(4)], outputs=2),
    Case("SkipLayerNormalization", [floats(2, 3, 4), floats(2, 3, 4), floats(4), floats(4), floats(4)], microsoft=True),
    Case("SkipLayerNormalization", [floats(2, 3, 4), floats(2, 3, 4), floats(4)], {"epsilon": 0.5}, microsoft=True),
    Case("SkipLayerNormalization", [floats(2, 3, 4), floats(3, 4), *[floats(4)] * 3], microsoft=True, outputs=4),
    Case("SkipSimplifiedLayerNormalization", [floats(2, 3, 4), floats(2, 3, 4), floats(4)], microsoft=True),
    Case("SkipSimplifiedLayerNormalization", [floats(2, 3, 4), floats(2, 3, 4), *[floats(4)] * 2], microsoft=True),
    Case("SkipSimplifiedLayerNormalization", [floats(2, 3, 4), floats(3, 4), floats(4)], microsoft=True, outputs=4),
]

IDS = np.array([[1, 3, 0], [2, 2, 4]], np.int32)
EMBEDDED = [
    Case(
        "EmbedLayerNormalization",
        [IDS, IDS % 2, floats(5, 8), floats(4, 8), floats(2, 8), floats(8), floats(8), *mask, *places],
        {"epsilon": 0.1},
        microsoft=True,
        outputs=2,
    )
    for mask, places in (([], []), ([np.array([[1, 1, 0], [1, 1, 1]], np.int32)], []), ([None], [IDS % 4]))
]

EMBEDDED.append(
    Case(
        "EmbedLayerNormalization",
        [IDS, None, floats(5, 8), floats(4, 8), None, floats(8), floats(8)],
        microsoft=True,
        outputs=2,
    )
)

SCALES = (scalar(0.02), scalar(0.03), scalar(0.05))
ZEROS = (scalar(120, "uint8"), scalar(130, "uint8"), scalar(90, "uint8"))


def quantized_inputs(*tensors: Array) -> list[Array | None]:
    """Each with a scale and a zero point, then those of the output."""
    made: list[Array | None] = []
    for place, each in enumerate(tensors):
        made += [each, SCALES[place], ZEROS[place]]
    return [*made, SCALES[2], ZEROS[2]]


CONVOLUTIONS: list[dict[str, Any]] = [{}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"pads": [1, 0, 2, 1]}]

QUANTIZED = [
    Case("QLinearAdd", quantized_inputs(bytes_(2, 3, 4), bytes_(3, 1)), microsoft=True),
    Case("QLinearMul", quantized_inputs(bytes_(2, 3, 4), bytes_(4)), microsoft=True),
    Case("QLinearSigmoid", [*quantized_inputs(bytes_(5, 7))[:3], scalar(1 / 256), scalar(0, "uint8")], microsoft=True),
    Case("QLinearLeakyRelu", quantized_inputs(bytes_(5, 7)), {"alpha": 0.2}, known=(1, 2, 3, 4), microsoft=True),
    Case("QLinearLeakyRelu", quantized_inputs(bytes_(5, 7)), {}, known=(1, 2, 3, 4), microsoft=True),
    *(
        Case("QLinearSoftmax", quantized_inputs(bytes_(2, 3, 5)), {"opset_": 12, **more}, (1, 2, 3, 4), microsoft=True)
        for more in ({}, {"axis": 1})
    ),
    Case(
        "QLinearSoftmax", quantized_inputs(bytes_(3, 5)), {"axis": 0, "opset_": 13}, known=(1, 2, 3, 4), microsoft=True
    ),
    Case(
        "QLinearConcat",
        [SCALES[2], ZEROS[2], bytes_(2, 3), SCALES[0], ZEROS[0], bytes_(2, 4), SCALES[1], ZEROS[1]],
        {"axis": 1},
        known=(0, 1, 3, 4, 6, 7),
        microsoft=True,
    ),
    Case("QLinearGlobalAveragePool", quantized_inputs(bytes_(2, 3, 4, 5)), microsoft=True),
    Case("QLinearGlobalAveragePool", quantized_inputs(bytes_(2, 4, 5, 3)), {"channels_last": 1}, microsoft=True),
    Case(
        "QLinearAveragePool",
        quantized_inputs(bytes_(2, 3, 5, 5)),
        {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]},
        microsoft=True,
    ),
    *(
        Case("QLinearConv", [*quantized_inputs(bytes_(2, 4, 6, 5), w), *bias], attributes, known=(3, 4, 5))
        for w, bias, attributes in zip(
            (bytes_(3, 4, 3, 3), bytes_(3, 4, 2, 2), bytes_(3, 4, 3, 3)),
            ([], [RNG.integers(-999, 999, 3).astype(np.int32)], []),
            CONVOLUTIONS,
            strict=True,
        )
    ),
    *(
        Case(
            "QLinearConv",
            [*quantized_inputs(bytes_(2, 6, 5, 4), bytes_(6, 4 // group, 3, 3)), *bias],
            {"channels_last": 1, "group": group, "pads": [1, 0, 2, 1]},
            known=(3, 4, 5),
            microsoft=True,
        )
        for group, bias in ((1, [RNG.integers(-999, 999, 6).astype(np.int32)]), (2, []))
    ),
    Case("QLinearConv", quantized_inputs(bytes_(2, 4, 5), bytes_(3, 4, 3)), known=(3, 4, 5), microsoft=True),
    *(
        Case("NhwcMaxPool", [bytes_(2, 5, 6, 3, dtype=dtype)], {"kernel_shape": [2, 3]} | attributes, microsoft=True)
        for dtype, attributes in (("uint8", {"pads": [1, 1, 0, 1]}), ("int8", {"dilations": [2, 1], "strides": [1, 2]}))
    ),
    Case("QLinearWhere", [RNG.random((2, 3)) > 0.5, *quantized_inputs(bytes_(2, 3), bytes_(3))], microsoft=True),
    Case(
        "QLinearConv",
        [
            *(bytes_(1, 4, 7), SCALES[0], ZEROS[0]),
            *(bytes_(6, 2, 3, dtype="int8"), np.abs(floats(6)) / 50, np.zeros(6, np.int8)),
            *(SCALES[2], ZEROS[2]),
        ],
        {"group": 2},
        known=(3, 4, 5),
    ),
    *(
        Case("ConvInteger", [bytes_(2, 4, 6, 5), bytes_(3, 4, 2, 2), *zeros], attributes)
        for zeros, attributes in zip(([], [ZEROS[0]], [ZEROS[0], ZEROS[1]]), CONVOLUTIONS, strict=True)
    ),
    Case("MatMulInteger", [bytes_(2, 3, 4), bytes_(4, 5)]),
    Case("MatMulInteger", [bytes_(2, 3, 4), bytes_(4, 5, dtype="int8"), ZEROS[0], bytes_(5, dtype="int8")], known=(3,)),
    Case("QLinearMatMul", quantized_inputs(bytes_(2, 3, 4), bytes_(2, 4, 5))),
    Case(
        "QLinearMatMul",
        [
            *(bytes_(3, 4), SCALES[0], ZEROS[0]),
            *(bytes_(4, 5, dtype="int8"), np.abs(floats(5)) / 50, bytes_(5, dtype="int8")),
            *(SCALES[2], ZEROS[2]),
        ],
        known=(3, 4, 5),
    ),
    *(
        Case(
            "MatMulIntegerToFloat",
            [bytes_(2, 3, 4), bytes_(4, 5, dtype=dtype), SCALES[0], np.abs(floats(5)), ZEROS[0], zero, floats(5)],
            microsoft=True,
        )
        for dtype, zero in (("uint8", bytes_(5)), ("int8", bytes_(5, dtype="int8")), ("uint8", None))
    ),
    *(
        Case(
            "DynamicQuantizeMatMul",
            [floats(2, 3, 4), bytes_(4, 5, dtype=dtype), np.abs(floats(5)), bytes_(5, dtype=dtype), floats(5)],
            known=(1, 2, 3),
            microsoft=True,
            within=1e-4,
        )
        for dtype in ("uint8", "int8")
    ),
    *(
        Case(
            "QGemm",
            [
                *(bytes_(3, 4), SCALES[0], ZEROS[0]),
                *(bytes_(5, 3, dtype="int8"), np.abs(floats(5)) / 50, np.zeros(5, np.int8)),
                *(RNG.integers(-999, 999, 5).astype(np.int32), *output),
            ],
            {"transA": 1, "transB": 1, "alpha": 1.5},
            known=(3, 4, 5),
            microsoft=True,
        )
        for output in ([], [SCALES[2], ZEROS[2]])
    ),
    Case("QuantizeLinear", [floats(2, 3, 4), np.abs(floats(3)) / 50, bytes_(3)], {"axis": 1}, opset=13),
    Case("QuantizeLinear", [floats(2, 3, 4), SCALES[0]], opset=13),
    Case("QuantizeLinear", [floats(2, 3), np.abs(floats(3)) / 50, bytes_(3)], opset=13),
    Case("QuantizeLinear", [floats(2, 3, dtype="float16"), scalar(0.5, "float16")], opset=19),
    Case("QuantizeLinear", [100 * floats(9), SCALES[0]], {"output_dtype": 5}, opset=21),
    Case("QuantizeLinear", [100 * floats(9), SCALES[0], scalar(-3, "int16")], opset=21),
    Case(
        "QuantizeLinear",
        [floats(2, 6, 2), np.abs(floats(2, 3, 2)) / 9, bytes_(2, 3, 2)],
        {"block_size": 2, "axis": 1},
        opset=21,
    ),
    *(
        Case(
            "QuantizeLinear",  # whose last block is smaller, as ONNX allows
            [floats(2, 5, 2), np.abs(floats(2, count, 2)) / 9, bytes_(2, count, 2)],
            {"block_size": block, "axis": 1},
            opset=21,
        )
        for block, count in ((2, 3), (3, 2), (7, 1))
    ),
    Case("DequantizeLinear", [bytes_(5), floats(2)], {"block_size": 3, "axis": 0}, opset=21),
    Case("DequantizeLinear", [bytes_(7, 2), floats(3, 2), bytes_(3, 2)], {"block_size": 3, "axis": 0}, (1,), opset=21),
    Case("DequantizeLinear", [bytes_(2, 3, dtype="int32"), SCALES[0]], opset=13),
    Case("DequantizeLinear", [bytes_(2, 3, 4), np.abs(floats(4)), bytes_(4)], {"axis": -1}, opset=13),
    Case("DequantizeLinear", [bytes_(2, 3), floats(3), bytes_(3)], {"axis": 1}, microsoft=True),
    Case("DequantizeLinear", [bytes_(2, 3), floats(3), bytes_(3)], microsoft=True),
    Case("DequantizeLinear", [bytes_(2, 3), scalar(0.3, "float16")], {"output_dtype": 1}, opset=23),
    Case(
        "DequantizeLinear",
        [bytes_(6, 2, dtype="int16"), floats(3, 2), bytes_(3, 2, dtype="int16")],
        {"block_size": 2, "axis": 0},
        opset=21,
    ),
    Case(
        "MatMulNBits",  # whose zero points are no integers
        [floats(2, 3, 80), bytes_(5, 3, 16), floats(5 * 3), 8 + floats(5, 3)],
        {"K": 80, "N": 5, "bits": 4, "block_size": 32},
        microsoft=True,
        within=1e-4,
    ),
]


SIGNALS = [
    Case("STFT", [floats(2, 30), np.array(3), floats(8)], {}, (1, 2)),  # without a dimension for parts
    *(
        Case("MelWeightMatrix", [*map(np.array, numbers), *np.array(edges, np.float32)], how, (0, 1, 2, 3, 4))
        for numbers, edges, how in (
            ((80, 512, 16000), (0, 8000), {}),
            ((40, 401, 16000), (20, 7600), {}),
            ((3, 16, 100), (0, 10), {"output_datatype": 7}),
        )
    ),
    *(
        Case("AffineGrid", [floats(sizes[0], rank, rank + 1), np.array(sizes)], {"align_corners": aligned}, (1,), 20)
        for sizes in ([1, 2, 3, 4], [3, 2, 1, 4], [1, 2, 3, 1, 2], [2, 1, 3, 4, 2])
        for rank in [len(sizes) - 2]
        for aligned in (0, 1)
    ),
]


@pytest.mark.parametrize(
    "case",
    [*OLDER, *CHANGED, *WITH_CONSTANTS, *PRODUCTS, *ACTIVATIONS, *EMBEDDED, *QUANTIZED, *SIGNALS],
    ids=told,
)
def test_results_are_those_of_onnxruntime(case: Case) -> None:
    right = case.node.expected()
    for made, wanted in zip(case.node.made(right), right, strict=True):
        assert made.dtype == wanted.dtype
        assert made.shape == wanted.shape
        exact = wanted.dtype.kind in "iub"
        wide = wanted.astype("float64")
        if exact and wanted.dtype.itemsize == 1:
            # Quotients by scales are not rounded before they are rounded to whole numbers, as they are there.
            assert np.abs(made.astype("float64") - wide).max() <= 1
            assert (made != wanted).mean() <= 0.1
        else:
            within = 0 if exact else case.within
            np.testing.assert_allclose(made.astype("float64"), wide, rtol=within, atol=within)


def erf_gelu(x: Array) -> Array:
    made: Array = np.vectorize(lambda each: 0.5 * each * (1 + math.erf(each / math.sqrt(2))))(x)
    return made


def silu(x: Array) -> Array:
    made: Array = x / (1 + np.exp(-x))
    return made


def normal(x: Array, axes: tuple[int, ...]) -> Array:
    made: Array = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    return made


X, Y, HALVES = floats(2, 3, 4, 4), floats(2, 3, 4, 4), floats(2, 3, 4, dtype="float16")
LAST, CHANNELS = floats(4), [np.abs(floats(3)) for _ in range(4)]
SIGNAL, WINDOW = floats(2, 30, 1), floats(8)
SPECTRUM = floats(2, 5, 3, 2)
COMPLEX = SPECTRUM[..., 0] + 1j * SPECTRUM[..., 1]


def parts_of(numbers: Array) -> Array:
    """Real and imaginary ones, along a last dimension."""
    return np.stack([numbers.real, numbers.imag], -1).astype(np.float32)


def half_spectrum(length: int) -> tuple[Case, Array]:
    """The inverse of `SPECTRUM` as one half of the frequencies of `length` real elements along dimension 1."""
    case = Case("DFT", [SPECTRUM, np.array(length)], {"axis": 1, "inverse": 1, "onesided": 1}, (1,))
    return case, np.fft.irfft(COMPLEX, length, 1)[..., np.newaxis].astype(np.float32)


FRAMES = np.stack([SIGNAL[:, start : start + 8, 0] for start in range(0, 23, 3)], 1)
CHANNELED = X.reshape(2, 4, 3, 4)
SKIPS = floats(*CHANNELED.shape)
PIXELS = np.array([[[[1, 2], [3, 4]]]], np.int32)
CORNERS = np.array([[[[-1, -1], [1, 1], [1, -1]]]], np.float32)

BY_NUMPY = [
    (Case("DFT", [SPECTRUM, None, np.array(-2)], {}, (2,), opset=20), parts_of(np.fft.fft(COMPLEX, axis=2))),
    (Case("DFT", [SPECTRUM, np.array(4)], {"inverse": 1}, (1,)), parts_of(np.fft.ifft(COMPLEX, 4, axis=1))),
    (Case("DFT", [SPECTRUM[..., :1], np.array(9)], {"onesided": 1}, (1,)), parts_of(np.fft.rfft(COMPLEX.real, 9, 1))),
    *(half_spectrum(length) for length in (8, 9, 3, 12)),
    (
        Case("STFT", [SIGNAL, np.array(3), WINDOW, np.array(8)], {}, (1, 2, 3)),
        parts_of(np.fft.rfft(FRAMES * WINDOW)),
    ),
    (
        Case("STFT", [SIGNAL, np.array(3), None, np.array(8)], {"onesided": 0}, (1, 3)),
        parts_of(np.fft.fft(FRAMES)),
    ),
    (Case("BiasAdd", [X, LAST, Y], microsoft=True), X + LAST + Y),
    (Case("BiasSplitGelu", [X, LAST], microsoft=True), (X + LAST)[..., :2] * erf_gelu((X + LAST)[..., 2:])),
    (
        Case("GroupNorm", [X, LAST, LAST], {"groups": 2, "activation": 1}, microsoft=True),
        silu(normal(X.reshape(2, 12, 2, 2), (1, 3)).reshape(X.shape) * LAST + LAST),
    ),
    *(
        (
            Case("SkipGroupNorm", [X, LAST, LAST, skip, LAST], {"groups": 2}, microsoft=True),
            normal((X + skip.reshape(2, -1, 1, 4)[:, :1] + LAST).reshape(2, 12, 2, 2), (1, 3)).reshape(X.shape) * LAST
            + LAST,
        )
        for skip in (floats(2, 4), floats(2, 1, 1, 4))
    ),
    (
        Case("SkipGroupNorm", [CHANNELED, LAST, LAST, SKIPS, LAST], {"groups": 2, "channels_last": 0}, microsoft=True),
        normal((CHANNELED + SKIPS + LAST[:, None, None]).reshape(2, 2, -1), (2,)).reshape(CHANNELED.shape)
        * LAST[:, None, None]
        + LAST[:, None, None],
    ),
    (Case("Affine", [X], {"alpha": 2.0, "beta": -1.0}), 2 * X - 1),
    (
        Case("ImageScaler", [X], {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}),
        2 * X + np.array([1, 2, 3], np.float32)[:, None, None],
    ),
    (Case("ScaledTanh", [X], {"alpha": 2.0, "beta": 0.5}), 2 * np.tanh(X / 2)),
    (Case("ParametricSoftplus", [X], {"alpha": 2.0, "beta": 0.5}), 2 * np.log1p(np.exp(X / 2))),
    (
        Case("BatchNormalization", [HALVES, *CHANNELS], within=2e-3),
        (HALVES.astype("float32") - CHANNELS[2][:, None]) / np.sqrt(CHANNELS[3][:, None] + 1e-5) * CHANNELS[0][:, None]
        + CHANNELS[1][:, None],
    ),
    (Case("LayerNormalization", [HALVES, LAST], within=2e-3), normal(HALVES.astype("float64"), (-1,)) * LAST),
    (
        Case("DmlFusedAdd", [X, Y], {"fused_activation": "LeakyRelu", "fused_alpha": 0.5}),
        np.where(X + Y > 0, X + Y, (X + Y) / 2),
    ),
    (Case("DmlFusedMatMul", [X, Y], {"fused_activation": "Relu"}), np.maximum(X @ Y, 0)),
    (
        Case("FusedGemm", [X[0, 0], Y[0, 0]], {"activation": "Softplus"}, microsoft=True),
        np.log1p(np.exp(X[0, 0] @ Y[0, 0])),
    ),
    *(
        (
            Case("GroupNorm", [CHANNELED, LAST, LAST], {"groups": groups, "channels_last": 0}, microsoft=True),
            normal(CHANNELED.reshape(2, groups, -1), (2,)).reshape(CHANNELED.shape) * LAST[:, None, None]
            + LAST[:, None, None],
        )
        for groups in (1, 2)
    ),
    (Case("Crop", [X], {"border": [1, 0, 1, 2]}), X[:, :, :2, 1:3]),
    (Case("Crop", [X], {"border": [1, 2, 9, 9], "scale": [2, 3]}), X[:, :, 2:, 1:]),
    (
        Case("GroupNormalization", [X.reshape(2, 4, 3, 4), LAST[:2], LAST[2:]], {"num_groups": 2}, opset=20),
        (normal(X.reshape(2, 2, 24), (2,)) * LAST[:2, None] + LAST[2:, None]).reshape(2, 4, 3, 4),
    ),
    (
        Case("GridSample", [PIXELS, CORNERS], {"mode": "nearest", "align_corners": 1}, opset=16),
        np.array([[[[1, 4, 2]]]]),
    ),
    (Case("DmlFusedSum", [X, Y]), X + Y),
]


@pytest.mark.parametrize(("case", "wanted"), BY_NUMPY, ids=told)
def test_results_are_those_of_numpy(case: Case, wanted: Array) -> None:
    """What onnxruntime has not on CPUs."""
    assert case.inputs[0] is not None
    (made,) = case.node.made([wanted.astype(case.inputs[0].dtype)])
    assert made.dtype == case.inputs[0].dtype
    np.testing.assert_allclose(made, wanted, rtol=case.within, atol=case.within)


def test_zero_points_that_are_left_out_are_0() -> None:
    a, b = np.array([1, 2, 3], np.uint8), np.array([1, 2, 250], np.uint8)
    case = Case("QLinearAdd", [a, scalar(1), None, b, scalar(1), None, scalar(2)], microsoft=True)
    (made,) = case.node.made([a])
    assert made.tolist() == [1, 2, 126]


def test_integers_are_quantized() -> None:
    (made,) = Case("QuantizeLinear", [np.array([-3, 3, 1000], np.int32), scalar(2)]).node.made([bytes_(3)])
    assert made.tolist() == [0, 2, 255]


def test_blocks_of_4_bits() -> None:
    x, scale = np.array([[1, -9], [2, 9], [3, -3], [40, 3]], np.float32), np.array([[1, 2], [2, 1]], np.float32)
    given = {"axis": 0, "block_size": 2}
    for zero, wanted in (
        (None, [[1, 0], [2, 4], [2, 0], [15, 3]]),
        ([[1, 5], [2, 4]], [[2, 1], [3, 9], [4, 1], [15, 7]]),
    ):
        point = None if zero is None else np.array(zero).astype("uint4")
        more = {} if zero else {"output_dtype": 21}
        (made,) = Case("QuantizeLinear", [x, scale, point], given | more, opset=21).node.made([x.astype("uint4")])
        assert made.astype(int).tolist() == wanted
        (made,) = Case("DequantizeLinear", [made, scale, point], given, opset=21).node.made([x])
        moved = np.array(wanted) - np.repeat(zero or [[0, 0], [0, 0]], 2, 0)
        np.testing.assert_array_equal(made, moved * np.repeat(scale, 2, 0))


def test_a_smaller_last_block_of_4_bits() -> None:
    x, scale = np.array([3, 9, 14]).astype("uint4"), np.array([2, 0.5], np.float32)
    (made,) = Case("DequantizeLinear", [x, scale], {"axis": 0, "block_size": 2}, opset=21).node.made([scale])
    assert made.tolist() == [6, 18, 7]


DOUBLES = floats(2, 3, dtype="float64")
REFUSED = [
    (Case("InstanceNormalization", [floats(2, 3), *[floats(3)] * 2]), "its input has 2 dimensions, not 3 or more"),
    (Case("LpNormalization", [X], {"p": 3}), "its p is 3"),
    (Case("GroupNorm", [floats(2, 4), LAST, LAST], {"groups": 2}, microsoft=True), "2 dimensions, not 3 or more"),
    (Case("GroupNorm", [CHANNELED, LAST, LAST], {"groups": 0}, microsoft=True), "has no 0 groups of channels"),
    (Case("GroupNormalization", [floats(4), LAST, LAST], {"num_groups": 2}, opset=21), "has no 2 groups of channels"),
    (
        Case("GroupNormalization", [X.reshape(2, 4, 12), LAST[:3], LAST[:3]], {"num_groups": 2}, opset=21),
        "its scale or bias has not 4 elements",
    ),
    (
        Case("EmbedLayerNormalization", [IDS[0], None, *[floats(5, 8)] * 2, None, *[floats(8)] * 2], microsoft=True),
        "its input_ids have 1 dimensions, not 2",
    ),
    (Case("DynamicQuantizeLinear", [DOUBLES], outputs=3), "DYNAMIC_QUANTIZE_LINEAR takes no FLOAT64 as InputTensor"),
    (Case("QuantizeLinear", [floats(3), scalar(1), scalar(0, "int32")]), "DirectML does not quantize to INT32"),
    (
        Case(
            "QuantizeLinear",
            [bytes_(4, dtype="int32"), floats(2), None],
            {"block_size": 2, "axis": 0, "output_dtype": 22},
            opset=21,
        ),
        "QUANTIZE takes no INT32 as InputTensor",
    ),
    *(
        (Case("QuantizeLinear", [floats(4, 2), *given], {"axis": 0, "block_size": 2}, opset=21), "is not for blocks")
        for given in ([floats(2)], [floats(2, 1)], [floats(2, 2), bytes_(2, 1)], [floats(1, 2)])
    ),
    (Case("DFT", [SPECTRUM], {"axis": 3}), "its axis is 3, along which"),
    (Case("DFT", [SPECTRUM[..., 0]]), "whose last one is neither 1 nor 2"),
    (Case("DFT", [SPECTRUM, np.array(0)], {}, (1,)), "its dft_length is [0]"),
    (Case("DFT", [SPECTRUM, np.array(1 << 40)], {}, (1,)), "weights, more than"),
    (Case("AffineGrid", [floats(2, 2, 3), np.array([1, 1, 2, 3])], {}, (1,), 20), "do not fit its size [1, 1, 2, 3]"),
    (Case("AffineGrid", [floats(1, 2, 3), np.array([1, 1, 0, 3])], {}, (1,), 20), "do not fit its size [1, 1, 0, 3]"),
    (Case("AffineGrid", [floats(1, 2, 3), np.zeros(0, np.int64)], {}, (1,), 20), "do not fit its size []"),
    (Case("AffineGrid", [floats(1, 1, 2), np.array([1, 1, 3])], {}, (1,), 20), "do not fit its size [1, 1, 3]"),
    (Case("AffineGrid", [floats(1, 2, 3), np.array([1, 1, 1 << 40, 3])], {}, (1,), 20), "places, more than"),
    (Case("STFT", [SIGNAL, np.array(3), WINDOW], {}, (1,)), "its window is not constant"),
    (Case("STFT", [SIGNAL, np.array(3), WINDOW, np.array(7)], {}, (1, 2, 3)), "its frame_length is 7"),
    (Case("STFT", [SIGNAL, np.array(0), WINDOW], {}, (1, 2)), "its frame_step is [0]"),
    (Case("Add", [DOUBLES, DOUBLES]), "ELEMENT_WISE_ADD takes no FLOAT64 as ATensor"),
    (Case("ReduceMean", [bytes_(2, 3, dtype="int32")]), "REDUCE takes no INT32 with Function AVERAGE"),
    (Case("Shrink", [bytes_(3)], {"bias": 0.5}), "its bias is no whole number"),
    (Case("Shrink", [DOUBLES], {"bias": 0.5}), "DirectML's ACTIVATION_SHRINK takes no FLOAT64"),
    (Case("Shrink", [floats(3)], {"bias": 1.0, "lambd": -0.5}), "its lambd is negative"),
    (Case("Crop", [X], {"border": [1, 2, 0, 0], "scale": [3, 3]}), "its border goes beyond its sizes"),
    (Case("Crop", [X], {"border": [-1, 0, 0, 0]}), "its border goes beyond its sizes"),
    (Case("Crop", [floats(3)], {"border": [0, 0, 0, 0]}), "its sizes [3] are no image's"),
    (Case("BatchNormalization", [X, *CHANNELS], {"spatial": 0}, opset=7), "its spatial is 0"),
    (Case("Pad", [X], {"pads": [0] * 8, "mode": "wrapped"}, opset=10), "its mode is wrapped"),
    (Case("DepthToSpace", [X], {"blocksize": 1, "mode": "RCD"}), "its mode is RCD"),
    (Case("Gemm", [floats(2, 3), floats(2, 3)]), "sizes [2, 3] and [2, 3] are not those of matrices to multiply"),
    (
        Case("GroupNormalization", [floats(2, 4, 3), floats(3), floats(3)], {"num_groups": 3}, opset=21),
        "has no 3 groups of channels",
    ),
    (
        Case("MelWeightMatrix", [*map(np.array, (8, 16, 8000)), *np.array([0, 9000], np.float32)], {}, (0, 1, 2, 3, 4)),
        "its upper edge is 9000.0, beyond what 9 frequencies of 8000 reach",
    ),
    (Case("Constant", [], {"value_string": "text"}), "its value is no tensor of numbers"),
    (Case("Unsqueeze", [X], opset=11), "it has no axes"),
    (Case("Unsqueeze", [X], {"axes": [9]}, opset=11), "its axis is 9, of 5 dimensions"),
    (Case("Unsqueeze", [X], {"axes": [0, 0]}, opset=11), "axes [0, 0] name one of its dimensions twice"),
    (Case("Squeeze", [X], {"axes": [4]}, opset=11), "its axis is 4, of 4 dimensions"),
    (Case("Flatten", [X], {"axis": 5}), "its axis is 5, of 4 dimensions"),
    (Case("Flatten", [X], {"axis": -5}), "its axis is -5, of 4 dimensions"),
    (Case("Slice", [X, *[np.array([0, 0])] * 3], {}, (1, 2, 3)), "axes [0, 0] name one of its dimensions twice"),
    (Case("Resize", [X]), "it has neither scales nor sizes"),
    (Case("MaxPool", [X], {"kernel_shape": [2, 0]}), "kernel_shape [2, 0] are not all at least 1"),
    (Case("MaxPool", [X], {"kernel_shape": [2, 2], "strides": [0, 1]}), "strides [0, 1] are not all at least 1"),
    (Case("MaxPool", [X], {"kernel_shape": [2, 2], "dilations": [1, -1]}), "dilations [1, -1] are not all at least 1"),
    (Case("MaxPool", [X], {"kernel_shape": [2, 2], "auto_pad": "SAME"}), "auto_pad is SAME"),
    (Case("MaxPool", [X], {"kernel_shape": [2, 2], "pads": [0, -1, 0, 0]}), "pads [0, -1, 0, 0] are negative"),
    (Case("MaxPool", [X], {"kernel_shape": [5, 2]}), "its windows are larger than the tensor, which is 4 long there"),
    (Case("MaxPool", [X], {"kernel_shape": [2, 2], "strides": [1]}), "strides has 1 entries for 2 spatial dimensions"),
    *(
        (
            Case(
                "RotaryEmbedding",
                [floats(1, 2, 4), np.zeros((1, 2), np.int64), *[floats(2, 2)] * 2],
                more,
                (),
                17,
                True,
            ),
            "its batches are packed, or it is scaled",
        )
        for more in ({"scale": 2.0}, {"is_packed_batching": 1})
    ),
    (
        Case(
            "RotaryEmbedding",
            [floats(1, 2, 4), np.zeros((1, 2), np.int64), *[floats(2, 3)] * 2],
            {"num_heads": 1},
            (),
            17,
            True,
        ),
        "it turns 6 of 4 numbers",
    ),
    (Case("Clip", [floats(3), floats(2)]), "its min has 2 elements, not one"),
    (
        Case("BatchNormalization", [X, *[LAST] * 4]),
        "one of its inputs has 4 elements, where dimension 1 has 3",
    ),
    (Case("Add", [floats(3), bytes_(3)]), "its inputs are of different types, FLOAT32 and UINT8"),
    (Case("Less", [floats(3), bytes_(3)]), "its inputs are of different types, FLOAT32 and UINT8"),
    (Case("Neg", [floats(1, 1, 1, 1, 1, 1, 1, 1, 2)]), "has 9 dimensions, where DirectML's have 8"),
    (Case("Gather", [floats(3), bytes_(2)]), "its indices are UINT8"),
    (Case("BiasSplitGelu", [floats(2, 3), floats(3)], microsoft=True), "its last dimension is 3, which has no halves"),
    (Case("STFT", [floats(2, 30, 1, 1), np.array(3), WINDOW], {}, (1, 2)), "its signal has 4 dimensions, not 3"),
    (Case("Einsum", [floats(2, 3)], {"equation": "ii->i"}), "dimensions of 2 and 3 elements have the label i"),
    (Case("Einsum", [floats(2), floats(3)], {"equation": "i,i->"}), "dimensions of 2 and 3 elements have the label i"),
    (Case("Einsum", [floats(2, 3)], {"equation": "ij->ii"}), "has a label twice in the output"),
    (Case("Einsum", [floats(2, 3)], {"equation": "ij->ik"}), "makes labels that no operand has"),
    (Case("Einsum", [floats(2, 3)], {"equation": "ij,jk->ik"}), "has 2 operands, not 1"),
    *(
        (Case("Einsum", [floats(2, 3)], {"equation": equation}), "does not fit its operands")
        for equation in ("ijk->i", "...ijk->i", "i->i", "i1->i", "1...->")
    ),
    (Case("Conv", [floats(1, 1, 4, 4), floats(1, 1, 3)]), "its filters have 3 dimensions, and its input 4"),
    (Case("Conv", [floats(1, 1), floats(1, 1)]), "it has 0 spatial dimensions, not 1 to 3"),
    (
        Case("ConvTranspose", [floats(1, 1, 2), floats(1, 1, 1)], {"pads": [1, 1]}),
        "its output would have size 0 along dimension 2",
    ),
    (
        Case(
            "Attention",
            [floats(1, 2, 3), floats(3, 9), *[None] * 4, np.ones(1, np.int32)],
            {"num_heads": 1},
            (),
            17,
            True,
        ),
        "its past lies in shared memory",
    ),
    (Case("Pow", [np.arange(4), np.arange(4)], known=(1,)), "takes no INT64"),
    (Case("Pow", [np.arange(4), scalar(0.5)], known=(1,)), "takes no INT64"),
    (Case("TopK", [floats(3, 5), np.array([2])], outputs=2), "its k is not constant"),
    (Case("TopK", [floats(3, 5), np.array([6])], known=(1,), outputs=2), "its k is 6, of 5 elements"),
    (Case("TensorScatter", [floats(2, 3, 4), floats(2, 1, 3)], opset=24), "which do not fit (2, 3, 4) along 1"),
    (Case("TensorScatter", [floats(2, 3), floats(2, 3)], opset=24), "which do not fit (2, 3) along 0"),
    (Case("TensorScatter", [floats(2, 3, 4), floats(2, 4, 4)], opset=24), "4 elements along its axis, and its cache 3"),
    (Case("Softmax", [floats(2, 3)], {"axis": 2}), "its axis is 2, of 2 dimensions"),
    (Case("Sub", [floats(2, 3), floats(4)]), "[2, 3] and [4] cannot be broadcast to each other"),
    (Case("MatMul", [floats(2, 3), floats(4, 2)]), "are not those of matrices to multiply"),
    (Case("Gemm", [floats(2, 3), floats(3, 4), floats(3)]), "[3] cannot be broadcast to [2, 4]"),
    (Case("Cast", [floats(3)], {"to": 16}), "DirectML has no type for ONNX's type 16"),
    (
        Case("BatchNormalization", [floats(2, 3), *[floats(3)] * 4], opset=13, outputs=3),
        "it is in training mode",
    ),
    (
        Case("DequantizeLinear", [bytes_(5), floats(2)], {"block_size": 2, "axis": 0}, opset=21),
        "is not for blocks of 2 along dimension 0 of [5]",
    ),
    (Case("FusedGemm", [floats(2, 3), floats(3, 4)], {"activation": "Gone"}, microsoft=True), "its activation is Gone"),
    *(
        (
            Case("GatherBlockQuantized", [data, INDICES, floats(5, 2)], {"block_size": 16} | attributes, (), 21, True),
            why,
        )
        for data, attributes, why in (
            (bytes_(5, 16), {"gather_axis": 1}, "its gather_axis is 1 and its quantize_axis 1"),
            (bytes_(5, 16), {"quantize_axis": 0}, "its gather_axis is 0 and its quantize_axis 0"),
            (bytes_(5, 16), {"bits": 2}, "its bits are 2, and its data UINT8"),
            (bytes_(5, 16), {"block_size": 32}, "not those of whole blocks of 32 along dimension 1 of [5, 32]"),
            (bytes_(5, 20), {}, "not those of whole blocks of 16 along dimension 1 of [5, 40]"),
        )
    ),
    *(
        (
            Case(
                "MatMulBnb4",
                [floats(2, 64), bytes_(160), floats(20)],
                {"K": 64, "N": 5, "block_size": 16, "quant_type": 1} | attributes,
                microsoft=True,
            ),
            why,
        )
        for attributes, why in (
            ({"transB": 0}, "its transB is 0, not 1"),
            ({"quant_type": 2}, "its quant_type is 2, not 0 or 1"),
            ({"block_size": 32}, "its B has 160 bytes and 20 scales, not those of whole blocks of 32 of 5 x 64"),
        )
    ),
    (
        Case(
            "MatMulNBits",
            [floats(2, 64), bytes_(5, 2, 9), floats(10)],
            {"K": 64, "N": 5, "block_size": 32},
            microsoft=True,
        ),
        "its B has 90 bytes",
    ),
    *(
        (
            Case(
                "MatMulNBits",
                [floats(2, 64), bytes_(5, 2, 32), floats(10), *more],
                {"K": 64, "N": 5, "block_size": 32, "bits": 8} | attributes,
                microsoft=True,
            ),
            why,
        )
        for more, attributes, why in (
            ([None, np.zeros(64, np.int32)], {}, "it has a g_idx"),
            ([bytes_(5, 2, dtype="int8")], {}, "its zero points are INT8"),
            ([bytes_(5)], {}, "its zero points have 5 bytes"),
            ([], {"weight_prepacked": 1}, "its B lies as a kernel of CUDA's takes it"),
            ([], {"bits": 2}, "its bits are 2, not 4 or 8"),
        )
    ),
    *(
        (Case("GatherBlockQuantized", [*given], {"block_size": size}, (), 21, True), why)
        for given, size, why in (
            (
                [bytes_(5, 16), INDICES, floats(5, 2), bytes_(5, 2)],
                16,
                "one of its inputs has sizes [5, 2], where [5, 2] elements of UINT4 take [5, 1]",
            ),
            (
                [np.zeros((5, 3)).astype("int4"), INDICES, floats(5, 1)],
                3,
                "a row of 3 elements of INT4 ends amid a byte",
            ),
        )
    ),
    (
        Case(
            "Attention",
            [floats(1, 2, 5), floats(5, 22), floats(22)],
            {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 6]},
            microsoft=True,
            outputs=2,
        ),
        "its heads have keys of 4 elements and values of 3",
    ),
    (Case("NhwcConv", [floats(1, 3, 2), floats(2, 2, 1)], microsoft=True), "it has 3 dimensions, not 4"),
    (
        Case("FusedConv", [floats(1, 2, 3, 3), floats(1, 2, 1, 1), None, floats(1, 1, 3, 1)], microsoft=True),
        "what is added has sizes (1, 1, 3, 1), not (1, 1, 3, 3)",
    ),
    (
        Case("DmlFusedConv", [floats(1, 2, 3, 3), floats(1, 2, 1, 1)], {"fused_activation": "Gelu"}),
        "its activation Gelu cannot be fused",
    ),
    (Case("BitCast", [floats(3)], {"to": 10}, opset=26), "elements of 32 bits are not to be read as those of 16"),
    (Case("Affine", [bytes_(3)], {"alpha": 2.0}), "DirectML does not compute it in UINT8"),
    (Case("FastGelu", [DOUBLES], microsoft=True), "DirectML does not compute it in FLOAT64"),
    (Case("ImageScaler", [X], {"bias": [0.0] * 2}), "it has sizes [2, 3, 4, 4] and 2 biases"),
    (Case("ImageScaler", [X], {"bias": [0.0]}), "it has sizes [2, 3, 4, 4] and 1 biases"),
    (Case("ImageScaler", [floats(2, 2, 3, 3)], {"bias": [0.0] * 2}), "it has sizes [2, 2, 3, 3] and 2 biases"),
    (Case("ImageScaler", [floats(3, 3, 3)], {"bias": [0.0] * 3}), "it has sizes [3, 3, 3] and 3 biases"),
    (Case("DFT", [SPECTRUM.astype("float64")]), "DirectML does not compute it in FLOAT64"),
    *(
        (Case("MelWeightMatrix", [*map(np.array, (8, 16, 8000)), *map(scalar, edges)], {}, (0, 1, 2, 3, 4)), why)
        for edges, why in (
            ((-1, 9), "its edges are -1.0 and 9.0"),
            ((9, 8), "its edges are 9.0 and 8.0"),
            ((9, np.inf), "its edges are 9.0 and inf"),
        )
    ),
    (
        Case("MelWeightMatrix", [*map(np.array, (1 << 40, 16, 8000)), scalar(0), scalar(9)], {}, (0, 1, 2, 3, 4)),
        "weights, more than",
    ),
    (
        Case("ConvTransposeWithDynamicPads", [X, floats(3, 1, 1, 1), np.array([0, -1, 0, 0])], {}, (2,), 17, True),
        "pads [0, -1, 0, 0] are negative",
    ),
    (Case("ConvTranspose", [floats(1, 1, 4, 4), floats(1, 1, 3)]), "its filters have 3 dimensions, and its input 4"),
    (Case("OneHot", [np.arange(3), np.array(0), floats(2)], known=(1,)), "its depth is 0"),
    (Case("Range", [scalar(1), scalar(2), scalar(0)], known=(0, 1, 2)), "its delta is 0"),
    (Case("MatMul", [scalar(1), floats(2)]), "one of its inputs is no vector or matrix"),
    (Case("MatMul", [floats(2), scalar(1)]), "one of its inputs is no vector or matrix"),
    (Case("QLinearConcat", [scalar(1), bytes_(1)], microsoft=True), "it has nothing to put together"),
    (
        Case("ConvInteger", [bytes_(1, 1, 2, 2, 2), bytes_(1, 1, 1, 1, 1)]),
        "it has 3 spatial dimensions, where DirectML's CONVOLUTION_INTEGER has 1 or 2",
    ),
    (
        Case(
            "QLinearAveragePool",
            [bytes_(1, 1, 4), scalar(1), bytes_(1), scalar(1), bytes_(1)],
            {"kernel_shape": [2]},
            microsoft=True,
        ),
        "it has 1 spatial dimensions, not 2",
    ),
    (
        Case(
            "QLinearAveragePool",
            [bytes_(1, 1, 4, 4), scalar(1), bytes_(1), scalar(1), bytes_(1)],
            {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "count_include_pad": 1},
            microsoft=True,
        ),
        "its ceil_mode adds paddings",
    ),
    (
        Case("MatMulIntegerToFloat", [bytes_(2, 3), bytes_(3, 4), scalar(1), floats(2)], microsoft=True),
        "a scale or zero point of sizes [2] is not one for each row or column",
    ),
    *(
        (
            Case(
                "GroupQueryAttention",
                [*[floats(1, 3, 8)] * 3, None, None, np.array([2], np.int32), np.array(total, np.int32), *more],
                {"num_heads": 1, "kv_num_heads": 1} | attributes,
                (6,),
                17,
                True,
                outputs,
            ),
            why,
        )
        for total, more, attributes, outputs, why in (
            (3, [], {"smooth_softmax": 1}, 3, "smooth_softmax is 1"),
            (3, [], {"sliding_window_cache": 1}, 3, "sliding_window_cache is 1"),
            (3, [None, None, None, floats(1, 1, 3, 3)], {}, 3, "it has more inputs or outputs than DirectML"),
            (3, [], {}, 4, "it has more inputs or outputs than DirectML"),
            (4, [], {}, 3, "total_sequence_length is 4, and there are 3 keys"),
        )
    ),
]


@pytest.mark.parametrize(("case", "why"), REFUSED, ids=told)
def test_what_directml_does_not_compute_is_refused(case: Case, why: str) -> None:
    with pytest.raises(NotSupported) as raised:
        case.node.made([np.zeros(1, np.float32)] * case.outputs)
    (node,) = raised.value.nodes
    assert node.operator.endswith(case.type)
    assert why in node.why


def test_what_is_bool_stays_known_for_it() -> None:
    """Through operators that take any type, functions and loops, until it is cast."""
    text = """
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        one (float[2, 2] x, bool[2, 2] b, bool c)
            => (bool[1, 2] first, uint8[2, 2] second, bool[2, 2] third, bool[2, 2] fourth, bool[2, 2] fifth,
                float[2, 2] sixth, bool[2, 2] seventh, bool[2, 2] eighth, float[2, 2] ninth, float[2, 2] tenth) {
            n = Not(b)
            start = Constant<value_ints = [1]>()
            end = Constant<value_ints = [2]>()
            s = Slice(n, start, end)
            part = own.Like(x, s)
            first = Slice(part, start, end)
            u = Cast<to = 2>(b)
            second = CastLike(x, u)
            g = Where(b, n, b)
            third = CastLike(x, g)
            empty = Scan<num_scan_inputs = 1, body = turn (bool[2] row) => (bool[2] kept) { kept = Identity(row) }>(b)
            fourth = CastLike(x, empty)
            chosen = If(c) <then_branch = p () => (bool[2, 2] v) { v = Not(b) },
                            else_branch = q () => (bool[2, 2] w) { w = Identity(b) }>
            fifth = CastLike(x, chosen)
            other = If(c) <then_branch = r () => (float[2, 2] k) { k = Neg(x) },
                           else_branch = s () => (float[2, 2] l) { l = Abs(x) }>
            sixth = CastLike(b, other)
            listed = SequenceConstruct(n, b)
            joined = ConcatFromSequence<axis = 0>(listed)
            part1, part2 = Split<axis = 0>(joined)
            seventh = CastLike(x, part2)
            split = SplitToSequence<axis = 0>(n)
            zero = Constant<value_int = 0>()
            at = SequenceAt(split, zero)
            eighth = CastLike(x, at)
            floats = SequenceConstruct(x, x)
            whole = ConcatFromSequence<axis = 0>(floats)
            ninth = CastLike(b, whole)
            parts = SplitToSequence<axis = 0>(x)
            row = SequenceAt(parts, zero)
            tenth = CastLike(b, row)
        }
        <domain: "own", opset_import: ["": 17]>
        Like (value, like) => (made) { made = CastLike(value, like) }
    """
    x = np.array([[0.5, 0], [2.5, -0.0]], np.float32)
    b = np.array([[True, False], [True, True]])
    made = run(parse_model(text), {"x": x, "b": b, "c": np.array(True)})
    assert made["first"].tolist() == [[True, False]]
    assert made["second"].tolist() == [[0, 0], [2, 0]]
    for name in ("third", "fourth", "fifth", "seventh", "eighth"):
        assert made[name].tolist() == (x != 0).tolist()
    for name in ("sixth", "ninth", "tenth"):
        assert made[name].tolist() == b.tolist()


@pytest.mark.parametrize(
    "makes", ["Less(x, x0)", "GreaterOrEqual(x, x0)", "Equal(x, x0)", "IsNaN(x)", "And(b, b)", "Xor(b, b)"]
)
def test_what_compares_makes_bool(makes: str) -> None:
    """A cast to bool is 0 or 1, where one to uint8 would be 0 or 2 here."""
    text = f"""
        <ir_version: 8, opset_import: ["": 17]>
        one (float[2, 2] x, float[2, 2] x0, bool[2, 2] b) => (bool[2, 2] y) {{ c = {makes} y = CastLike(x, c) }}
    """
    x = np.array([[0.5, 0], [2.5, -0.0]], np.float32)
    given = {"x": x, "x0": x[::-1].copy(), "b": x > 1}
    assert run(parse_model(text), given)["y"].tolist() == (x != 0).tolist()


@pytest.mark.parametrize("data_type", [np.float32, np.float16])
def test_attention_with_a_mask_that_the_model_computes(data_type: type[np.floating[Any]]) -> None:
    """As torch.onnx exports transformers: keys that are there, and none that are behind the query."""
    name = {np.float32: "float", np.float16: "float16"}[data_type]
    text = f"""
        <ir_version: 10, opset_import: ["": 23]>
        one ({name}[2, 2, 4, 8] q, {name}[2, 2, 4, 8] k, {name}[2, 2, 4, 8] v, int64[2, 1, 1, 4] there)
            => ({name}[2, 2, 4, 8] y) {{
            places = Constant<value_ints = [0, 1, 2, 3]>()
            ahead = Constant<value_ints = [-1, 1]>()
            queries = Reshape(places, ahead)
            before = LessOrEqual(places, queries)
            is_there = Cast<to = 9>(there)
            mask = And(before, is_there)
            y = Attention(q, k, v, mask)
        }}
    """
    model = parse_model(text)
    given = {each: floats(2, 2, 4, 8).astype(data_type) for each in "qkv"}
    given["there"] = np.array([[1, 1, 0, 0], [1, 1, 1, 1]]).reshape(2, 1, 1, 4)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, given)
    np.testing.assert_allclose(run(model, given)["y"], expected, atol=2e-5 if data_type is np.float32 else 4e-3)


def test_attention_with_a_large_constant_mask_that_is_repeated() -> None:
    """Which is no array of NumPy's any more, but a constant of the graph: it stays bool."""
    text = """
        <ir_version: 10, opset_import: ["": 23]>
        one (float[2, 1, 128, 4] q, float[2, 1, 128, 4] k, float[2, 1, 128, 4] v) => (float[2, 1, 128, 4] y) {
            sizes = Constant<value_ints = [2, 1, 128, 128]>()
            all = Expand(before, sizes)
            y = Attention(q, k, v, all)
        }
    """
    model = parse_model(text)
    model.graph.initializer.append(from_array(np.tri(128, dtype=np.bool_), "before"))
    given = {each: floats(2, 1, 128, 4) for each in "qkv"}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, given)
    np.testing.assert_allclose(run(model, given)["y"], expected, atol=2e-5)

"""ONNX operators that the `onnx` package's suite has not, or not so: onnxruntime's own, older versions, constants."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from app.models.onnx.importer import NotSupported
from tests.models.onnx_runs import run

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


class Case(NamedTuple):
    """A node with inputs by position, of which some are known; with `microsoft`, of com.microsoft's domain."""

    type: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never written
    known: tuple[int, ...] = ()
    opset: int = 17
    microsoft: bool = False
    outputs: int = 1
    within: float = 1e-5
    """Absolute and relative, of floats."""

    def model(self) -> ModelProto:
        names = ["" if each is None else f"x{place}" for place, each in enumerate(self.inputs)]
        node = helper.make_node(
            self.type,
            names,
            [f"y{place}" for place in range(self.outputs)],
            domain=MICROSOFT if self.microsoft else "",
            **self.attributes,
        )
        ports = [
            helper.make_tensor_value_info(f"x{place}", helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
            for place, each in enumerate(self.inputs)
            if each is not None
        ]
        outputs = [ValueInfoProto(name=name) for name in node.output]
        graph = helper.make_graph([node], "one", ports, outputs)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def given(self) -> dict[str, Array]:
        return {f"x{place}": each for place, each in enumerate(self.inputs) if each is not None}


def expected(model: ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """onnxruntime's results, whose types and ranks the outputs of `model` get."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    made: list[Array] = session.run(None, dict(inputs))
    for port, each in zip(model.graph.output, made, strict=True):
        typed = helper.make_tensor_value_info(port.name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        port.CopyFrom(typed)
    return made


def ours(case: Case, model: ModelProto) -> dict[str, Array]:
    given = case.given()
    known = {f"x{place}": given.pop(f"x{place}") for place in case.known}
    return run(model, given, known)


_rng = np.random.default_rng(5)


def floats(*sizes: int, dtype: str = "float32") -> Array:
    return _rng.normal(size=sizes).astype(dtype)


def bytes_(*sizes: int, dtype: str = "uint8") -> Array:
    limits = np.iinfo(dtype)
    return _rng.integers(limits.min, limits.max + 1, sizes).astype(dtype)


def scalar(value: float, dtype: str = "float32") -> Array:
    return np.array(value, dtype)


INFINITE = np.array([[-np.inf, -2.5, -0.0, 0.5, np.inf, np.nan]], np.float32)

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
    Case("Pow", [np.abs(floats(2, 3)), floats(3)], opset=7),
    Case("Mod", [floats(6), floats(6)], {"fmod": 1}, opset=10),
    Case("Upsample", [floats(1, 1, 2, 2), np.array([1, 1, 2, 2], np.float32)], known=(1,), opset=9),
    Case("GroupNormalization", [floats(2, 4, 3), floats(4), floats(4)], {"num_groups": 2}, opset=21),
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
    Case("Pow", [floats(3), np.array([[3.0]], np.float32)], known=(1,)),
    Case("Pow", [floats(2, 3), np.array([1, -2, 3])], known=(1,)),
    Case("Pow", [np.arange(-3, 3, dtype=np.int32), scalar(3, "int32")], known=(1,)),
    Case("CumSum", [floats(2, 3, 4), scalar(-2, "int32")], {"reverse": 1, "exclusive": 1}, known=(1,)),
    Case("PRelu", [floats(2, 3, 4), floats(3, 1)], known=(1,)),
    Case("Where", [np.array([[True], [False]]), floats(3), floats(2, 1)], known=(0,)),
    Case("Sum", [floats(2, 1), floats(3), floats(1, 1, 1)]),
    Case("Mean", [floats(2, 1), floats(3), floats(1, 1, 1)]),
    Case("ArgMax", [np.zeros((2, 3), np.float32)], {"axis": -1, "select_last_index": 1, "keepdims": 0}),
    Case("LayerNormalization", [floats(2, 3, 4), floats(3, 4), floats(3, 4)], {"axis": -2}, outputs=2),
    Case("LpNormalization", [np.array([[0, 0], [3, -4]], np.float32)]),
    Case("IsInf", [INFINITE], {"detect_negative": 0}),
]

PRODUCTS = [
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
]

ACTIVATIONS = [
    *(Case(type_, [floats(3, 4)], microsoft=True) for type_ in ("Gelu", "FastGelu", "QuickGelu")),
    *(Case(type_, [floats(3, 4), floats(4)], microsoft=True) for type_ in ("BiasGelu", "FastGelu")),
    Case("QuickGelu", [floats(3, 4)], {"alpha": 2.0}, microsoft=True),
    Case("Gelu", [floats(3, 4)], {"approximate": "tanh"}, opset=20),
    *(Case(type_, [floats(3, 4)], opset=18) for type_ in ("Selu", "Celu", "HardSwish", "Mish", "Softplus", "Shrink")),
    Case("SimplifiedLayerNormalization", [floats(2, 3, 4), floats(4)]),
    Case("SkipLayerNormalization", [floats(2, 3, 4), floats(2, 3, 4), floats(4), floats(4), floats(4)], microsoft=True),
    Case("SkipLayerNormalization", [floats(2, 3, 4), floats(2, 3, 4), floats(4)], {"epsilon": 0.5}, microsoft=True),
    Case("SkipSimplifiedLayerNormalization", [floats(2, 3, 4), floats(2, 3, 4), floats(4)], microsoft=True),
]

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
    Case(
        "QLinearSoftmax", quantized_inputs(bytes_(3, 5)), {"axis": 1, "opset": 13}, known=(1, 2, 3, 4), microsoft=True
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
            ([], [_rng.integers(-999, 999, 3).astype(np.int32)], []),
            CONVOLUTIONS,
            strict=True,
        )
    ),
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
    Case("QuantizeLinear", [floats(2, 3, 4), np.abs(floats(3)) / 50, bytes_(3)], {"axis": 1}, opset=13),
    Case("QuantizeLinear", [floats(2, 3, 4), SCALES[0]], opset=13),
    Case("QuantizeLinear", [100 * floats(9), SCALES[0], scalar(-3, "int16")], opset=21),
    Case(
        "QuantizeLinear",
        [floats(2, 6, 2), np.abs(floats(2, 3, 2)) / 9, bytes_(2, 3, 2)],
        {"block_size": 2, "axis": 1},
        opset=21,
    ),
    Case("DequantizeLinear", [bytes_(2, 3, dtype="int32"), SCALES[0]], opset=13),
    Case("DequantizeLinear", [bytes_(2, 3, 4), np.abs(floats(4)), bytes_(4)], {"axis": -1}, opset=13),
    Case("DequantizeLinear", [bytes_(2, 3), floats(3), bytes_(3)], {"axis": 1}, microsoft=True),
    Case(
        "DequantizeLinear",
        [bytes_(6, 2, dtype="int16"), floats(3, 2), bytes_(3, 2, dtype="int16")],
        {"block_size": 2, "axis": 0},
        opset=21,
    ),
]


def told(case: Case) -> str:
    return f"{case.type}-{case.opset}"


@pytest.mark.parametrize("case", [*OLDER, *WITH_CONSTANTS, *PRODUCTS, *ACTIVATIONS, *QUANTIZED], ids=told)
def test_results_are_those_of_onnxruntime(case: Case) -> None:
    model = case.model()
    right = expected(model, case.given())
    made = ours(case, model)
    for name, wanted in zip(made, right, strict=True):
        assert made[name].dtype == wanted.dtype
        assert made[name].shape == wanted.shape
        exact = wanted.dtype.kind in "iub"
        wide = wanted.astype("float64")
        if exact and wanted.dtype.itemsize == 1:
            # Quotients by scales are not rounded before they are rounded to whole numbers, as they are there.
            assert np.abs(made[name].astype("float64") - wide).max() <= 1
            assert (made[name] != wanted).mean() <= 0.1
        else:
            within = 0 if exact else case.within
            np.testing.assert_allclose(made[name].astype("float64"), wide, rtol=within, atol=within)


DOUBLES = floats(2, 3, dtype="float64")
REFUSED = [
    (Case("Add", [DOUBLES, DOUBLES]), "ELEMENT_WISE_ADD takes no FLOAT64 as ATensor"),
    (Case("ReduceMean", [bytes_(2, 3, dtype="int32")]), "REDUCE takes no INT32 with Function AVERAGE"),
    (Case("Pow", [floats(2), np.array([2, 3])]), "ELEMENT_WISE_POW takes no INT64 as ExponentTensor"),
    (Case("Pow", [floats(2), np.array([2, 2**31])], known=(1,)), "ELEMENT_WISE_POW takes no INT64 as ExponentTensor"),
    (Case("Shrink", [bytes_(3)], {"bias": 0.5}), "its bias or lambd is no whole number"),
    (Case("TopK", [floats(3, 5), np.array([2])], outputs=2), "its k is not constant"),
    (Case("TopK", [floats(3, 5), np.array([6])], known=(1,), outputs=2), "its k is 6, of 5 elements"),
    (Case("Softmax", [floats(2, 3)], {"axis": 2}), "its axis is 2, of 2 dimensions"),
    (Case("Sub", [floats(2, 3), floats(4)]), "[2, 3] and [4] cannot be broadcast to each other"),
    (Case("MatMul", [floats(2, 3), floats(4, 2)]), "are not those of matrices to multiply"),
    (Case("Gemm", [floats(2, 3), floats(3, 4), floats(3)]), "[3] cannot be broadcast to [2, 4]"),
    (Case("Cast", [floats(3)], {"to": 16}), "DirectML has no type for ONNX's type 16"),
    (Case("CastLike", [floats(3), bytes_(1)]), "whether its second input is bool or uint8 is not known here"),
    (
        Case("BatchNormalization", [floats(2, 3), *[floats(3)] * 4], {"training_mode": 1}, outputs=3),
        "it is in training mode",
    ),
    (
        Case("DequantizeLinear", [bytes_(5), floats(2)], {"block_size": 3, "axis": 0}, opset=21),
        "is not for whole blocks of 3 along dimension 0 of [5]",
    ),
    (Case("FusedGemm", [floats(2, 3), floats(3, 4)], {"activation": "Gone"}, microsoft=True), "its activation is Gone"),
    (
        Case(
            "MatMulNBits",
            [floats(2, 64), bytes_(5, 2, 9), floats(10)],
            {"K": 64, "N": 5, "block_size": 32},
            microsoft=True,
        ),
        "its B has 90 bytes",
    ),
]


@pytest.mark.parametrize(("case", "why"), REFUSED, ids=lambda each: told(each) if isinstance(each, Case) else "")
def test_what_directml_does_not_compute_is_refused(case: Case, why: str) -> None:
    model = case.model()
    for port in model.graph.output:
        port.CopyFrom(helper.make_tensor_value_info(port.name, TensorProto.FLOAT, None))
    with pytest.raises(NotSupported) as raised:
        ours(case, model)
    (node,) = raised.value.nodes
    assert node.operator.endswith(case.type)
    assert why in node.why

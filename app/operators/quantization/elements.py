"""Numbers made quantized and restored, by scales and zero points for all elements, or for blocks of them.

Source: the DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC, DML_QUANTIZE_OPERATOR_DESC and DML_DEQUANTIZE_OPERATOR_DESC pages
of DirectML's reference. Of the latter two they give the fields alone; what they mean is said by the names of their
enumeration, by DirectMLX and by ONNX's operators.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.contract import constants
from app.contract.constants import DataType, FeatureLevel
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.memory.arrays import numpy_type
from app.operators.accuracy import NEAREST_TO_QUOTIENT, ONCE
from app.operators.arrays import stored
from app.operators.element_wise.quantization import QUOTIENTS, SCALE_0, TIES
from app.operators.grids import packed_in
from app.operators.operator import Count, InputTensorDesc, InputTensorDescs, Operator, OutputTensorDesc
from app.operators.quantization import elements_on_gpu, integers

_COUNTS = {constants.QuantizationType.SCALE: 1, constants.QuantizationType.SCALE_ZERO_POINT: 2}
Kind = Annotated[
    constants.QuantizationType,
    Field(description="Which quantization tensors there are.", examples=["SCALE_ZERO_POINT"]),
]
_BLOCKS = (
    "QuantizationTensors are a scale and, for SCALE_ZERO_POINT, a zero point. Each dimension of these divides that of "
    "InputTensor, whose elements are in as many blocks, one behind the other. DirectML's documentation does not say."
)


class DynamicQuantizeLinear(Operator):
    """Numbers quantized by the scale and zero point that their range asks for, which are outputs as well."""

    Type: Literal["DML_OPERATOR_DYNAMIC_QUANTIZE_LINEAR", "DYNAMIC_QUANTIZE_LINEAR"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    OutputScaleTensor: OutputTensorDesc = None
    OutputZeroPointTensor: OutputTensorDesc = None

    formula_text = (
        "OutputScale = (max(x, 0) - min(x, 0)) / (Hi - Lo); OutputZeroPoint = clamp(round(Lo - min(x, 0) / "
        "OutputScale), Lo, Hi); y = clamp(round(x / OutputScale) + OutputZeroPoint, Lo, Hi), Lo and Hi the ends of the "
        "type"
    )
    accuracy = NEAREST_TO_QUOTIENT
    only_queues = makes_in = True
    same_types = (("OutputTensor", "OutputZeroPointTensor"),)
    same_sizes = (("InputTensor", "OutputTensor"),)
    same_ranks = (("InputTensor", "OutputTensor", "OutputScaleTensor", "OutputZeroPointTensor"),)
    support = SupportTable.of("4_0 1-8 F32-16, OutputTensor OutputZeroPointTensor I8 U8, OutputScaleTensor F32")
    notes = (
        TIES,
        "The range always holds 0, and the zero point is rounded and saturated, as in ONNX's operator. DirectML's "
        "documentation does not say.",
        "If all elements are 0, so is the range, and OutputScale is 1. DirectML's documentation does not say.",
        "All is computed in FLOAT32, as ONNX's operator is: a range beyond it makes OutputScale infinite. NaN makes "
        "OutputScale NaN, and all else 0. DirectML's documentation does not say.",
        "OutputTensor and OutputZeroPointTensor left out have the type of each other, or are UINT8.",
    )

    def implied_sizes(self, name: str) -> list[int]:
        sizes = self.InputTensor.Sizes
        return sizes if name == "OutputTensor" else [1] * len(sizes)

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return DataType.FLOAT32 if name == "OutputScaleTensor" else self._type

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        x = inputs["InputTensor"]
        ones = (1,) * x.ndim
        if xp.__name__ == "cupy":
            quantized = numpy_type(self._type)
            forms = {
                "OutputTensor": (x.shape, quantized),
                "OutputScaleTensor": (ones, xp.float32),
                "OutputZeroPointTensor": (ones, quantized),
            }
            on_gpu = {name: packed_in(xp, into[name] if into else None, *form) for name, form in forms.items()}
            elements_on_gpu.quantize(xp, xp.ascontiguousarray(x), *on_gpu.values())
            return on_gpu
        least, most = (function(x).astype("float32").reshape(ones) for function in (xp.min, xp.max))
        low, high = xp.minimum(least, 0), xp.maximum(most, 0)
        lowest = 0 if self._type is DataType.UINT8 else -128
        scale = (high - low) / 255
        scale = xp.where(scale == 0, xp.ones_like(scale), scale)
        zero = integers.saturated(xp, lowest - low / scale, None, self._type)
        made = integers.quantized(xp, xp.divide(x, scale, dtype="float32"), zero, self._type)
        return {
            "OutputTensor": made,
            "OutputScaleTensor": scale,
            "OutputZeroPointTensor": zero.astype(made.dtype),
        }

    @property
    def _type(self) -> DataType:
        stated = self.OutputTensor or self.OutputZeroPointTensor
        return stated.DataType if stated else DataType.UINT8


class _InBlocks(Operator):
    """By the tensors in QuantizationTensors, whose elements are each for a block."""

    only_queues = True
    same_types = ()
    same_sizes = (("InputTensor", "OutputTensor"),)
    same_ranks = (("InputTensor", "QuantizationTensors", "OutputTensor"),)
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"QuantizationTensorCount": ("QuantizationTensors",)}

    def implied_sizes(self, name: str) -> list[int]:
        sizes: list[int] = self.tensors()["InputTensor"].Sizes
        return sizes

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        tensors = self.tensors()
        for axis, size in enumerate(tensors["InputTensor"].Sizes):
            # A block of several places is no place's own; what is one for all has a size of 1.
            if all(desc.Sizes[axis] in (1, size) for desc in tensors.values()):
                yield dict.fromkeys((*tensors, "OutputTensor"), axis)

    def block_violations(
        self, kind: constants.QuantizationType, tensors: list[TensorDesc], types: tuple[str, DataType, str, DataType]
    ) -> Iterator[Violation]:
        """What is wrong with QuantizationType and QuantizationTensors, whose scale has to be of the type of one tensor,
        and the zero point of another's: `types` names these."""
        many = _COUNTS.get(kind)
        if many is None:
            yield Violation(
                ("QuantizationType",),
                f"QuantizationType is {kind}; it must be {' or '.join(_COUNTS)}.",
                kind,
                list(_COUNTS),
            )
            return
        if len(tensors) != many:
            yield Violation(
                ("QuantizationTensors",),
                f"QuantizationTensors has {len(tensors)} entries; QuantizationType {kind} has {many}.",
                len(tensors),
                many,
            )
            return
        given = self.tensors()["InputTensor"].Sizes
        for place, desc in enumerate(tensors):
            of, data_type = types[2 * place], types[2 * place + 1]
            if desc.DataType != data_type:
                what = ("scale", "zero point")[place]
                yield Violation(
                    ("QuantizationTensors", place, "DataType"),
                    f"DataType of QuantizationTensors[{place}], the {what}, is {desc.DataType} but {of} is "
                    f"{data_type}; they must be equal.",
                    desc.DataType,
                    data_type,
                )
            if any(size % blocks for size, blocks in zip(given, desc.Sizes, strict=True)):
                yield Violation(
                    ("QuantizationTensors", place, "Sizes"),
                    f"QuantizationTensors[{place}] has Sizes {desc.Sizes} but InputTensor has {given}; each must "
                    "divide that of InputTensor, which is cut into as many blocks.",
                    desc.Sizes,
                    "divisors of the Sizes of InputTensor",
                )


def _blocks(xp: Any, x: Any, inputs: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """`x` with two dimensions for each, blocks and what is in them, and the scale and zero point to go with it."""
    by = [inputs[name] for name in ("QuantizationTensors[0]", "QuantizationTensors[1]") if name in inputs]
    counts = [max(sizes) for sizes in zip(*[each.shape for each in by], strict=True)]
    fits = all(size in (1, count) for each in by for size, count in zip(each.shape, counts, strict=True))
    if not fits:  # such as 2 and 3 of 6: the same elements again and again, as many as there are in x
        by = [integers.spread(xp, each, x.shape) for each in by]
        counts = list(x.shape)
    parts = [part for size, count in zip(x.shape, counts, strict=True) for part in (count, size // count)]
    return x.reshape(parts), [each.reshape([part for size in each.shape for part in (size, 1)]) for each in by]


class Quantize(_InBlocks):
    """Numbers quantized, by blocks: divided by a scale, rounded, moved by a zero point and saturated."""

    Type: Literal["DML_OPERATOR_QUANTIZE", "QUANTIZE"]
    InputTensor: InputTensorDesc
    QuantizationType: Kind
    QuantizationTensorCount: Count = None
    QuantizationTensors: InputTensorDescs
    OutputTensor: OutputTensorDesc = None

    formula_text = "f(x, scale, zero) = clamp(round(x / scale) + zero, least of the type, greatest of the type)"
    accuracy = NEAREST_TO_QUOTIENT
    support = SupportTable.of(
        "6_3 1-8 F32-16, QuantizationTensors F32-16 I8-4 U8-4, OutputTensor I8-4 U8-4",
    )
    example: ClassVar[Mapping[str, Any]] = {
        "QuantizationTensors": [{"Sizes": [1, 1, 1, 1]}, {"DataType": "UINT8", "Sizes": [1, 1, 1, 1]}]
    }
    notes = (
        TIES,
        QUOTIENTS,
        SCALE_0,
        _BLOCKS,
        "The scale has the type of InputTensor, the zero point that of OutputTensor, which left out has the type of "
        "the zero point, or is UINT8. DirectML's documentation does not say.",
        "QuantizationType NONE is refused.",
    )

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        zero = [each.DataType for each in self.QuantizationTensors[1:] if not each.DataType.startswith("FLOAT")]
        return zero[0] if zero else DataType.UINT8

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        output = self.OutputTensor.DataType if self.OutputTensor else self.implied_type("OutputTensor", level)
        yield from self.block_violations(
            self.QuantizationType,
            self.QuantizationTensors,
            ("InputTensor", self.InputTensor.DataType, "OutputTensor", output),
        )

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x, (scale, *zero) = _blocks(xp, inputs["InputTensor"], inputs)
        quotient = xp.divide(x, scale, dtype="float32")
        output = (
            self.OutputTensor.DataType if self.OutputTensor else self.implied_type("OutputTensor", FeatureLevel.V6_3)
        )
        made = integers.quantized(xp, quotient, zero[0] if zero else None, output)
        return {"OutputTensor": made.reshape(inputs["InputTensor"].shape)}


class Dequantize(_InBlocks):
    """Quantized numbers restored, by blocks: moved by a zero point and multiplied by a scale."""

    Type: Literal["DML_OPERATOR_DEQUANTIZE", "DEQUANTIZE"]
    InputTensor: InputTensorDesc
    QuantizationType: Kind
    QuantizationTensorCount: Count = None
    QuantizationTensors: InputTensorDescs
    OutputTensor: OutputTensorDesc = None

    formula_text = "f(x, scale, zero) = (x - zero) * scale"
    accuracy = ONCE
    support = SupportTable.of(
        "6_3 1-8 I8-4 U8-4, QuantizationTensors F32-16 I8-4 U8-4, OutputTensor F32-16",
    )
    example: ClassVar[Mapping[str, Any]] = {
        "QuantizationTensors": [{"Sizes": [1, 1, 1, 1]}, {"DataType": "UINT8", "Sizes": [1, 1, 1, 1]}]
    }
    notes = (
        "x - zero does not overflow; FLOAT16 is computed in float32. Rounded once.",
        _BLOCKS,
        "The scale has the type of OutputTensor, which is that of the scale if it is left out, the zero point that of "
        "InputTensor. DirectML's documentation does not say.",
        "QuantizationType NONE is refused.",
    )

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        scale = self.QuantizationTensors[0].DataType
        return scale if scale in (DataType.FLOAT32, DataType.FLOAT16) else DataType.FLOAT32

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        output = self.OutputTensor.DataType if self.OutputTensor else self.implied_type("OutputTensor", level)
        yield from self.block_violations(
            self.QuantizationType,
            self.QuantizationTensors,
            ("OutputTensor", output, "InputTensor", self.InputTensor.DataType),
        )

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x, (scale, *zero) = _blocks(xp, inputs["InputTensor"], inputs)
        made = x.astype("float32")
        if zero:
            made = made - zero[0].astype("float32")
        made = stored(made * scale.astype("float32"), self.QuantizationTensors[0].DataType)
        return {"OutputTensor": made.reshape(inputs["InputTensor"].shape)}

"""Products of matrices of integers.

Source: the DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC, DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC and
DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from app.contract.constants import FeatureLevel
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.operators.accuracy import EXACT, NEAREST, SUM
from app.operators.arrays import stored, unrepeated
from app.operators.element_wise.quantization import SCALE_0, TIES
from app.operators.linear_algebra.sizes import product_sizes, product_violations
from app.operators.operator import InputTensorDesc, Operator, OptionalInputTensorDesc, OutputTensorDesc
from app.operators.quantization import integers

_COUNTS = (
    "A scale or zero point of A has one element, or one for each row of A; one of B, one for each column of B. Of one "
    "dimension, that is it; of more, also than A and B have, the others are 1 or leading dimensions of A and B."
)


class _Products(Operator):
    """Of ATensor and BTensor, less their zero points."""

    if TYPE_CHECKING:  # they stand where the structures of DirectML have them, each in its own order
        ATensor: TensorDesc
        AZeroPointTensor: TensorDesc | None
        BTensor: TensorDesc
        BZeroPointTensor: TensorDesc | None

    only_queues = True
    same_sizes: ClassVar[tuple[tuple[str, ...], ...] | None] = ()
    sizes_from = ("ATensor", "BTensor")
    by_row: ClassVar[tuple[str, ...]] = ("AScaleTensor", "AZeroPointTensor")
    by_column: ClassVar[tuple[str, ...]] = ("BScaleTensor", "BZeroPointTensor")

    def implied_sizes(self, name: str) -> list[int]:
        return product_sizes(self.ATensor.Sizes, self.BTensor.Sizes)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        a, b, tensors = self.ATensor.Sizes, self.BTensor.Sizes, self.tensors()
        yield from product_violations(self, a, b)
        for name in self.by_row:
            yield from integers.row_violations(name, tensors.get(name), a)
        for name in self.by_column:
            yield from integers.column_violations(name, tensors.get(name), b)

    def sums(self, xp: Any, inputs: Mapping[str, Any], dtype: str) -> Any:
        """Sums of products, in a float type, or in int32."""
        made = integers.integer_product(
            xp,
            inputs["ATensor"],
            integers.each_row(inputs.get("AZeroPointTensor"), self.ATensor.rank),
            inputs["BTensor"],
            integers.each_column(inputs.get("BZeroPointTensor"), self.BTensor.rank),
            dtype,
        )
        return xp.broadcast_to(made, self.implied_sizes("OutputTensor"))

    def scales(self, inputs: Mapping[str, Any]) -> Any:
        """The product of both scales, in float64, which is exact."""
        a = integers.each_row(unrepeated(inputs["AScaleTensor"]), self.ATensor.rank)
        b = integers.each_column(unrepeated(inputs["BScaleTensor"]), self.BTensor.rank)
        return a.astype("float64") * b.astype("float64")


class MatrixMultiplyInteger(_Products):
    """Products of matrices of 8-bit integers, as they are."""

    Type: Literal["DML_OPERATOR_MATRIX_MULTIPLY_INTEGER", "MATRIX_MULTIPLY_INTEGER"]
    ATensor: InputTensorDesc
    AZeroPointTensor: OptionalInputTensorDesc = None
    BTensor: InputTensorDesc
    BZeroPointTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None

    formula_text = "y = sum over k of (A[m, k] - AZeroPoint) * (B[k, n] - BZeroPoint)"
    accuracy = EXACT
    same_types = (("BTensor", "BZeroPointTensor"), ("ATensor", "AZeroPointTensor"))
    same_ranks = (("ATensor", "BTensor", "OutputTensor"),)
    support = SupportTable.of(
        "5_2 2-4 I8 U8, AZeroPointTensor BZeroPointTensor 1-4 I8 U8, OutputTensor I32",
        "4_0 2-4 I8 U8, AZeroPointTensor 1-4 I8 U8, OutputTensor I32",
        "2_1 4 I8 U8, OutputTensor I32",
    )
    example: ClassVar[Mapping[str, Any]] = {
        "BTensor": {"Sizes": [1, 1, 3, 2]},
        "AZeroPointTensor": {"Sizes": [1, 1, 1, 1]},
        "BZeroPointTensor": {"Sizes": [1, 1, 1, 1]},
    }
    notes = ("Sums of products are exact.", integers.OVERFLOW, _COUNTS)

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        depth = self.ATensor.Sizes[-1]
        made = self.sums(xp, inputs, integers.float_type(depth))
        if depth * integers.LARGEST >= 1 << 31:
            made = xp.array(made)
            integers.wrap(xp, made)
        return {"OutputTensor": made.astype("int32")}


class QuantizedLinearMatrixMultiply(_Products):
    """Products of quantized matrices, quantized."""

    Type: Literal["DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY", "QUANTIZED_LINEAR_MATRIX_MULTIPLY"]
    ATensor: InputTensorDesc
    AScaleTensor: InputTensorDesc
    AZeroPointTensor: OptionalInputTensorDesc = None
    BTensor: InputTensorDesc
    BScaleTensor: InputTensorDesc
    BZeroPointTensor: OptionalInputTensorDesc = None
    OutputScaleTensor: InputTensorDesc
    OutputZeroPointTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None

    by_row = ("AScaleTensor", "AZeroPointTensor", "OutputScaleTensor", "OutputZeroPointTensor")
    formula_text = (
        "y = clamp(round(s / OutputScale) + OutputZeroPoint, least of the type, greatest of the type), s = sum over k "
        "of (A[m, k] - AZeroPoint) * AScale * (B[k, n] - BZeroPoint) * BScale"
    )
    accuracy = NEAREST
    same_types = (
        ("BTensor", "BZeroPointTensor"),
        ("OutputZeroPointTensor", "OutputTensor"),
        ("ATensor", "AZeroPointTensor"),
    )
    same_ranks = (
        (
            *("AScaleTensor", "AZeroPointTensor", "BScaleTensor", "BZeroPointTensor"),
            *("OutputScaleTensor", "OutputZeroPointTensor"),
        ),
        ("ATensor", "BTensor", "OutputTensor"),
    )
    support = SupportTable.of(
        "4_0 2-4 I8 U8, AScaleTensor BScaleTensor OutputScaleTensor 1-4 F32, "
        "AZeroPointTensor BZeroPointTensor OutputZeroPointTensor 1-4 I8 U8",
        "2_1 4 I8 U8, AScaleTensor BScaleTensor OutputScaleTensor F32",
    )
    example: ClassVar[Mapping[str, Any]] = {
        "BTensor": {"Sizes": [1, 1, 3, 2]},
        **{
            f"{of}{what}Tensor": {"Sizes": [1, 1, 1, 1]}
            for of in ("A", "B", "Output")
            for what in ("Scale", "ZeroPoint")
        },
    }
    notes = (
        integers.EXACT,
        TIES,
        SCALE_0,
        f"{_COUNTS} Those of the output are as those of A.",
        "OutputTensor left out has the type of OutputZeroPointTensor, or of ATensor.",
    )

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        output = self.OutputTensor or self.OutputZeroPointTensor or self.ATensor
        rank = self.ATensor.rank
        scale = integers.each_row(unrepeated(inputs["OutputScaleTensor"]), rank).astype("float64")
        quotient = self.sums(xp, inputs, "float64") * self.scales(inputs) / scale
        zero = integers.each_row(inputs.get("OutputZeroPointTensor"), rank)
        return {"OutputTensor": integers.quantized(xp, quotient, zero, output.DataType)}


class MatrixMultiplyIntegerToFloat(_Products):
    """Products of quantized matrices, as floats."""

    Type: Literal["DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT", "MATRIX_MULTIPLY_INTEGER_TO_FLOAT"]
    ATensor: InputTensorDesc
    AScaleTensor: InputTensorDesc
    AZeroPointTensor: OptionalInputTensorDesc = None
    BTensor: InputTensorDesc
    BScaleTensor: InputTensorDesc
    BZeroPointTensor: OptionalInputTensorDesc = None
    BiasTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None

    formula_text = "y = sum over k of (A[m, k] - AZeroPoint) * AScale * (B[k, n] - BZeroPoint) * BScale + Bias[m, n]"
    accuracy = SUM
    same_types = (
        ("ATensor", "AZeroPointTensor", "BTensor", "BZeroPointTensor"),
        ("AScaleTensor", "BScaleTensor", "BiasTensor", "OutputTensor"),
    )
    same_ranks = (
        ("AScaleTensor", "AZeroPointTensor", "BScaleTensor", "BZeroPointTensor"),
        ("ATensor", "BTensor", "BiasTensor", "OutputTensor"),
    )
    support = SupportTable.of(
        "6_2 2-4 I32-8 U32-8, AScaleTensor BScaleTensor 1-4 F32-16, AZeroPointTensor BZeroPointTensor 1-4 I32-8 U32-8, "
        "BiasTensor OutputTensor 2-4 F32-16"
    )
    example: ClassVar[Mapping[str, Any]] = {
        "BTensor": {"Sizes": [1, 1, 3, 2]},
        "BiasTensor": {"Sizes": [1, 1, 2, 2]},
        **{f"{of}{what}Tensor": {"Sizes": [1, 1, 1, 1]} for of in ("A", "B") for what in ("Scale", "ZeroPoint")},
    }
    notes = (
        "Sums of products are exact of 8-bit and 16-bit integers (16-bit, of up to 2^21 terms), in float64 of 32-bit "
        "ones; they are scaled in float64 and rounded once.",
        "The operator's page has no formula. Its text names OutputScaleTensor and OutputZeroPointTensor, too, which "
        "the structure does not have.",
        _COUNTS,
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        found = list(super().rules(level))
        yield from found
        sizes = self.implied_sizes("OutputTensor")
        if not found and self.BiasTensor and self.BiasTensor.Sizes != sizes:
            yield Violation(
                ("BiasTensor", "Sizes"),
                f"BiasTensor has Sizes {self.BiasTensor.Sizes}; it must have those of the product, {sizes}.",
                self.BiasTensor.Sizes,
                sizes,
            )

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        made = self.sums(xp, inputs, "float64") * self.scales(inputs)
        if self.BiasTensor:
            made += inputs["BiasTensor"]
        return {"OutputTensor": stored(made, self.AScaleTensor.DataType)}

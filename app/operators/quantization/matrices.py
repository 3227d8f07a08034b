"""Products of matrices of integers.

Source: the DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC, DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC and
DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC pages of DirectML's reference.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from app.contract.constants import DataType, FeatureLevel
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.values import Number, Value, widen
from app.operators import blas, packing
from app.operators.accuracy import EXACT, NEAREST, SUM
from app.operators.arrays import rows_once, stored, unrepeated
from app.operators.element_wise.quantization import SCALE_0, TIES, quantized
from app.operators.endings import PRODUCT, Ended
from app.operators.linear_algebra.sizes import product_sizes, product_violations
from app.operators.operator import InputTensorDesc, OptionalInputTensorDesc, OutputTensorDesc, Role
from app.operators.parameters import Parameters
from app.operators.quantization import integers, signed
from app.operators.quantization.signed import COLUMN_SUMS, ROW_SUMS, Side, Sides

_COUNTS = (
    "A scale or zero point of A has one element, or one for each row of A; one of B, one for each column of B. Of one "
    "dimension, that is it; of more, also than A and B have, the others are 1 or leading dimensions of A and B."
)


class _Products(Ended):
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
    scaled_by: ClassVar[tuple[str, ...]] = ()
    """What sums become results with."""

    def implied_sizes(self, name: str) -> list[int]:
        return product_sizes(self.ATensor.Sizes, self.BTensor.Sizes)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        a, b, tensors = self.ATensor.Sizes, self.BTensor.Sizes, self.tensors()
        yield from product_violations(self, a, b)
        for name in self.by_row:
            yield from integers.row_violations(name, tensors.get(name), "ATensor", a)
        for name in self.by_column:
            yield from integers.column_violations(name, tensors.get(name), "BTensor", b)

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        rank, tensors = self.ATensor.rank, self.tensors(Role.INPUT)
        for axis in range(rank):
            found = {"BiasTensor": axis, "OutputTensor": axis}
            for own, names in ((rank - 2, ("ATensor", *self.by_row)), (rank - 1, ("BTensor", *self.by_column))):
                if axis < rank - 2 or axis == own:
                    # A scale of one dimension has one for each row, or column.
                    there = {name: axis - rank + tensors[name].rank for name in names if name in tensors}
                    there |= {name: 0 for name in there if tensors[name].rank == 1 and axis == own}
                    found |= {name: place for name, place in there.items() if place >= 0}
            yield found

    def multiplications(self) -> int:
        return math.prod(self.implied_sizes("OutputTensor")) * self.ATensor.Sizes[-1]

    def is_ended_apart(self) -> bool:
        leading = self.ATensor.rank - 2
        are_near = all(packing.is_near(x.Sizes, x.strides, 1, leading=leading) for x in (self.ATensor, self.BTensor))
        sizes = self.implied_sizes("OutputTensor")
        return are_near and signed.are_multiplied(self.choice(), self.ATensor.Sizes[-1], sizes)

    def choice(self) -> Sides:
        left = Side.of(self.ATensor, "AZeroPointTensor", self.AZeroPointTensor)
        right = Side.of(self.BTensor, "BZeroPointTensor", self.BZeroPointTensor)
        return Sides(left, right, self.output_type())

    def output_type(self) -> DataType:
        """Of OutputTensor."""
        return DataType.INT32

    def ending_numbers(self) -> dict[str, Number]:
        return {signed.TERMS: self.ATensor.Sizes[-1]}

    def made(self, sizes: list[int]) -> dict[str, TensorDesc]:
        # Rows, columns and leading dimensions that are all alike are there once.
        a, b = (_once(each) for each in (self.ATensor, self.BTensor))
        (*a_lead, rows, _), (*b_lead, _, columns) = a, b
        lead = [max(each) for each in zip(a_lead, b_lead, strict=True)]
        width = packing.up(columns, blas.BYTES_COLUMNS)
        product = signed.steps_of([*lead, rows, width], [*lead, rows, columns])
        of_rows = [*signed.steps_of([*a_lead, rows]), 0]
        *of_lead, of_columns = signed.steps_of([*b_lead, width], [*b_lead, columns])
        return signed.described(self.choice(), sizes, product, of_rows, [*of_lead, 0, of_columns])

    def product(self, xp: Any, inputs: Mapping[str, Any], into: Any = None) -> Mapping[str, Any]:
        """It may be made in the array `into`."""
        sides, sizes = self.choice(), self.implied_sizes("OutputTensor")
        a, b = rows_once(inputs["ATensor"]), rows_once(inputs["BTensor"].swapaxes(-1, -2))
        rows, of_rows = packing.rows_of(xp, a, signed=True, with_sums=sides.right.is_moved)
        columns, of_columns = packing.rows_of(
            xp, b, signed=True, multiple=blas.BYTES_COLUMNS, with_sums=sides.left.is_moved
        )
        made = {PRODUCT: blas.product_of_bytes(xp, rows, columns, into)[..., : b.shape[-2]]}
        if of_rows is not None:
            made[ROW_SUMS] = of_rows[..., None]
        if of_columns is not None:
            made[COLUMN_SUMS] = of_columns[..., None, : b.shape[-2]]
        return {name: xp.broadcast_to(each, sizes) for name, each in made.items()}

    def added(self, sizes: list[int]) -> dict[str, TensorDesc]:
        tensors = self.tensors()
        names = [name for name in ("AZeroPointTensor", "BZeroPointTensor", *self.scaled_by) if tensors.get(name)]
        return {name: integers.over_matrices(tensors[name], sizes, by_row=name in self.by_row) for name in names}

    @classmethod
    def before_activation(cls, p: Parameters, choice: Sides, values: Mapping[str, Value]) -> Value:
        return signed.corrected(p, choice, values)

    def sums(self, xp: Any, inputs: Mapping[str, Any], dtype: str) -> Any:
        """Sums of products, in a float type."""
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


def _once(x: TensorDesc) -> list[int]:
    """Its sizes, 1 where it repeats what it has."""
    return [1 if step == 0 else size for size, step in zip(x.Sizes, x.steps, strict=True)]


def _scales(values: Mapping[str, Value]) -> Value:
    return widen(values["AScaleTensor"]) * widen(values["BScaleTensor"])


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
    makes_in = True
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

    def is_ended_apart(self) -> bool:
        return super().is_ended_apart() and self.choice().are_moved

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        if xp.__name__ == "cupy" and super().is_ended_apart() and not self.choice().are_moved:
            made = self.product(xp, inputs, into["OutputTensor"] if into else None)[PRODUCT]
            return {"OutputTensor": made}
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
    scaled_by = ("AScaleTensor", "BScaleTensor", "OutputScaleTensor", "OutputZeroPointTensor")
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

    def output_type(self) -> DataType:
        return (self.OutputTensor or self.OutputZeroPointTensor or self.ATensor).DataType

    @classmethod
    def before_activation(cls, p: Parameters, choice: Sides, values: Mapping[str, Value]) -> Value:
        sums = super().before_activation(p, choice, values)
        quotient = widen(sums) * _scales(values) / widen(values["OutputScaleTensor"])
        return quantized(quotient, values.get("OutputZeroPointTensor"), choice.output)

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        rank = self.ATensor.rank
        scale = integers.each_row(unrepeated(inputs["OutputScaleTensor"]), rank).astype("float64")
        quotient = self.sums(xp, inputs, "float64") * self.scales(inputs) / scale
        zero = integers.each_row(inputs.get("OutputZeroPointTensor"), rank)
        return {"OutputTensor": integers.quantized(xp, quotient, zero, self.output_type())}


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
        ("ATensor", "AZeroPointTensor"),
        ("BTensor", "BZeroPointTensor"),
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
        "ATensor and BTensor may differ in their type. The operator's page says that they may not, but onnxruntime's "
        "tests have DirectML multiply INT8 by UINT8 and UINT8 by INT8.",
        "The operator's page has no formula. Its text names OutputScaleTensor and OutputZeroPointTensor, too, which "
        "the structure does not have.",
        _COUNTS,
    )

    scaled_by = ("AScaleTensor", "BScaleTensor", "BiasTensor")

    def output_type(self) -> DataType:
        return self.AScaleTensor.DataType

    @classmethod
    def before_activation(cls, p: Parameters, choice: Sides, values: Mapping[str, Value]) -> Value:
        made = widen(super().before_activation(p, choice, values)) * _scales(values)
        bias = values.get("BiasTensor")
        return made if bias is None else made + widen(bias)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        found = list(super().rules(level))
        yield from found
        sizes = self.implied_sizes("OutputTensor")
        if not found and self.BiasTensor and self.BiasTensor.Sizes != sizes:
            yield Violation(
                ("BiasTensor", "Sizes"),
                f"BiasTensor has Sizes {self.BiasTensor.Sizes}; it must have {sizes}, those of "
                "the product of ATensor and BTensor.",
                self.BiasTensor.Sizes,
                sizes,
            )

    def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        made = self.sums(xp, inputs, "float64") * self.scales(inputs)
        if self.BiasTensor:
            made += inputs["BiasTensor"]
        return {"OutputTensor": stored(made, self.AScaleTensor.DataType)}

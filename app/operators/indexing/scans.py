"""Operators that add or multiply up along an axis.

Source: the DML_CUMULATIVE_*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from app.contract.constants import AxisDirection, FeatureLevel
from app.contract.scalars import Bool
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.operators.accuracy import ONCE, SUM
from app.operators.axes import all_but, axis_violations
from app.operators.indexing import scans_on_gpu
from app.operators.indexing.places import AxisUint, Direction
from app.operators.indexing.rows import back, pieces, rows_of
from app.operators.operator import WRAPPING, InputTensorDesc, Operator, OutputTensorDesc

IN_CACHE = 1 << 17
"""Elements at a time, whose float64 a processor's second cache has."""


class Scan(Operator):
    """Each element made of those before it along an axis."""

    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    Axis: AxisUint
    AxisDirection: Direction

    only_queues = makes_in = True
    working_bytes = 12
    same_sizes = (("InputTensor", "OutputTensor"),)
    in_place = ("InputTensor",)
    notes = ("Floats are accumulated in float64 and each result is rounded once.", WRAPPING)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from axis_violations(self.Axis, "InputTensor", self.InputTensor.rank)

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        yield from all_but(self, self.Axis, self.InputTensor.rank)

    def scanned(
        self, xp: Any, x: Any, accumulate: Callable[..., Any], nothing: int, *, exclusive: bool, into: Any = None
    ) -> Any:
        """`accumulate` of `x`, or if `exclusive` of what comes before each element; of no elements `nothing`. On a GPU
        it may be made in `into`."""
        decreasing = self.AxisDirection is AxisDirection.DECREASING
        if xp.__name__ == "cupy":
            how = {"products": accumulate is xp.cumprod, "reversed_": decreasing, "exclusive": exclusive}
            return scans_on_gpu.scan(xp, x, self.Axis, into, **how)
        rows = rows_of(xp, x, self.Axis)
        made = xp.empty(rows.shape, x.dtype)
        source, target = rows, made
        if decreasing:
            source, target = source[:, ::-1], target[:, ::-1]
        if exclusive:
            target[:, 0] = nothing
            source, target = source[:, :-1], target[:, 1:]
        dtype = xp.float64 if x.dtype.kind == "f" else x.dtype
        for piece in pieces(rows, IN_CACHE):
            if source.size:
                target[piece] = accumulate(source[piece], axis=-1, dtype=dtype)
        return back(xp, made, x, self.Axis)


class CumulativeSummation(Scan):
    """Each element the sum of those up to it along an axis."""

    Type: Literal["DML_OPERATOR_CUMULATIVE_SUMMATION", "CUMULATIVE_SUMMATION"]
    HasExclusiveSum: Bool = Field(description="Whether an element itself is left out of its sum.", examples=[False])

    formula_text = (
        "y[.., i, ..] = sum of x[.., j, ..] over j <= i (AxisDirection INCREASING) or j >= i (DECREASING) along Axis; "
        "with HasExclusiveSum over j < i or j > i, and 0 where nothing is left"
    )
    accuracy = SUM
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-32 U64-32",
        "4_0 1-8 F32-16 I32 U32",
        "2_1 4 F32-16 I32 U32",
    )

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        x, output = inputs["InputTensor"], into["OutputTensor"] if into else None
        return {"OutputTensor": self.scanned(xp, x, xp.cumsum, 0, exclusive=self.HasExclusiveSum, into=output)}


class CumulativeProduct(Scan):
    """Each element the product of those up to it along an axis."""

    Type: Literal["DML_OPERATOR_CUMULATIVE_PRODUCT", "CUMULATIVE_PRODUCT"]
    HasExclusiveProduct: Bool = Field(
        description="Whether an element itself is left out of its product.", examples=[False]
    )

    formula_text = (
        "y[.., i, ..] = product of x[.., j, ..] over j <= i (AxisDirection INCREASING) or j >= i (DECREASING) along "
        "Axis; with HasExclusiveProduct over j < i or j > i, and 1 where nothing is left"
    )
    accuracy = ONCE
    support = SupportTable.of(
        "5_0 1-8 F32-16 I64-32 U64-32",
        "4_0 1-8 F32-16 I32 U32",
        "3_1 4 F32-16 I32 U32",
    )

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        x, output = inputs["InputTensor"], into["OutputTensor"] if into else None
        return {"OutputTensor": self.scanned(xp, x, xp.cumprod, 1, exclusive=self.HasExclusiveProduct, into=output)}

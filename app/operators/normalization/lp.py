"""LP_NORMALIZATION: elements divided by their group's norm.

Source: the DML_LP_NORMALIZATION_OPERATOR_DESC page of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel
from app.contract.scalars import Float, Uint
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.values import Value, absolute, cast, maximum, sqrt, sum_of, widen
from app.operators.accuracy import ONCE
from app.operators.axes import axis_violations
from app.operators.forms import Unary
from app.operators.normalization.fields import IN_FLOAT64
from app.operators.parameters import STRUCTURAL, Parameters


class LpNormalization(Unary):
    """Each element divided by the norm of all along a dimension."""

    Type: Literal["DML_OPERATOR_LP_NORMALIZATION", "LP_NORMALIZATION"]
    Axis: Uint = Field(description="Dimension to go along.", examples=[1])
    Epsilon: Float = Field(1e-5, description="The least that is divided by.")
    P: Annotated[Uint, STRUCTURAL] = Field(
        description="Which norm: 1, the sum of magnitudes, or 2, the root of the sum of squares.", examples=[2]
    )

    formula_text = (
        "f(x) = x / max(norm, Epsilon), norm = sum(abs(x_k)) for P = 1 or sqrt(sum(x_k^2)) for P = 2, over the "
        "elements that differ from x only along Axis"
    )
    accuracy = ONCE
    support = SupportTable.of(
        "3_1 1-8 F32-16",
        "1_0 4 F32-16",
    )
    in_place = ()
    same_sizes = (("InputTensor", "OutputTensor"),)
    example: ClassVar[Mapping[str, Any]] = {"InputTensor": {"Sizes": [2, 3]}}
    notes = (
        "Epsilon is a lower bound of the norm, so that other norms are exact. DirectML's documentation does not say "
        "where it enters.",
        IN_FLOAT64,
    )

    def axes(self) -> tuple[int, ...]:
        return (self.Axis,)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from axis_violations(self.Axis, "InputTensor", self.InputTensor.rank)
        if self.P not in (1, 2):
            yield Violation(("P",), f"P is {self.P}; it must be 1 or 2.", self.P, [1, 2])

    def formula(self, p: Parameters, x: Value) -> Value:
        exact = widen(x)
        norm = sum_of(absolute(exact)) if self.P == 1 else sqrt(sum_of(exact * exact))
        return cast(exact / maximum(norm, widen(p.Epsilon)), x.type)

"""Products of matrices of floats.

Source: the DML_GEMM_OPERATOR_DESC page of DirectML's reference.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel, MatrixTransform
from app.contract.scalars import Float
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.values import Value
from app.operators.accuracy import PRODUCTS
from app.operators.arrays import Activation, computed, product, stored, unrepeated
from app.operators.endings import PRODUCT, Ended
from app.operators.fusion import Fused, OptionalFusedActivationOfGemm
from app.operators.linear_algebra.sizes import product_sizes, product_violations
from app.operators.operator import InputTensorDesc, OptionalInputTensorDesc, OutputTensorDesc
from app.operators.parameters import Parameters


class Gemm(Ended):
    """Products of matrices, with another matrix added and an activation of the sum."""

    Type: Literal["DML_OPERATOR_GEMM", "GEMM"]
    ATensor: InputTensorDesc
    BTensor: InputTensorDesc
    CTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    TransA: MatrixTransform = Field(description="Whether matrices of ATensor are transposed first.", examples=["NONE"])
    TransB: MatrixTransform = Field(description="Whether matrices of BTensor are transposed first.", examples=["NONE"])
    Alpha: Float = Field(description="Factor of the products.", examples=[1.0])
    Beta: Float = Field(description="Factor of CTensor.", examples=[1.0])
    FusedActivation: OptionalFusedActivationOfGemm = None

    formula_text = "Output = act(Alpha * A x B + Beta * C), act = FusedActivation, else the identity"
    accuracy = PRODUCTS
    only_queues = makes_in = True
    same_sizes = ()
    same_ranks = (("ATensor", "BTensor", "CTensor", "OutputTensor"),)
    sizes_from = ("ATensor", "BTensor", "TransA", "TransB")
    support = SupportTable.of(
        "4_0 2-4 F32-16",
        "1_0 4 F32-16",
    )
    example: ClassVar[Mapping[str, Any]] = {"BTensor": {"Sizes": [1, 1, 3, 2]}, "CTensor": {"Sizes": [1, 1, 2, 2]}}
    notes = (
        "Computed in float32, FLOAT16 too, and FLOAT16 rounded once: sums of K terms are within K * 2^-24 of the sum "
        "of their magnitudes, in any order.",
        "Leading dimensions must be equal; to broadcast is to give stride 0.",
        "Of ACTIVATION_SOFTMAX and ACTIVATION_SOFTMAX1, which can be fused from feature level 6_1 on, the rules for "
        "sizes and axes hold for the output.",
        "Where Beta is 0, a NaN or infinity in CTensor still gives NaN.",
    )

    def implied_sizes(self, name: str) -> list[int]:
        return product_sizes(*self._sizes())

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        how = f" (TransA {self.TransA}, TransB {self.TransB})"
        is_transposed = self.TransB is MatrixTransform.TRANSPOSE
        found = list(product_violations(self, *self._sizes(), transposed=is_transposed, how=how))
        if not found and self.CTensor and self.CTensor.Sizes != self.implied_sizes("OutputTensor"):
            sizes = self.implied_sizes("OutputTensor")
            found.append(
                Violation(
                    ("CTensor", "Sizes"),
                    f"CTensor has Sizes {self.CTensor.Sizes} but the product of ATensor and BTensor has {sizes}; they "
                    "must be equal, and to broadcast is to give the full Sizes and stride 0 for the repeated "
                    "dimensions.",
                    self.CTensor.Sizes,
                    sizes,
                )
            )
        yield from found
        if self.FusedActivation and not found:
            output = self.OutputTensor or self.implied("OutputTensor", level)
            for each in self.FusedActivation.violations(level, output):
                yield each if each.path[0] == "OutputTensor" else each.below("FusedActivation")

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        made = self._product(xp, inputs, rounded=not self._is_ended(), into=into["OutputTensor"] if into else None)
        if self.Alpha != 1:
            made *= self.Alpha
        if self.CTensor:
            c = computed(inputs["CTensor"])
            made += c if self.Beta == 1 else c * self.Beta
        fused = self.FusedActivation
        Activation(fused, fused.axes(made.ndim) if fused else ()).apply(xp, made)
        return {"OutputTensor": stored(made, self.ATensor.DataType)}

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        rank, fused = self.ATensor.rank, self.FusedActivation
        rows = rank - 2 if self.TransA is MatrixTransform.NONE else rank - 1
        columns = rank - 1 if self.TransB is MatrixTransform.NONE else rank - 2
        for axis in set(range(rank)).difference(fused.axes(rank) if fused else ()):
            a = {"ATensor": rows if axis == rank - 2 else axis} if axis != rank - 1 else {}
            b = {"BTensor": columns if axis == rank - 1 else axis} if axis != rank - 2 else {}
            yield a | b | {"CTensor": axis, "OutputTensor": axis}

    def multiplications(self) -> int:
        return math.prod(self.implied_sizes("OutputTensor")) * self._sizes()[0][-1]

    def product(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {PRODUCT: self._product(xp, inputs, rounded=False)}

    def _product(self, xp: Any, inputs: Mapping[str, Any], *, rounded: bool, into: Any = None) -> Any:
        """A x B, of FLOAT16 in float32 unless it is to be `rounded`; made in the array `into` if it may be."""
        a, b = (
            x if transform is MatrixTransform.NONE else x.swapaxes(-1, -2)
            for x, transform in ((inputs["ATensor"], self.TransA), (inputs["BTensor"], self.TransB))
        )
        sizes = (*a.shape[:-1], b.shape[-1])
        operands = (xp.broadcast_to(unrepeated(x), _matrices(x)) for x in (a, b))
        made = product(xp, *operands, rounded=rounded, into=into)
        return made if made.shape == sizes else xp.ascontiguousarray(xp.broadcast_to(made, sizes))

    def _is_ended(self) -> bool:
        """Whether the product is not the result."""
        return self.Alpha != 1 or self.CTensor is not None or self.FusedActivation is not None

    def is_ended_apart(self) -> bool:
        return self._is_ended()

    @property
    def fused(self) -> Fused | None:
        return self.FusedActivation

    def added(self, sizes: list[int]) -> dict[str, TensorDesc]:
        return {"CTensor": self.CTensor} if self.CTensor else {}

    @classmethod
    def before_activation(cls, p: Parameters, choice: None, values: Mapping[str, Value]) -> Value:
        product, added = values[PRODUCT], values.get("CTensor")
        made = product if p.ask(_is_one, p.Alpha) else product * p.Alpha
        return made if added is None else made + (added if p.ask(_is_one, p.Beta) else added * p.Beta)

    def _sizes(self) -> tuple[list[int], list[int]]:
        """Of both operands, as they are multiplied."""
        return (
            _transformed(self.ATensor.Sizes, self.TransA),
            _transformed(self.BTensor.Sizes, self.TransB),
        )


def _is_one(factor: float) -> bool:
    return factor == 1


def _transformed(sizes: list[int], transform: MatrixTransform) -> list[int]:
    return sizes if transform is MatrixTransform.NONE else [*sizes[:-2], sizes[-1], sizes[-2]]


def _matrices(x: Any) -> tuple[int, ...]:
    """The sizes of `x`, with all its rows and columns, and 1 for what is repeated otherwise."""
    return (*unrepeated(x).shape[:-2], *x.shape[-2:])

"""What normalizations have in common: tensors that are repeated, and activations of the result."""

from collections.abc import Iterator, Sequence

from app.contract.violations import Violation
from app.formula.values import Value, cast
from app.operators.fusion import Fused
from app.operators.operator import Operator
from app.operators.parameters import Parameters

POPULATION = (
    "The variance is that of the population: its divisor is the number of elements. DirectML's documentation does not "
    "say."
)
ACTIVATION = (
    "The activation is given the result in float32, for FLOAT16 tensors too, and can be fused at the feature levels "
    "that have it as an operator. DirectML's documentation does not say."
)
IN_FLOAT64 = "Sums, means and all that follows from them are computed in float64 and rounded once."


def repetition_violations(operator: Operator, names: Sequence[str]) -> Iterator[Violation]:
    """What is wrong with the sizes of tensors that are repeated along dimensions of size 1 to those of InputTensor,
    which has as many dimensions."""
    tensors = operator.tensors()
    whole = tensors["InputTensor"].Sizes
    for name in names:
        if name in tensors:
            sizes = tensors[name].Sizes
            if any(size not in (1, most) for size, most in zip(sizes, whole, strict=True)):
                yield Violation(
                    (name, "Sizes"),
                    f"Sizes of {name} is {sizes} but InputTensor has {whole}; each must be 1, for all along that "
                    "dimension, or that of InputTensor.",
                    sizes,
                    whole,
                )


def activated(p: Parameters, exact: Value, type_: str, activation: Fused | None) -> Value:
    """The result `exact`, as an element of `type_`, after the activation, if there is one."""
    made = cast(exact, type_)
    return activation.formula(p.below("FusedActivation."), made) if activation else made

"""What normalizations have in common: tensors that are repeated, groups, and activations of the result."""

from collections.abc import Callable, Iterator, Sequence

from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates, sum_over
from app.formula.values import FLOAT64, INT64, Constant, Number, Value, cast, sum_of
from app.operators.fusion import Fused
from app.operators.operator import Operator
from app.operators.parameters import Parameters, TensorParameters

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


class Groups:
    """The groups of elements of `x` that have one element of `of`: along all dimensions in which that has size 1."""

    def __init__(self, p: TensorParameters, x: Operand, of: Operand) -> None:
        self._rank = x.rank
        self._axes = [axis for axis in range(x.rank) if p.ask(_is_one, of.sizes[axis])]
        self._sizes = [x.sizes[axis] for axis in self._axes]
        elements: Value = Constant(INT64, 1)
        for size in self._sizes:
            elements = elements * size
        self.count = cast(elements, FLOAT64)
        """How many elements a group has."""
        self.is_single = bool(p.ask(_is_one, self.count))

    def total(self, term: Callable[[Sequence[Value]], Value]) -> Value:
        """Of an output of the sizes of `of`: the sum of `term` of the coordinates of the group's elements."""

        def body(*indices: Value) -> Value:
            at = coordinates(self._rank)
            for axis, index in zip(self._axes, indices, strict=True):
                at[axis] = index
            return term(at)

        return sum_over(self._sizes, body)

    def mean(self, exact: Value) -> Value:
        """Of an output of the sizes of `x`: the mean of a float64 value of the group's elements."""
        return exact if self.is_single else sum_of(exact) / self.count


def group_axes(whole: TensorDesc, of: TensorDesc) -> tuple[int, ...]:
    """The dimensions that the groups extend along; none if they have one element each."""
    return tuple(axis for axis, size in enumerate(of.Sizes) if size == 1 < whole.Sizes[axis])


def _is_one(number: Number) -> bool:
    return number == 1

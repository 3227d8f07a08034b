"""What is done to each element of a product, of matrices or a convolution's, before it is stored: its ending.

CPUs end products while these are in registers, or in the cache. On a GPU an ending is one kernel, of the formula that
operators state for it, so that libraries are asked for products without what they are slow at, or do not have.
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.structures import Questions, Structures
from app.formula.values import FLOAT32, INT64, Input, Number, Parameter, Value, compute_type
from app.operators.fusion import Fused
from app.operators.operator import Operator
from app.operators.parameters import Parameters, numbers_in
from app.operators.structure import Structure
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map, Program

PRODUCT = "Product"
"""Name of an ending's first input: the product."""


class Ended(Operator):
    """Base of the operators that `call` makes of a product, by an ending: OutputTensor's element is the activation, if
    one is fused, of what `before_activation` makes of the product's."""

    @abstractmethod
    def product(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `made` describes, arrays on a GPU by their names. Of `inputs` as for `call`."""

    def made(self, sizes: list[int]) -> dict[str, TensorDesc]:
        """The product, and what else is made with it, broadcast to the output's `sizes`: packed, and of float32."""
        return {PRODUCT: TensorDesc(DataType=DataType.FLOAT32, Sizes=sizes)}

    @abstractmethod
    def is_ended_apart(self) -> bool:
        """Whether there is an ending, and a GPU has a kernel for it rather than `call`."""

    @property
    def fused(self) -> Fused | None:
        """The activation."""
        return None

    def choice(self) -> Hashable:
        """What chooses the formula beside the types of what it is over, and which activation is fused."""
        return None

    def ending_numbers(self) -> dict[str, Number]:
        """Numbers that the formula has beside FLOAT attributes."""
        return {}

    @classmethod
    @abstractmethod
    def before_activation(cls, p: Parameters, choice: Any, values: Mapping[str, Value]) -> Value:
        """What the activation is applied to, of what is `made` and `added`. `choice` is what the operator says."""

    @abstractmethod
    def added(self, sizes: list[int]) -> dict[str, TensorDesc]:
        """Inputs that the ending is over, as they are and by their names, broadcast to the output's `sizes`."""


def ending_of(operator: Ended, output: TensorDesc, structures: Structures) -> Dispatchable | None:
    """The ending of a product that is left to it, over what is made and added; None if nothing is left, or `call` does
    all. `output` is OutputTensor. Its formula is among `structures` if there was one like it before."""
    if not operator.is_ended_apart():
        return None
    inputs = {**operator.made(output.Sizes), **operator.added(output.Sizes)}
    fused = operator.fused
    activation = Structure.of(fused.over(inputs[PRODUCT]), {"InputTensor": inputs[PRODUCT]}) if fused else None
    types = {name: desc.DataType for name, desc in inputs.items()}
    floats = {name: each for name, each in numbers_in(operator).items() if isinstance(each, float)}
    numbers = floats | operator.ending_numbers()
    names = tuple([(name, FLOAT32 if isinstance(each, float) else INT64) for name, each in numbers.items()])
    kind, choice = type(operator), operator.choice()

    def program(questions: Questions) -> Program:
        p = Parameters({name: Parameter(type_, name) for name, type_ in names}, questions.ask)
        values = {name: Input(compute_type(each), name, each) for name, each in types.items()}
        element = kind.before_activation(p, choice, values)
        if activation:
            element = activation.element(p.below("FusedActivation."), element)
        return Program(types, {"OutputTensor": Map(element, output.DataType, activation.axes if activation else ())})

    key = ("ending", kind, choice, tuple(types.items()), output.DataType, names, activation)
    return Dispatchable(inputs, {"OutputTensor": output}, structures.find(key, numbers, program), numbers)

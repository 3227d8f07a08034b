"""What is done to each element of a product, of matrices or a convolution's, before it is stored: its ending.

CPUs end products while these are in registers, or in the cache. On a GPU an ending is one kernel, of the formula that
operators state for it, so that libraries are asked for products without what they are slow at, or do not have.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.structures import Questions, Structures
from app.formula.values import FLOAT32, Input, Parameter, Value, compute_type
from app.operators.fusion import Fused
from app.operators.operator import Operator
from app.operators.parameters import Parameters, numbers_in
from app.operators.structure import Structure
from app.programs.dispatchable import Dispatchable
from app.programs.program import Map, Program

PRODUCT = "Product"
"""Name of an ending's first input: the product, packed and of float32."""


class Ended(Operator):
    """Base of the operators that `call` makes of a product, by an ending: OutputTensor's element is the activation of
    what `before_activation` makes of the product's."""

    if TYPE_CHECKING:  # it stands where the structures of DirectML have it
        FusedActivation: Fused | None

    @abstractmethod
    def product(self, xp: Any, inputs: Mapping[str, Any]) -> Any:
        """The product alone, on a GPU: a packed array of float32 with the output's sizes. Of `inputs` as for `call`."""

    @abstractmethod
    def is_ended_apart(self) -> bool:
        """Whether there is an ending, and a GPU has a kernel for it rather than `call`."""

    @classmethod
    @abstractmethod
    def before_activation(cls, p: Parameters, product: Value, added: Value | None) -> Value:
        """What the activation is applied to."""

    @abstractmethod
    def added(self, sizes: list[int]) -> dict[str, TensorDesc]:
        """The optional input that is added, if it is there, by its name, broadcast to the output's `sizes`."""


def ending_of(operator: Ended, output: TensorDesc, structures: Structures) -> Dispatchable | None:
    """The ending of a product that is left to it, over PRODUCT and the addend; None if nothing is left, or `call` does
    all. `output` is OutputTensor. Its formula is among `structures` if there was one like it before."""
    if not operator.is_ended_apart():
        return None
    inputs = {PRODUCT: TensorDesc(DataType=DataType.FLOAT32, Sizes=output.Sizes), **operator.added(output.Sizes)}
    fused = operator.FusedActivation
    activation = Structure.of(fused.over(inputs[PRODUCT]), {"InputTensor": inputs[PRODUCT]}) if fused else None
    types = {name: desc.DataType for name, desc in inputs.items()}
    names = tuple([name for name, each in numbers_in(operator).items() if isinstance(each, float)])
    kind = type(operator)

    def program(questions: Questions) -> Program:
        p = Parameters({name: Parameter(FLOAT32, name) for name in names}, questions.ask)
        product, *rest = (Input(compute_type(each), name, each) for name, each in types.items())
        element = kind.before_activation(p, product, rest[0] if rest else None)
        if activation:
            element = activation.element(p.below("FusedActivation."), element)
        return Program(types, {"OutputTensor": Map(element, output.DataType, activation.axes if activation else ())})

    key = ("ending", kind, tuple(types.items()), output.DataType, names, activation)
    numbers = numbers_in(operator)
    return Dispatchable(inputs, {"OutputTensor": output}, structures.find(key, numbers, program), numbers)

"""What devices run at once: a program with the tensors and numbers that it is for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.formula.structures import Structures
from app.formula.uniform import Numbers
from app.memory.arrays import numpy_type
from app.programs.program import Program

_elements: Callable[[TensorDesc], int] = attrgetter("elements")


@dataclass(eq=False, slots=True)
class Dispatchable:
    """A program, and what it is for: an operator that has passed judgement, or a part of a graph.

    Tensors are by the program's names, in the order of the bind points.
    """

    inputs: dict[str, TensorDesc]
    outputs: dict[str, TensorDesc]
    program: Program
    numbers: Numbers
    """What the program's parameters are."""

    @property
    def elements(self) -> int:
        """Of the largest output or, where sizes differ, tensor."""
        descs = [*self.outputs.values()]
        if not self.program.is_by_position:
            descs += self.inputs.values()
        return descs[0].elements if len(descs) == 1 else max(map(_elements, descs))

    def layouts(self, output: str) -> list[Sequence[int]]:
        """Strides along the dimensions of `output` of the inputs, in the order of the bind points, and of itself.

        Of an output that is made by position. They are 0 where a tensor has size 1: there it is the same for all.
        """
        made = self.outputs[output]
        descs = [*self.inputs.values(), made]
        return [desc.steps if desc.elements > 1 else [0] * made.rank for desc in descs]

    @property
    def stored_types(self) -> dict[str, DataType]:
        """How kernels read and write the elements of each tensor, which differs from its DataType for raw bits."""
        return {**self.program.inputs, **self.program.stored}

    def element_types(self, output: str) -> list[DataType]:
        """The same of the inputs, in the order of the bind points, and of `output`."""
        return [*self.program.inputs.values(), self.program.stored[output]]

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return "a part of a graph"

    @property
    def call(self) -> Callable[..., Mapping[str, Any]] | None:
        """What makes all outputs at once, if the program says so, from `xp`, NumPy or CuPy, and the inputs by name."""
        return None

    @property
    def product(self) -> Callable[..., Mapping[str, Any]] | None:
        """What makes, of the same, only the product that the `ending` is of, with what else is made on the way."""
        return None

    def ending(self, structures: Structures) -> "Dispatchable | None":
        """What is left to do to each element of what `product` makes, to have what `call` makes: over the product and
        inputs, by their names. None if nothing is, or it is no product. Its formula is one of `structures`."""
        return None

    @property
    def multiplications(self) -> int:
        """How many there are, about, whose results `call` adds up."""
        return 0

    @property
    def working_bytes(self) -> int:
        """Memory that `call` takes at most with NumPy, beside its tensors and some MiB."""
        return 0

    @property
    def makes_in(self) -> bool:
        """Whether `call` takes arrays to make the outputs in, as a third argument."""
        return False

    @property
    def only_queues(self) -> bool:
        """Whether what `call` queues on a GPU can be queued again without calling it."""
        return False

    def check_results(self, made: Mapping[str, Any]) -> None:
        """Raise TypeError unless `call` made arrays as the outputs' descriptors and types are."""
        for name, desc in self.outputs.items():
            array, dtype = made[name], numpy_type(self.program.stored[name])
            if array.shape != tuple(desc.Sizes) or array.dtype != dtype:
                raise TypeError(f"{name} is {dtype} {desc.Sizes}, and was made as {array.dtype} {array.shape}")

"""A descriptor that has passed judgement, ready for any device: what DirectML calls a compiled operator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.contract.constants import FeatureLevel
from app.contract.suggestions import did_you_mean
from app.contract.tensors import TensorDesc, path_of
from app.contract.validation import in_words
from app.contract.violations import ContractError, Hresult, refused
from app.formula.structures import Structures
from app.operators.endings import Ended, ending_of
from app.operators.judgement import judge, kinds_of
from app.operators.operator import Operator
from app.operators.structure import Structure, sizes_of
from app.programs.batch_axes import Reads, batch_axes
from app.programs.dispatchable import Dispatchable


class Judged(NamedTuple):
    """Which operator, by a device of which level."""

    operator: type[Operator]
    level: FeatureLevel


@dataclass(eq=False, slots=True)
class CompiledOperator(Dispatchable):
    """An operator judged at `level`, with all its tensors and what its outputs are made of."""

    operator: Operator
    level: FeatureLevel

    @property
    def call(self) -> Callable[..., Mapping[str, Any]] | None:
        return self.operator.call

    @property
    def product(self) -> Callable[..., Mapping[str, Any]] | None:
        return self.operator.product if isinstance(self.operator, Ended) else None

    def ending(self, structures: Structures) -> Dispatchable | None:
        if not isinstance(self.operator, Ended):
            return None
        return ending_of(self.operator, self.outputs["OutputTensor"], structures)

    @property
    def makes_in(self) -> bool:
        return self.operator.makes_in

    @property
    def only_queues(self) -> bool:
        return self.operator.only_queues

    @property
    def multiplications(self) -> int:
        return self.operator.multiplications()

    @property
    def working_bytes(self) -> int:
        tensors = (*self.inputs.values(), *self.outputs.values())
        # Of 4-bit types what lies between elements is taken apart and put together with them.
        each = [desc.elements if desc.DataType.bits >= 8 else max(desc.elements, desc.reach) for desc in tensors]
        return self.operator.most_working_bytes(sum(each)) if self.operator.call else 0

    @property
    def name(self) -> str:
        return type(self.operator).name()

    @property
    def subject(self) -> Judged:
        return Judged(type(self.operator), self.level)

    @property
    def scratch_bytes(self) -> int:
        return 0

    @property
    def runnable(self) -> Dispatchable:
        return self

    @property
    def reusable(self) -> list[str]:
        """Inputs whose buffers the output may take, if there is one."""
        allowed = type(self.operator).in_place
        if not allowed or len(self.outputs) > 1:
            return []
        (output,) = self.outputs.values()
        return [name for name in allowed if (desc := self.inputs.get(name)) and _takes_place(output, desc)]

    def batch_axes(self, name: str) -> Mapping[int, Reads]:
        """The axes of the output `name` along which a batch may lie, with what is read of inputs for each."""
        made = self.program.maps.get(name)
        if made:
            sizes = {each: desc.Sizes for each, desc in self.inputs.items()}
            return batch_axes(made, self.numbers, name, self.outputs[name].Sizes, sizes)
        return {
            axes[name]: {each: {axes[each]: True} if each in axes else {} for each in self.inputs}
            for axes in self.operator.batch_axes()
            if name in axes
        }

    def lengths(self, name: str) -> set[int]:
        return self.inputs[name].data_lengths

    def fewest(self) -> list[tuple[str, int]]:
        return [(name, desc.data_bytes) for name, desc in self.inputs.items()]

    def is_known(self, name: str) -> bool:
        return path_of(name)[0] in self.operator.tensor_names()

    @property
    def unbound(self) -> str:
        return "in this descriptor"

    def check_in_place(self, name: str) -> None:
        """Raise ContractError unless the first output may take the buffer of the input `name`."""
        refusal = self.in_place_refusal(name)
        if refusal:
            raise refusal

    def in_place_refusal(self, name: str, output_name: str | None = None) -> ContractError | None:
        """Why the output of that name, or the first one, may not take the buffer of the input `name`; None if it may.

        DirectML permits it where the operator's page does and the two ranges are identical, so the layouts must be.
        Pages that do permit it of each of their outputs.
        """
        operator = self.operator
        output_name = output_name or next(iter(self.outputs))
        output = self.outputs[output_name]
        if name not in operator.in_place:
            allowed = list(operator.in_place)
            return _aliasing(
                f"in_place is {in_words(name)} but {output_name} of {operator.name()} may take the buffer of "
                f"{' or '.join(allowed) if allowed else 'no input'}.{did_you_mean(name, allowed)}",
                name,
                allowed,
            )
        desc = self.inputs[name]
        if _takes_place(output, desc):
            return None
        if desc.owned_by_dml:
            return _aliasing(
                f"in_place is {name} but that tensor is OWNED_BY_DML: it is not bound at execution.", name, None
            )
        return _aliasing(
            f"in_place is {name} but {name} and {output_name} lie differently in their buffers; sizes, "
            "strides, element width and TotalTensorSizeInBytes must be the same.",
            name,
            None,
        )


def compile_operator(operator: Operator, level: FeatureLevel, structures: Structures | None = None) -> CompiledOperator:
    """Judge `operator` as a device of `level` does. Raises ContractError with all that is wrong.

    Its formula is among `structures` if one like it was compiled with these before.
    """
    stated = operator.tensors()
    kinds = kinds_of(operator, level, stated)
    judge(operator, level, stated, kinds)
    inputs = stated if len(stated) == len(kinds.inputs) else {name: stated[name] for name in kinds.inputs}
    first = stated[kinds.inputs[0]] if kinds.like_first else None
    outputs: dict[str, TensorDesc] = {}
    for name in kinds.outputs:
        if name in stated:
            outputs[name] = stated[name]
        elif first is not None and name in kinds.like_first and first.is_plain:
            outputs[name] = first  # it says no more than that
        else:
            outputs[name] = operator.implied(name, level, kinds.types.get(name))
    tensors = inputs | outputs
    numbers = {} if kinds.call else operator.numbers()
    if kinds.by_coordinates:
        numbers |= sizes_of(tensors)
    structure = Structure.of(operator, tensors, kinds.tensors)
    program = (structures or Structures()).find(structure, numbers, structure.program)
    return CompiledOperator(inputs, outputs, program, numbers, operator, level)


def _takes_place(output: TensorDesc, desc: TensorDesc) -> bool:
    """Whether an output's buffer may be that of an input, `desc`, as far as the two decide."""
    return not (desc.Flags and desc.owned_by_dml) and (desc is output or desc.same_layout(output))


def _aliasing(message: str, given: str, allowed: list[str] | None) -> ContractError:
    # A wrong binding is device removal in DirectML.
    return refused(("in_place",), message, given, allowed, Hresult.DXGI_ERROR_DEVICE_REMOVED)

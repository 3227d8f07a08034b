"""A descriptor that has passed judgement, ready for any device: what DirectML calls a compiled operator."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.contract.constants import DataType, FeatureLevel
from app.contract.tensors import TensorDesc
from app.contract.validation import brief
from app.contract.violations import ContractError, Hresult, refused
from app.operators.operator import Operator, Role
from app.programs.program import Program


@dataclass(frozen=True, eq=False, slots=True)
class CompiledOperator:
    """An operator judged at `level`, with all its tensors and what its outputs are made of."""

    operator: Operator
    level: FeatureLevel
    inputs: dict[str, TensorDesc]
    outputs: dict[str, TensorDesc]
    program: Program
    stored_types: dict[str, DataType]
    """How kernels read and write the elements of each tensor, which differs from its DataType for raw bits."""

    @property
    def elements(self) -> int:
        """Of the largest output."""
        return max(desc.elements for desc in self.outputs.values())

    def layouts(self, output: str) -> list[Sequence[int]]:
        """Strides along the dimensions of `output` of the inputs, in the order of the bind points, and of itself.

        Those of a tensor of one element are 0: it is the same for all.
        """
        made = self.outputs[output]
        descs = [*self.inputs.values(), made]
        return [desc.strides if desc.elements > 1 else [0] * made.rank for desc in descs]

    def element_types(self, output: str) -> list[DataType]:
        """`stored_types` of the inputs, in the order of the bind points, and of `output`."""
        return [self.stored_types[name] for name in (*self.inputs, output)]

    def check_in_place(self, name: str) -> None:
        """Raise ContractError unless the first output may take the buffer of the input `name`.

        DirectML permits it where the operator's page does and the two ranges are identical, so the layouts must be.
        """
        operator = self.operator
        output_name, output = next(iter(self.outputs.items()))
        if name not in operator.in_place:
            allowed = list(operator.in_place)
            raise _aliasing(
                f"in_place is {brief(name)} but {output_name} of {operator.name()} may take the buffer of "
                f"{' or '.join(allowed) if allowed else 'no input'}.",
                name,
                allowed,
            )
        desc = self.inputs[name]
        if desc.owned_by_dml:
            raise _aliasing(
                f"in_place is {name} but that tensor is OWNED_BY_DML: it is not bound at execution.", name, None
            )
        if not desc.same_layout(output):
            raise _aliasing(
                f"in_place is {name} but {name} and {output_name} lie differently in their buffers; sizes, "
                "strides, element width and TotalTensorSizeInBytes must be the same.",
                name,
                None,
            )


def compile_operator(operator: Operator, level: FeatureLevel) -> CompiledOperator:
    """Judge `operator` as a device of `level` does. Raises ContractError with all that is wrong."""
    operator.judge(level)  # as it was stated: an implied output is right by construction
    operator = operator.with_outputs(level)
    return CompiledOperator(
        operator,
        level,
        operator.tensors(Role.INPUT),
        operator.tensors(Role.OUTPUT),
        operator.program(),
        operator.stored_types(),
    )


def _aliasing(message: str, given: str, allowed: list[str] | None) -> ContractError:
    # A wrong binding is device removal in DirectML.
    return refused(("in_place",), message, given, allowed, Hresult.DXGI_ERROR_DEVICE_REMOVED)

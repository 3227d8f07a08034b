"""A descriptor that has passed judgement, ready for any device: what DirectML calls a compiled operator."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.contract.constants import DataType, FeatureLevel
from app.contract.tensors import TensorDesc
from app.contract.validation import brief
from app.contract.violations import ContractError, Hresult, refused
from app.formula.values import Value
from app.operators.operator import Operator, Role


@dataclass(frozen=True, eq=False, slots=True)
class CompiledOperator:
    """An operator judged at `level`, with all its tensors and what its output's elements are."""

    operator: Operator
    level: FeatureLevel
    inputs: dict[str, TensorDesc]
    output_name: str
    output: TensorDesc
    expression: Value
    stored_types: dict[str, DataType]
    """How kernels read and write the elements of each tensor, which differs from its DataType for raw bits."""
    axes: tuple[int, ...]
    """Dimensions that reductions in `expression` go over; none where it has no reductions."""

    def layouts(self) -> list[Sequence[int]]:
        """Strides along the output's dimensions of the inputs, in the order of the bind points, and of the output.

        Those of a tensor of one element are 0: it is the same for all.
        """
        descs = [*self.inputs.values(), self.output]
        return [desc.strides if desc.elements > 1 else [0] * self.output.rank for desc in descs]

    def element_types(self) -> list[DataType]:
        """`stored_types` of the inputs, in the order of the bind points, and of the output."""
        return [self.stored_types[name] for name in (*self.inputs, self.output_name)]

    def check_in_place(self, name: str) -> None:
        """Raise ContractError unless the output may take the buffer of the input `name`.

        DirectML permits it where the operator's page does and the two ranges are identical, so the layouts must be.
        """
        operator = self.operator
        if name not in operator.in_place:
            allowed = list(operator.in_place)
            raise _aliasing(
                f"in_place is {brief(name)} but {self.output_name} of {operator.name()} may take the buffer of "
                f"{' or '.join(allowed) if allowed else 'no input'}.",
                name,
                allowed,
            )
        desc = self.inputs[name]
        if desc.owned_by_dml:
            raise _aliasing(
                f"in_place is {name} but that tensor is OWNED_BY_DML: it is not bound at execution.", name, None
            )
        if not desc.same_layout(self.output):
            raise _aliasing(
                f"in_place is {name} but {name} and {self.output_name} lie differently in their buffers; sizes, "
                "strides, element width and TotalTensorSizeInBytes must be the same.",
                name,
                None,
            )


def compile_operator(operator: Operator, level: FeatureLevel) -> CompiledOperator:
    """Judge `operator` as a device of `level` does. Raises ContractError with all that is wrong."""
    operator.judge(level)  # as it was stated: an implied output is right by construction
    operator = operator.with_outputs(level)
    ((output_name, output),) = operator.tensors(Role.OUTPUT).items()
    return CompiledOperator(
        operator,
        level,
        operator.tensors(Role.INPUT),
        output_name,
        output,
        operator.expression(),
        operator.stored_types(),
        operator.axes(),
    )


def _aliasing(message: str, given: str, allowed: list[str] | None) -> ContractError:
    # A wrong binding is device removal in DirectML.
    return refused(("in_place",), message, given, allowed, Hresult.DXGI_ERROR_DEVICE_REMOVED)

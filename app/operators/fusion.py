"""Activations as part of another operator: DML_OPERATOR_DESC in the field FusedActivation.

Source: "Using fused operators for improved performance" in DirectML's documentation.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeAlias, Union, get_args

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticUndefined

from app.contract.constants import DataType, FeatureLevel
from app.contract.members import Document
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.values import Value
from app.operators.activation import exponential_units, linear, rectifiers, sigmoids, softmax
from app.operators.element_wise.selection import ElementWiseClip
from app.operators.judgement import count_violations
from app.operators.operator import PREFIX, Operator
from app.operators.parameters import Parameters, bare

FUSABLE: tuple[type[Operator], ...] = (
    linear.ActivationLinear,
    sigmoids.ActivationSigmoid,
    sigmoids.ActivationHardSigmoid,
    sigmoids.ActivationTanh,
    sigmoids.ActivationScaledTanh,
    rectifiers.ActivationRelu,
    rectifiers.ActivationLeakyRelu,
    rectifiers.ActivationThresholdedRelu,
    exponential_units.ActivationElu,
    exponential_units.ActivationCelu,
    exponential_units.ActivationScaledElu,
    sigmoids.ActivationSoftplus,
    sigmoids.ActivationParametricSoftplus,
    sigmoids.ActivationSoftsign,
    linear.ActivationIdentity,
    rectifiers.ActivationShrink,
    sigmoids.ActivationGelu,
)
"""What DirectML can fuse, in the order of its documentation. The list is for the newest feature level."""


def _refused(name: str, message: str, given: object, allowed: object) -> ValidationError:
    """What DirectML itself refuses, at the field `name`."""
    error = PydanticCustomError("unfusable", message, {"allowed": allowed})
    return ValidationError.from_exception_data("Fused", [{"type": error, "loc": (name,), "input": given}])


class Fused(Document):
    """Base of the fused activations: their attributes, all required. Tensors are those of the operator around it."""

    activation: ClassVar[type[Operator]]
    since: ClassVar[FeatureLevel] = FeatureLevel.V1_0
    """The level from which on it can be fused, where that is not the one that introduced it."""
    Type: str

    @model_validator(mode="before")
    @classmethod
    def _without_null_tensors(cls, value: Any) -> Any:
        """DirectML has the tensors null; they may be left out as well."""
        tensors = cls.activation.tensor_names()
        if not isinstance(value, dict):
            return value
        for name in tensors:
            if value.get(name) is not None:
                raise _refused(name, "must be null, since the operator has the tensors", value[name], "null")
        return {name: each for name, each in value.items() if name not in tensors}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        handler.resolve_ref_schema(made)["properties"]["Type"]["default"] = cls.activation.name()  # as in operators
        return made

    def violations(self, level: FeatureLevel, tensor: TensorDesc | None = None) -> Iterator[Violation]:
        """What is wrong with it on a device of `level`, where it is applied to `tensor`, the OutputTensor of the
        operator around it; None if that makes no difference, as with those in FUSABLE."""
        if self.activation.support.at(level) is None:
            yield self.activation.missing(level)
        elif level < self.since:
            yield Violation(
                ("Type",),
                f"Type is {self.activation.name()}, which can be fused from feature level {self.since} on; this is "
                f"{level}.",
                level.full_name,
                f">= {self.since.full_name}",
            )
        whole = self.over(tensor)
        yield from count_violations(whole)
        yield from whole.group_violations("OutputTensor") if isinstance(whole, softmax.OfGroups) else whole.rules(level)

    def axes(self, rank: int) -> tuple[int, ...]:
        """Dimensions that its reductions go over in a tensor of `rank` dimensions; none if it has no reductions."""
        return bare(self.activation, {**self.__dict__, "InputTensor": bare(TensorDesc, {"Sizes": [1] * rank})}).axes()

    def formula(self, p: Parameters, x: Value) -> Value:
        """The activation of `x`."""
        values = {**self.__dict__, "InputTensor": _TensorForm(DataType(x.type.upper()))}
        made: Value = bare(self.activation, values).formula(p, x)
        return made

    def over(self, tensor: TensorDesc | None) -> Operator:
        """The activation itself, of `tensor`, without its output."""
        return self.activation.model_construct(**dict(self) | {"InputTensor": tensor})


class _TensorForm(NamedTuple):
    """What the formula of an activation sees of its tensor, which is none by itself."""

    DataType: DataType


def _fused(activation: type[Operator], since: FeatureLevel = FeatureLevel.V1_0) -> type[Fused]:
    """The model of `activation` as a part of another operator."""
    fields: dict[str, Any] = {
        "Type": (activation.model_fields["Type"].annotation, Field(description="Which activation."))
    }
    for name in activation.attribute_names():
        info = copy(activation.model_fields[name])
        if info.default is not None:
            info.default = PydanticUndefined
        fields[name] = (info.annotation, info)
    made = create_model(f"Fused{activation.__name__}", __base__=Fused, __doc__=activation.__doc__, **fields)
    made.activation = activation
    made.since = since
    return made


def _of(models: Sequence[type[Fused]]) -> BeforeValidator:
    """Refuses operators that are none of these. What is no operator's name the union refuses."""
    names = [each.activation.name() for each in models]

    def judged(value: Any) -> Any:
        name = value.get("Type") if isinstance(value, dict) else None
        if isinstance(name, str) and PREFIX + name.removeprefix(PREFIX) not in names and name in _called(Operator):
            raise _refused("Type", "cannot be fused into this operator", name, names)
        return value

    return BeforeValidator(judged)


def _called(kind: type[Operator]) -> Iterator[str]:
    """The names of all operators of a kind, known once all are loaded."""
    for each in kind.__subclasses__():
        yield from get_args(each.model_fields["Type"].annotation)
        yield from _called(each)


if TYPE_CHECKING:
    FusedActivation: TypeAlias = Fused
    FusedActivationOrClip: TypeAlias = Fused
    FusedActivationOfGemm: TypeAlias = Fused
else:
    _models = tuple(map(_fused, FUSABLE))
    _with_clip = (*_models, _fused(ElementWiseClip, FeatureLevel.V6_0))
    _softmax = (softmax.ActivationSoftmax, softmax.ActivationSoftmax1)
    _of_gemm = (*_with_clip, *[_fused(each, FeatureLevel.V6_1) for each in _softmax])
    FusedActivation, FusedActivationOrClip, FusedActivationOfGemm = (
        Annotated[Union[models], Field(discriminator="Type"), _of(models)]  # noqa: UP007 - made at run time
        for models in (_models, _with_clip, _of_gemm)
    )

OptionalFusedActivation = Annotated[
    FusedActivation | None, Field(description="Applied to the result before it is stored. Null: the result as it is.")
]
OptionalFusedActivationOrClip = Annotated[
    FusedActivationOrClip | None,
    Field(description="Applied to the result before it is stored. Null: the result as it is."),
]
"""For CONVOLUTION, which may be followed by ELEMENT_WISE_CLIP from 6_0 on."""
OptionalFusedActivationOfGemm = Annotated[
    FusedActivationOfGemm | None,
    Field(description="Applied to the result before it is stored. Null: the result as it is."),
]
"""For GEMM, which may also be followed by ACTIVATION_SOFTMAX and ACTIVATION_SOFTMAX1 from 6_1 on."""


def activation_violations(operator: Operator, level: FeatureLevel) -> Iterator[Violation]:
    """What is wrong with the activations in the attributes of `operator`, in arrays as well."""
    for name in operator.attribute_names():
        value = getattr(operator, name)
        if isinstance(value, Fused):
            yield from (each.below(name) for each in value.violations(level))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for place, part in enumerate(value):
                if isinstance(part, Fused):
                    yield from (each.below(name, place) for each in part.violations(level))

"""All operators: the one list that everything else is made from."""

from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeAlias, Union, get_args

from pydantic import Field

from app.contract.suggestions import did_you_mean
from app.operators.activation import exponential_units, linear, rectifiers, sigmoids, softmax
from app.operators.attention import multihead
from app.operators.convolution import floats
from app.operators.data_movement import conversion, depth, fills, joins, padding, repetition, sequences, slices, windows
from app.operators.element_wise import (
    arithmetic,
    bits,
    comparison,
    exponential,
    logical,
    quantization,
    rounding,
    selection,
    trigonometric,
)
from app.operators.indexing import gather, one_hot, scans, scatter, top_k
from app.operators.linear_algebra import products
from app.operators.normalization import batch, batch_training, local_response, lp, mean_variance
from app.operators.operator import PREFIX, Operator
from app.operators.pooling import averages, maxima, region_gradients, regions
from app.operators.quantization import convolutions, elements, matrices
from app.operators.random_numbers import generators
from app.operators.recurrent import networks
from app.operators.reduction import reductions
from app.operators.resampling import gradient, resample
from app.operators.training import optimizers

MODULES = (
    linear,
    rectifiers,
    exponential_units,
    sigmoids,
    softmax,
    arithmetic,
    rounding,
    exponential,
    trigonometric,
    selection,
    comparison,
    logical,
    bits,
    quantization,
    reductions,
    averages,
    maxima,
    regions,
    region_gradients,
    optimizers,
    slices,
    joins,
    padding,
    repetition,
    depth,
    windows,
    sequences,
    conversion,
    fills,
    gather,
    scatter,
    one_hot,
    top_k,
    scans,
    generators,
    batch,
    mean_variance,
    local_response,
    lp,
    batch_training,
    resample,
    gradient,
    products,
    floats,
    networks,
    matrices,
    convolutions,
    elements,
    multihead,
)


def _operators(module: ModuleType) -> list[type[Operator]]:
    """The operators that `module` defines, in its order; what has no name of its own is a form of several."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Operator)
        and value.__module__ == module.__name__
        and get_args(value.model_fields["Type"].annotation)
    ]


OPERATORS: dict[str, type[Operator]] = {
    operator.name(): operator for module in MODULES for operator in _operators(module)
}
"""Operator classes by full name."""

_CALLED = {
    called: operator
    for operator in OPERATORS.values()
    for called in get_args(operator.model_fields["Type"].annotation)
    if called.startswith(PREFIX)
}
"""The same by all the names they have: SCATTER is SCATTER_ELEMENTS as well."""

if TYPE_CHECKING:
    OperatorDesc: TypeAlias = Operator
else:
    OperatorDesc = Annotated[Union[tuple(OPERATORS.values())], Field(discriminator="Type")]  # noqa: UP007 - made at run time


def no_operator(name: str) -> str:
    """That there is none called `name`, which may be longer than is repeated, with what was probably meant."""
    called = _CALLED if name.startswith(PREFIX) else [each.removeprefix(PREFIX) for each in _CALLED]
    return f"There is no operator {name[:80]}; GET /v1/operators lists them.{did_you_mean(name, called)}"


def find_operator(name: str) -> type[Operator] | None:
    """The operator called `name`, with or without DML_OPERATOR_."""
    return _CALLED.get(PREFIX + name.removeprefix(PREFIX))

"""Descriptors of operators as requests put them, and what is said of them."""

from base64 import b64decode
from typing import Any

from app.contract.constants import NEWEST, DataType, FeatureLevel
from app.contract.tensors import TensorDesc, element_name
from app.contract.validation import abbreviate, validate
from app.contract.violations import ContractError, Violation
from app.engine.capabilities import example, example_descriptor
from app.formula.values import Value
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.operator import PREFIX, Operator, Role

HARD_SIGMOID = PREFIX + "ACTIVATION_HARD_SIGMOID"
CELU = PREFIX + "ACTIVATION_CELU"
PARAMETERIZED_RELU = PREFIX + "ACTIVATION_PARAMETERIZED_RELU"
CONSTANT_POW = PREFIX + "ELEMENT_WISE_CONSTANT_POW"

ATTRIBUTES: dict[str, Any] = {
    "Alpha": 0.5,
    "Beta": 1.0,
    "Axes": [0],
    "Exponent": 2.5,
    "InfinityMode": "EITHER",
    "Min": 0,
    "Max": 1,
    "RoundingMode": "TOWARD_ZERO",
}
"""A value for each attribute that some operator requires, but for MinMaxDataType."""

ALIKE = [
    kind
    for kind, operator in OPERATORS.items()
    if operator.same_types is None
    and operator.same_sizes is None
    and "MinMaxDataType" not in operator.attribute_names()
    and {DataType.FLOAT32, DataType.FLOAT16} <= {*operator.support.rows[-1].data_types}
]
"""Operators whose tensors are all of one type, FLOAT32 and FLOAT16 among others, which no attribute has to repeat."""


def descriptor(kind: str, desc: dict[str, Any] | None = None, /, **members: Any) -> dict[str, Any]:
    """`kind` with `desc`, or one that fits, for each input, and the attributes it requires.

    `members` are added or override.
    """
    operator = OPERATORS[kind]
    if operator.family() not in ("ACTIVATION", "ELEMENT_WISE"):
        return _of_example(operator, desc) | members
    inputs = {name: desc or fitting(kind, name) for name in operator.tensor_names(Role.INPUT)}
    for name in operator.one_element:
        inputs[name] = inputs[name] | {"Sizes": [1] * len(inputs[name]["Sizes"])}
    names = operator.attribute_names()
    attributes = {
        name: ATTRIBUTES[name] for name in names if operator.model_fields[name].is_required() and name in ATTRIBUTES
    }
    if "MinMaxDataType" in names:
        attributes["MinMaxDataType"] = inputs["InputTensor"]["DataType"]
    return {"Type": kind} | inputs | attributes | members


def _of_example(operator: type[Operator], desc: dict[str, Any] | None) -> dict[str, Any]:
    """The descriptor of the example, all its tensors replaced by `desc` if that is given; of attributes the required
    ones alone."""
    made = example_descriptor(operator)
    names = operator.tensor_names()
    required = [name for name, info in operator.model_fields.items() if info.is_required() or name in names]
    made = {name: value for name, value in made.items() if name in required}
    for name in names:
        value = made.get(name)
        if desc is not None and value is not None:
            one: dict[str, Any] = {"Sizes": [1] * len(desc["Sizes"])} if name in operator.one_element else {}
            made[name] = [desc | one] * len(value) if isinstance(value, list) else desc | one
    return made


def example_data(kind: str) -> dict[str, bytes]:
    """What the tensors of the operator's example hold, those of an array by their names too."""
    data: dict[str, bytes] = {}
    for field, value in example(OPERATORS[kind])["inputs"].items():
        if isinstance(value, list):
            data |= {element_name(field, place): b64decode(each) for place, each in enumerate(value)}
        else:
            data[field] = b64decode(value)
    return data


def fitting(kind: str, name: str) -> dict[str, Any]:
    """A descriptor for the tensor `name` that is right at the newest level, with those of the other tensors."""
    data_types = OPERATORS[kind].support.rows[-1].of(name).data_types
    return {
        "DataType": (DataType.FLOAT32 if DataType.FLOAT32 in data_types else data_types[0]).value,
        "Sizes": [1, 1, 2, 3],
    }


def compiled(document: dict[str, Any], level: FeatureLevel = NEWEST) -> CompiledOperator:
    """The operator that a descriptor states. Raises ContractError."""
    kind = PREFIX + str(document["Type"]).removeprefix(PREFIX)
    return compile_operator(validate(OPERATORS[kind], document), level)


def output_of(operator: CompiledOperator) -> TensorDesc:
    """The descriptor of the only output."""
    (desc,) = operator.outputs.values()
    return desc


def output_name_of(operator: CompiledOperator) -> str:
    """The name of the only output."""
    (name,) = operator.outputs
    return name


def expression_of(operator: CompiledOperator) -> Value:
    """What the elements of the only output are."""
    (made,) = operator.program.maps.values()
    return made.expression


def refusals(document: dict[str, Any], level: FeatureLevel = NEWEST) -> list[Violation]:
    """Everything that is wrong with a descriptor."""
    try:
        compiled(document, level)
    except ContractError as error:
        for each in error.violations:
            _check_given(document, each)
        return list(error.violations)
    return []


def _check_given(document: Any, violation: Violation) -> None:
    """What a refusal says was given is the number, or the list of numbers, that stands at its path, or their count."""
    value = document
    for part in violation.path:
        is_there = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if not is_there:
            return  # it is missing, or implied
        value = value[part]
    if type(value) is int:
        assert violation.given == abbreviate(value), violation
    elif isinstance(value, list) and all(type(each) is int for each in value) and " would " not in violation.message:
        assert violation.given in (abbreviate(value), value, len(value)), violation

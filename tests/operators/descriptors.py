"""Descriptors of the four operators as requests put them, and what is said of them."""

from typing import Any

from app.contract.constants import NEWEST, FeatureLevel
from app.contract.validation import validate
from app.contract.violations import ContractError, Violation
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.operator import PREFIX, Role

HARD_SIGMOID = PREFIX + "ACTIVATION_HARD_SIGMOID"
CELU = PREFIX + "ACTIVATION_CELU"
PARAMETERIZED_RELU = PREFIX + "ACTIVATION_PARAMETERIZED_RELU"
CONSTANT_POW = PREFIX + "ELEMENT_WISE_CONSTANT_POW"

# Attributes without a default, by operator: what a descriptor needs besides tensors.
REQUIRED: dict[str, dict[str, Any]] = {CONSTANT_POW: {"Exponent": 2.5}}


def descriptor(kind: str, desc: dict[str, Any] | None = None, /, **members: Any) -> dict[str, Any]:
    """`kind` with `desc` for each input, and the attributes it requires; `members` are added or override."""
    desc = desc or {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]}
    inputs = dict.fromkeys(OPERATORS[kind].tensor_names(Role.INPUT), desc)
    return {"Type": kind} | inputs | REQUIRED.get(kind, {}) | members


def compiled(document: dict[str, Any], level: FeatureLevel = NEWEST) -> CompiledOperator:
    """The operator that a descriptor states. Raises ContractError."""
    kind = PREFIX + str(document["Type"]).removeprefix(PREFIX)
    return compile_operator(validate(OPERATORS[kind], document), level)


def refusals(document: dict[str, Any], level: FeatureLevel = NEWEST) -> list[Violation]:
    """Everything that is wrong with a descriptor."""
    try:
        compiled(document, level)
    except ContractError as error:
        return list(error.violations)
    return []

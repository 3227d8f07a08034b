"""Models whose inputs are known before a request comes, graphs and models from files: what these say and are told."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from app.contract.suggestions import did_you_mean
from app.contract.validation import in_words, validate
from app.contract.violations import MAX_VIOLATIONS, ContractError, Hresult, Violation, refused
from app.engine.graph_documents import GraphExecuteRequest
from app.http.inference.documents import InferInput, TensorMetadata, TensorMetadataParameters
from app.http.inference.model import BINARY_OUTPUT, is_binary

_PARAMETERS = ("device", BINARY_OUTPUT)


def read_parameters(given: Mapping[str, Any], model: str) -> tuple[str | None, bool | None]:
    """The device, if one is named, and whether outputs are binary. `model` is what refusals call it.

    Raises ContractError.
    """
    for name, value in given.items():
        if name not in _PARAMETERS:
            known = ", ".join(_PARAMETERS)
            message = f"{in_words(name)} is no parameter of {model}; known are {known}."
            meant = did_you_mean(name, _PARAMETERS)
            raise refused(("parameters", name), message + meant, name, list(_PARAMETERS))
        if name == BINARY_OUTPUT:
            is_binary(value)
    stated = {name: value for name, value in given.items() if name != BINARY_OUTPUT}
    return validate(GraphExecuteRequest, {"inputs": {}} | stated).device, given.get(BINARY_OUTPUT)


def check_inputs(
    given: Sequence[InferInput],
    wanted: Mapping[str, str],
    fits: Callable[[InferInput], bool],
    why_not: Callable[[str], str],
) -> None:
    """Raise ContractError unless `given` are those of `wanted`, which says what each takes, and each `fits`. `why_not`
    says what another name is."""
    violations = list(islice(_violations({each.name: each for each in given}, wanted, fits, why_not), MAX_VIOLATIONS))
    if violations:
        raise ContractError(violations, Hresult.E_INVALIDARG)


def _violations(
    given: Mapping[str, InferInput],
    wanted: Mapping[str, str],
    fits: Callable[[InferInput], bool],
    why_not: Callable[[str], str],
) -> Iterator[Violation]:
    for name in given:
        if name not in wanted:
            message = f"{in_words(name)} {why_not(name)}; inputs are {', '.join(wanted)}.{did_you_mean(name, wanted)}"
            yield Violation(("inputs", name), message, name, list(wanted))
    for name, words in wanted.items():
        tensor = given.get(name)
        if tensor is None:
            yield Violation(("inputs", name), f"Input {name} is missing; give {words}.", None, name)
        elif not fits(tensor):
            shown = f"{tensor.datatype} {in_words(tensor.shape)}"
            yield Violation(("inputs", name), f"Input {name} is {shown}; it must be {words}.", shown, words)


def described(name: str, datatypes: list[str], shape: list[int], dimension_counts: list[int]) -> TensorMetadata:
    """A tensor that is always there."""
    parameters = TensorMetadataParameters(optional=False, datatypes=datatypes, dimension_counts=dimension_counts)
    return TensorMetadata(name=name, datatype=datatypes[0], shape=shape, parameters=parameters)

"""Models whose tensors are known before a request comes, graphs and models from files: what these say and are told."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from app.contract.names import listed, meant, one_of
from app.contract.suggestions import did_you_mean
from app.contract.validation import in_words, validate
from app.contract.violations import MAX_VIOLATIONS, ContractError, Hresult, Violation, refused
from app.engine.graph_documents import GraphExecuteRequest
from app.http.inference.documents import (
    InferInput,
    ModelMetadata,
    ModelMetadataParameters,
    TensorMetadata,
    TensorMetadataParameters,
)
from app.http.inference.model import BINARY_OUTPUT, PLATFORM, is_binary

_PARAMETERS = ("device", BINARY_OUTPUT)


@dataclass(frozen=True, slots=True)
class FixedTensor:
    """A tensor that is always there. It has one of the `datatypes`, by the protocol's names, and the `shape`, in which
    -1 is free; without one the number of dimensions is free, too."""

    name: str
    datatypes: Sequence[str]
    shape: Sequence[int] | None

    @property
    def _shown(self) -> list[int]:
        return [-1] if self.shape is None else list(self.shape)

    def words(self) -> str:
        """What it takes."""
        return f"{self.datatypes[0]} {self._shown}"

    def fits(self, given: InferInput) -> bool:
        """Whether an input is such a one."""
        if given.datatype not in self.datatypes or 0 in given.shape:
            return False
        return self.shape is None or (
            len(given.shape) == len(self.shape)
            and all(own in (-1, size) for own, size in zip(self.shape, given.shape, strict=True))
        )

    def described(self) -> TensorMetadata:
        """What clients are told of it."""
        counts = [*range(9)] if self.shape is None else [len(self.shape)]
        datatypes = list(self.datatypes)
        parameters = TensorMetadataParameters(optional=False, datatypes=datatypes, dimension_counts=counts)
        return TensorMetadata(name=self.name, datatype=datatypes[0], shape=self._shown, parameters=parameters)


def described(
    name: str, versions: list[str], inputs: Iterator[FixedTensor], outputs: Iterator[FixedTensor]
) -> ModelMetadata:
    """What clients are told of the model that they call `name`."""
    return ModelMetadata(
        name=name,
        versions=versions,
        platform=PLATFORM,
        inputs=[each.described() for each in inputs],
        outputs=[each.described() for each in outputs],
        parameters=ModelMetadataParameters(attributes=[]),
    )


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


def check_inputs(given: Sequence[InferInput], wanted: Iterator[FixedTensor], why_not: Callable[[str], str]) -> None:
    """Raise ContractError unless `given` are `wanted`. `why_not` says what another name is."""
    by_name = {each.name: each for each in wanted}
    violations = list(islice(_violations({each.name: each for each in given}, by_name, why_not), MAX_VIOLATIONS))
    if violations:
        raise ContractError(violations, Hresult.E_INVALIDARG)


def _violations(
    given: Mapping[str, InferInput], wanted: Mapping[str, FixedTensor], why_not: Callable[[str], str]
) -> Iterator[Violation]:
    for name in given:
        if name not in wanted:
            message = f"{in_words(name)} {why_not(name)}; inputs are {listed(wanted)}.{meant(name, wanted)}"
            yield Violation(("inputs", name), message, name, one_of(wanted))
    for name, tensor in wanted.items():
        if name not in given:
            yield Violation(("inputs", name), f"Input {name} is missing; give {tensor.words()}.", None, name)
        elif not tensor.fits(given[name]):
            shown, words = f"{given[name].datatype} {in_words(given[name].shape)}", tensor.words()
            if 0 in given[name].shape:
                words += ", and no size may be 0"
            yield Violation(("inputs", name), f"Input {name} is {shown}; it must be {words}.", shown, words)

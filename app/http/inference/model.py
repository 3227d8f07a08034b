"""What a model is: an operator or a kept graph."""

from typing import NamedTuple, Protocol

from app.contract.validation import abbreviate
from app.contract.violations import refused
from app.engine.prepared import Prepared
from app.http.inference.documents import InferRequest, ModelMetadata
from app.http.telemetry.inferences import InferenceCounts

PLATFORM = "dmlserve"

VERSION = "1"
"""Of every model: what an operator or a graph means does not change."""

BINARY_OUTPUT = "binary_data_output"
"""The parameter of requests that is the protocol's own."""


class JudgedInference(NamedTuple):
    """A request that has passed judgement, but for its data: what is executed, and whether outputs are binary."""

    prepared: Prepared
    binary_data_output: bool | None


class Model(Protocol):
    """What inferences execute."""

    def judge(self, request: InferRequest, *, only_light: bool) -> JudgedInference:
        """`request`, without its data, and without what the protocol says of tensors' data.

        Raises ContractError, LimitExceeded, and TooHeavy if it takes long and only what is light should be judged.
        """

    def metadata(self, name: str) -> ModelMetadata:
        """What a client has to know of the model that it calls `name`."""

    def observe(self, counts: InferenceCounts, part: str, ns: int) -> None:
        """Count a part of an inference, which took so long. For the event loop's thread."""


def is_binary(value: object) -> bool:
    """The value of BINARY_OUTPUT. Raises ContractError."""
    if not isinstance(value, bool):
        raise refused(
            ("parameters", BINARY_OUTPUT),
            f"{BINARY_OUTPUT} is {abbreviate(value)}; it must be true or false.",
            abbreviate(value),
        )
    return value

"""What a model is: an operator, a kept graph, or a model from a file."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from app.contract.constants import DataType
from app.contract.validation import abbreviate, in_words
from app.contract.violations import refused
from app.engine.inference_counts import Took
from app.engine.prepared import Prepared
from app.http.inference.documents import InferRequest, ModelMetadata
from app.http.telemetry.inferences import InferenceCounts

PLATFORM = "dmlserve"

VERSION = "1"
"""Of every operator and graph: what these mean does not change."""

BINARY_OUTPUT = "binary_data_output"
"""The parameter of requests that is the protocol's own."""


class Made(NamedTuple):
    """An output as the protocol has it: the words for its type and its sizes, and how its elements lie."""

    datatype: str
    shape: list[int]
    data_type: DataType


class JudgedInference(NamedTuple):
    """A request that has passed judgement, but for its data: what is executed, and whether outputs are binary.

    `outputs` are those that there are, if it is not all of what is executed, as it says itself; `unread` are inputs
    that are given and have no effect.
    """

    prepared: Prepared
    binary_data_output: bool | None
    outputs: Mapping[str, Made] | None = None
    unread: frozenset[str] = frozenset()


class Model(Protocol):
    """What inferences execute. `version` is its version, which answers tell."""

    version: str

    async def judge(self, request: InferRequest, *, only_light: bool) -> JudgedInference:
        """`request`, without its data, and without what the protocol says of tensors' data, in steps (app/steps.py).

        Raises ContractError, LimitExceeded, and TooHeavy if it takes long and only what is light should be judged.
        """

    def metadata(self, name: str) -> ModelMetadata:
        """What a client has to know of the model that it calls `name`."""

    def observe(self, counts: InferenceCounts, ns: int, took: Took | None) -> None:
        """Count an inference of so many nanoseconds, which failed if its parts `took` None. For the event loop's
        thread."""


def is_binary(value: object) -> bool:
    """The value of BINARY_OUTPUT. Raises ContractError."""
    if not isinstance(value, bool):
        raise refused(
            ("parameters", BINARY_OUTPUT),
            f"{BINARY_OUTPUT} is {in_words(value)}; it must be true or false.",
            abbreviate(value),
        )
    return value

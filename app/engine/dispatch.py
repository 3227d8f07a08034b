"""A dispatch as clients state it and as it is answered: the protocol-independent forms."""

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Protocol, TypeAlias, TypeVar, final

from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from app.codecs.codec import BASE64
from app.contract import constants
from app.contract.constants import NEWEST, FeatureLevel
from app.contract.members import Lenient
from app.contract.names import listed, meant, one_of
from app.contract.tensors import TensorDesc, path_of
from app.contract.validation import in_words
from app.contract.violations import MAX_VIOLATIONS, ContractError, Hresult, Violation
from app.graphs.descriptor import GraphDesc
from app.graphs.schedule import InitializedGraph
from app.operators.catalog import OperatorDesc
from app.operators.compiled import Judged
from app.programs.dispatchable import Dispatchable

_DATA = (
    "Elements as their descriptor lays them out, little-endian. Exactly the bytes that the layout reaches, these "
    "rounded up to a multiple of 4, or TotalTensorSizeInBytes."
)
TensorData: TypeAlias = Annotated[Any, WithJsonSchema(BASE64), Field(description=_DATA)]
"""Binary in the wire's own form (text or bytes); the codecs turn it into buffers and back."""

InputData: TypeAlias = Annotated[
    Any,
    WithJsonSchema({"oneOf": [BASE64, {"type": "array", "items": {}}, {"type": "object"}]}),
    Field(
        description=f"{_DATA} In JSON also numbers, flat or nested as Sizes say, with strings for NaN, Infinity and "
        "-Infinity; of a tensor with strides what lies in its buffer, flat. Sizes may then be left out of the "
        "descriptor, and DataType where it is FLOAT32. Or an object with the descriptor's members and `data`, as an "
        "answer has them. Of an array of tensors, a list."
    ),
]

OutputData: TypeAlias = Annotated[
    Any,
    WithJsonSchema({"oneOf": [BASE64, {"type": "array", "items": {}}]}),
    Field(description="Elements as the descriptor lays them out, little-endian; or numbers, nested as Sizes are."),
]

DataForm: TypeAlias = Annotated[
    Literal["numbers", "base64"] | None,
    Field(description="How JSON answers write the outputs' data: by default as the inputs are written."),
]


class DispatchRequest(Lenient):
    """An operator, its bindings, and how to execute it."""

    operator: OperatorDesc = Field(description="The operator's descriptor.")
    inputs: dict[str, InputData] = Field(description="Data of each input tensor of the descriptor, by field name.")
    feature_level: FeatureLevel = Field(NEWEST, description="The request is judged as a device of this level does.")
    in_place: str | None = Field(
        None, description="The input whose buffer the output takes, if the operator and the layouts permit it."
    )
    device: str = Field("auto", description="`auto`, or a device's name from the capabilities.")
    data: DataForm = None


class GraphDispatchRequest(Lenient):
    """A graph in place of an operator: it is compiled, initialized and executed once."""

    graph: GraphDesc = Field(description="The graph's descriptor.")
    inputs: dict[str, InputData] = Field(
        description="Data of each input of the graph, by its name or index, those that are OWNED_BY_DML as well."
    )
    feature_level: FeatureLevel = Field(NEWEST, description="The request is judged as a device of this level does.")
    device: str = Field("auto", description="`auto`, or a device's name from the capabilities.")
    data: DataForm = None


class OutputTensor(TypedDict):
    """A result: its descriptor and its data. Strides are null where it is packed."""

    DataType: constants.DataType
    Sizes: list[int]
    Strides: list[int] | None
    TotalTensorSizeInBytes: int
    data: OutputData


class Execution(TypedDict):
    """How the dispatch ran. `fallback_reason` says why another device than the preferred one ran it, or is null."""

    device: str
    kind: Literal["cpu", "cuda"]
    fallback_reason: str | None
    in_place: bool
    queue_seconds: float
    compute_seconds: float


class TensorCapability(TypedDict):
    """What a tensor of the operator may be."""

    data_types: list[constants.DataType]
    dimension_counts: list[int]


@final
class Capability(TypedDict):
    """What the operator is capable of at the feature level that judged it. `in_place`: inputs that may be aliased."""

    operator: str
    feature_level: str
    introduced: str
    in_place: list[str]
    tensors: dict[str, TensorCapability]


@final
class GraphCapability(TypedDict):
    """What a graph is: its id, the level that judged it, how many nodes and kernels it has, and of which operators."""

    graph: str
    feature_level: str
    nodes: int
    kernels: int
    operators: list[str]


class DispatchResponse(TypedDict):
    """The answer to a dispatch. `capability` is left out where `Prefer: return=minimal` asks for that."""

    outputs: dict[str, OutputTensor | list[OutputTensor]]
    execution: Execution
    capability: NotRequired[Capability | GraphCapability]


class GraphFacts(NamedTuple):
    """What answers tell of a graph."""

    id: str
    """A model's graphs have none."""
    level: FeatureLevel
    nodes: int
    kernels: int
    operators: tuple[str, ...]

    @property
    def capability(self) -> GraphCapability:
        return GraphCapability(
            graph=self.id,
            feature_level=self.level.full_name,
            nodes=self.nodes,
            kernels=self.kernels,
            operators=list(self.operators),
        )


class Work(Protocol):
    """What is dispatched, judged at a feature level: an operator or a graph."""

    @property
    def name(self) -> str:
        """What it is called in messages and metrics."""

    @property
    def subject(self) -> Judged | GraphFacts:
        """What answers tell of it."""

    @property
    def inputs(self) -> Mapping[str, TensorDesc]:
        """Those that are bound at execution, in the order of the bind points."""

    @property
    def outputs(self) -> Mapping[str, TensorDesc]:
        """All of them."""

    @property
    def scratch_bytes(self) -> int:
        """Memory that it needs while it runs."""

    @property
    def runnable(self) -> Dispatchable | InitializedGraph:
        """What devices know of it."""

    @property
    def reusable(self) -> list[str]:
        """Inputs whose buffers the output may take, if there is one."""

    def lengths(self, name: str) -> set[int]:
        """Bytes that data for an input may have."""

    def fewest(self) -> list[tuple[str, int]]:
        """All inputs, in the order of the bind points, with the least of these."""

    def is_known(self, name: str) -> bool:
        """Whether it could have an input of this name."""

    @property
    def unbound(self) -> str:
        """Why such a one is not among `inputs`: the end of a sentence that says that it is not."""


class Sized(Protocol):
    """What holds a tensor's bytes."""

    @property
    def nbytes(self) -> int:
        """How many there are."""


T = TypeVar("T", bound=Sized)


def bind(work: Work, data: Mapping[str, T]) -> dict[str, T]:
    """`data` in the order of the bind points, once it is clear that each input has the bytes its descriptor needs.

    Tensors of an array are there one by one, by their names. Raises ContractError; its paths start at the mapping.
    """
    descs = work.inputs
    violations = [
        Violation(
            path_of(name),
            f"{work.name} has no input {in_words(name)}"
            + (f" {work.unbound}" if work.is_known(name) else "")
            + f"; inputs are {listed(descs) or 'none'}.{meant(name, descs)}",
            name,
            one_of(descs),
        )
        for name in islice((name for name in data if name not in descs), MAX_VIOLATIONS)
    ]
    for name, desc in descs.items():
        if name not in data:
            violations.append(
                Violation(
                    path_of(name), f"Data for {name} are missing; every input of the descriptor is bound.", None, name
                )
            )
        elif data[name].nbytes not in work.lengths(name):
            violations.append(_wrong_length(name, desc, data[name].nbytes, sorted(work.lengths(name))))
    if violations:
        # In DirectML a wrong number of bindings or a binding of the wrong size removes the device.
        raise ContractError(violations, Hresult.DXGI_ERROR_DEVICE_REMOVED)
    return {name: data[name] for name in descs}


def _wrong_length(name: str, desc: TensorDesc, given: int, allowed: list[int]) -> Violation:
    return Violation(
        path_of(name),
        f"Data for {name} are {given} bytes; {desc.DataType} {desc.Sizes}"
        + (f" with strides {desc.Strides}" if desc.Strides else "")
        + f" is {' or '.join(map(str, allowed))} bytes.",
        given,
        allowed,
    )

"""The protocol's documents: requests as they are judged, answers as they are made.

Source: the Open Inference Protocol's REST API, and Triton's extensions for binary tensor data, statistics, the model
repository, system shared memory and CUDA shared memory.
"""

from typing import Annotated, Any, NotRequired, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema
from typing_extensions import TypedDict

from app.contract.members import Document
from app.contract.scalars import Uint, Uint64
from app.http.inference.tensors import DATATYPES
from app.models.repository.config import VersionPolicy

Datatype: TypeAlias = Annotated[
    str,
    Field(
        description="FP32 is DirectML's FLOAT32, and so on. BOOL is UINT8, of which every value but 0 is true.",
        json_schema_extra={"enum": list(DATATYPES)},
    ),
]
Values: TypeAlias = Annotated[
    Any,
    WithJsonSchema({"type": "array", "items": {}}),
    Field(
        description="The elements, row-major: in one list, or in lists nested as the shape is. Of BOOL true and false, "
        "or 1 and 0 in a request. Not for FP16."
    ),
]
Parameters: TypeAlias = dict[str, Any]


def _or_none(value: object) -> object:
    """Clients that write all fields, left out or not, write null for these as for the others."""
    return {} if value is None else value


class InputParameters(Document):
    """Where an input's elements are, if not in `data`: after the JSON, or in shared memory."""

    binary_data_size: Uint64 | None = Field(None, description="Bytes after the JSON, in the order of the inputs.")
    shared_memory_region: str | None = Field(None, description="Name of a registered region.")
    shared_memory_byte_size: Uint64 | None = Field(None, description="Bytes in the region.")
    shared_memory_offset: Uint64 = Field(0, description="Where in the region they begin.")


class InferInput(Document):
    """An input tensor, packed: the operator's descriptor, the graph or the file has the same name for it."""

    name: str = Field(description="The tensor's name in the operator's descriptor, or the graph's for it.")
    shape: list[Uint] = Field(description="Sizes of the dimensions, outermost first.")
    datatype: Datatype
    parameters: InputParameters | None = Field(None, description="Where the elements are, if not in data.")
    data: Values = None


class OutputParameters(Document):
    """Where an output's elements go: into `data`, after the JSON, or into shared memory."""

    binary_data: bool | None = Field(None, description="After the JSON instead of in it.")
    shared_memory_region: str | None = Field(None, description="Name of a registered region.")
    shared_memory_byte_size: Uint64 | None = Field(None, description="Bytes in the region that may be written.")
    shared_memory_offset: Uint64 = Field(0, description="Where in the region they begin.")


class InferRequestedOutput(Document):
    """An output that is wanted."""

    name: str = Field(description="The tensor's name in the operator's descriptor, or the graph's for it.")
    parameters: OutputParameters | None = Field(None, description="Where its elements go.")


class InferRequest(Document):
    """One execution of a model."""

    id: str | None = Field(None, max_length=1024, description="Told again in the answer.")
    model_name: str | None = Field(None, description="If given, the name in the path.")
    model_version: str | None = Field(None, description="If given, that in the path, or the newest.")
    parameters: Annotated[Parameters, BeforeValidator(_or_none)] = Field(
        default_factory=dict,
        description="The operator's attributes, those of structures dotted: ScaleBias.Scale; OutputTensor.DataType "
        "where the operator leaves a choice; feature_level, device and in_place as in a dispatch; binary_data_output, "
        "whether outputs come after the JSON. Of a graph or a model from a file: device and binary_data_output.",
    )
    inputs: list[InferInput] = Field(description="The input tensors that are bound at execution.")
    outputs: list[InferRequestedOutput] | None = Field(None, description="The outputs wanted. None or empty: all.")


class InferOutput(TypedDict):
    """An output tensor, packed. `data` is absent where the elements are after the JSON or in shared memory."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: NotRequired[Parameters]
    data: NotRequired[Values]


class InferResponse(TypedDict):
    """The answer to an inference. `parameters` say which device ran it and which feature level judged it."""

    id: NotRequired[str]
    model_name: str
    model_version: str
    parameters: Parameters
    outputs: list[InferOutput]


class InferenceError(TypedDict):
    """Why a request failed."""

    error: str


class ServerMetadata(TypedDict):
    """This service."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(TypedDict):
    """Whether the process answers."""

    live: bool


class ServerReady(TypedDict):
    """Whether inferences are taken."""

    ready: bool


class ModelReady(TypedDict):
    """Whether inferences with this model are taken."""

    name: str
    ready: bool


class TensorMetadataParameters(TypedDict):
    """What a tensor may be at the newest feature level. 4-bit types, which the protocol does not have, are left out.

    Of an `array`, which is as long as a request has it, the first tensor is listed; [1], [2] and so on are like it.
    """

    optional: bool
    datatypes: list[Datatype]
    dimension_counts: list[int]
    array: NotRequired[bool]


class TensorMetadata(TypedDict):
    """A tensor of a model. `datatype` is the first of several; a dimension of -1 is variable, as is their number."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: TensorMetadataParameters


class AttributeMetadata(TypedDict):
    """An attribute of an operator, given as a request's parameter. `default` is null where there is none."""

    name: str
    type: str
    required: bool
    default: Any
    description: str


class ModelMetadataParameters(TypedDict):
    """What an operator has beside tensors. Other models have nothing."""

    attributes: list[AttributeMetadata]


class ModelMetadata(TypedDict):
    """A model, which is an operator, a graph that is kept, or from a file."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: ModelMetadataParameters


class ConfigTensor(TypedDict):
    """A tensor of a model, as Triton's configuration has it."""

    name: str
    data_type: str
    dims: list[int]
    optional: NotRequired[bool]


class ConfigLatestVersions(TypedDict):
    """So many of the newest."""

    num_versions: int


class ConfigSpecificVersions(TypedDict):
    """Some."""

    versions: list[int]


class ConfigVersionPolicy(TypedDict):
    """Which versions are served: one of these is there."""

    latest: NotRequired[ConfigLatestVersions]
    all: NotRequired[Parameters]
    specific: NotRequired[ConfigSpecificVersions]


class ConfigBatching(TypedDict):
    """How requests are run together."""

    max_queue_delay_microseconds: int


class ModelConfig(TypedDict):
    """Triton's configuration of a model. Where `max_batch_size` is not 0, requests are run together, and `dims` are
    without the first dimension, which is the batch."""

    name: str
    platform: str
    backend: str
    version_policy: ConfigVersionPolicy
    max_batch_size: int
    input: list[ConfigTensor]
    output: list[ConfigTensor]
    dynamic_batching: NotRequired[ConfigBatching]


def version_policy(policy: VersionPolicy) -> ConfigVersionPolicy:
    """As Triton's configuration has it."""
    if policy.latest is not None:
        return ConfigVersionPolicy(latest=ConfigLatestVersions(num_versions=policy.latest))
    if policy.specific is not None:
        return ConfigVersionPolicy(specific=ConfigSpecificVersions(versions=[int(each) for each in policy.specific]))
    return ConfigVersionPolicy(all={})


def config(model: ModelMetadata, policy: VersionPolicy, max_batch_size: int = 0, delay_us: int = 0) -> ModelConfig:
    """The configuration of a model that is described. Its requests are run together if there is a `max_batch_size`."""
    first = 1 if max_batch_size else 0
    inputs, outputs = (
        [
            ConfigTensor(name=each["name"], data_type=f"TYPE_{each['datatype']}", dims=each["shape"][first:])
            for each in tensors
        ]
        for tensors in (model["inputs"], model["outputs"])
    )
    for made, each in zip(inputs, model["inputs"], strict=True):
        made["optional"] = each["parameters"]["optional"]
    told = ModelConfig(
        name=model["name"],
        platform=model["platform"],
        backend=model["platform"],
        version_policy=version_policy(policy),
        max_batch_size=max_batch_size,
        input=inputs,
        output=outputs,
    )
    if max_batch_size:
        told["dynamic_batching"] = ConfigBatching(max_queue_delay_microseconds=delay_us)
    return told


class RepositoryIndexRequest(Document):
    """Which models are listed."""

    ready: bool = Field(False, description="Only those that are ready.")


class RepositoryModel(TypedDict):
    """A model in the list. `reason` is empty for one that is ready."""

    name: str
    version: str
    state: str
    reason: str


class RepositoryLoadParameters(Document):
    """What clients say when they unload a model. Models here depend on none."""

    unload_dependents: bool = Field(False, description="Makes no difference: no model depends on another.")


class RepositoryLoadRequest(Document):
    """A model to be loaded or unloaded, as its file is."""

    parameters: RepositoryLoadParameters | None = Field(None, description="May be left out.")


class Duration(TypedDict):
    """How often, and nanoseconds in all."""

    count: int
    ns: int


class InferStatistics(TypedDict):
    """Durations of inferences: whole, and of their parts. Nothing is cached, so cache_hit and cache_miss stay 0."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(TypedDict):
    """The same by batch size: the rows of all requests that were run together, or 1 where none are. What is counted are
    executions."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(TypedDict):
    """What was counted of one model since the start, in inferences of this protocol. `last_inference` is in ms."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: list[BatchStatistics]


class Statistics(TypedDict):
    """Statistics of models."""

    model_stats: list[ModelStatistics]


class SharedMemoryRegisterRequest(Document):
    """A POSIX shared memory object, or a part of it, to be used by a region's name."""

    key: str = Field(description="Name of the object, as for shm_open.")
    offset: Uint64 = Field(0, description="Where in the object the region begins, in bytes.")
    byte_size: Annotated[Uint64, Field(ge=1, description="Bytes of the region.")]


class SharedMemoryRegion(TypedDict):
    """A registered region."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaIpcHandle(Document):
    """A cudaIpcMemHandle_t."""

    b64: str = Field(description="Its 64 bytes in base64.")


class CudaSharedMemoryRegisterRequest(Document):
    """Memory of another process on a GPU, to be used by a region's name."""

    raw_handle: CudaIpcHandle = Field(description="What leads to the memory.")
    device_id: Uint = Field(description="The number of the GPU that it is on.")
    byte_size: Annotated[Uint64, Field(ge=1, description="Bytes of the region, from the memory's beginning on.")]


class CudaSharedMemoryRegion(TypedDict):
    """A registered region on a GPU."""

    name: str
    device_id: int
    byte_size: int

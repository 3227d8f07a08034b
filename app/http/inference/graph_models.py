"""Models that are graphs which are kept: inputs and outputs are the graph's, by its names for them."""

from collections.abc import Iterator
from itertools import islice

from app.contract.suggestions import did_you_mean
from app.contract.tensors import TensorDesc
from app.contract.validation import abbreviate, validate
from app.contract.violations import MAX_VIOLATIONS, ContractError, Hresult, Violation, refused
from app.engine.graph_documents import GraphExecuteRequest
from app.engine.graph_store import KeptGraph
from app.engine.inference_counts import Took
from app.engine.service import Service
from app.http.core.graphs import prepared_for
from app.http.inference import documents
from app.http.inference.model import BINARY_OUTPUT, PLATFORM, VERSION, JudgedInference, is_binary
from app.http.inference.tensors import DATATYPES, NAMES
from app.http.telemetry.inferences import InferenceCounts

_DEVICE = "device"


class GraphModel:
    """Implements `Model`. It has the parts of a `KeptGraph`, to which nothing here refers."""

    version = VERSION

    def __init__(self, service: Service, kept: KeptGraph) -> None:
        """Raises ContractError if the protocol has no words for an input: this graph is no model."""
        self._service = service
        self._graph = kept.compiled
        self._device = kept.device
        self._prepared = kept.prepared
        self._entry = kept.entry
        for name, desc in self._graph.inputs.items():
            why = self._why_not(name, desc)
            if why:
                raise refused(
                    ("inputs", name), f"{why}; POST /v1/graphs/{kept.entry.record.id}/dispatch takes it.", name
                )

    async def judge(self, request: documents.InferRequest, *, only_light: bool) -> JudgedInference:
        settings: dict[str, object] = {}
        binary_data_output = None
        for name, value in request.parameters.items():
            if name == _DEVICE:
                settings[name] = value
            elif name == BINARY_OUTPUT:
                binary_data_output = is_binary(value)
            else:
                known = [_DEVICE, BINARY_OUTPUT]
                meant = did_you_mean(name, known)
                message = f"{abbreviate(name)} is no parameter of a graph; known are {', '.join(known)}.{meant}"
                raise refused(("parameters", name), message, name, known)
        device = validate(GraphExecuteRequest, {"inputs": {}} | settings).device
        violations = list(islice(self._violations({each.name: each for each in request.inputs}), MAX_VIOLATIONS))
        if violations:
            raise ContractError(violations, Hresult.E_INVALIDARG)
        prepared = prepared_for(
            self._service, self._graph, self._prepared, device or self._device, only_light=only_light
        )
        return JudgedInference(prepared, binary_data_output)

    def metadata(self, name: str) -> documents.ModelMetadata:
        """Outputs that the protocol has no words for are left out."""
        outputs = {
            name: desc for name, desc in self._graph.outputs.items() if desc.DataType in NAMES and desc.is_packed
        }
        return documents.ModelMetadata(
            name=name,
            versions=[VERSION],
            platform=PLATFORM,
            inputs=[_described(each, desc, is_input=True) for each, desc in self._graph.inputs.items()],
            outputs=[_described(each, desc, is_input=False) for each, desc in outputs.items()],
            parameters=documents.ModelMetadataParameters(attributes=[]),
        )

    def observe(self, counts: InferenceCounts, ns: int, took: Took | None) -> None:
        """Its own numbers are with the graph, so that they go when it does."""
        counts.observe(self._graph.name, ns, took)
        self._entry.infer(ns, took)

    def _why_not(self, name: str, desc: TensorDesc) -> str | None:
        """Why no request can have this input, if none can."""
        if desc.DataType not in NAMES:
            return f"Input {name} of this graph is {desc.DataType}, which this protocol has no data type for"
        if not desc.is_packed:
            return (
                f"Input {name} of this graph is {desc.DataType} {desc.Sizes} with strides {desc.Strides}, and tensors "
                "of this protocol are packed"
            )
        if desc.data_bytes not in self._graph.lengths(name):
            return (
                f"Input {name} of this graph is {desc.DataType} {desc.Sizes} to its first reader, and longer to "
                "another one"
            )
        return None

    def _violations(self, given: dict[str, documents.InferInput]) -> Iterator[Violation]:
        """What is wrong with inputs."""
        inputs = self._graph.inputs
        for name in given:
            if name not in inputs:
                why = "is bound already" if self._graph.is_known(name) else "is no input of this graph"
                meant = did_you_mean(name, inputs)
                message = f"{abbreviate(name)} {why}; inputs are {', '.join(inputs)}.{meant}"
                yield Violation(("inputs", name), message, name, list(inputs))
        for name, desc in inputs.items():
            tensor = given.get(name)
            if tensor is None:
                yield Violation(("inputs", name), f"Input {name} is missing; give {_words(desc)}.", None, name)
            elif DATATYPES[tensor.datatype] is not desc.DataType or tensor.shape != list(desc.Sizes):
                shown = f"{tensor.datatype} {abbreviate(tensor.shape)}"
                yield Violation(
                    ("inputs", name), f"Input {name} is {shown}; it must be {_words(desc)}.", shown, _words(desc)
                )


def _words(desc: TensorDesc) -> str:
    return f"{NAMES[desc.DataType]} {list(desc.Sizes)}"


def _described(name: str, desc: TensorDesc, *, is_input: bool) -> documents.TensorMetadata:
    datatype = NAMES[desc.DataType]
    return documents.TensorMetadata(
        name=name,
        datatype=datatype,
        shape=list(desc.Sizes),
        parameters=documents.TensorMetadataParameters(
            optional=False,
            datatypes=[datatype, "BOOL"] if is_input and datatype == "UINT8" else [datatype],
            dimension_counts=[desc.rank],
        ),
    )

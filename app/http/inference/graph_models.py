"""Models that are graphs which are kept: inputs and outputs are the graph's, by its names for them."""

from collections.abc import Iterator

from app.contract.tensors import TensorDesc
from app.contract.violations import refused
from app.engine.graph_store import KeptGraph
from app.engine.inference_counts import Took
from app.engine.service import Service
from app.http.core.graphs import prepared_for
from app.http.inference import documents
from app.http.inference.fixed_inputs import FixedTensor, check_inputs, described, read_parameters
from app.http.inference.model import VERSION, JudgedInference
from app.http.inference.tensors import NAMES
from app.http.telemetry.inferences import InferenceCounts


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
        device, binary_data_output = read_parameters(request.parameters, "a graph")
        check_inputs(request.inputs, self._inputs(), self._why_unknown)
        prepared = prepared_for(
            self._service, self._graph, self._prepared, device or self._device, only_light=only_light
        )
        return JudgedInference(prepared, binary_data_output)

    def metadata(self, name: str) -> documents.ModelMetadata:
        """Outputs that the protocol has no words for are left out."""
        outputs = (
            FixedTensor(each, [NAMES[desc.DataType]], desc.Sizes)
            for each, desc in self._graph.outputs.items()
            if desc.DataType in NAMES and desc.is_packed
        )
        return described(name, [VERSION], self._inputs(), outputs)

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

    def _inputs(self) -> Iterator[FixedTensor]:
        for name, desc in self._graph.inputs.items():
            datatype = NAMES[desc.DataType]
            yield FixedTensor(name, [datatype, "BOOL"] if datatype == "UINT8" else [datatype], desc.Sizes)

    def _why_unknown(self, name: str) -> str:
        return "is bound already" if self._graph.is_known(name) else "is no input of this graph"

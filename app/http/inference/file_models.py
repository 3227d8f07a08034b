"""Models from files: inputs and outputs are the file's, and each sizes of inputs have a graph of their own."""

from collections.abc import Iterator, Mapping

from app.engine.inference_counts import Took
from app.engine.service import Service
from app.http.core.graphs import prepared_for
from app.http.inference import documents
from app.http.inference.fixed_inputs import FixedTensor, check_inputs, described, read_parameters
from app.http.inference.model import JudgedInference, Made
from app.http.inference.tensors import NAMES
from app.http.telemetry.inferences import InferenceCounts
from app.models.onnx.importer import ModelTensor
from app.models.onnx.reading import Port
from app.models.repository.model import LoadedModel, SizedModel, SizesOfAll
from app.models.repository.repository import Repository


class NotCompiled(Exception):
    """The model must be compiled for these sizes first."""

    def __init__(self, model: LoadedModel, sizes: SizesOfAll) -> None:
        super().__init__(model, sizes)
        self.model = model
        self.sizes = sizes


class FileModel:
    """Implements `Model`."""

    def __init__(self, service: Service, repository: Repository, loaded: LoadedModel) -> None:
        self._service = service
        self._repository = repository
        self.loaded = loaded
        self.version = loaded.version

    async def judge(self, request: documents.InferRequest, *, only_light: bool) -> JudgedInference:
        """Raises NotCompiled as well."""
        device, binary_data_output = read_parameters(request.parameters, "this model")
        ports = self.loaded.ports.inputs
        check_inputs(request.inputs, _fixed(ports), lambda _: "is no input of this model")
        shapes = {each.name: tuple(each.shape) for each in request.inputs}
        sizes = tuple(shapes[name] for name in ports)
        sized = self._repository.lookup(self.loaded, sizes)
        if sized is None:
            raise NotCompiled(self.loaded, sizes)
        prepared = prepared_for(self._service, sized.graph, sized.prepared, device or "auto", only_light=only_light)
        return JudgedInference(prepared, binary_data_output, _outputs(sized), sized.unread)

    def metadata(self, name: str) -> documents.ModelMetadata:
        ports, versions = self.loaded.ports, self._repository.versions(self.loaded.name)
        return described(name, versions, _fixed(ports.inputs), _fixed(ports.outputs))

    def observe(self, counts: InferenceCounts, ns: int, took: Took | None) -> None:
        counts.observe(self.loaded.called, ns, took)


def datatype_of(port: Port | ModelTensor) -> str:
    """The protocol's name for its type."""
    return "BOOL" if port.type == "bool" else NAMES[port.data_type]


def _outputs(sized: SizedModel) -> dict[str, Made]:
    return {
        name: Made(datatype_of(tensor), list(tensor.sizes), tensor.data_type) for name, tensor in sized.outputs.items()
    }


def _fixed(ports: Mapping[str, Port]) -> Iterator[FixedTensor]:
    for port in ports.values():
        shape = None if port.sizes is None else [size if isinstance(size, int) else -1 for size in port.sizes]
        yield FixedTensor(port.name, [datatype_of(port)], shape)

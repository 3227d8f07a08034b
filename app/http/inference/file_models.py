"""Models from files: inputs and outputs are the file's, and each sizes of inputs have a graph of their own."""

from app.engine.inference_counts import Took
from app.engine.prepared import Prepared
from app.engine.service import Service
from app.http.core.graphs import prepared_for
from app.http.inference import documents
from app.http.inference.fixed_inputs import check_inputs, described, read_parameters
from app.http.inference.model import PLATFORM, JudgedInference, Made
from app.http.inference.tensors import NAMES
from app.http.telemetry.inferences import InferenceCounts
from app.models.onnx.importer import ModelTensor
from app.models.onnx.reading import Port
from app.models.repository.batching import Batching
from app.models.repository.config import VersionPolicy
from app.models.repository.model import CacheKey, LoadedModel, SizedModel, SizesOfAll
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
        self._loaded = loaded
        self.version = loaded.version

    @property
    def cache_key(self) -> CacheKey:
        """What was read of requests holds as long as this is the same object."""
        return self._loaded.cache_key

    @property
    def is_closed(self) -> bool:
        """Whether it was unloaded, or loaded again, since it was found."""
        return self._loaded.is_closed

    @property
    def batching(self) -> Batching | None:
        """How requests are run together, if they are."""
        return self._loaded.batching

    @property
    def policy(self) -> VersionPolicy:
        """Which versions are served."""
        return self._loaded.policy

    async def judge(self, request: documents.InferRequest, *, only_light: bool) -> JudgedInference:
        """Raises NotCompiled as well."""
        device, binary_data_output = read_parameters(request.parameters, "this model")
        ports = self._loaded.ports.inputs
        wanted = {name: f"{datatype_of(port)} {_shape(port)}" for name, port in ports.items()}
        check_inputs(
            request.inputs, wanted, lambda each: _fits(each, ports[each.name]), lambda _: "is no input of this model"
        )
        shapes = {each.name: tuple(each.shape) for each in request.inputs}
        sizes = tuple(shapes[name] for name in ports)
        sized = self._repository.lookup(self._loaded, sizes)
        if sized is None:
            raise NotCompiled(self._loaded, sizes)
        prepared = prepared_for(self._service, sized.graph, sized.prepared, device or "auto", only_light=only_light)
        return JudgedInference(prepared, binary_data_output, _outputs(sized), sized.unread)

    def metadata(self, name: str) -> documents.ModelMetadata:
        return documents.ModelMetadata(
            name=name,
            versions=self._repository.versions(self._loaded.name),
            platform=PLATFORM,
            inputs=[_described(port) for port in self._loaded.ports.inputs.values()],
            outputs=[_described(port) for port in self._loaded.ports.outputs.values()],
            parameters=documents.ModelMetadataParameters(attributes=[]),
        )

    def observe(self, counts: InferenceCounts, ns: int, took: Took | None) -> None:
        counts.observe(self._loaded.called, ns, took)

    def use(self, prepared: Prepared) -> None:
        """Note that what was prepared for these sizes was used again."""
        self._repository.use(prepared.work)


def datatype_of(port: Port | ModelTensor) -> str:
    """The protocol's name for its type."""
    return "BOOL" if port.type == "bool" else NAMES[port.data_type]


def _outputs(sized: SizedModel) -> dict[str, Made]:
    return {
        name: Made(datatype_of(tensor), list(tensor.sizes), tensor.data_type) for name, tensor in sized.outputs.items()
    }


def _fits(tensor: documents.InferInput, port: Port) -> bool:
    if tensor.datatype != datatype_of(port) or 0 in tensor.shape:
        return False
    return port.sizes is None or (
        len(tensor.shape) == len(port.sizes)
        and all(own == size for own, size in zip(port.sizes, tensor.shape, strict=True) if isinstance(own, int))
    )


def _shape(port: Port) -> list[int]:
    """-1 where it is free. One whose number of dimensions is free, too, has one of -1."""
    if port.sizes is None:
        return [-1]
    return [size if isinstance(size, int) else -1 for size in port.sizes]


def _described(port: Port) -> documents.TensorMetadata:
    counts = [*range(9)] if port.sizes is None else [len(port.sizes)]
    return described(port.name, [datatype_of(port)], _shape(port), counts)

"""The commands that take models from files: `dmlserve run MODEL.onnx`, `dmlserve run MODEL.json`, which is one of
DxDispatch's, and `dmlserve inspect MODEL.onnx`."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
import numpy as np

from app.codecs.structure import Unreadable
from app.contract.violations import ContractError
from app.engine.graph_documents import kernels
from app.engine.service import DeadlineExceeded, Service
from app.graphs.descriptor import ConstantNode, OperatorNode
from app.memory.accounts import LimitExceeded, MemoryExhausted
from app.memory.arrays import Array, numpy_type
from app.models.dxdispatch.files import FolderFiles
from app.models.dxdispatch.model import is_model, run_model
from app.models.onnx import reading
from app.models.onnx.importer import NotSupported, Tensor, UnsupportedNode, WrongSizes
from app.models.onnx.reading import Port
from app.models.repository.model import LoadedModel, SizedModel, read, request_of
from app.models.repository.warm import Stated, parse_stated
from app.operators.operator import PREFIX
from app.settings import Settings, Unusable

_FOLDER = click.Path(file_okay=False, path_type=Path)

_SHOWN = 8
"""Elements of an output, and nodes of a kernel, that are shown."""


class Tools(NamedTuple):
    """What the commands share with all others."""

    settings: Callable[[dict[str, Any]], Settings]
    fail: Callable[..., NoReturn]
    say: Callable[[str], None]
    table: Callable[[list[str], list[list[str]]], None]
    json: Callable[[Any], None]


class Commands(click.Group):
    """A group in which `run` of a model is a command of its own for each kind. What is Unusable is told, by all."""

    for_onnx: click.Command | None = None
    for_dxdispatch: click.Command | None = None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Unusable as error:
            refusal = click.ClickException(str(error))
            refusal.exit_code = 2
            raise refusal from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name == "run":
            for each in rest:
                if each.endswith(".onnx") and "=" not in each:
                    return name, self.for_onnx, rest
                if each.endswith(".json") and _is_dxdispatch(Path(each)):
                    return name, self.for_dxdispatch, rest
        return name, command, rest


def _is_dxdispatch(file: Path) -> bool:
    try:
        return is_model(file.read_bytes())
    except OSError:
        return False  # who reads it for its own sake will say so


def add_commands(group: Commands, tools: Tools) -> None:
    """Have `group` take models."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
    file = click.argument("file", metavar="MODEL", type=click.Path(exists=True, dir_okay=False, path_type=Path))

    @click.command()
    @file
    @click.option("--input", "inputs", multiple=True, metavar="NAME=FILE", help="An input, from a .npy file.")
    @click.option("-o", "--output", "outputs", multiple=True, metavar="NAME=FILE", help="Save an output as .npy.")
    @click.option("--device", default="auto", metavar="NAME", help="auto, or a device's name.")
    @as_json
    def run(file: Path, inputs: tuple[str, ...], outputs: tuple[str, ...], device: str, as_json: bool) -> None:
        """Execute an ONNX model without a server.

        Each input is a file of NumPy's. Outputs that are not saved are shown. Limits are those of 'dmlserve serve',
        from the environment.
        """
        with _service(tools) as service:
            _run(service, tools, file, _named(tools, inputs), _named(tools, outputs), device, as_json)

    @click.command()
    @file
    @click.option(
        "--sizes",
        default="",
        metavar="SIZES",
        help="Of inputs where these are free: 1x3x224x224, or input:1x128,other:1x128.",
    )
    @as_json
    def inspect(file: Path, sizes: str, as_json: bool) -> None:
        """Show what an ONNX model is made of, and what becomes of it.

        Which operators it has, and which of DirectML's they are, what is fused, how much memory it takes, and what is
        not supported, which is a failure.
        """
        try:
            stated = parse_stated(sizes)
        except ValueError:
            tools.fail(f"--sizes is {sizes!r}; give 1x3x224x224, or input:1x128,other:1x128.", status=2)
        with _service(tools) as service:
            told = _inspected(service, file, stated)
        if as_json:
            tools.json(told)
        else:
            _show(tools, told)
        if told["unsupported"]:
            tools.fail(f"{len(told['unsupported'])} nodes of {file} are not supported.")

    @click.command()
    @file
    @click.option("--input-folder", type=_FOLDER, help="Where its files are; by default beside it.")
    @click.option("--output-folder", type=_FOLDER, help="Where it writes files; by default the working directory.")
    def run_dxdispatch(file: Path, input_folder: Path | None, output_folder: Path | None) -> None:
        """Execute a JSON model of Microsoft's DxDispatch, which prints and writes what its commands say, without a
        server."""
        files = FolderFiles(input_folder or file.parent, output_folder or Path())
        with _service(tools) as service, service.memory.open() as memory:
            model = file.read_bytes()
            asyncio.run(service.run(lambda ticket: run_model(service, ticket, model, files, memory, _say), memory))

    group.for_onnx, group.for_dxdispatch = run, run_dxdispatch
    group.add_command(inspect)


def _say(line: str) -> None:
    """A line that a model printed, in what characters the terminal has."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(line.removesuffix("\n").encode(encoding, "backslashreplace").decode(encoding))


@contextmanager
def _service(tools: Tools) -> Iterator[Service]:
    """For one command, which ends where it refuses something."""
    service = Service(tools.settings({"max_memory_bytes": str(1 << 62)}))
    service.open()
    try:
        yield service
    except ContractError as error:
        tools.fail(*(f"{violation.pointer}: {violation.message}" for violation in error.violations))
    except NotSupported as error:
        tools.fail(*map(str, error.nodes))
    except (Unreadable, reading.Unreadable, WrongSizes, LimitExceeded, MemoryExhausted) as error:
        tools.fail(str(error))
    except DeadlineExceeded:
        tools.fail(f"It was not done within deadline_seconds, {service.settings.deadline_seconds:g}.")
    finally:
        service.close()


def _named(tools: Tools, given: Sequence[str]) -> dict[str, Path]:
    """Files by name. A name may have = in it, a file not."""
    files = {}
    for each in given:
        name, equals, file = each.rpartition("=")
        if not equals or not name or not file:
            tools.fail(f"{each} is no NAME=FILE.", status=2)
        files[name] = Path(file)
    return files


def _run(
    service: Service,
    tools: Tools,
    file: Path,
    inputs: Mapping[str, Path],
    outputs: Mapping[str, Path],
    device: str,
    as_json: bool,
) -> None:
    model = read(file.stem, "1", file, None, service, _never)
    ports = model.ports.inputs
    for name in outputs:
        if name not in model.ports.outputs:
            tools.fail(f"There is no output {name}; there is {', '.join(model.ports.outputs)}.")
    for name in [*inputs, *ports]:
        if name not in ports:
            tools.fail(f"There is no input {name}; there is {', '.join(ports) or 'none'}.")
        if name not in inputs:
            tools.fail(f"Input {name} is missing; give --input {name}=FILE.")
    arrays = {name: _loaded(tools, port, inputs[name]) for name, port in ports.items()}
    sized = model.compile(tuple(each.shape for each in arrays.values()), service, _never)
    prepared = service.prepare_graph(sized.graph, device)
    data = {name: each.reshape(-1).view(np.uint8).data for name, each in arrays.items() if name not in sized.unread}
    with service.memory.open() as memory:
        outcome = asyncio.run(service.execute(prepared, data, memory))
        made = {name: _array(outcome.outputs[name], tensor) for name, tensor in sized.outputs.items()}
        for name, target in outputs.items():
            try:
                with target.open("wb") as opened:  # else NumPy adds .npy to the name
                    np.save(opened, made[name], allow_pickle=False)
            except OSError as error:
                tools.fail(f"{target} cannot be written: {error.strerror}.")
        if as_json:
            told = {
                name: {"type": each.dtype.name, "sizes": list(each.shape), "data": each.reshape(-1).tolist()}
                for name, each in made.items()
            }
            tools.json({"outputs": told, "device": outcome.ran.device, "compute_seconds": outcome.compute_seconds})
        else:
            shown = {name: each for name, each in made.items() if name not in outputs}
            rows = [[name, each.dtype.name, str(list(each.shape)), _preview(each)] for name, each in shown.items()]
            if rows:
                tools.table(["output", "type", "sizes", "data"], rows)
                tools.say("")
            tools.say(f"{file.stem} on {outcome.ran.device}: {outcome.compute_seconds * 1000:.3f} ms")


def _loaded(tools: Tools, port: Port, file: Path) -> Array:
    try:
        with file.open("rb") as opened:  # which NumPy leaves open if there are several arrays
            array = np.load(opened, allow_pickle=False)
    except OSError as error:
        tools.fail(f"{file} cannot be read: {error.strerror or error}.")
    except ValueError as error:
        tools.fail(f"{file} is no .npy file of numbers: {error}.")
    if not isinstance(array, np.ndarray):
        tools.fail(f"{file} holds several arrays; give a .npy file.")
    if array.dtype.name != port.type:
        tools.fail(f"{file} holds {array.dtype.name}, and input {port.name} is {port.type}.")
    lying: Array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).reshape(array.shape)
    return lying


def _array(buffer: memoryview, tensor: Tensor) -> Array:
    count = int(np.prod(tensor.sizes, dtype=np.int64))
    lying = np.frombuffer(buffer, numpy_type(tensor.data_type), count).reshape(tensor.sizes)
    made: Array = lying.astype(np.dtype(tensor.type), copy=False)
    return made


def _preview(array: Array) -> str:
    shown = [f"{each:g}" if isinstance(each, float) else str(each) for each in array.reshape(-1)[:_SHOWN].tolist()]
    return " ".join(shown) + (" ..." if array.size > _SHOWN else "")


def _inspected(service: Service, file: Path, stated: Stated) -> dict[str, Any]:
    """All that there is to tell, for machines."""
    told: dict[str, Any] = {"model": file.stem, "inputs": [], "outputs": [], "operators": [], "unsupported": []}
    try:
        model = read(file.stem, "1", file, None, service, _never)
        told |= {"inputs": _ports(model.ports.inputs), "outputs": _ports(model.ports.outputs)}
        told |= {"weight_bytes": model.weight_bytes}
        free = [name for name, port in model.ports.inputs.items() if port.is_free]
        told |= {"operators": _operators(model), "free": free, "compiled": None}
        if not free or stated.sizes:
            sizes = stated.of(model.ports)
            told["compiled"] = _compiled(model.compile(tuple(sizes.values()), service, _never), model)
    except NotSupported as error:
        told["unsupported"] = [each._asdict() for each in error.nodes]
    return told


def _ports(ports: Mapping[str, Port]) -> list[dict[str, Any]]:
    return [
        {"name": port.name, "type": port.type, "sizes": None if port.sizes is None else list(port.sizes)}
        for port in ports.values()
    ]


def _operators(model: LoadedModel) -> list[dict[str, Any]]:
    counts = Counter(model.operators)
    return [{"operator": name, "nodes": count} for name, count in counts.most_common()]


def _compiled(sized: SizedModel, model: LoadedModel) -> dict[str, Any]:
    """What became of the model for certain sizes."""
    imported, graph = sized.imported, sized.graph
    nodes, labels = request_of(imported).desc.Nodes, imported.graph.labels
    made = Counter(node.Desc.name().removeprefix(PREFIX) for node in nodes if isinstance(node, OperatorNode))
    parts = [
        {
            "nodes": list(dict.fromkeys(labels[node] for node in kernel["nodes"])),
            "operators": [_operator(nodes[node]) for node in kernel["nodes"]],
            "at_initialization": kernel["at_initialization"],
            "bytes_read": kernel["bytes_read"],
            "bytes_written": kernel["bytes_written"],
        }
        for kernel in kernels(graph.runnable.schedule)
    ]
    return {
        "sizes": {name: list(sizes) for name, sizes in zip(model.ports.inputs, sized.sizes, strict=True)},
        "directml_operators": [{"operator": name, "nodes": count} for name, count in made.most_common()],
        "constants": sum(isinstance(node, ConstantNode) for node in nodes),
        "kept_bytes": graph.memory_bytes,
        "scratch_bytes": graph.scratch_bytes,
        "kernels": parts,
    }


def _operator(node: OperatorNode | ConstantNode) -> str:
    return node.Desc.name().removeprefix(PREFIX) if isinstance(node, OperatorNode) else "CONSTANT"


def _sizes(sizes: Sequence[int | str | None] | None) -> str:
    """Names of dimensions that are free, ? where these have none."""
    return "any" if sizes is None else "x".join(str(each or "?") for each in sizes)


def _show(tools: Tools, told: Mapping[str, Any]) -> None:
    ports = [
        [
            kind,
            port["name"],
            port["type"],
            _sizes(port["sizes"]),
        ]
        for kind, listed in (("input", told["inputs"]), ("output", told["outputs"]))
        for port in listed
    ]
    if ports:
        tools.table(["", "name", "type", "sizes"], ports)
        tools.say("")
    if told["operators"]:
        tools.table(["ONNX operator", "nodes"], [[each["operator"], str(each["nodes"])] for each in told["operators"]])
        tools.say("")
    if told["unsupported"]:
        rows = [[str(value) for value in UnsupportedNode(**each)] for each in told["unsupported"]]
        tools.table(["not supported", "operator", "opset", "why"], rows)
        return
    compiled = told["compiled"]
    if compiled is None:
        tools.say(f"Sizes of {', '.join(told['free'])} are free; with --sizes it is compiled for some.")
        return
    made = compiled["directml_operators"]
    tools.table(["DirectML operator", "nodes"], [[each["operator"], str(each["nodes"])] for each in made])
    tools.say("")
    rows = [
        [
            "once" if kernel["at_initialization"] else "each time",
            " ".join(kernel["operators"][:_SHOWN]) + (" ..." if len(kernel["operators"]) > _SHOWN else ""),
            kernel["nodes"][0] + (f" to {kernel['nodes'][-1]}" if len(kernel["nodes"]) > 1 else ""),
            f"{kernel['bytes_read']:,}",
            f"{kernel['bytes_written']:,}",
        ]
        for kernel in compiled["kernels"]
    ]
    tools.table(["kernel", "fused of", "nodes of the model", "bytes read", "written"], rows)
    each_time = sum(not kernel["at_initialization"] for kernel in compiled["kernels"])
    tools.say(
        f"\n{sum(each['nodes'] for each in told['operators'])} ONNX nodes are {sum(each['nodes'] for each in made)} "
        f"operators in {each_time} kernels; {compiled['kept_bytes']:,} bytes are kept, and a dispatch takes "
        f"{compiled['scratch_bytes']:,} beside inputs and outputs."
    )


def _never() -> bool:
    return False

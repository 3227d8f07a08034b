"""The commands that take models from files: `dmlserve run MODEL.onnx`, `dmlserve run MODEL.json`, which is one of
DxDispatch's, and `dmlserve inspect MODEL.onnx`."""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import click
import numpy as np

from app.cli.common import SHOWN, executing, fail, json_flag, preview, print_json, print_table, say
from app.engine.graph_documents import kernels
from app.engine.service import Service
from app.graphs.descriptor import ConstantNode, OperatorNode
from app.memory.arrays import Array, numpy_type
from app.models.dxdispatch.files import FolderFiles
from app.models.dxdispatch.model import run_model
from app.models.onnx.errors import NotSupported, UnsupportedNode
from app.models.onnx.importer import ModelTensor
from app.models.onnx.reading import Port
from app.models.repository.model import LoadedModel, SizedModel, read, request_of
from app.models.repository.warm import STATED, Stated, parse_stated
from app.operators.operator import PREFIX

_FOLDER = click.Path(file_okay=False, path_type=Path)

_file = click.argument("file", metavar="MODEL", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.command("run")
@_file
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE", help="An input, from a .npy file.")
@click.option("-o", "--output", "outputs", multiple=True, metavar="NAME=FILE", help="Save an output as .npy.")
@click.option("--device", default="auto", metavar="NAME", help="auto, or a device's name.")
@json_flag
def run_onnx(file: Path, inputs: tuple[str, ...], outputs: tuple[str, ...], device: str, as_json: bool) -> None:
    """Execute an ONNX model without a server.

    Each input is a file of NumPy's. Outputs that are not saved are shown. Limits are those of 'dmlserve serve',
    from the environment.
    """
    with executing() as service:
        _run(service, file, _named(inputs), _named(outputs), device, as_json)


@click.command()
@_file
@click.option(
    "--sizes",
    default="",
    metavar="SIZES",
    help="Of inputs where these are free: 1x3x224x224, or input:1x128,other:1x128.",
)
@json_flag
def inspect(file: Path, sizes: str, as_json: bool) -> None:
    """Show what an ONNX model is made of, and what becomes of it.

    Which operators it has, and which of DirectML's they are, what is fused, how much memory it takes, and what is
    not supported, which is a failure.
    """
    try:
        stated = parse_stated(sizes)
    except ValueError:
        fail(f"--sizes is {sizes!r}; give {STATED}.", status=2)
    with executing() as service:
        told = _inspected(service, file, stated)
    if as_json:
        print_json(told)
    else:
        _show(told)
    if told["unsupported"]:
        fail(f"{file} cannot be executed: what is listed is not supported.")


@click.command("run")
@_file
@click.option("--input-folder", type=_FOLDER, help="Where its files are; by default beside it.")
@click.option("--output-folder", type=_FOLDER, help="Where it writes files; by default the working directory.")
def run_dxdispatch(file: Path, input_folder: Path | None, output_folder: Path | None) -> None:
    """Execute a JSON model of Microsoft's DxDispatch, which prints and writes what its commands say, without a
    server."""
    files = FolderFiles(input_folder or file.parent, output_folder or Path())
    with executing() as service, service.memory.open() as memory:
        model = file.read_bytes()
        asyncio.run(service.run(lambda ticket: run_model(service, ticket, model, files, memory, _say), memory))


def _say(line: str) -> None:
    """A line that a model printed, in what characters the terminal has."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(line.removesuffix("\n").encode(encoding, "backslashreplace").decode(encoding))


def _named(given: Sequence[str]) -> dict[str, Path]:
    """Files by name. A name may have = in it, a file not."""
    files = {}
    for each in given:
        name, _, file = each.rpartition("=")
        if not name or not file:
            fail(f"{each} is no NAME=FILE.", status=2)
        files[name] = Path(file)
    return files


def _run(
    service: Service,
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
            fail(f"There is no output {name}; there is {', '.join(model.ports.outputs)}.")
    for name in [*inputs, *ports]:
        if name not in ports:
            fail(f"There is no input {name}; there is {', '.join(ports) or 'none'}.")
        if name not in inputs:
            fail(f"Input {name} is missing; give --input {name}=FILE.")
    arrays = {name: _loaded(port, inputs[name]) for name, port in ports.items()}
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
                fail(f"{target} cannot be written: {error.strerror}.")
        if as_json:
            told = {
                name: {"type": each.dtype.name, "sizes": list(each.shape), "data": each.reshape(-1).tolist()}
                for name, each in made.items()
            }
            print_json({"outputs": told, "device": outcome.ran.device, "compute_seconds": outcome.compute_seconds})
        else:
            shown = {name: each for name, each in made.items() if name not in outputs}
            rows = [[name, each.dtype.name, str(list(each.shape)), preview(each)] for name, each in shown.items()]
            if rows:
                print_table(["output", "type", "sizes", "data"], rows)
                say("")
            say(f"{file.stem} on {outcome.ran.device}: {outcome.compute_seconds * 1000:.3f} ms")


def _loaded(port: Port, file: Path) -> Array:
    if is_zipfile(file):
        fail(f"{file} holds several arrays; give a .npy file.")
    try:
        with file.open("rb") as opened:
            # np.load takes what it does not know for pickled objects
            array = np.lib.format.read_array(opened, allow_pickle=False)
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror or error}.")
    except ValueError as error:
        fail(f"{file} is no .npy file of numbers: {error}.")
    if array.dtype.name != port.type:
        fail(f"{file} holds {array.dtype.name}, and input {port.name} is {port.type}.")
    lying: Array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return lying


def _array(buffer: memoryview, tensor: ModelTensor) -> Array:
    count = int(np.prod(tensor.sizes, dtype=np.int64))
    lying = np.frombuffer(buffer, numpy_type(tensor.data_type), count).reshape(tensor.sizes)
    made: Array = lying.astype(np.dtype(tensor.type), copy=False)
    return made


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


def _show(told: Mapping[str, Any]) -> None:
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
        print_table(["", "name", "type", "sizes"], ports)
        say("")
    if told["operators"]:
        print_table(["ONNX operator", "nodes"], [[each["operator"], str(each["nodes"])] for each in told["operators"]])
        say("")
    if told["unsupported"]:
        rows = [[str(value) for value in UnsupportedNode(**each)] for each in told["unsupported"]]
        print_table(["not supported", "operator", "opset", "why"], rows)
        return
    compiled = told["compiled"]
    if compiled is None:
        say(f"Sizes of {', '.join(told['free'])} are free; with --sizes it is compiled for some.")
        return
    made = compiled["directml_operators"]
    print_table(["DirectML operator", "nodes"], [[each["operator"], str(each["nodes"])] for each in made])
    say("")
    rows = [
        [
            "once" if kernel["at_initialization"] else "each time",
            " ".join(kernel["operators"][:SHOWN]) + (" ..." if len(kernel["operators"]) > SHOWN else ""),
            kernel["nodes"][0] + (f" to {kernel['nodes'][-1]}" if len(kernel["nodes"]) > 1 else ""),
            f"{kernel['bytes_read']:,}",
            f"{kernel['bytes_written']:,}",
        ]
        for kernel in compiled["kernels"]
    ]
    print_table(["kernel", "fused of", "nodes of the model", "bytes read", "written"], rows)
    each_time = sum(not kernel["at_initialization"] for kernel in compiled["kernels"])
    say(
        f"\n{sum(each['nodes'] for each in told['operators'])} ONNX nodes are {sum(each['nodes'] for each in made)} "
        f"operators in {each_time} kernels; {compiled['kept_bytes']:,} bytes are kept, and a dispatch takes "
        f"{compiled['scratch_bytes']:,} beside inputs and outputs."
    )


def _never() -> bool:
    return False

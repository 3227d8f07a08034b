"""`dmlserve run`: a dispatch without a server."""

import asyncio
from pathlib import Path

import click
import numpy as np

from app.cli.common import LISTED, executing, fail, json_flag, meant, preview, print_table, say, short
from app.cli.completion import operators_and_files
from app.cli.files import (
    STANDARD,
    answer_form,
    document_codec,
    file_codec,
    read_file,
    read_files,
    sort_arguments,
    write_file,
)
from app.codecs.codec import Decoder, Piece
from app.contract.tensors import element_name
from app.contract.violations import ContractError
from app.engine.dispatch import DispatchResponse, OutputTensor
from app.engine.service import Service
from app.http.core.documents import CODECS
from app.http.native.answers import DocumentForm
from app.http.native.attributes import first_input, in_query
from app.http.native.requests import DispatchReader
from app.memory.arrays import numpy_type
from app.memory.buffers import Buffer
from app.operators.catalog import find_operator
from app.operators.operator import Operator
from app.steps import at_once


@click.command(
    context_settings={"ignore_unknown_options": True}, short_help="Execute a request, a model or an operator."
)
@click.argument(
    "arguments",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="FILE | OPERATOR [FILE]...",
    shell_complete=operators_and_files,
)
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE", help="The file that holds the input NAME.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Save the answer in this file.")
@json_flag
def run(arguments: tuple[str, ...], inputs: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Execute a dispatch without a server: the request in FILE, or OPERATOR on tensors in files.

    FILE may be a model, too: of ONNX, or JSON of DxDispatch. It has options of its own, which
    'dmlserve run MODEL --help' shows.

    A request is what POST /v1/dispatch takes: JSON, or MessagePack if its name ends in .msgpack. Tensors are .npy, .npz
    and .safetensors files; attributes stand where they are wanted: run ACTIVATION_CELU --Alpha 2 x.npy -o y.npy. A file
    called - is standard input, or output. The name of the file that the answer is saved in tells its form: .json,
    .msgpack, .npy, .npz or .safetensors. Limits are those of 'dmlserve serve', from the environment.
    """
    with executing() as service, service.memory.open() as memory:
        operator, codec, body = _asked(service, arguments, inputs)
        try:
            dispatch, data = at_once(DispatchReader(service).read(codec, body, memory, lambda: False))
            form = answer_form(output, dispatch, operator is not None) if output else None
            outcome = asyncio.run(service.execute(dispatch.prepared, data, memory))
            if form and output:
                _save(output, list(form.write(dispatch, outcome, memory).pieces))
        except ContractError as error:
            raise (in_query(operator, error) if operator else error) from None
        if as_json:
            answer = DocumentForm(CODECS["application/json"]).write(dispatch, outcome, memory)
            click.echo(b"".join(answer.pieces))
        elif not output:
            timing = outcome.queue_seconds, outcome.compute_seconds
            _show_answer(dispatch.prepared.answer(outcome.ran, outcome.outputs, *timing))


def _asked(
    service: Service, arguments: tuple[str, ...], inputs: tuple[str, ...]
) -> tuple[type[Operator] | None, Decoder, Buffer]:
    """What is to be executed: the operator, if it is not in a request, and the file or files, with their codec."""
    try:
        names, attributes = sort_arguments(arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    most = service.settings.max_body_bytes
    first, *others = names or [""]
    operator = find_operator(first.upper())
    is_request = first == str(STANDARD) or Path(first).is_file()
    try:
        if is_request and not (operator and (others or inputs)):
            if others or inputs or attributes:
                raise click.UsageError(f"{first} is a request in a file, which nothing can be added to.")
            body = read_file(Path(first), most)
            return None, document_codec(Path(first), body), body
        if operator is None:
            raise click.UsageError(f"There is neither a file nor an operator {first}; {LISTED}{meant(first)}")
        named = [each.partition("=")[::2] for each in inputs]
        if missing := [name for name, file in named if not file]:
            raise click.UsageError(f"--input {missing[0]} is no name and file; give NAME=FILE.")
        files = [*(file for _, file in named), *others]
        if not files:
            first_input(operator)  # what has none is for a request to execute
            raise click.UsageError(f"{first} has no file to execute it on; give one, or - for standard input.")
        body, parts = read_files([Path(each) for each in files], most)
    except OSError as error:
        fail(f"{error.filename} cannot be read: {error.strerror}.")
    given = {name: part for (name, _), part in zip(named, parts, strict=False)}
    return operator, file_codec(operator, attributes, given, parts[len(named) :], most), body


def _save(file: Path, pieces: list[Piece]) -> None:
    try:
        write_file(file, pieces)
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}.")


def _show_answer(answer: DispatchResponse) -> None:
    rows = [
        [name, output["DataType"], str(output["Sizes"]), str(output["Strides"] or "packed"), _preview(output)]
        for field, made in answer["outputs"].items()
        for name, output in (
            [(element_name(field, place), each) for place, each in enumerate(made)]
            if isinstance(made, list)
            else [(field, made)]
        )
    ]
    print_table(["output", "type", "sizes", "strides", "data"], rows)
    execution = answer["execution"]
    place = ", in place" if execution["in_place"] else ""
    milliseconds = execution["compute_seconds"] * 1000
    subject = answer["capability"]
    name = short(subject["operator"]) if "operator" in subject else f"graph {subject['graph']}"
    say(f"\n{name} on {execution['device']}{place}: {milliseconds:.3f} ms")


def _preview(output: OutputTensor) -> str:
    """The first elements of the buffer, in memory order."""
    packed = output["DataType"].bits < 8  # whose bytes, of two elements each, are shown
    return preview(np.frombuffer(output["data"], np.uint8 if packed else numpy_type(output["DataType"])))

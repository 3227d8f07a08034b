"""A DxDispatch model, from its file to what it printed and wrote.

Everything is judged before the first command runs: resources, dispatchables, commands, and what they name.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, TypeVar

from app.codecs.codec import Body
from app.codecs.structure import Unreadable
from app.contract.constants import DataType
from app.contract.validation import abbreviate, in_words, validate
from app.contract.violations import ContractError, Path, Violation, refused
from app.engine.prepared import Outcome, Prepared
from app.engine.service import Service
from app.engine.workers import Ticket
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer
from app.models.dxdispatch import arrays, images, jsonc, serialized
from app.models.dxdispatch.descriptors import described
from app.models.dxdispatch.document import (
    Bindings,
    Command,
    Dispatch,
    ModelFile,
    OnnxDispatchable,
    OperatorDispatchable,
    Print,
    SerializedGraphDispatchable,
    bindings_of,
    command_of,
    dispatchable_type,
    part,
    unknown,
    unknown_resource,
)
from app.models.dxdispatch.execution import Dispatchable, ModelRun, compile_graph, compile_operator, graph_desc
from app.models.dxdispatch.files import Files, NotWritten
from app.models.dxdispatch.onnx import compile_onnx
from app.models.dxdispatch.resources import Held, Resources, read_file, stated_bytes
from app.models.dxdispatch.values import NUMBER, shown

K = TypeVar("K")
T = TypeVar("T")

_FIELD = b'"dispatchables"'


@dataclass(frozen=True, slots=True)
class Printed:
    """What a print command showed. `data` are the elements, packed."""

    command: int
    resource: str
    data_type: DataType
    text: str
    data: Buffer


@dataclass(slots=True)
class Result:
    """What came of a run. `lines` are those of DxDispatch's log, in their order."""

    lines: list[str] = field(default_factory=list)
    printed: list[Printed] = field(default_factory=list)
    dispatched: list[tuple[Prepared, Outcome]] = field(default_factory=list)


Say = Callable[[str], None]


def is_model(data: bytes | bytearray) -> bool:
    """Whether a file is meant for DxDispatch: no other document has this field."""
    return _FIELD in data


def run_model(
    service: Service, ticket: Ticket[None], body: Body, files: Files, memory: MemoryShare, say: Say | None = None
) -> Result:
    """Run the model that is `body`, by the worker whose `ticket` it is. `say` is told each line when it is known.

    Raises ContractError, whose paths start at the model, Unreadable, LimitExceeded, MemoryExhausted, RequestOver,
    Cancelled.
    """
    run = ModelRun(service, ticket, memory, files)
    return _Model(jsonc.read(body, service.settings, memory), run).run(say)


class _Model:
    """A model that has been judged."""

    def __init__(self, document: object, run: ModelRun) -> None:
        self._run = run
        told = _root(document)
        self._judge(told)
        commands = _each(enumerate(told.commands), lambda place, each: command_of(each, ("commands", place)))
        self._commands: list[Command] = list(commands.values())
        self._resolve(told)
        makers = Resources(run.service.settings, run.files, run.memory)
        most = run.service.settings.max_tensor_bytes
        # Before any of them is filled, which takes seconds.
        run.memory.check(sum(stated_bytes(each, most) for each in told.resources.values()))
        run.resources |= _each(told.resources.items(), makers.make)
        self._judge_prints()
        self._dispatchables = _each(told.dispatchables.items(), self._compiled)

    def _judge(self, told: ModelFile) -> None:
        """What is refused by its name, before files are read for anything else."""
        for name, each in told.dispatchables.items():
            if dispatchable_type(each, ("dispatchables", name)).lower() == "hlsl":
                raise refused(
                    ("dispatchables", name, "type"),
                    f"Dispatchable {in_words(name)} is an HLSL shader, which needs Direct3D; operators are run here.",
                    "hlsl",
                    "an operator, onnx or dmlSerializedGraph",
                )

    def _resolve(self, told: ModelFile) -> None:
        """What commands and dispatchables name is there. Raises ContractError with all that is not."""
        violations: list[Violation] = []
        self._bindings: dict[int, Bindings] = {}
        self._initial: dict[str, Bindings] = {}

        def bindings(value: object, *path: str | int) -> Bindings:
            try:
                return bindings_of(value, (*path, "bindings"), told.resources)
            except ContractError as error:
                violations.extend(error.violations)
                return {}

        for name, each in told.dispatchables.items():
            if dispatchable_type(each, ("dispatchables", name)).lower() != "onnx":  # which has no such field
                self._initial[name] = bindings(each.get("bindings"), "dispatchables", name)
        for place, command in enumerate(self._commands):
            path: Path = ("commands", place)
            if isinstance(command, Dispatch):
                if command.dispatchable not in told.dispatchables:
                    violations.append(
                        unknown("dispatchable", command.dispatchable, (*path, "dispatchable"), told.dispatchables)
                    )
                self._bindings[place] = bindings(command.bindings, *path)
            elif command.resource not in told.resources:
                violations.append(unknown_resource(command.resource, (*path, "resource"), told.resources))
        if violations:
            raise ContractError(violations, hresult=None)

    def _judge_prints(self) -> None:
        for place, command in enumerate(self._commands):
            if isinstance(command, Print):
                held = self._run.resources[command.resource]
                if held.data_type is None and not held.deferred:
                    raise refused(
                        ("commands", place, "resource"),
                        f"Resource {in_words(command.resource)} cannot be printed: it has no initialValuesDataType.",
                        command.resource,
                        "a resource with initialValuesDataType",
                    )

    def _compiled(self, name: str, value: Any) -> Dispatchable:
        path: Path = ("dispatchables", name)
        type_ = dispatchable_type(value, path)
        match type_.lower():
            case "onnx":
                return compile_onnx(part(OnnxDispatchable, value, path), name, path, self._run)
            case "dmlserializedgraph":
                return self._graph(part(SerializedGraphDispatchable, value, path), name, path)
        given = part(OperatorDispatchable, value, path)
        as_graph = given.dmlCompileType == "DmlCompileGraph"
        operator = described(value, type_, path)
        return compile_operator(operator, name, as_graph, self._initial[name], path, self._run)

    def _graph(self, given: SerializedGraphDispatchable, name: str, path: Path) -> Dispatchable:
        """Its own initialization bindings are not looked at: its constants take their place."""
        run, settings = self._run, self._run.service.settings
        source, path = given.sourcePath, (*path, "sourcePath")
        file = read_file(run.files, source, path, settings.max_body_bytes, "max_body_bytes", run.memory)
        try:
            graph = serialized.read(file, settings.max_graph_structure_bytes, run.memory)
        except Unreadable as error:
            raise refused(path, f"{in_words(source)}: {error}", abbreviate(source)) from None
        desc = graph_desc(graph.document, source, path, run)
        constants = dict(graph.constants)
        folder = PurePosixPath(source.replace("\\", "/")).parent
        for node, called in graph.named.items():
            beside = str(folder / f"{called}.bin")
            data = read_file(run.files, beside, path, settings.max_tensor_bytes, "max_tensor_bytes", run.memory)
            try:
                constants[node] = data[: graph.most_bytes(desc, node)]
            except (KeyError, IndexError):
                constants[node] = data  # the edge leads nowhere, which is said when the graph is judged
        compiled = compile_graph(desc, constants, name, path, source, run)
        run.memory.give(len(file))
        return compiled

    def run(self, say: Say | None) -> Result:
        """All commands, one after the other."""
        result = Result(dispatched=self._run.dispatched)
        printed = 0
        for place, command in enumerate(self._commands):
            self._run.memory.ensure_open()
            if isinstance(command, Dispatch):
                self._dispatch(place, command)
                continue
            held = self._run.resources[command.resource]
            if isinstance(command, Print):
                printed += self._print(place, command, held, printed, result)
            else:
                result.lines.append(self._write(command.targetPath, command.dimensions, held))
            if say:
                say(result.lines[-1])
        return result

    def _dispatch(self, place: int, command: Dispatch) -> None:
        try:
            self._dispatchables[command.dispatchable].dispatch(self._bindings[place], self._run)
        except ContractError as error:
            told = [each if each.path[:1] == ("commands",) else _at(each, place) for each in error.violations]
            raise ContractError(told, error.hresult) from None

    def _print(self, place: int, command: Print, held: Held, before: int, result: Result) -> int:
        """Returns how many elements were printed; `before` were earlier."""
        if held.data_type is None or (held.deferred and not held.initial_bytes):
            message = f"Could not find deferred resource {in_words(held.name)}: nothing was bound to it yet."
            raise refused(("commands", place, "resource"), message, held.name)
        count = held.initial_bytes // held.data_type.bytes
        most = self._run.service.settings.max_numbers
        if before + count > most:
            at = ("commands", place, "resource")
            raise LimitExceeded("max_numbers", "Elements that are printed", before + count, most, at)
        memory = self._run.memory
        memory.take(count * NUMBER)
        data = memory.buffer(count * held.data_type.bytes)
        data[:] = held.data[: len(data)]
        text = shown(data, held.data_type, command.verbose, memory)
        line = f"Resource '{held.name}':{chr(10) if command.verbose else ' '}{text}"
        result.lines.append(line)
        result.printed.append(Printed(place, held.name, held.data_type, line, data))
        return count

    def _write(self, target: str, dimensions: list[int], held: Held) -> str:
        """The line that says what came of it. A file that cannot be written ends no run."""
        try:
            file = self._file(target, dimensions, held)
            self._run.files.write(target, file)
            if file is not held.data:
                self._run.memory.give(len(file))
        except (arrays.Unusable, NotWritten) as error:
            return f"Failed to write resource to file '{target}': {error}"
        return f"Resource '{held.name}' written to '{target}'"

    def _file(self, target: str, dimensions: list[int], held: Held) -> Buffer:
        """What is in the file. Raises Unusable."""
        if held.deferred and not held.initial_bytes:
            raise arrays.Unusable(f"Could not find deferred resource {held.name}")
        suffix = PurePosixPath(target.replace("\\", "/")).suffix.lower()
        if suffix != ".npy" and suffix not in images.SUFFIXES:
            return held.data
        if held.data_type is None:
            raise arrays.Unusable(f"{suffix} files have elements of a type; the resource has no initialValuesDataType")
        dimensions = list(held.sizes) if held.deferred else dimensions
        if suffix == ".npy":
            dimensions = dimensions or [len(held.data) // held.data_type.bytes]
            return arrays.saved(held.data, held.data_type, dimensions, self._run.memory)
        return images.saved(held.data, held.data_type, dimensions, suffix, self._run.memory)


def _at(violation: Violation, place: int) -> Violation:
    """`violation` of a dispatchable that a command names, at the command's bindings."""
    return Violation(("commands", place, "bindings"), violation.message, violation.given, violation.allowed)


def _root(document: object) -> ModelFile:
    if not isinstance(document, dict):
        raise refused((), "The model must be an object.", abbreviate(document), "an object")
    for name, kind, called in (
        ("resources", dict, "an object"),
        ("dispatchables", dict, "an object"),
        ("commands", list, "an array"),
    ):
        if not isinstance(document.get(name), kind):
            given = abbreviate(document[name]) if name in document else None
            raise refused((name,), f"Expected {called} named '{name}'.", given, called)
    return validate(ModelFile, document)


def _each(values: Iterable[tuple[K, Any]], make: Callable[[K, Any], T]) -> dict[K, T]:
    """What `make` makes of each. Raises ContractError with all that is wrong with all of them."""
    made: dict[K, T] = {}
    violations: list[Violation] = []
    hresult = None
    for name, value in values:
        try:
            made[name] = make(name, value)
        except ContractError as error:
            violations += error.violations
            hresult = hresult or error.hresult
    if violations:
        raise ContractError(violations, hresult)
    return made

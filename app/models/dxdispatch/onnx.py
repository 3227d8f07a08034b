"""ONNX models as dispatchables: bound by the names of inputs and outputs, compiled for the sizes that come."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from app.contract.validation import abbreviate, in_words
from app.contract.violations import ContractError, Hresult, Path, Violation, refused
from app.engine.prepared import Outcome, Prepared
from app.memory.buffers import Buffer
from app.models.dxdispatch.document import Bindings, OnnxDispatchable, Source
from app.models.dxdispatch.execution import Dispatchable, ModelRun
from app.models.dxdispatch.resources import Held, read_file
from app.models.onnx.errors import NotSupported, WrongSizes
from app.models.onnx.importer import ModelTensor, import_model, never_supported
from app.models.onnx.reading import Port, Signature, Unreadable, read_model, signature
from app.models.onnx.tensors import Sizes
from app.models.onnx.wire import parsed_bytes
from app.models.repository.constants import ModelConstants
from app.models.repository.model import compile_imported, pausing

if TYPE_CHECKING:
    from app.models.onnx.reading import ModelProto

_MOST_COMPILED = 4
"""Sizes that one model is kept compiled for."""

_REMOVED = Hresult.DXGI_ERROR_DEVICE_REMOVED


def compile_onnx(given: OnnxDispatchable, name: str, path: Path, run: ModelRun) -> Dispatchable:
    """The ONNX model that the dispatchable `name`, which is at `path`, names.

    How a session of onnxruntime is to optimize and to log makes no difference here. Raises ContractError,
    LimitExceeded, MemoryExhausted, Cancelled.
    """
    source, at = str(abbreviate(given.sourcePath)), (*path, "sourcePath")
    file = read_file(
        run.files, given.sourcePath, at, run.service.settings.max_model_bytes, "max_model_bytes", run.memory
    )
    pause = pausing(run.ticket.cancelled)
    run.memory.take(parsed_bytes(file, run.service.settings.max_graph_structure_bytes, pause))
    try:
        model = read_model(file)
        ports = signature(model)
        unsupported = never_supported(model, ports, pause=pause)
    except Unreadable as error:
        raise refused(at, f"{source}: {error}", source) from None
    if unsupported:
        raise _unsupported(NotSupported(unsupported), source, at)
    run.memory.give(len(file))
    return _Model(model, _overridden(model, ports, given, path), source, at)


def _unsupported(error: NotSupported, source: str, path: Path) -> ContractError:
    return ContractError([Violation(path, f"{source}: {each}") for each in error.nodes], Hresult.E_INVALIDARG)


def _overridden(model: "ModelProto", ports: Signature, given: OnnxDispatchable, path: Path) -> Signature:
    """With the sizes that the dispatchable has for free dimensions. What it says of others has no effect, as in
    onnxruntime."""
    names, kinds = given.freeDimensionNameOverrides, given.freeDimensionDenotationOverrides
    for field, sizes in (("freeDimensionNameOverrides", names), ("freeDimensionDenotationOverrides", kinds)):
        for name, size in sizes.items():
            if size < 1:
                raise refused((*path, field, name), f"{in_words(name)} is {size}; sizes are at least 1.", size, ">= 1")
    infos = {each.name: each for each in (*model.graph.input, *model.graph.output)}

    def port(each: Port) -> Port:
        if each.sizes is None:
            return each
        dimensions = infos[each.name].type.tensor_type.shape.dim
        return each._replace(
            sizes=tuple(
                size
                if isinstance(size, int)
                else kinds.get(dimension.denotation, names.get(size, size) if size else size)
                for size, dimension in zip(each.sizes, dimensions, strict=True)
            )
        )

    return Signature(
        {name: port(each) for name, each in ports.inputs.items()},
        {name: port(each) for name, each in ports.outputs.items()},
    )


class _Bound(NamedTuple):
    """A tensor's resource, and what the binding says of its sizes."""

    path: Path
    held: Held
    sizes: Sizes | None


@dataclass(frozen=True, slots=True)
class _Sized:
    """The model for inputs of certain sizes, and bytes that it holds."""

    prepared: Prepared
    inputs: dict[str, ModelTensor]
    outputs: dict[str, ModelTensor]
    held: int


class _Model:
    """Implements `Dispatchable`."""

    def __init__(self, model: "ModelProto", ports: Signature, source: str, path: Path) -> None:
        self._model = model
        self._ports = ports
        self._source = source
        self._path = path
        self._compiled: OrderedDict[tuple[Sizes, ...], _Sized] = OrderedDict()

    def dispatch(self, bindings: Bindings, run: ModelRun) -> None:
        bound = self._resolved(bindings, run)
        sizes = {name: _input_sizes(port, bound.get(name)) for name, port in self._ports.inputs.items()}
        self._judge_static(bound)
        sized = self._sized(sizes, run)
        self._judge(bound, sized)
        held = run.memory.held
        data = {name: _read(sized.inputs[name], bound.get(name), run) for name in sized.prepared.input_names}

        def store(outcome: Outcome) -> None:
            for name, tensor in sized.outputs.items():
                if name in bound:
                    _store(outcome.outputs[name], tensor, bound[name].held, run)

        deferred = sum(
            _bytes(tensor) for name, tensor in sized.outputs.items() if name in bound and bound[name].held.deferred
        )
        zeros = run.memory.held - held
        kept = sum(len(each.held.data) for name, each in bound.items() if name in sized.outputs and each.held.deferred)
        run.memory.take(deferred)
        run.execute(sized.prepared, data, store)
        run.memory.give(zeros + kept)

    def _resolved(self, bindings: Bindings, run: ModelRun) -> dict[str, _Bound]:
        """Raises ContractError with all that is wrong."""
        made: dict[str, _Bound] = {}
        violations: list[Violation] = []
        for name, (path, sources) in bindings.items():
            port = self._ports.inputs.get(name) or self._ports.outputs.get(name)
            if port is None:
                continue  # as for operators
            if len(sources) != 1:
                message = f"Bind point '{abbreviate(name)}' requires 1 resource, but {len(sources)} were bound."
                violations.append(Violation(path, message, len(sources), 1))
                continue
            (source,) = sources
            for what, given in (("a counter", source.counter), ("an elementOffset", source.elementOffset)):
                if given:
                    message = f"{in_words(name)} is bound with {what}, which tensors of ONNX models cannot have."
                    violations.append(Violation(path, message, given))
            try:
                made[name] = _Bound(path, run.resources[source.name], _stated(port, source, path))
            except ContractError as error:
                violations += error.violations
        violations += self._twice(made)
        if violations:
            raise ContractError(violations, _REMOVED)
        return made

    def _twice(self, bound: Mapping[str, _Bound]) -> Iterator[Violation]:
        """Outputs that would overwrite one another. What an output overwrites of inputs has been read by then."""
        seen: dict[str, str] = {}
        for name in self._ports.outputs:
            if name in bound:
                called = bound[name].held.name
                if called in seen:
                    message = f"{in_words(name)} and {in_words(seen[called])} are both bound to {in_words(called)}."
                    yield Violation(bound[name].path, message, called)
                seen[called] = name

    def _judge_static(self, bound: Mapping[str, _Bound]) -> None:
        """onnxruntime knows no sizes of outputs as long as inputs have free ones, unless it is told them."""
        if not any(port.is_free for port in self._ports.inputs.values()):
            return
        for name, port in self._ports.outputs.items():
            each = bound.get(name)
            if each and port.is_free and each.sizes is None and not each.held.deferred:
                message = f"Sizes of {in_words(name)} are free; give the binding a shape, or bind a deferred resource."
                raise refused(each.path, message, abbreviate(each.held.name), "shape", _REMOVED)

    def _sized(self, sizes: Mapping[str, Sizes], run: ModelRun) -> _Sized:
        """Raises ContractError, LimitExceeded, MemoryExhausted, Cancelled."""
        key = tuple(sizes.values())
        found = self._compiled.get(key)
        if found:
            self._compiled.move_to_end(key)
            return found
        if len(self._compiled) >= _MOST_COMPILED:
            run.memory.give(self._compiled.popitem(last=False)[1].held)
        before = run.memory.held
        try:
            imported = import_model(self._model, sizes, pause=pausing(run.ticket.cancelled))
            graph = compile_imported(
                imported, ModelConstants((), run.memory), run.service, run.memory, run.ticket.cancelled
            )
        except NotSupported as error:
            raise _unsupported(error, self._source, self._path) from None
        except WrongSizes as error:
            raise refused(self._path, f"{self._source}: {error}", self._source) from None
        prepared = run.service.prepare_graph(graph, "auto")
        held = run.memory.held - before
        made = self._compiled[key] = _Sized(prepared, imported.inputs, imported.outputs, held)
        return made

    @staticmethod
    def _judge(bound: Mapping[str, _Bound], sized: _Sized) -> None:
        """Raises ContractError with all resources that are too small, and wrong shapes of outputs."""
        violations: list[Violation] = []
        for name, tensor in (*sized.inputs.items(), *sized.outputs.items()):
            each = bound.get(name)
            if each is None:
                continue
            is_output = name in sized.outputs
            if is_output and each.sizes not in (None, tensor.sizes):
                message = f"{in_words(name)} has the shape {list(tensor.sizes)}, not {list(each.sizes or ())}."
                violations.append(Violation((*each.path, "shape"), message, list(each.sizes or ()), list(tensor.sizes)))
            elif each.held.deferred and not is_output and not each.held.sizes:
                message = f"Resource {in_words(each.held.name)} is deferred, and nothing was bound to it yet."
                violations.append(Violation(each.path, message, each.held.name))
            elif not (each.held.deferred and is_output) and len(each.held.data) < _bytes(tensor):
                message = (
                    f"{in_words(name)} takes {_bytes(tensor)} bytes; {in_words(each.held.name)} has "
                    f"{len(each.held.data)}."
                )
                violations.append(Violation(each.path, message, len(each.held.data), f">= {_bytes(tensor)}"))
        if violations:
            raise ContractError(violations, _REMOVED)


def _bytes(tensor: ModelTensor) -> int:
    return math.prod(tensor.sizes) * tensor.data_type.bytes


def _stated(port: Port, source: Source, path: Path) -> Sizes | None:
    """What a binding says. Raises ContractError if the tensor cannot have these sizes."""
    if not source.shape:
        return None
    sizes = tuple(source.shape)
    if port.sizes == () and sizes == (1,):
        return ()  # a scalar counts as one element
    own = port.sizes
    if min(sizes) < 1 or (
        own is not None
        and (
            len(own) != len(sizes)
            or any(isinstance(mine, int) and mine != size for mine, size in zip(own, sizes, strict=True))
        )
    ):
        shown = "any number of dimensions" if own is None else [each if isinstance(each, int) else "?" for each in own]
        message = f"{in_words(port.name)} is bound with the shape {in_words(list(sizes))}; it must be {shown}."
        raise refused((*path, "shape"), message, abbreviate(list(sizes)), shown)
    return sizes


def _input_sizes(port: Port, bound: _Bound | None) -> Sizes:
    """As the binding has them, or else as the model has them, with 1 for what is free."""
    if bound and bound.sizes is not None:
        return bound.sizes
    return tuple(size if isinstance(size, int) else 1 for size in port.sizes or ())


def _read(tensor: ModelTensor, bound: _Bound | None, run: ModelRun) -> Buffer:
    """What is bound; zeros where nothing is, where onnxruntime has what happens to be in memory."""
    size = _bytes(tensor)
    if bound:
        return bound.held.data[:size]
    buffer = run.memory.buffer(size)
    np.frombuffer(buffer, np.uint8)[...] = 0
    return buffer


def _store(made: Buffer, tensor: ModelTensor, held: Held, run: ModelRun) -> None:
    """A resource that was deferred becomes what the output is, in memory that was taken for it. What lies behind it in
    another one stays as it was."""
    size = _bytes(tensor)
    if held.deferred:
        held.data = run.memory.pool.take(size)
        held.data_type, held.sizes, held.initial_bytes = tensor.data_type, tensor.sizes or (1,), size
    held.data[:size] = made[:size]

"""ONNX models as graphs of DirectML operators, for inputs of given sizes."""

import itertools
import logging
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.models import onnx
from app.models.onnx.booleans import mark, mark_outputs
from app.models.onnx.builder import Array, Builder, BuiltGraph
from app.models.onnx.folding import SMALL, folded, is_foldable
from app.models.onnx.mapping import MAPPINGS, Node, Unsupported, Value
from app.models.onnx.reading import (
    OLDEST_OPSET,
    Port,
    Signature,
    attributes_of,
    defaults_of,
    domain_of,
    modern,
    opsets_of,
    resolved,
    schema_of,
    signature,
    to_array,
    to_dense,
)
from app.models.onnx.tensors import Sizes, View

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

log = logging.getLogger("app")

for _module in iter_modules(onnx.__path__, f"{onnx.__name__}."):
    if _module.name != __name__:
        import_module(_module.name)  # those with mappings fill the registry

MOST_NODES = 1 << 14
"""ONNX nodes that are looked at for one graph: loops are unrolled."""

_DEEPEST = 32
"""Graphs and functions within one another."""

_GUESSES = (1, 64)
"""Of sizes that are free, to see what cannot be imported."""

_NO_OPERATOR = "DirectML has no operator for it"

_INVALID = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What comes of nodes that are not as ONNX says."""


class UnsupportedNode(NamedTuple):
    """An ONNX node that has no place in a graph of DirectML operators."""

    name: str
    operator: str
    opset: int
    why: str

    def __str__(self) -> str:
        return f"{self.name} ({self.operator}, opset {self.opset}): {self.why}"


class NotSupported(Exception):
    """Some of a model's nodes cannot be imported, which are all in `nodes`."""

    def __init__(self, nodes: Sequence[UnsupportedNode]) -> None:
        self.nodes = list(nodes)
        super().__init__("; ".join(map(str, nodes)))


class WrongSizes(Exception):
    """Sizes of inputs are missing, or are not the model's. The text is a sentence."""


class Tensor(NamedTuple):
    """An input or output of a model for which all is known."""

    type: str
    """ONNX's, as NumPy calls it."""
    data_type: DataType
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Imported:
    """A model for inputs of given sizes. Of `inputs`, `unread` are those that the graph has not."""

    graph: BuiltGraph
    inputs: dict[str, Tensor]
    unread: frozenset[str]
    outputs: dict[str, Tensor]
    nodes: dict[str, UnsupportedNode]
    """By label, with nothing to say of why."""


def import_model(
    model: "ModelProto",
    sizes: Mapping[str, Sequence[int]],
    known: Mapping[str, Array] | None = None,
    arrays: Mapping[str, Array] | None = None,
    pause: Callable[[], None] | None = None,
) -> Imported:
    """A graph for inputs of these `sizes`, by name; of those that are not free they may be left out. Inputs that are
    `known` are constants. `arrays` are those initializers that are not in `model` any more (`detached`).

    `pause` is called again and again, and may raise what ends it. Raises NotSupported, WrongSizes, Unreadable.
    """
    return _Importer(model, arrays or {}, pause).imported(sizes, known or {})


def never_supported(
    model: "ModelProto",
    ports: Signature,
    arrays: Mapping[str, Array] | None = None,
    pause: Callable[[], None] | None = None,
) -> list[UnsupportedNode]:
    """Nodes that cannot be imported whatever the sizes of inputs, as far as that can be told: those that have no
    mapping, and what some sizes show that cannot depend on sizes."""
    found = {each.name: each for each in _Importer(model, arrays or {}, pause).unmapped()}
    if any(port.sizes is None for port in ports.inputs.values()):
        return [*found.values()]
    for guess in _GUESSES:
        sizes = {
            name: [size if isinstance(size, int) else guess for size in port.sizes or ()]
            for name, port in ports.inputs.items()
        }
        try:
            import_model(model, sizes, arrays=arrays, pause=pause)
        except NotSupported as error:
            found |= {each.name: each for each in error.nodes if _is_for_good(each.why)}
        else:
            return []
    return [*found.values()]


class _Readers(NamedTuple):
    """Names of a graph that something reads, and of those that its nodes make the ones that are read once."""

    live: set[str]
    alone: set[str]


class _Nothing:
    """What an unsupported node would have made."""


_NOTHING = _Nothing()

_Scope = MutableMapping[str, "Value | _Nothing"]


class _Importer:
    def __init__(self, model: "ModelProto", arrays: Mapping[str, Array], pause: Callable[[], None] | None) -> None:
        self._model = model
        self._arrays = arrays
        self._build = Builder()
        self._functions = {(domain_of(each.domain), each.name): each for each in model.functions}
        self._unsupported: dict[str, UnsupportedNode] = {}
        self._nodes: dict[str, UnsupportedNode] = {}
        self._left = MOST_NODES
        self._depth = 0
        self._pause = pause
        self._prefix = ""

    def imported(self, sizes: Mapping[str, Sequence[int]], known: Mapping[str, Array]) -> Imported:
        ports = signature(self._model)
        inputs = {name: _sized(port, sizes.get(name)) for name, port in ports.inputs.items() if name not in known}
        for name in sizes.keys() - ports.inputs.keys():
            raise WrongSizes(f"There is no input {name}; there are {', '.join(ports.inputs)}.")
        scope: _Scope = dict(known)
        for name, each in inputs.items():
            if 0 in each.sizes:  # what is in it is known
                scope[name] = np.empty(each.sizes, each.type)
                continue
            scope[name] = self._build.input(name, each.data_type, each.sizes)
            if each.type == "bool":
                mark(self._build, scope[name])
        made = self._run(self._model.graph, scope, opsets_of(self._model), list(ports.outputs), {})
        if self._unsupported:
            raise NotSupported(list(self._unsupported.values()))
        outputs: dict[str, Tensor] = {}
        for (name, port), value in zip(ports.outputs.items(), made, strict=True):
            assert not isinstance(value, _Nothing)
            self._build.label(name)
            try:
                view = value if isinstance(value, View) else self._build.constant(value)
                self._build.output(name, view)
            except Unsupported as error:
                raise NotSupported(
                    [UnsupportedNode(name, "output", opsets_of(self._model).get("", 0), str(error))]
                ) from None
            outputs[name] = Tensor(port.type, view.data_type, view.sizes)
        built = self._build.built()
        read = {edge["GraphInput"] for edge in built.document["InputEdges"]}
        return Imported(built, inputs, frozenset(inputs.keys() - read), outputs, self._nodes)

    def unmapped(self) -> Iterator[UnsupportedNode]:
        """Of the main graph, what leads to its outputs: which branches are taken nobody knows yet."""
        opsets = opsets_of(self._model)
        for node in _needed(self._model.graph, [each.name for each in self._model.graph.output]):
            opset = opsets.get(domain_of(node.domain), 1)
            if not self._is_mapped(domain_of(node.domain), node.op_type, opset) and not is_foldable(node):
                yield UnsupportedNode(_label(node), operator_of(node), opset, _NO_OPERATOR)

    def _run(
        self,
        graph: "GraphProto | FunctionProto",
        scope: _Scope,
        opsets: Mapping[str, int],
        outputs: Sequence[str],
        outer: Mapping[str, "AttributeProto"],
    ) -> list["Value | _Nothing"]:
        """What `outputs` of `graph` are, whose inputs are in `scope`."""
        whole = graph is self._model.graph
        for tensor in getattr(graph, "initializer", ()):
            kept = self._arrays.get(tensor.name) if whole else None
            scope[tensor.name] = (
                self._initializer(tensor.name, lambda tensor=tensor: to_array(tensor)) if kept is None else kept
            )
        for sparse in getattr(graph, "sparse_initializer", ()):
            scope[sparse.values.name] = self._initializer(sparse.values.name, lambda each=sparse: to_dense(each))
        needed = _needed(graph, outputs)
        read = Counter(itertools.chain(outputs, *map(_read_by, needed)))
        here = {name for node in needed for name in node.output}
        readers = _Readers(set(read), {name for name, count in read.items() if count == 1 and name in here})
        for node in needed:
            made = self._node(node, scope, opsets, readers, outer)
            for name, value in zip(node.output, made, strict=False):
                if name:
                    scope[name] = _NOTHING if value is None else value
        return [self._found(scope, name) for name in outputs]

    def _initializer(self, name: str, read: Any) -> "Value | _Nothing":
        try:
            array: Array = read()
        except _INVALID as error:
            self._unsupported[name] = UnsupportedNode(name, "initializer", 0, f"it is invalid: {error}")
            return _NOTHING
        return array

    def _found(self, scope: _Scope, name: str) -> "Value | _Nothing":
        if name not in scope:
            if name not in self._unsupported:
                self._unsupported[name] = UnsupportedNode(name, "tensor", 0, "no node before makes it")
            return _NOTHING
        return scope[name]

    def _node(
        self,
        proto: "NodeProto",
        scope: _Scope,
        opsets: Mapping[str, int],
        readers: "_Readers",
        outer: Mapping[str, "AttributeProto"],
    ) -> list["Value | _Nothing | None"]:
        if self._pause:
            self._pause()
        domain = domain_of(proto.domain)
        opset = opsets.get(domain, 1)
        label = self._prefix + _label(proto)
        self._nodes[label] = UnsupportedNode(label, operator_of(proto), opset, "")
        nothing: list[Value | _Nothing | None] = [_NOTHING] * len(proto.output)
        inputs = [self._found(scope, name) if name else None for name in proto.input]
        try:
            self._left -= 1
            if self._left < 0:
                raise Unsupported("the graph has too many nodes")
            if not domain and opset < OLDEST_OPSET:
                proto, opsets = modern(proto, opset), {**opsets, "": OLDEST_OPSET}
            if any(isinstance(each, _Nothing) for each in inputs):
                if not self._is_mapped(domain, proto.op_type, opset):
                    raise Unsupported(_NO_OPERATOR)
                return nothing
            given = [each for each in inputs if not isinstance(each, _Nothing)]
            self._build.label(label)
            return [*self._mapped(proto, scope, opsets, outer, given, readers, label)]
        except Unsupported as error:
            why = str(error)
        except _INVALID as error:
            log.debug("%s cannot be imported", label, exc_info=True)
            why = f"it is invalid: {type(error).__name__}: {error}"
        self._unsupported[label] = self._nodes[label]._replace(why=why)
        return nothing

    def _is_mapped(self, domain: str, type_: str, opset: int) -> bool:
        if (domain, type_) in MAPPINGS or (domain, type_) in self._functions or type_ in _CONTROL:
            return True
        return _schema_with_function(domain, type_, opset) is not None

    def _mapped(
        self,
        proto: "NodeProto",
        scope: _Scope,
        opsets: Mapping[str, int],
        outer: Mapping[str, "AttributeProto"],
        inputs: list[Value | None],
        readers: "_Readers",
        label: str,
    ) -> Sequence["Value | _Nothing | None"]:
        domain = domain_of(proto.domain)
        function = self._functions.get((domain, proto.op_type))
        if function is not None:
            return self._call(function, _without_references(proto, outer), inputs, opsets, label)
        if proto.op_type in _CONTROL and not domain:
            with self._within(label):
                return _CONTROL[proto.op_type](self, proto, scope, opsets, inputs, outer)
        plain = _without_references(proto, outer)
        if all(not isinstance(each, View) for each in inputs):
            arrays = _folded(plain, opsets, inputs)
            if arrays is not None:
                return arrays
        opset = opsets.get(domain, 1)
        mapping = MAPPINGS.get((domain, proto.op_type))
        if mapping is not None:
            attributes = attributes_of(proto, opset, outer)
            inputs = [self._compact(each) for each in inputs]
            wanted = [name in readers.live for name in proto.output]
            alone = [name in readers.alone for name in proto.input]
            made = mapping(Node(proto.op_type, domain, opset, label, inputs, wanted, attributes, self._build, alone))
            outputs = made if isinstance(made, list) else [made]
            schema = schema_of(domain, proto.op_type, opset)
            if schema is not None:
                mark_outputs(self._build, schema, inputs, attributes, outputs)
            return outputs
        body = _schema_function(plain, opset, inputs, self._build)
        if body is None:
            raise Unsupported(_NO_OPERATOR)
        return self._call(body, plain, inputs, opsets, label)

    def _compact(self, value: Value | None) -> Value | None:
        """`value`, but for a large array that repeats its elements: NumPy would make all of them."""
        if isinstance(value, np.ndarray) and value.size > SMALL and 0 in value.strides:
            return self._build.constant(value)
        return value

    @contextmanager
    def _within(self, label: str) -> Iterator[None]:
        before = self._prefix
        if self._depth >= _DEEPEST:
            raise Unsupported("graphs lie too deep in one another")
        self._depth += 1
        self._prefix = f"{label}/"
        try:
            yield
        finally:
            self._depth -= 1
            self._prefix = before

    def _call(
        self,
        function: "FunctionProto",
        proto: "NodeProto",
        inputs: Sequence[Value | None],
        opsets: Mapping[str, int],
        label: str,
    ) -> Sequence["Value | _Nothing | None"]:
        """What the body of `function` makes of it."""
        scope: _Scope = {name: value for name, value in zip(function.input, inputs, strict=False) if value is not None}
        attributes = defaults_of(proto, opsets.get(domain_of(proto.domain), 1))
        attributes |= {each.name: each for each in (*function.attribute_proto, *proto.attribute)}
        opsets = {**opsets, **{domain_of(each.domain): each.version for each in function.opset_import}}
        absent = set(function.input) - scope.keys()
        body = _without(function, absent) if absent else function
        wanted = [name for name, output in zip(function.output, proto.output, strict=False) if output]
        with self._within(label):
            made = dict(zip(wanted, self._run(body, scope, opsets, wanted, attributes), strict=True))
        return [made.get(name) for name in function.output]

    # Control flow

    def _if(
        self,
        proto: "NodeProto",
        scope: _Scope,
        opsets: Mapping[str, int],
        inputs: Sequence[Value | None],
        outer: Mapping[str, "AttributeProto"],
    ) -> Sequence["Value | _Nothing | None"]:
        graphs = {each.name: each.g for each in proto.attribute}
        branch = graphs["then_branch" if _known(inputs[0], "condition").all() else "else_branch"]
        return self._run(branch, ChainMap({}, scope), opsets, [each.name for each in branch.output], outer)

    def _loop(
        self,
        proto: "NodeProto",
        scope: _Scope,
        opsets: Mapping[str, int],
        inputs: Sequence[Value | None],
        outer: Mapping[str, "AttributeProto"],
    ) -> Sequence["Value | _Nothing | None"]:
        body = {each.name: each.g for each in proto.attribute}["body"]
        names, outputs = [each.name for each in body.input], [each.name for each in body.output]
        most = None if inputs[0] is None else int(_known(inputs[0], "trip count").reshape(()))
        goes_on: Any = inputs[1] if len(inputs) > 1 else None
        carried: list[Any] = list(inputs[2:])
        scanned: list[list[Any]] = [[] for _ in outputs[1 + len(carried) :]]
        turn = 0
        while most is None or turn < most:
            if goes_on is not None and not _known(goes_on, "condition").all():
                break
            if goes_on is None and most is None:
                raise Unsupported("it goes on forever")
            inner: ChainMap[str, Value | _Nothing] = ChainMap({}, scope)
            inner.update(zip(names, [np.array(turn, np.int64), np.array(True), *carried], strict=False))
            with self._within(f"{self._prefix}{turn}"):
                made = self._run(body, inner, opsets, outputs, outer)
            if _NOTHING in made:
                return [_NOTHING] * len(proto.output)
            goes_on, carried = made[0] if inputs[1:2] != [None] or most is None else None, made[1 : 1 + len(carried)]
            for each, value in zip(scanned, made[1 + len(carried) :], strict=True):
                each.append(value)
            turn += 1
            self._left -= 1  # a body may have no nodes
        return [*carried, *(self._stacked(each, 0) for each in scanned)]

    def _scan(
        self,
        proto: "NodeProto",
        scope: _Scope,
        opsets: Mapping[str, int],
        inputs: Sequence[Value | None],
        outer: Mapping[str, "AttributeProto"],
    ) -> Sequence["Value | _Nothing | None"]:
        opset = opsets.get("", 1)
        if opset < 9:
            raise Unsupported("it is of opset 8, whose inputs have a batch dimension")
        attributes = attributes_of(proto, opset, outer)
        body, count = attributes["body"], attributes["num_scan_inputs"]
        names, outputs = [each.name for each in body.input], [each.name for each in body.output]
        if not 0 < count <= len(inputs):
            raise Unsupported(f"its num_scan_inputs is {count}, and it has {len(inputs)} inputs")
        carried: list[Any] = list(inputs[: len(inputs) - count])
        read: list[Any] = list(inputs[len(inputs) - count :])
        written = len(outputs) - len(carried)
        backward = attributes.get("scan_input_directions") or [0] * count
        from_last = attributes.get("scan_output_directions") or [0] * written
        axes = attributes.get("scan_input_axes") or [0] * count
        output_axes = attributes.get("scan_output_axes") or [0] * written
        lengths = {_sizes(each)[axis] for each, axis in zip(read, axes, strict=True)}
        if len(lengths) != 1:
            raise Unsupported(f"its inputs have {sorted(lengths)} elements, which must be as many")
        (turns,) = lengths
        scanned: list[list[Any]] = [[] for _ in range(written)]
        for turn in range(turns):
            inner: ChainMap[str, Value | _Nothing] = ChainMap({}, scope)
            parts = [
                self._part(each, axis, turns - 1 - turn if back else turn)
                for each, axis, back in zip(read, axes, backward, strict=True)
            ]
            inner.update(zip(names, [*carried, *parts], strict=True))
            with self._within(f"{self._prefix}{turn}"):
                made = self._run(body, inner, opsets, outputs, outer)
            if _NOTHING in made:
                return [_NOTHING] * len(proto.output)
            carried = made[: len(carried)]
            for each, value in zip(scanned, made[len(carried) :], strict=True):
                each.append(value)
            self._left -= 1
        stacked = [
            self._stacked(each[::-1] if last else each, axis)
            for each, axis, last in zip(scanned, output_axes, from_last, strict=True)
        ]
        return [*carried, *stacked]

    def _part(self, value: Value, axis: int, place: int) -> Value:
        """One along `axis`, which it then has no more."""
        if not isinstance(value, View):
            taken: Array = np.take(value, place, axis)
            return taken
        axis += len(value.sizes) if axis < 0 else 0
        sizes = [1 if n == axis else each for n, each in enumerate(value.sizes)]
        made = self._build.operator(
            "SLICE1",
            {"InputTensor": value},
            {
                "InputWindowOffsets": [place if n == axis else 0 for n in range(len(sizes))],
                "InputWindowSizes": sizes,
                "InputWindowStrides": [1] * len(sizes),
            },
            {"OutputTensor": (value.data_type, tuple(sizes))},
        )["OutputTensor"].reshaped([each for n, each in enumerate(value.sizes) if n != axis])
        assert made is not None, "it is packed"
        if self._build.is_boolean(value):
            mark(self._build, made)
        return made

    def _stacked(self, values: list[Value], axis: int) -> Value:
        """All of them along a new `axis`."""
        if not values:
            raise Unsupported("it has no turns")
        arrays = [each for each in values if not isinstance(each, View)]
        if len(arrays) == len(values):
            return np.stack(arrays, axis)
        rank = len(_sizes(values[0])) + 1
        axis += rank if axis < 0 else 0
        parts: list[View] = []
        for each in values:
            view = each if isinstance(each, View) else self._build.constant(each)
            made = view.reshaped((*view.sizes[:axis], 1, *view.sizes[axis:]))
            assert made is not None, "strides can have one more"
            parts.append(made)
        stacked = self._joined(parts, axis)
        if self._build.is_boolean(values[0]):
            mark(self._build, stacked)
        return stacked

    def _joined(self, parts: list[View], axis: int) -> View:
        while len(parts) > 1:
            parts = [self._join(parts[start : start + 64], axis) for start in range(0, len(parts), 64)]
        return parts[0]

    def _join(self, parts: list[View], axis: int) -> View:
        sizes = list(parts[0].sizes)
        sizes[axis] = sum(each.sizes[axis] for each in parts)
        return self._build.operator(
            "JOIN", {"InputTensors": parts}, {"Axis": axis}, {"OutputTensor": (parts[0].data_type, tuple(sizes))}
        )["OutputTensor"]


_CONTROL = {"If": _Importer._if, "Loop": _Importer._loop, "Scan": _Importer._scan}


def _is_for_good(why: str) -> bool:
    """Whether it is so for all sizes."""
    return why.startswith("DirectML") or why.endswith("is not constant")


def _label(node: "NodeProto") -> str:
    """Names may be left out, outputs not."""
    return node.name or f"{node.op_type}({', '.join(filter(None, node.output))})"


def operator_of(node: "NodeProto") -> str:
    """With its domain if that is not ai.onnx."""
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def _sized(port: Port, given: Sequence[int] | None) -> Tensor:
    """Raises WrongSizes, NotSupported."""
    sizes = port.sizes if given is None else tuple(given)
    if sizes is None or not all(isinstance(each, int) for each in sizes):
        free = "sizes" if sizes is None else ", ".join(str(each or "?") for each in sizes)
        raise WrongSizes(f"Sizes of {port.name} are missing; they are free: {free}.")
    if port.sizes is not None and given is not None:
        fits = len(port.sizes) == len(given) and all(
            not isinstance(own, int) or own == each for own, each in zip(port.sizes, given, strict=True)
        )
        if not fits:
            own = "x".join(str(each or "?") for each in port.sizes)
            raise WrongSizes(f"{port.name} is {'x'.join(map(str, given))}, where the model has {own}.")
    try:
        data_type = port.data_type
    except Unsupported as error:
        raise NotSupported([UnsupportedNode(port.name, "input", 0, str(error))]) from None
    return Tensor(port.type, data_type, tuple(int(each) for each in sizes if isinstance(each, int)))


def _known(value: Value | None, what: str) -> Array:
    if value is None or isinstance(value, View):
        raise Unsupported(f"its {what} is not constant")
    return value


def _sizes(value: Value) -> Sizes:
    return value.sizes if isinstance(value, View) else value.shape


def _needed(graph: "GraphProto | FunctionProto", outputs: Iterable[str]) -> "list[NodeProto]":
    """Nodes that lead to `outputs`, in their order."""
    live = set(outputs)
    needed: list[NodeProto] = []
    for node in reversed(graph.node):
        if not live.isdisjoint(node.output):
            needed.append(node)
            live |= _read_by(node)
    return needed[::-1]


def _read_by(node: "NodeProto") -> set[str]:
    """Names that it reads, its graphs' included."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names.update(*map(_read_by, graph.node), [each.name for each in graph.output])
    return names


def _folded(node: "NodeProto", opsets: Mapping[str, int], inputs: Sequence[Value | None]) -> list[Value | None] | None:
    try:
        made = folded(node, opsets, [each for each in inputs if not isinstance(each, View)])
    except Exception:  # whatever the reference says to a node that is invalid: the mapping will say it better
        log.debug("%s cannot be folded", node.name, exc_info=True)
        return None
    return None if made is None else [*made]


def _without_references(proto: "NodeProto", outer: Mapping[str, "AttributeProto"]) -> "NodeProto":
    if not any(each.ref_attr_name for each in proto.attribute):
        return proto
    made = type(proto)()
    made.CopyFrom(proto)
    del made.attribute[:]
    made.attribute.extend(resolved(proto, outer))
    return made


def _without(function: "FunctionProto", absent: Iterable[str]) -> "FunctionProto":
    """The same, whose nodes do not read what is `absent`."""
    made = type(function)()
    made.CopyFrom(function)
    gone = set(absent)
    for node in made.node:
        node.input[:] = ["" if name in gone else name for name in node.input]
    return made


def _schema_with_function(domain: str, type_: str, opset: int) -> Any:
    schema = schema_of(domain, type_, opset)
    if schema is None:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def _schema_function(
    proto: "NodeProto", opset: int, inputs: Sequence[Value | None], build: Builder
) -> "FunctionProto | None":
    """The body that ONNX gives to `proto`'s operator, if it is a function."""
    from onnx import FunctionProto, helper  # noqa: PLC0415 - an extra

    schema = _schema_with_function(domain_of(proto.domain), proto.op_type, opset)
    if schema is None:
        return None
    if schema.has_function:
        versions = [each for each in schema.function_opset_versions if each <= opset]
        data = schema.get_function_with_opset_version(max(versions, default=opset))
    else:
        types = [_type(each, helper, build) for each in inputs]
        versions = [each for each in schema.context_dependent_function_opset_versions if each <= opset]
        data = schema.get_context_dependent_function_with_opset_version(
            max(versions, default=opset), proto.SerializeToString(), types
        )
    return FunctionProto.FromString(data) if data else None


def _type(value: Value | None, helper: Any, build: Builder) -> bytes:
    if value is None:
        return b""
    name = (
        "bool"
        if build.is_boolean(value)
        else value.data_type.value.lower()
        if isinstance(value, View)
        else value.dtype.name
    )
    made: bytes = helper.make_tensor_type_proto(
        helper.np_dtype_to_tensor_dtype(np.dtype(name)), _sizes(value)
    ).SerializeToString()
    return made

"""ONNX models as graphs of DirectML operators, for inputs of given sizes."""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from app.contract.constants import DataType
from app.models import onnx
from app.models.onnx.booleans import mark, mark_outputs
from app.models.onnx.builder import Array, Builder, BuiltGraph
from app.models.onnx.control import CONTROL, NOTHING, Context, Held, Nothing, Scope, Settled
from app.models.onnx.errors import NotSupported, UnsupportedNode, WrongSizes, missing_sizes, shown
from app.models.onnx.folding import OF_ANY_SIZE, SMALL, folded, is_foldable
from app.models.onnx.loose import Loose
from app.models.onnx.mapping import MAPPINGS, Node, Value
from app.models.onnx.masks import NO_SIZES, begun, followed
from app.models.onnx.protos import (
    body_of,
    label_of,
    needed,
    operator_of,
    read_by,
    schema_with_body,
    without_inputs,
    without_references,
)
from app.models.onnx.reading import (
    INVALID,
    OLDEST_OPSET,
    Port,
    Signature,
    attributes_of,
    defaults_of,
    domain_of,
    is_constant,
    mistyped,
    modern,
    opsets_of,
    signature,
    to_array,
    to_dense,
)
from app.models.onnx.schemas import schema_of
from app.models.onnx.sequences import SEQUENCES, Given, Listed
from app.models.onnx.tensors import Sizes, Unsupported, View

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

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

_FREE_BYTES, _TIMES = 1 << 28, 8
"""What constants of a graph may take: so many bytes, and so many times what the model has."""

_NO_OPERATOR = "DirectML has no operator for it"


class ModelTensor(NamedTuple):
    """An input or output of a model for which all is known."""

    type: str
    """ONNX's, as NumPy calls it."""
    data_type: DataType
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Imported:
    """A model for inputs of given sizes. Of `inputs`, `unread` are those that the graph has not."""

    graph: BuiltGraph
    inputs: dict[str, ModelTensor]
    unread: frozenset[str]
    outputs: dict[str, ModelTensor]
    nodes: dict[str, UnsupportedNode]
    """By label, with nothing to say of why."""


def import_model(
    model: "ModelProto",
    sizes: Mapping[str, Sequence[int]],
    arrays: Mapping[str, Array] | None = None,
    pause: Callable[[], None] | None = None,
    is_described: bool = False,
    known: "dict[KnownParts, Parts] | None" = None,
) -> Imported:
    """A graph for inputs of these `sizes`, by name; of those that are not free they may be left out. `arrays` are those
    initializers that are not in `model` any more (`detached`). If `is_described`, the graph's outputs have the model's
    sizes and types in their descriptors as well: operators say [2, 1] where a sum over an axis that is not kept is [2].
    What is `known` of this model and these `arrays` from other sizes is not looked for again.

    `pause` is called again and again, and may raise what ends it. Raises NotSupported, WrongSizes, Unreadable.
    """
    return _Importer(model, arrays or {}, pause, known).imported(sizes, is_described)


def never_supported(
    model: "ModelProto",
    ports: Signature,
    arrays: Mapping[str, Array] | None = None,
    pause: Callable[[], None] | None = None,
) -> list[UnsupportedNode]:
    """Nodes that cannot be imported whatever the sizes of inputs, as far as that can be told: those that have no
    mapping, and what some sizes show that cannot depend on sizes."""
    found = {each.name: each for each in _Importer(model, {}, None).unmapped()}
    if any(port.sizes is None for port in ports.inputs.values()):
        return [*found.values()]
    for guess in _GUESSES if any(port.is_free for port in ports.inputs.values()) else _GUESSES[:1]:
        sizes = {
            name: [size if isinstance(size, int) else guess for size in port.sizes or ()]
            for name, port in ports.inputs.items()
        }
        try:
            import_model(model, sizes, arrays=arrays, pause=pause)
        except NotSupported as error:
            found |= {each.name: each for each in error.nodes if each.is_for_good}
        else:
            return []
    return [*found.values()]


class Parts(NamedTuple):
    """Of a graph that is run for some outputs, as often as there are turns of a loop: `initial` tensors, the nodes that
    are needed, and who reads what."""

    graph: "GraphProto | FunctionProto"
    initial: "dict[str, Held]"
    nodes: "list[NodeProto]"
    readers: "_Readers"


KnownParts: TypeAlias = tuple[int, tuple[str, ...]]
"""The id of a graph, which its parts keep, and the outputs it is run for."""

PARTS_BYTES = 1 << 9
"""What parts take for each node of their graph, about, without its tensors."""


class _Readers(NamedTuple):
    """Names of a graph that something reads, and of those that its nodes make the ones that are read once."""

    live: set[str]
    alone: set[str]


class _Importer:
    def __init__(
        self,
        model: "ModelProto",
        arrays: Mapping[str, Array],
        pause: Callable[[], None] | None,
        known: "dict[KnownParts, Parts] | None" = None,
    ) -> None:
        self._model = model
        self._arrays = arrays
        self.build = Builder(_FREE_BYTES + _TIMES * (model.ByteSize() + sum(each.nbytes for each in arrays.values())))
        self._functions = {(domain_of(each.domain), each.name, each.overload): each for each in model.functions}
        self._unsupported: dict[str, UnsupportedNode] = {}
        self._nodes: dict[str, UnsupportedNode] = {}
        self._left = MOST_NODES
        self._lasting_parts = {} if known is None else known
        self._known_parts: dict[KnownParts, Parts] = {**self._lasting_parts}
        self._known_folded: dict[Hashable, list[Array | None]] = {}
        self._known_constants: dict[int, tuple[NodeProto, Array]] = {}
        self._depth = 0
        self._pause = pause
        self._prefix = ""

    def imported(self, sizes: Mapping[str, Sequence[int]], is_described: bool) -> Imported:
        ports = signature(self._model)
        inputs = {name: _sized(port, sizes.get(name)) for name, port in ports.inputs.items()}
        for name in sizes.keys() - ports.inputs.keys():
            raise WrongSizes(
                f"There is no input {name}; there are {', '.join(ports.inputs)}.", name, list(ports.inputs)
            )
        scope: Scope = {}
        for name, each in inputs.items():
            if 0 in each.sizes:  # what is in it is known
                scope[name] = np.empty(each.sizes, each.type)
                continue
            scope[name] = self.build.input(name, each.data_type, each.sizes)
            if each.type == "bool":
                mark(self.build, scope[name])
        made = self.run(self._model.graph, Context(scope, opsets_of(self._model), {}), list(ports.outputs))
        if self._unsupported:
            raise NotSupported(list(self._unsupported.values()))
        outputs: dict[str, ModelTensor] = {}
        for (name, port), value in zip(ports.outputs.items(), made, strict=True):
            self.build.label(name)
            try:
                if isinstance(value, Nothing):  # though no node is unsupported: a loop that has no turn, for example
                    raise Unsupported("it stands for an input that is left out")
                if isinstance(value, Listed):
                    raise Unsupported("it is a sequence")
                view = value if isinstance(value, View) else self.build.constant(value)
                if view.data_type is not port.data_type:
                    raise Unsupported(f"it is {view.data_type}, where the model has {port.type}")
                self.build.output(name, view, is_described)
            except Unsupported as error:
                raise NotSupported(
                    [UnsupportedNode(name, "output", opsets_of(self._model).get("", 0), str(error))]
                ) from None
            outputs[name] = ModelTensor(port.type, view.data_type, view.sizes)
        if is_described:
            self.build.describe_inputs()
        built = self.build.built()
        read = {edge["GraphInput"] for edge in built.document["InputEdges"]}
        return Imported(built, inputs, frozenset(inputs.keys() - read), outputs, self._nodes)

    def unmapped(self) -> Iterator[UnsupportedNode]:
        """Of the main graph, what leads to its outputs: which branches are taken nobody knows yet."""
        opsets = opsets_of(self._model)
        for node in needed(self._model.graph, [each.name for each in self._model.graph.output]):
            opset = opsets.get(domain_of(node.domain), 1)
            if not self._is_mapped(node, opset) and not is_foldable(node):
                yield UnsupportedNode(label_of(node), operator_of(node), opset, _no_operator(node))

    def run(self, graph: "GraphProto | FunctionProto", context: Context, outputs: Sequence[str]) -> list[Settled]:
        """As `Runner` has it."""
        made = self._run(graph, context, outputs)
        return [self._refused(each) if isinstance(each, Loose) else each for each in made]

    def _run(self, graph: "GraphProto | FunctionProto", context: Context, outputs: Sequence[str]) -> list[Held]:
        parts, scope = self._parts(graph, tuple(outputs)), context.scope
        scope.update(parts.initial)
        for node in parts.nodes:
            made = self._node(node, context, parts.readers)
            for name, value in zip(node.output, made, strict=False):
                if name:
                    scope[name] = NOTHING if value is None else value
        return [self._found(scope, name) for name in outputs]

    def _parts(self, graph: "GraphProto | FunctionProto", outputs: tuple[str, ...]) -> Parts:
        """Looked for once in what lasts: the model's graphs and functions."""
        known = self._known_parts.get((id(graph), outputs))
        if known is not None and known.graph is graph:
            return known
        nodes = needed(graph, outputs)
        read = Counter(itertools.chain(outputs, *map(read_by, nodes)))
        kept = self._arrays if graph is self._model.graph else {}
        constants = {node.output[0] for node in nodes if is_constant(node)} & kept.keys()
        nodes = [node for node in nodes if node.output[0] not in constants]
        initial: dict[str, Held] = {name: kept[name] for name in constants}
        for tensor in getattr(graph, "initializer", ()):
            if tensor.name in read:
                initial[tensor.name] = (
                    kept[tensor.name]
                    if tensor.name in kept
                    else self._initializer(tensor.name, lambda tensor=tensor: to_array(tensor))
                )
        for sparse in getattr(graph, "sparse_initializer", ()):
            if sparse.values.name in read:
                initial[sparse.values.name] = self._initializer(sparse.values.name, lambda each=sparse: to_dense(each))
        here = {name for node in nodes for name in node.output}
        readers = _Readers(set(read), {name for name, count in read.items() if count == 1 and name in here})
        parts = Parts(graph, initial, nodes, readers)
        if hasattr(graph, "initializer") or any(graph is each for each in self._functions.values()):
            self._known_parts[id(graph), outputs] = parts
        if graph is self._model.graph and all(kept.get(name) is value for name, value in initial.items()):
            self._lasting_parts[id(graph), outputs] = parts  # which has no arrays of its own
        return parts

    def _initializer(self, name: str, read: Any) -> Held:
        try:
            array: Array = read()
        except INVALID as error:
            self._unsupported[name] = UnsupportedNode(name, "initializer", 0, f"it is invalid: {error}")
            return NOTHING
        return array

    def _refused(self, loose: Loose) -> Nothing:
        """Nobody can take it: the node is named of which its sizes come."""
        self._unsupported.setdefault(loose.label, self._nodes[loose.label]._replace(why=loose.why))
        return NOTHING

    def _found(self, scope: Scope, name: str) -> Held:
        if name not in scope:
            self._unsupported.setdefault(name, UnsupportedNode(name, "tensor", 0, "no node before makes it"))
            return NOTHING
        return scope[name]

    def _node(self, proto: "NodeProto", context: Context, readers: "_Readers") -> list[Held | None]:
        if self._pause:
            self._pause()
        domain = domain_of(proto.domain)
        opset = context.opsets.get(domain, 1)
        label = self._prefix + label_of(proto)
        self._nodes[label] = UnsupportedNode(label, operator_of(proto), opset, "")
        nothing: list[Held | None] = [NOTHING] * len(proto.output)
        inputs = [self._found(context.scope, name) if name else None for name in proto.input]
        self._spend(label)
        try:
            if not domain and opset < OLDEST_OPSET:
                proto = modern(proto, opset)
                context = context._replace(opsets={**context.opsets, "": OLDEST_OPSET})
            if any(isinstance(each, Nothing) for each in inputs):
                if not self._is_mapped(proto, opset):
                    raise Unsupported(_no_operator(proto))
                return nothing
            given = [each for each in inputs if not isinstance(each, Nothing)]
            self.build.label(label)
            return [*self._mapped(proto, context, given, readers, label)]
        except Unsupported as error:
            why = str(error)
        except INVALID as error:
            log.debug("%s cannot be imported", label, exc_info=True)
            why = mistyped(proto, opset) or f"it is invalid: {type(error).__name__}: {error}"
        self._unsupported[label] = self._nodes[label]._replace(why=why)
        return nothing

    def _is_mapped(self, proto: "NodeProto", opset: int) -> bool:
        domain, type_ = domain_of(proto.domain), proto.op_type
        if (domain, type_) in MAPPINGS or self._function(proto) is not None:
            return True
        if type_ in CONTROL or type_ in SEQUENCES:
            return True
        return schema_with_body(domain, type_, opset) is not None

    def _function(self, proto: "NodeProto") -> "FunctionProto | None":
        """The model's own that `proto` calls: of several of one name, that of its overload."""
        return self._functions.get((domain_of(proto.domain), proto.op_type, proto.overload))

    def _mapped(
        self,
        proto: "NodeProto",
        context: Context,
        given: list[Given | Loose],
        readers: "_Readers",
        label: str,
    ) -> Sequence[Held | None]:
        domain, opsets, outer = domain_of(proto.domain), context.opsets, context.outer
        function = self._function(proto)
        if function is not None:
            return self._call(function, without_references(proto, outer), given, opsets, label)
        inputs = [each for each in given if not isinstance(each, Loose)]
        if len(inputs) < len(given):
            return self._followed(proto, context, given, readers, label)
        if proto.op_type in CONTROL and not domain:
            with self._within(label):
                return CONTROL[proto.op_type](self, proto, context, inputs)
        opset = opsets.get(domain, 1)
        wanted = [name in readers.live for name in proto.output]
        if proto.op_type in SEQUENCES and not domain:
            apart = [None if isinstance(each, Listed) else each for each in inputs]
            attributes = attributes_of(proto, opset, outer)
            node = Node(proto.op_type, domain, opset, label, apart, wanted, attributes, self.build)
            return [SEQUENCES[proto.op_type](node, inputs)]
        tensors = [each for each in inputs if not isinstance(each, Listed)]
        if len(tensors) < len(inputs):
            if proto.op_type == "Identity" and not domain:
                return inputs
            raise Unsupported("one of its inputs is a sequence")
        plain = without_references(proto, outer)
        if all(not isinstance(each, View) for each in tensors):
            arrays = folded(plain, opsets, [each for each in tensors if not isinstance(each, View)], self._known_folded)
            if arrays is not None:
                self.build.spend(sum(each.nbytes for each in arrays if each is not None))
                return arrays
        mapping = MAPPINGS.get((domain, proto.op_type))
        known = self._known_constants.get(id(plain))
        if known is not None and known[0] is plain:
            return [known[1]]
        if mapping is not None:
            attributes = attributes_of(proto, opset, outer)
            tensors = [self._compact(each) for each in tensors]
            alone = [name in readers.alone for name in proto.input]
            node = Node(proto.op_type, domain, opset, label, tensors, wanted, attributes, self.build, alone)
            loose = None if domain else begun(node)
            if loose is not None:
                return [loose]
            made = mapping(node)
            outputs = made if isinstance(made, list) else [made]
            if proto.op_type == "Constant" and isinstance(outputs[0], np.ndarray) and outputs[0].size > SMALL:
                self._known_constants[id(plain)] = plain, outputs[0]  # else each turn of a loop has its own
            schema = schema_of(domain, proto.op_type, opset)
            if schema is not None:
                mark_outputs(self.build, schema, tensors, attributes, outputs)
            return outputs
        body = body_of(plain, opset, tensors, self.build)
        if body is None:
            raise Unsupported(_no_operator(proto))
        return self._call(body, plain, tensors, opsets, label)

    def _followed(
        self,
        proto: "NodeProto",
        context: Context,
        given: Sequence[Given | Loose],
        readers: "_Readers",
        label: str,
    ) -> Sequence[Held | None]:
        """What a node makes of tensors some of which are loose."""
        made: Sequence[Value | Loose | None] = [None]
        tensors = [each for each in given if not isinstance(each, Listed)]
        if not domain_of(proto.domain) and len(tensors) == len(given):
            opset = context.opsets.get("", 1)
            known = [None if isinstance(each, Loose) else self._compact(each) for each in tensors]
            wanted = [name in readers.live for name in proto.output]
            attributes = attributes_of(proto, opset, context.outer)
            made = followed(Node(proto.op_type, "", opset, label, known, wanted, attributes, self.build), tensors)
        if made[0] is not None:
            return made
        for each in given:
            if isinstance(each, Loose):
                self._refused(each)
        return [NOTHING] * len(proto.output)

    def _compact(self, value: Value | None) -> Value | None:
        """`value`, but for a large array that repeats its elements: NumPy would make all of them."""
        if isinstance(value, np.ndarray) and value.size > SMALL and 0 in value.strides:
            return self.build.constant(value)
        return value

    @contextmanager
    def _within(self, label: str) -> Iterator[None]:
        before = self._prefix
        if self._depth >= _DEEPEST:
            raise Unsupported(f"graphs lie too deep in one another; they may lie {_DEEPEST} deep")
        self._depth += 1
        self._prefix = f"{label}/"
        try:
            yield
        finally:
            self._depth -= 1
            self._prefix = before

    def _spend(self, label: str) -> None:
        """Count a node. There may be no end of those that follow one too many: nobody looks at them."""
        self._left -= 1
        if self._left < 0:
            why = f"the graph has too many nodes; with those of each turn of its loops it may have {MOST_NODES}"
            last = self._nodes[label]._replace(why=why)
            raise NotSupported([*self._unsupported.values(), last])

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """As `Runner` has it: a body may have no nodes."""
        if self._pause:
            self._pause()
        self._spend(self._prefix.removesuffix("/"))
        with self._within(f"{self._prefix}{number}"):
            yield

    def _call(
        self,
        function: "FunctionProto",
        proto: "NodeProto",
        inputs: Sequence[Given | Loose],
        opsets: Mapping[str, int],
        label: str,
    ) -> Sequence[Held | None]:
        """What the body of `function` makes of it."""
        scope: Scope = {name: value for name, value in zip(function.input, inputs, strict=False) if value is not None}
        attributes = defaults_of(proto, opsets.get(domain_of(proto.domain), 1))
        attributes |= {each.name: each for each in (*function.attribute_proto, *proto.attribute)}
        opsets = {**opsets, **{domain_of(each.domain): each.version for each in function.opset_import}}
        absent = set(function.input) - scope.keys()
        body = without_inputs(function, absent) if absent else function
        wanted = [name for name, output in zip(function.output, proto.output, strict=False) if output]
        with self._within(label):
            made = dict(zip(wanted, self._run(body, Context(scope, opsets, attributes), wanted), strict=True))
        return [made.get(name) for name in function.output]


def _no_operator(node: "NodeProto") -> str:
    return NO_SIZES if not domain_of(node.domain) and node.op_type in OF_ANY_SIZE else _NO_OPERATOR


def _sized(port: Port, given: Sequence[int] | None) -> ModelTensor:
    """Raises WrongSizes, NotSupported."""
    sizes = port.sizes if given is None else tuple(given)
    if sizes is None or not all(isinstance(each, int) for each in sizes):
        raise missing_sizes(port.name, sizes)
    if port.sizes is not None and given is not None:
        fits = len(port.sizes) == len(given) and all(
            not isinstance(own, int) or own == each for own, each in zip(port.sizes, given, strict=True)
        )
        if not fits:
            own = [each or "?" for each in port.sizes]
            words = f"{port.name} is {shown(given)}, where the model has {shown(own)}."
            raise WrongSizes(words, list(given), own)
    try:
        data_type = port.data_type
    except Unsupported as error:
        raise NotSupported([UnsupportedNode(port.name, "input", 0, str(error))]) from None
    return ModelTensor(port.type, data_type, tuple(int(each) for each in sizes if isinstance(each, int)))

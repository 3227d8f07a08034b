"""What an ONNX file says: its tensors, attributes, inputs and outputs. The `onnx` package reads it."""

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from app.contract.constants import DataType
from app.memory.buffers import Buffer
from app.models.onnx.builder import Array
from app.models.onnx.files import opened
from app.models.onnx.parsing import PIECE, Malformed, Raw, parse
from app.models.onnx.schemas import defaults, schema_of
from app.models.onnx.tensors import Unsupported

if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        NodeProto,
        SparseTensorProto,
        TensorProto,
        ValueInfoProto,
    )
    from onnx import ModelProto as ModelProto  # noqa: PLC0414 - for others as well

OLDEST_OPSET = 7
"""From which on broadcasting is NumPy's. Nodes of older ones are read if they mean the same there."""

_HIGHEST_OPSET = (1 << 31) - 1
"""What the onnx package can look up."""

_OTHERWISE_BEFORE = frozenset(["PRelu", "Tile"])
"""What means something else in older opsets though its attributes are the same."""

_LONGEST_NUMBER = 18
"""Digits of a number of bytes."""

_DENSE_BYTES = 1 << 28
"""What a sparse tensor may come to."""


_NUMBERS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")

INVALID = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What comes of nodes and tensors that are not as ONNX says."""


_MARK = slice(4, 8)
"""Where FlatBuffers have a name of what they are, as onnxruntime's .ort files do."""


class Unreadable(Exception):
    """This is no ONNX model that can be read. The text is a sentence."""


class Missing(Unreadable):
    """The `onnx` package is not installed."""

    def __init__(self) -> None:
        super().__init__("ONNX models need the onnx package: pip install 'dmlserve[onnx]'.")


class Port(NamedTuple):
    """An input or output of a model. `sizes` are numbers, names of dimensions that are free, and None where a free one
    has no name; they are None if the model does not say how many there are. `type` is ONNX's, as NumPy calls it."""

    name: str
    type: str
    sizes: tuple[int | str | None, ...] | None

    @property
    def data_type(self) -> DataType:
        """Raises Unsupported."""
        try:
            return DataType.UINT8 if self.type == "bool" else DataType(self.type.upper())
        except ValueError:
            raise Unsupported(f"DirectML has no type for {self.type}") from None

    @property
    def is_free(self) -> bool:
        """Whether its sizes are for each request to say."""
        return self.sizes is None or not all(isinstance(size, int) for size in self.sizes)


class Signature(NamedTuple):
    """What a model takes and gives, in its order. Inputs that have an initializer are constants."""

    inputs: dict[str, Port]
    outputs: dict[str, Port]


def read_model(
    data: bytes | Buffer,
    folder: Path | None = None,
    most_bytes: int = 1 << 31,
    arrays: dict[str, Array] | None = None,
    take: Callable[[int], None] = lambda _: None,
) -> "ModelProto":
    """The model that `data` is. Its external data may be in files of `folder`, and nowhere else; all of them are at
    most `most_bytes`, and `take` is called with the bytes of each before they are read. Large initializers go to
    `arrays` and not into the model, if there are any, and those of raw data stay where they are in `data`. Raises
    Unreadable, and what `take` raises."""
    try:
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - of what onnx needs
        from onnx import TensorProto  # noqa: PLC0415 - an extra
    except ImportError:
        raise Missing from None
    if len(data) > most_bytes:
        raise Unreadable(f"It has {len(data)} bytes, where {most_bytes} are allowed.")
    if bytes(data[_MARK]) == b"ORTM":
        raise Unreadable(
            "It is no ONNX model, but one in onnxruntime's own format, .ort; give the ONNX model that it was made from."
        )
    try:
        raw: Raw = []
        model = parse(data, raw)
        _put(model, raw, arrays)
    except (Malformed, DecodeError, ValueError, RuntimeError) as error:
        raise Unreadable(f"It is no ONNX model: {error}.") from None
    if not model.graph.output:
        raise Unreadable("It is no ONNX model: its graph has no outputs.")
    for name in (*_names(model.graph), *(name for each in model.functions for name in _names_of_function(each))):
        if not isinstance(name, str):  # what is no UTF-8 comes as bytes
            raise Unreadable(f"It is no ONNX model: the name {name!r} is no UTF-8.")
    for each in itertools.chain(model.opset_import, *(function.opset_import for function in model.functions)):
        if abs(each.version) > _HIGHEST_OPSET:
            raise Unreadable(f"It is no ONNX model: {each.version} is no version of an operator set.")
    given = [each.name for each in model.graph.input]
    initial = {each.name for each in model.graph.initializer} - {*given}  # an input's is what it is by default
    twice = _made_twice([*given, *initial], model.graph.node)
    for function in model.functions:
        twice = twice or _made_twice(function.input, function.node)
    if twice:
        raise Unreadable(f"It is no ONNX model: {twice[:80]} is made twice, and who reads it may mean either.")
    left = most_bytes - len(data)
    functions = (_tensors_of_nodes(each.node) for each in model.functions)
    large = ((each, arrays) for each in model.graph.initializer)
    others = ((each, None) for each in itertools.chain(_tensors(model.graph), *functions))
    for tensor, to in itertools.chain(large, others):
        if tensor.data_location == TensorProto.EXTERNAL:
            data = _external(tensor, folder, left, take)
            left -= len(data)
            _give(tensor, memoryview(data), to)
    return model


def _put(model: "ModelProto", raw: Raw, arrays: dict[str, Array] | None) -> None:
    """Give tensors the data that they were parsed without. Raises Malformed."""
    if len({id(tensor) for tensor, _ in raw}) < len(raw) or any(tensor.HasField("raw_data") for tensor, _ in raw):
        raise Malformed("a tensor has its data twice")
    initial = {id(each) for each in model.graph.initializer}
    for tensor, data in raw:
        _give(tensor, data, arrays if id(tensor) in initial else None)
    if arrays is not None:
        _detach_numbers(model, arrays)


def _give(tensor: "TensorProto", data: memoryview, arrays: dict[str, Array] | None) -> None:
    """Have `tensor` be of raw `data`: in `arrays`, where they are, if there are any and NumPy has its type."""
    made = None if arrays is None else _viewed(tensor, data)
    if arrays is None or made is None:
        tensor.raw_data = bytes(data)
    else:
        arrays[tensor.name] = made
        _keep_name(tensor)


def _detach_numbers(model: "ModelProto", arrays: dict[str, Array]) -> None:
    """Have `arrays` hold initializers of many packed numbers, which protobuf counts one by one when asked how large
    a model is, in one call. What is wrong with one is for the importer to say."""
    for tensor in model.graph.initializer:
        if max([len(getattr(tensor, field)) for field in _NUMBERS]) > PIECE:
            try:
                arrays[tensor.name] = to_array(tensor)
            except INVALID:
                continue
            _keep_name(tensor)


def _viewed(tensor: "TensorProto", data: memoryview) -> Array | None:
    """`data` as the tensor's, where they are; None if they are not an array of NumPy's own, or do not fit it."""
    from onnx import TensorProto, helper  # noqa: PLC0415

    if tensor.data_location == TensorProto.EXTERNAL or tensor.data_type not in helper.get_all_tensor_dtypes():
        return None
    type_ = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if type_.kind not in "biuf" or type_.itemsize * math.prod(tensor.dims) != data.nbytes:
        return None
    try:
        return np.frombuffer(data.toreadonly(), type_).reshape(tuple(tensor.dims))
    except ValueError:
        return None


def _keep_name(tensor: "TensorProto") -> None:
    name = tensor.name
    tensor.Clear()
    tensor.name = name


def opsets_of(model: "ModelProto") -> dict[str, int]:
    """By domain; of ai.onnx it is empty."""
    return {domain_of(each.domain): each.version for each in model.opset_import}


def domain_of(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def signature(model: "ModelProto") -> Signature:
    """Raises Unreadable."""
    graph = model.graph
    given = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    return Signature(
        {each.name: _port(each, graph) for each in graph.input if each.name not in given},
        {each.name: _port(each, graph) for each in graph.output},
    )


_OTHERS = {
    "sequence_type": "a sequence",
    "map_type": "a map",
    "optional_type": "optional",
    "sparse_tensor_type": "a sparse tensor",
}
"""What inputs and outputs may be besides tensors, in ONNX."""


def _port(info: "ValueInfoProto", graph: "GraphProto") -> Port:
    from onnx import TensorProto, helper  # noqa: PLC0415

    kind = info.type.WhichOneof("value")
    if kind is None:
        raise Unreadable(f"{info.name} has no type; inputs and outputs of a model have one.")
    if kind != "tensor_type":
        is_zipped = any(info.name in node.output for node in graph.node if node.op_type == "ZipMap")
        cure = "; ZipMap makes it, which skl2onnx leaves out with options={'zipmap': False}" if is_zipped else ""
        raise Unreadable(f"{info.name} is {_OTHERS.get(kind, kind)}, where only tensors are taken{cure}.")
    tensor = info.type.tensor_type
    try:
        is_text = tensor.elem_type == TensorProto.STRING
        type_ = "string" if is_text else helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except (KeyError, ValueError):
        raise Unreadable(f"{info.name} has no element type.") from None
    if not tensor.HasField("shape"):
        return Port(info.name, type_, None)
    sizes: list[int | str | None] = []
    for dimension in tensor.shape.dim:
        if dimension.HasField("dim_value") and dimension.dim_value > 0:
            sizes.append(dimension.dim_value)
        else:
            sizes.append(dimension.dim_param or None)
    return Port(info.name, type_, tuple(sizes))


def to_array(tensor: "TensorProto") -> Array:
    """Raises ValueError if its data do not fit its sizes, are of a type that ONNX does not have, or were not loaded."""
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

    if tensor.data_location == TensorProto.EXTERNAL:  # which the onnx package would look for in the working directory
        raise ValueError("its data are in a file")
    if tensor.data_type not in helper.get_all_tensor_dtypes():
        raise ValueError(f"its data type is {tensor.data_type}")
    if min(tensor.dims, default=0) < 0:  # which NumPy would take for one to be inferred
        raise ValueError(f"its sizes are {list(tensor.dims)}")
    return numpy_helper.to_array(tensor)


def detached(model: "ModelProto", arrays: dict[str, Array]) -> "ModelProto":
    """`model`, with the initializers that it still holds in `arrays`, and what constants among its nodes are, by their
    outputs. It is a copy: protobuf gives back no memory of a message while there is any of it. Raises Unreadable."""
    for tensor in model.graph.initializer:
        if tensor.name in arrays:
            continue
        try:
            arrays[tensor.name] = to_array(tensor)
        except INVALID as error:
            raise Unreadable(f"Initializer {tensor.name} cannot be read: {type(error).__name__}: {error}.") from None
        _keep_name(tensor)
    for node in model.graph.node:
        for attribute in node.attribute if is_constant(node) else ():
            if attribute.name == "value" and attribute.HasField("t"):
                with suppress(*INVALID):  # the importer will say what is wrong with it
                    arrays[node.output[0]] = to_array(attribute.t)
                    _keep_name(attribute.t)
    small = type(model)()
    small.CopyFrom(model)
    return small


def is_constant(node: "NodeProto") -> bool:
    return node.op_type == "Constant" and not domain_of(node.domain) and len(node.output) == 1


def to_dense(sparse: "SparseTensorProto") -> Array:
    """Raises ValueError."""
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    sizes = tuple(sparse.dims)
    if np.prod(sizes, dtype=float) * values.itemsize > _DENSE_BYTES:
        raise ValueError(f"a sparse tensor of sizes {list(sizes)} is too large")
    if indices.min(initial=0) < 0:
        raise ValueError("one of its indices is negative")
    dense = np.zeros(sizes, values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def attributes_of(node: "NodeProto", opset: int, outer: Mapping[str, "AttributeProto"]) -> dict[str, Any]:
    """In Python's types, with the schema's defaults; graphs and types are as they are. What a function's node takes
    from who calls it is in `outer`."""
    found = defaults_of(node, opset) | {each.name: each for each in resolved(node, outer)}
    return {name: _plain(each) for name, each in found.items()}


def defaults_of(node: "NodeProto", opset: int) -> dict[str, "AttributeProto"]:
    """Those that the schema has for the attributes of `node`, if it has a schema. Of an operator that is newer than
    `opset` they are the newest ones: fused models have LayerNormalization at opset 11."""
    domain = domain_of(node.domain)
    schema = schema_of(domain, node.op_type, opset) or schema_of(domain, node.op_type, _HIGHEST_OPSET)
    return dict(defaults(schema)) if schema else {}


def modern(node: "NodeProto", opset: int) -> "NodeProto":
    """A node of an opset before OLDEST_OPSET as one of that. Raises Unsupported if it means something else there."""
    from onnx import defs  # noqa: PLC0415

    if not defs.has(node.op_type, OLDEST_OPSET, ""):
        return node
    if node.op_type in _OTHERWISE_BEFORE:
        raise Unsupported(f"opset {opset} is too old; {OLDEST_OPSET} and newer ones are read")
    made = type(node)()
    made.CopyFrom(node)
    del made.attribute[:]
    known = defs.get_schema(node.op_type, OLDEST_OPSET, "").attributes
    aligned = "axis" in known or "axis" not in {each.name for each in node.attribute}
    for each in node.attribute:
        if each.name in known:
            made.attribute.append(each)
        elif not (
            each.name == "consumed_inputs"
            or (each.name == "is_test" and each.i)
            or (each.name == "broadcast" and aligned)
        ):
            raise Unsupported(f"with {each.name}, opset {opset} is too old; {OLDEST_OPSET} and newer ones are read")
    if node.op_type == "Selu":  # whose defaults had five digits
        given = {each.name for each in made.attribute}
        made.attribute.extend(each for name, each in defaults_of(node, opset).items() if name not in given)
    missing = {"BatchNormalization": "is_test", "Dropout": "is_test"}.get(node.op_type)
    if missing and missing not in {each.name for each in node.attribute}:
        raise Unsupported(f"without {missing} it is in training mode at opset {opset}")
    return made


def resolved(node: "NodeProto", outer: Mapping[str, "AttributeProto"]) -> Iterator["AttributeProto"]:
    """The node's attributes; those that the caller of a function has left out are left out."""
    for each in node.attribute:
        if not each.ref_attr_name:
            yield each
        elif each.ref_attr_name in outer:
            made = type(each)()
            made.CopyFrom(outer[each.ref_attr_name])
            made.name = each.name
            yield made


def mistyped(node: "NodeProto", opset: int) -> str | None:
    """What is to be told of an attribute whose type is another one than the schema says, if there is one."""
    from onnx import AttributeProto  # noqa: PLC0415

    schema = schema_of(domain_of(node.domain), node.op_type, opset)
    for each in node.attribute:
        own = schema.attributes.get(each.name) if schema else None
        if own is not None and not each.ref_attr_name and each.type != own.type.value:
            name = AttributeProto.AttributeType.Name(each.type)
            return f"its {each.name} is {name}, where ONNX has {own.type.name}"
    return None


def _plain(attribute: "AttributeProto") -> Any:
    from onnx import AttributeProto, helper  # noqa: PLC0415

    value = helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRING:
        return value.decode(errors="replace")
    if attribute.type == AttributeProto.STRINGS:
        return [each.decode(errors="replace") for each in value]
    if attribute.type == AttributeProto.TENSOR:
        return to_array(value)
    if attribute.type == AttributeProto.TENSORS:
        return [to_array(each) for each in value]
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        return to_dense(value)
    return list(value) if attribute.type in (AttributeProto.FLOATS, AttributeProto.INTS) else value


def _names(graph: "GraphProto") -> Iterator[object]:
    """All that are looked up."""
    yield from (each.name for each in (*graph.input, *graph.output, *graph.initializer))
    yield from (each.values.name for each in graph.sparse_initializer)
    for info in (*graph.input, *graph.output):
        yield from (each.dim_param for each in info.type.tensor_type.shape.dim)
    yield from _names_of_nodes(graph.node)


def _names_of_function(function: "FunctionProto") -> Iterator[object]:
    yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    yield from (each.domain for each in function.opset_import)
    yield from _names_of_nodes(function.node)


def _names_of_nodes(nodes: "Iterable[NodeProto]") -> Iterator[object]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.output:
                    yield from _names(inner)


def _made_twice(inputs: "Iterable[str]", nodes: "Iterable[NodeProto]") -> str | None:
    """A name that an input has, or a node gives to what it makes, though it is another one's already."""
    known: set[str] = set()
    name: str
    for name in itertools.chain(inputs, *(node.output for node in nodes)):
        if name in known:
            return name
        if name:
            known.add(name)
    return None


def _tensors(graph: "GraphProto") -> Iterator["TensorProto"]:
    """All that may have external data, those of subgraphs as well."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: "Iterable[NodeProto]") -> Iterator["TensorProto"]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.initializer or inner.sparse_initializer:
                    yield from _tensors(inner)


def _external(tensor: "TensorProto", folder: Path | None, most_bytes: int, take: Callable[[int], None]) -> bytes:
    """The data that `tensor` has in a file; it does not say so any more. Raises Unreadable."""
    from onnx import TensorProto  # noqa: PLC0415

    said = {each.key: each.value for each in tensor.external_data}
    location = said.get("location", "")
    if folder is None:
        raise Unreadable(f"{tensor.name} has its data in a file {location!r}, which did not come with the model.")
    root = os.path.realpath(folder)
    try:
        path = os.path.realpath(os.path.join(root, location))
        is_inside = os.path.commonpath([root, path]) == root and os.path.isfile(path)
    except (TypeError, ValueError):  # no name that a file can have
        is_inside = False
    if not is_inside:
        raise Unreadable(f"{tensor.name} has its data in {location[:200]!r}, which is no file in the model's folder.")
    try:
        size = os.path.getsize(path)
        offset = _number(tensor, said, "offset", 0)
        length = _number(tensor, said, "length", max(size - offset, 0))
        if length > most_bytes:
            raise Unreadable(f"{tensor.name} has {length} bytes of data, where {most_bytes} are left.")
        if offset + length > size:
            raise Unreadable(
                f"{tensor.name} has its data in {location!r}, which has too few bytes: {size}, where {length} from "
                f"byte {offset} on are asked for."
            )
        take(length)
        with opened(path) as file:
            file.seek(offset)
            data = file.read(length)
    except (OSError, ValueError) as error:
        raise Unreadable(f"{tensor.name} has its data in {location!r}, which cannot be read: {error}.") from None
    if len(data) != length:
        raise Unreadable(f"{tensor.name} has its data in {location!r}, which has too few bytes.")
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]
    return data


def _number(tensor: "TensorProto", said: Mapping[str, str], key: str, default: int) -> int:
    """Raises Unreadable."""
    text = said.get(key, str(default))
    if not text.isdecimal() or len(text) > _LONGEST_NUMBER:
        raise Unreadable(
            f"{tensor.name} has its data in a file, with {key} {text[:80]!r}, which is no number of bytes."
        )
    return int(text)

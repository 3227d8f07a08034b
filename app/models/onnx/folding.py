"""Nodes of which all inputs are known, computed by the reference of the `onnx` package: arithmetic with sizes."""

import logging
from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from app.models.onnx.builder import SMALL_BYTES, Array
from app.models.onnx.schemas import schema_of

if TYPE_CHECKING:
    from onnx import NodeProto

log = logging.getLogger("app")

SMALL = 1 << 14
"""Elements of a node's inputs, and of its outputs. What is larger is for the graph's initialization."""

_WIDE = 1 << 18
"""The same where an input is FLOAT64, in which no operator computes: positions of patches, for example."""

_MOST_PRODUCTS = 1 << 22
"""Of elements of an Einsum's inputs, of which each may meet each."""

_FOLDED = frozenset(
    [
        "Abs", "Add", "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
        "BitwiseXor", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "Cos", "CumSum", "Div",
        "Einsum", "Equal", "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements",
        "GatherND", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log",
        "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "OneHot", "OptionalHasElement",
        "Or", "Pad", "Pow", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
        "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape",
        "Round", "Scatter", "ScatterElements", "ScatterND", "Sigmoid", "Sign", "Sin", "Slice", "Split", "Sqrt",
        "Squeeze", "Sub", "Sum", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where",
        "Xor",
    ]
)  # fmt: skip
"""What sizes are computed by, and nothing that takes long for few elements, as texts and pictures may."""

_RENAMED = {"Scatter": ("ScatterElements", 11)}
"""Older names, which the reference does not know, of what it does, and since which opset."""

OF_ANY_SIZE = frozenset(["NonZero", "Unique", "Compress", "NonMaxSuppression"])
"""Their outputs' sizes follow from values, and are bounded by their inputs'."""


def is_foldable(node: "NodeProto") -> bool:
    """Whether it could be computed here if its inputs were known."""
    return node.domain in ("", "ai.onnx") and node.op_type in _FOLDED


def folded(
    node: "NodeProto",
    opsets: Mapping[str, int],
    inputs: Sequence[Array | None],
    known: dict[Hashable, list[Array | None]],
) -> list[Array | None] | None:
    """The node's outputs, or None if it should not be computed here. `node` has no attributes of who calls it.
    What it makes of little is put among what is `known`: each layer computes the same sizes, and that takes long."""
    if not is_foldable(node):
        return None
    key = _key(node, opsets, inputs)
    if key in known:
        return known[key]
    try:
        made = _computed(node, opsets, inputs)
    except Exception:  # whatever the reference says to a node that is invalid: the mapping will say it better
        log.debug("%s cannot be folded", node.name, exc_info=True)
        return None
    if key is not None and made is not None:
        known[key] = made
    return made


def _key(node: "NodeProto", opsets: Mapping[str, int], inputs: Sequence[Array | None]) -> Hashable:
    """All that `node`'s outputs follow from; None if that is much, or texts, which an array only refers to."""
    there = [each for each in inputs if each is not None]
    if any(each.dtype.hasobject for each in there):
        return None
    if node.ByteSize() + sum(each.nbytes for each in there) > SMALL_BYTES:
        return None
    attributes = [each.SerializeToString() for each in node.attribute]
    tensors = [None if each is None else (each.dtype, each.shape, each.tobytes()) for each in inputs]
    return (node.op_type, opsets.get(""), *map(bool, node.output), *attributes, *tensors)


def _computed(
    node: "NodeProto", opsets: Mapping[str, int], inputs: Sequence[Array | None]
) -> list[Array | None] | None:
    import onnx  # noqa: PLC0415 - an extra
    from onnx import helper, numpy_helper, shape_inference  # noqa: PLC0415
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415

    if node.op_type in _RENAMED:
        older, node = node, onnx.NodeProto()
        node.CopyFrom(older)
        node.op_type, since = _RENAMED[older.op_type]
        opsets = {**opsets, "": since}
    wanted = list(node.output)
    if not all(wanted):
        node = _with_all_outputs(node)
    there = [each for each in inputs if each is not None]
    most = _WIDE if any(each.dtype == np.float64 for each in there) else SMALL
    schema = schema_of("", node.op_type, opsets[""])
    if sum(each.size for each in there) > most or schema is None:
        return None
    if node.op_type == "Einsum" and prod(each.size for each in there) > _MOST_PRODUCTS:
        return None
    named = {name: each for name, each in zip(node.input, inputs, strict=True) if each is not None}
    infos = []
    for name, each in named.items():
        infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape))
    imports = [helper.make_opsetid("", opsets[""])]
    dtypes: dict[str, np.dtype[Any]] = {}
    if node.op_type not in OF_ANY_SIZE:
        try:
            types = shape_inference.infer_node_outputs(
                schema,
                node,
                {info.name: info.type for info in infos},
                {name: numpy_helper.from_array(np.ascontiguousarray(each), name) for name, each in named.items()},
                opset_imports=imports,
            )
        except onnx.shape_inference.InferenceError:
            return None
        for name, type_ in types.items():
            if type_.WhichOneof("value") != "tensor_type" or not type_.tensor_type.HasField("shape"):
                return None
            dims = type_.tensor_type.shape.dim
            if not all(each.HasField("dim_value") for each in dims) or prod(each.dim_value for each in dims) > most:
                return None
            dtypes[name] = helper.tensor_dtype_to_np_dtype(type_.tensor_type.elem_type)
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "node", infos, outputs)
    model = helper.make_model(graph, opset_imports=imports)
    with np.errstate(all="ignore"):
        made = ReferenceEvaluator(model).run(None, named)
    if not all(isinstance(each, np.ndarray | np.generic) for each in made):
        return None
    results = {info.name: np.asarray(each) for info, each in zip(outputs, made, strict=True)}
    for name, dtype in dtypes.items():  # of which the reference makes a wider one where it adds up squares
        results[name] = results[name].astype(dtype, copy=False)
    return [results.get(name) for name in wanted]


def _with_all_outputs(node: "NodeProto") -> "NodeProto":
    """The same, with names for outputs that are left out, which inference refuses of some operators. None is like
    another name, as each is longer."""
    named = type(node)()
    named.CopyFrom(node)
    longest = "".join((*node.input, *node.output))
    named.output[:] = [name or f"{longest} {number}" for number, name in enumerate(node.output)]
    return named

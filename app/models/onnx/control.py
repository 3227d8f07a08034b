"""If, Loop, Scan and SequenceMap of ONNX, unrolled: how many turns there are must be known, and which branch is taken,
unless both make tensors of the same sizes."""

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from app.models.onnx.booleans import mark
from app.models.onnx.builder import Array, Builder
from app.models.onnx.loose import Loose
from app.models.onnx.mapping import Value
from app.models.onnx.movement import joined
from app.models.onnx.operands import require
from app.models.onnx.protos import sizes_of
from app.models.onnx.reading import attributes_of
from app.models.onnx.sequences import Given, Listed
from app.models.onnx.tensors import Unsupported, View

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto


class Nothing:
    """What an unsupported node would have made."""


NOTHING = Nothing()

Settled: TypeAlias = Value | Listed | Nothing
"""What a graph gives to who runs it."""

Held: TypeAlias = Settled | Loose
"""What a name stands for."""

Scope: TypeAlias = MutableMapping[str, Held]
"""Tensors by name."""


class Context(NamedTuple):
    """Where a node is: what names stand for, versions of operators by domain, and the attributes of the function whose
    body it is in."""

    scope: Scope
    opsets: Mapping[str, int]
    outer: Mapping[str, "AttributeProto"]

    def inside(self, given: Mapping[str, Held]) -> "Context":
        """In a graph that has some more names."""
        return self._replace(scope=ChainMap(dict(given), self.scope))


class Runner(Protocol):
    """What imports a graph."""

    @property
    def build(self) -> Builder:
        """Where its operators are made."""

    def run(self, graph: "GraphProto | FunctionProto", context: Context, outputs: Sequence[str]) -> list[Settled]:
        """What `outputs` of `graph` are, whose inputs are in the scope of `context`."""

    def turn(self, number: int) -> AbstractContextManager[None]:
        """A turn of a loop, which counts as a node. Raises Unsupported if there were too many."""


def _if(runner: Runner, proto: "NodeProto", context: Context, inputs: Sequence[Given]) -> Sequence[Held | None]:
    graphs = {each.name: each.g for each in proto.attribute}

    def made(name: str) -> Sequence[Settled]:
        branch = graphs[name]
        return runner.run(branch, context.inside({}), [each.name for each in branch.output])

    condition = inputs[0]
    if not isinstance(condition, View):
        return made("then_branch" if _known(condition, "condition").all() else "else_branch")
    if condition.elements != 1:
        raise Unsupported(f"its condition has {condition.elements} elements")
    pairs = zip(made("then_branch"), made("else_branch"), strict=True)
    return [_chosen(runner.build, condition, each, other) for each, other in pairs]


def _chosen(build: Builder, condition: View, each: Settled, other: Settled) -> Settled:
    """One of two that are both computed, since nothing else comes of a branch than its outputs."""
    if isinstance(each, Nothing) or isinstance(other, Nothing):
        return NOTHING
    if isinstance(each, Listed) or isinstance(other, Listed):
        raise Unsupported("it makes a sequence, and its condition is not constant")
    if sizes_of(each) != sizes_of(other):
        made = f"{list(sizes_of(each))} and {list(sizes_of(other))}"
        raise Unsupported(f"its condition is not constant, and its branches make tensors of sizes {made}")
    if _are_equal(each, other) or 0 in sizes_of(each):
        return each
    is_boolean = build.is_boolean(each)
    a, b = (value if isinstance(value, View) else build.constant(value) for value in (each, other))
    if a.data_type is not b.data_type:
        raise Unsupported(f"its branches make tensors of {a.data_type} and {b.data_type}")
    require("ELEMENT_WISE_IF", "ATensor", a.data_type)
    whole = condition.reshaped(())
    assert whole is not None, "it is one element"
    inputs = {"ConditionTensor": whole.broadcast(a.sizes), "ATensor": a, "BTensor": b}
    chosen = build.operator("ELEMENT_WISE_IF", inputs, outputs={"OutputTensor": (a.data_type, a.sizes)})["OutputTensor"]
    if is_boolean:
        mark(build, chosen)
    return chosen


def _are_equal(each: Value, other: Value) -> bool:
    if isinstance(each, View) or isinstance(other, View):
        return isinstance(each, View) and isinstance(other, View) and each == other
    return each.dtype == other.dtype and each.tobytes() == other.tobytes()  # 0 and -0 are not, and NaN may be


def _loop(runner: Runner, proto: "NodeProto", context: Context, inputs: Sequence[Given]) -> Sequence[Held | None]:
    """What the body says ends it, also where the node has no condition. ONNX's page has that ignored then; onnxruntime
    heeds it, and onnxscript writes a `for` that may break so."""
    body = {each.name: each.g for each in proto.attribute}["body"]
    names, outputs = [each.name for each in body.input], [each.name for each in body.output]
    most = None if inputs[0] is None else int(_known(inputs[0], "trip count").reshape(()))
    goes_on: Any = np.array(True) if len(inputs) < 2 or inputs[1] is None else inputs[1]
    carried: list[Any] = list(inputs[2:])
    scanned: list[list[Any]] = [[] for _ in outputs[1 + len(carried) :]]
    turn = 0
    while (most is None or turn < most) and _known(goes_on, "condition").all():
        given = zip(names, [np.array(turn, np.int64), np.array(True), *carried], strict=False)
        made = _turn(runner, body, turn, dict(given), context)
        if made is None:
            return [NOTHING] * len(proto.output)
        goes_on, carried = made[0], made[1 : 1 + len(carried)]
        for each, value in zip(scanned, made[1 + len(carried) :], strict=True):
            each.append(value)
        turn += 1
    return [*carried, *(_stacked(runner.build, each, 0) for each in scanned)]


def _scan(runner: Runner, proto: "NodeProto", context: Context, inputs: Sequence[Given]) -> Sequence[Held | None]:
    opset = context.opsets.get("", 1)
    scan = _scan_of_batches if opset < 9 else _scanned
    return scan(runner, context, inputs, attributes_of(proto, opset, context.outer))


def _scan_of_batches(
    runner: Runner, context: Context, inputs: Sequence[Given], attributes: Mapping[str, Any]
) -> Sequence[Held | None]:
    """Opset 8's, whose tensors have a dimension for batches before all others: one after the other."""
    lengths, *batched = inputs
    read: list[Any] = batched
    (rows, turns), *others = [sizes_of(each)[:2] for each in read[len(read) - attributes["num_scan_inputs"] :]]
    if lengths is not None and (_known(lengths, "sequence_lens") != turns).any():
        raise Unsupported("its sequences differ in length")
    if any(each != (rows, turns) for each in others):
        raise Unsupported("its inputs differ in their first two sizes")
    if rows * turns == 0:
        raise Unsupported("it has no turns")
    renamed = {**attributes, "scan_input_directions": attributes.get("directions")}
    made: list[Any] = []
    for row in range(rows):
        parts = [_part(runner.build, each, 0, row) for each in read]
        with runner.turn(row):
            made.append(_scanned(runner, context, parts, renamed))
        if any(each is NOTHING for each in made[-1]):
            return [NOTHING] * len(made[-1])
    return [_stacked(runner.build, list(each), 0) for each in zip(*made, strict=True)]


def _scanned(
    runner: Runner, context: Context, inputs: Sequence[Given], attributes: Mapping[str, Any]
) -> Sequence[Held | None]:
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
    lengths = {sizes_of(each)[axis] for each, axis in zip(read, axes, strict=True)}
    if len(lengths) != 1:
        raise Unsupported(f"its inputs have {sorted(lengths)} elements, which must be as many")
    (turns,) = lengths
    scanned: list[list[Any]] = [[] for _ in range(written)]
    for turn in range(turns):
        parts = [
            _part(runner.build, each, axis, turns - 1 - turn if back else turn)
            for each, axis, back in zip(read, axes, backward, strict=True)
        ]
        given = zip(names, [*carried, *parts], strict=True)
        made = _turn(runner, body, turn, dict(given), context)
        if made is None:
            return [NOTHING] * len(outputs)
        carried = made[: len(carried)]
        for each, value in zip(scanned, made[len(carried) :], strict=True):
            each.append(value)
    stacked = [
        _stacked(runner.build, each[::-1] if last else each, axis)
        for each, axis, last in zip(scanned, output_axes, from_last, strict=True)
    ]
    return [*carried, *stacked]


def _sequence_map(
    runner: Runner, proto: "NodeProto", context: Context, inputs: Sequence[Given]
) -> Sequence[Held | None]:
    """A turn for each element of the first input; other sequences give one each, and tensors are there in all turns."""
    body = {each.name: each.g for each in proto.attribute}["body"]
    names, outputs = [each.name for each in body.input], [each.name for each in body.output]
    lengths = [len(each.elements) for each in inputs if isinstance(each, Listed)]
    if not isinstance(inputs[0], Listed):
        raise Unsupported("its first input is no sequence")
    if len(set(lengths)) > 1:
        raise Unsupported(f"its sequences have {lengths} elements, which must be as many")
    turns: list[list[Any]] = []
    for turn in range(lengths[0]):
        parts: list[Any] = [each.elements[turn] if isinstance(each, Listed) else each for each in inputs]
        made = _turn(runner, body, turn, dict(zip(names, parts, strict=True)), context)
        if made is None:
            return [NOTHING] * len(outputs)
        if any(isinstance(each, Listed) for each in made):
            raise Unsupported("it makes a sequence in each turn")
        turns.append(made)
    return [Listed(tuple(made[place] for made in turns)) for place in range(len(outputs))]


def _turn(
    runner: Runner, body: "GraphProto", number: int, given: Mapping[str, Held], context: Context
) -> list[Any] | None:
    """What `body` makes of its inputs, as they are `given`; None if something of it is nothing."""
    with runner.turn(number):
        made = runner.run(body, context.inside(given), [each.name for each in body.output])
    return None if any(each is NOTHING for each in made) else made


def _part(build: Builder, value: Value, axis: int, place: int) -> Value:
    """One along `axis`, which it then has no more."""
    if not isinstance(value, View):
        taken: Array = np.take(value, place, axis)
        return taken
    axis += len(value.sizes) if axis < 0 else 0
    sizes = [1 if n == axis else each for n, each in enumerate(value.sizes)]
    made = build.operator(
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
    if build.is_boolean(value):
        mark(build, made)
    return made


def _stacked(build: Builder, values: list[Value], axis: int) -> Value:
    """All of them along a new `axis`."""
    if not values:
        raise Unsupported("it has no turns")
    if any(isinstance(each, Listed) for each in values):
        raise Unsupported("it makes a sequence in each turn")
    arrays = [each for each in values if not isinstance(each, View)]
    if len(arrays) == len(values):
        return np.stack(arrays, axis)
    rank = len(sizes_of(values[0])) + 1
    axis += rank if axis < 0 else 0
    parts: list[View] = []
    for each in values:
        view = each if isinstance(each, View) else build.constant(each)
        made = view.reshaped((*view.sizes[:axis], 1, *view.sizes[axis:]))
        assert made is not None, "strides can have one more"
        parts.append(made)
    stacked = joined(build, parts, axis)
    if build.is_boolean(values[0]):
        mark(build, stacked)
    return stacked


def _known(value: Given, what: str) -> Array:
    if not isinstance(value, np.ndarray):
        raise Unsupported(f"its {what} is not constant")
    return value


CONTROL: Mapping[str, Callable[[Runner, "NodeProto", Context, Sequence[Given]], Sequence[Held | None]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
"""By operator."""

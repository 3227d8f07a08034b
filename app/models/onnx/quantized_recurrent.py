"""LSTM whose weights are quantized, and whose input and states are on the way."""

from typing import Any

import numpy as np

from app.contract.constants import DataType, ReduceFunction
from app.models.onnx.element_wise import binary, chosen
from app.models.onnx.indexing import elements_at
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.movement import joined, parted, turned, window
from app.models.onnx.operands import broadcast, number, operate
from app.models.onnx.quantization import Parameters, dynamically_quantized, restored
from app.models.onnx.recurrent import (
    DIRECTIONS,
    LSTM_ACTIVATIONS,
    activations_of,
    direction_of,
    lstm_attributes,
    require_sequences,
)
from app.models.onnx.reductions import reduced
from app.models.onnx.shapes import inserted, of_type
from app.models.onnx.tensors import Unsupported, View


@maps("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_lstm(node: Node) -> list[Value | None]:
    """An LSTM for each step, since states are quantized before they are weighted: those of all rows by one scale, as
    onnxruntime does in one thread. It has the input quantized as a whole, for both directions."""
    if node.data_type(0) is not DataType.FLOAT32:
        raise Unsupported(f"its input is {node.data_type(0)}, not FLOAT32")
    layer = _Layer(node)
    made = [layer.direction(each) for each in range(layer.directions)]
    axes = (1, 0, 0)
    outputs = [joined(node.build, each, axis) for each, axis in zip(zip(*made, strict=True), axes, strict=True)]
    return [*outputs[: len(node.wanted)]]


class _Layer:
    """What its directions have in common. Lengths are { 1, batch }, if there are any."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._direction = direction_of(node)
        self.directions = 2 if self._direction == "bidirectional" else 1
        x = node.view(0)
        require_sequences(x)
        self._steps, self._batch, width = x.sizes
        self._hidden = node.sizes(2)[1]
        self._tensors = {
            "WeightTensor": self._weights(1, 8, width),
            "RecurrenceTensor": self._weights(2, 10, self._hidden),
            "BiasTensor": node.optional(3),
            "PeepholeTensor": node.optional(7),
            "HiddenInitTensor": node.optional(5),
            "CellMemInitTensor": node.optional(6),
        }
        self._lengths = inserted(of_type(node.view(4), DataType.UINT32), 0) if node.has(4) else None
        self._x = _through_bytes(node, x if self._lengths is None else self._reached(x, self._lengths))
        self._activations = activations_of(node, LSTM_ACTIVATIONS * self.directions)

    def direction(self, which: int) -> tuple[View, View, View]:
        """All states, the last one and the last cell."""
        node, build = self._node, self._node.build
        is_backward = which == 1 or self._direction == "reverse"
        x = self._turned(self._x) if is_backward else self._x
        ones = [1] * self._steps
        tensors = {field: self._of(view, which) for field, view in self._tensors.items() if view is not None}
        hidden, cell = tensors.pop("HiddenInitTensor", None), tensors.pop("CellMemInitTensor", None)
        left = [None] * self._steps if self._lengths is None else parted(build, self._left(self._lengths), 0, ones)
        attributes: dict[str, Any] = {
            "ActivationDescs": self._activations[3 * which : 3 * which + 3],
            "Direction": DIRECTIONS["forward"],
            **lstm_attributes(node),
        }
        sizes = (1, self._batch, self._hidden)
        outputs = {
            "OutputSequenceTensor": (DataType.FLOAT32, (1, *sizes)),
            "OutputCellSingleTensor": (DataType.FLOAT32, sizes),
        }
        states = []
        for part, length in zip(parted(build, x, 0, ones), left, strict=True):
            state = None if hidden is None else _through_bytes(node, hidden)
            inputs = {"InputTensor": part, "HiddenInitTensor": state, "CellMemInitTensor": cell}
            made = build.operator("LSTM", tensors | inputs | {"SequenceLengthsTensor": length}, attributes, outputs, 4)
            hidden, cell = node.reshaped(made["OutputSequenceTensor"], sizes), made["OutputCellSingleTensor"]
            states.append(hidden)
        assert hidden is not None, "tensors have elements"
        assert cell is not None, "tensors have elements"
        all_of_them = joined(build, states, 0)
        last = hidden if self._lengths is None else self._last(all_of_them, self._lengths)
        sequence = self._turned(all_of_them) if is_backward else all_of_them
        return inserted(sequence, 1), last, cell

    def _weights(self, index: int, scale: int, width: int) -> View:
        """As LSTM has them, { directions, gates * hidden, width }."""
        node, gates = self._node, 4 * self._hidden
        x = node.view(index)
        if x.sizes != (self.directions, width, gates):
            expected = [self.directions, width, gates]
            raise Unsupported(f"its input {index} has sizes {list(x.sizes)}, not {expected}")
        given = []
        for each in (scale, scale + 1):
            view = node.view(each)
            if view.sizes not in ((self.directions,), (self.directions, gates)):
                either = f"[{self.directions}] or [{self.directions}, {gates}]"
                raise Unsupported(f"its input {each} has sizes {list(view.sizes)}, not {either}")
            given.append(node.reshaped(view, (self.directions, 1, view.elements // self.directions)))
        return restored(node, Parameters(x, *given).spread()).transposed((0, 2, 1))

    def _of(self, view: View, direction: int) -> View:
        if view.sizes[:1] != (self.directions,):
            raise Unsupported(f"one of its inputs has sizes {list(view.sizes)}, which are not of {self.directions}")
        made = window(self._node, view, [range(direction, direction + 1), *map(range, view.sizes[1:])])
        assert isinstance(made, View), "a direction has elements"
        return made

    def _reached(self, x: View, lengths: View) -> View:
        """`x` as far as the longest row goes, which is all that onnxruntime quantizes, and behind it zeros."""
        node, first = self._node, (x.sizes[0], *[1] * (len(x.sizes) - 1))
        step = node.build.constant(np.arange(x.sizes[0], dtype=np.uint32).reshape(first)).broadcast(x.sizes)
        longest = broadcast(inserted(reduced(node, lengths, ReduceFunction.MAX, [1]), 2), x.sizes)
        outputs = {"OutputTensor": (DataType.UINT8, x.sizes)}
        is_there = operate(node, "ELEMENT_WISE_LOGICAL_LESS_THAN", {"ATensor": step, "BTensor": longest}, {}, outputs)
        return chosen(node, is_there, x, number(node, 0, x.data_type, x.sizes))

    def _turned(self, x: View) -> View:
        """{ steps, batch, ... } backward, each row by its own length."""
        whole = number(self._node, self._steps, DataType.UINT32, (1, self._batch))
        lengths = whole if self._lengths is None else self._lengths
        return turned(self._node, x, broadcast(inserted(lengths, 2), (1, *x.sizes[1:])), 0)

    def _left(self, lengths: View) -> View:
        """Of each row from each step on: { steps, batch }."""
        node, sizes = self._node, (self._steps, self._batch)
        before = broadcast(node.build.constant(np.arange(self._steps, dtype=np.uint32)[:, None]), sizes)
        most = binary(node, "ELEMENT_WISE_MAX", broadcast(lengths, sizes), before)
        return binary(node, "ELEMENT_WISE_SUBTRACT", most, before)

    def _last(self, states: View, lengths: View) -> View:
        """The state of each row behind its last step."""
        node, sizes = self._node, lengths.sizes
        least = binary(node, "ELEMENT_WISE_MAX", lengths, number(node, 1, DataType.UINT32, sizes))
        kept = binary(node, "ELEMENT_WISE_MIN", least, number(node, self._steps, DataType.UINT32, sizes))
        places = binary(node, "ELEMENT_WISE_SUBTRACT", kept, number(node, 1, DataType.UINT32, sizes))
        places = broadcast(inserted(places, 2), (1, *states.sizes[1:]))
        return elements_at(node, states, places, 0)


def _through_bytes(node: Node, x: View) -> View:
    """`x` as it is once it was quantized: sums of these are those of bytes, in units of their scales."""
    return restored(node, dynamically_quantized(node, x, DataType.UINT8).spread())

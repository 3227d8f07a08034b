"""RNN, GRU and LSTM."""

from typing import Any

from app.contract.constants import DataType
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.shapes import of_type
from app.models.onnx.tensors import Sizes, Unsupported, View

DIRECTIONS = {"forward": "FORWARD", "reverse": "BACKWARD", "bidirectional": "BIDIRECTIONAL"}

_ACTIVATIONS: dict[str, tuple[str, dict[str, tuple[str, float]]]] = {
    "relu": ("RELU", {}),
    "tanh": ("TANH", {}),
    "sigmoid": ("SIGMOID", {}),
    "softsign": ("SOFTSIGN", {}),
    "affine": ("LINEAR", {"Alpha": ("alpha", 1.0), "Beta": ("beta", 0.0)}),
    "leakyrelu": ("LEAKY_RELU", {"Alpha": ("alpha", 0.01)}),
    "thresholdedrelu": ("THRESHOLDED_RELU", {"Alpha": ("alpha", 1.0)}),
    "scaledtanh": ("SCALED_TANH", {"Alpha": ("alpha", 1.0), "Beta": ("beta", 1.0)}),
    "hardsigmoid": ("HARD_SIGMOID", {"Alpha": ("alpha", 0.2), "Beta": ("beta", 0.5)}),
    "elu": ("ELU", {"Alpha": ("alpha", 1.0)}),
    "softplus": ("SOFTPLUS", {"Steepness": ("", 1.0)}),
}
"""DirectML's activations by ONNX's names in small letters, and their attributes: which list of the node's they come
from, if any, and their defaults."""

LSTM_ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]
"""Of one direction, if the node states none."""

_INPUTS = (
    *("InputTensor", "WeightTensor", "RecurrenceTensor", "BiasTensor", "SequenceLengthsTensor", "HiddenInitTensor"),
    *("CellMemInitTensor", "PeepholeTensor"),
)
"""DirectML's fields in the order of ONNX's inputs. The last two are those of LSTM."""

_OUTPUTS = ("OutputSequenceTensor", "OutputSingleTensor", "OutputCellSingleTensor")


@maps("RNN")
def rnn(node: Node) -> list[Value | None]:
    _without_clip(node)
    return _recurrent(node, "RNN", ["Tanh"], {})


@maps("GRU")
def gru(node: Node) -> list[Value | None]:
    _without_clip(node)
    attributes = {"LinearBeforeReset": bool(node.attribute("linear_before_reset"))}
    return _recurrent(node, "GRU", ["Sigmoid", "Tanh"], attributes)


@maps("LSTM")
def lstm(node: Node) -> list[Value | None]:
    return _recurrent(node, "LSTM", LSTM_ACTIVATIONS, lstm_attributes(node))


def lstm_attributes(node: Node) -> dict[str, Any]:
    """DirectML's, of what ONNX calls otherwise."""
    clip = node.attribute("clip")
    return {
        "ClipThreshold": float(clip or 0.0),
        "UseClipThreshold": bool(clip),
        "CoupleInputForget": bool(node.attribute("input_forget", 0)),
    }


def _without_clip(node: Node) -> None:
    if node.attribute("clip"):
        raise Unsupported("its clip is for LSTM alone in DirectML")


def direction_of(node: Node) -> str:
    direction: str = node.attribute("direction", "forward")
    if direction not in DIRECTIONS:
        raise Unsupported(f"its direction is {direction}")
    return direction


def require_sequences(x: View) -> None:
    """Raises Unsupported if these are no sequences, as what is made in a branch that is not meant for its sizes."""
    if len(x.sizes) != 3:
        raise Unsupported(f"its input has sizes {list(x.sizes)}, where it takes three: of steps, sequences and rows")


def _recurrent(node: Node, operator: str, defaults: list[str], attributes: dict[str, Any]) -> list[Value | None]:
    direction = direction_of(node)
    directions = 2 if direction == "bidirectional" else 1
    tensors = {field: node.view(index) for index, field in enumerate(_INPUTS) if node.has(index)}
    require_sequences(tensors["InputTensor"])
    is_batch_first = bool(node.attribute("layout", 0))
    if is_batch_first:
        for field in ("InputTensor", "HiddenInitTensor", "CellMemInitTensor"):
            if field in tensors:
                tensors[field] = tensors[field].transposed((1, 0, 2))
    if "SequenceLengthsTensor" in tensors:
        tensors["SequenceLengthsTensor"] = of_type(tensors["SequenceLengthsTensor"], DataType.UINT32)
    x = tensors["InputTensor"]
    steps, batch, _ = x.sizes
    hidden = tensors["RecurrenceTensor"].sizes[-1]
    wanted = {field: each for field, each in zip(_OUTPUTS, node.wanted, strict=False) if each}
    sizes: dict[str, Sizes] = dict.fromkeys(wanted, (directions, batch, hidden))
    if "OutputSequenceTensor" in wanted:
        sizes["OutputSequenceTensor"] = (steps, directions, batch, hidden)
    made = node.build.operator(
        operator,
        tensors,
        {
            "ActivationDescs": activations_of(node, defaults * directions),
            "Direction": DIRECTIONS[direction],
            **attributes,
        },
        {field: (x.data_type, each) for field, each in sizes.items()},
        rank=4,
    )
    return [_turned(made[field], is_batch_first) if field in wanted else None for field in _OUTPUTS[: len(node.wanted)]]


def _turned(view: View, is_batch_first: bool) -> View:
    """{ steps, directions, batch, hidden } or without steps, or the same with the batch first."""
    if not is_batch_first:
        return view
    return view.transposed((2, 0, 1, 3) if len(view.sizes) == 4 else (1, 0, 2))


def activations_of(node: Node, defaults: list[str]) -> list[dict[str, Any]]:
    """Values are taken off the lists by those activations alone that have such an attribute."""
    names = node.attribute("activations") or defaults
    if len(names) < len(defaults):
        raise Unsupported(f"it has {len(names)} activations, not {len(defaults)}")
    values = {name: [float(each) for each in node.attribute(f"activation_{name}") or ()] for name in ("alpha", "beta")}
    made = []
    for name in names[: len(defaults)]:  # of RNN, whose default is for two directions
        if name.lower() not in _ACTIVATIONS:
            raise Unsupported(f"its activation {name} is none of DirectML's")
        activation, fields = _ACTIVATIONS[name.lower()]
        parameters = {
            field: values[given].pop(0) if values.get(given) else default for field, (given, default) in fields.items()
        }
        made.append({"Type": f"ACTIVATION_{activation}", **parameters})
    return made

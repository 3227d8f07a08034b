"""RNN, LSTM and GRU.

The pages of DirectML's reference give the equations as images; these are those of the ONNX operators, whose names,
order of gates and layouts the pages use.

Source: the DML_RNN_OPERATOR_DESC, DML_LSTM_OPERATOR_DESC and DML_GRU_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import FeatureLevel, RecurrentNetworkDirection
from app.contract.scalars import Bool, Float
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.operators.accuracy import Accuracy
from app.operators.fusion import FusedActivation
from app.operators.operator import Count, InputTensorDesc, OptionalInputTensorDesc, OptionalOutputTensorDesc
from app.operators.recurrent import steps
from app.operators.recurrent.cells import CELL, HIDDEN, RESET, Ingredients, Round, Stage, element

Activations = Annotated[list[FusedActivation], Field(min_length=1, max_length=6, description="In the formula's order.")]
Directions = Annotated[
    RecurrentNetworkDirection, Field(description="Which way the sequences are gone through.", examples=["FORWARD"])
]

_SEQUENCES = (
    "Computed in float32, FLOAT16 too: states pass from step to step in float32, and what is stored is rounded once.",
    "On a GPU with tensor cores all steps of FLOAT16 are one kernel, if the activations are SIGMOID and TANH: states "
    "then pass with 22 digits, and the activations err by no more than 2^-20 of their values.",
    "Elements of OutputSequenceTensor beyond a sequence's length are 0; sequences longer than the tensor end with it, "
    "and one of length 0 keeps its initial state.",
    "BACKWARD, a sequence begins with its own last step, by its length.",
    "At least one output is stated; those that are null are not computed.",
    "OWNED_BY_DML is refused, as the operator's page says.",
    "The activations are those that can be fused elsewhere. DirectML's documentation does not say which ones may be.",
)
_EXAMPLE: dict[str, Any] = {
    "InputTensor": {"Sizes": [1, 3, 1, 2]},
    "SequenceLengthsTensor": {"Sizes": [1, 1, 1, 1]},
    "HiddenInitTensor": {"Sizes": [1, 1, 1, 2]},
    "OutputSequenceTensor": {"Sizes": [3, 1, 1, 2]},
    "OutputSingleTensor": {"Sizes": [1, 1, 1, 2]},
}


def _example(gates: int, activations: list[str], **members: Any) -> dict[str, Any]:
    """One sequence of three steps, two numbers each, and two hidden ones."""
    return {
        **_EXAMPLE,
        "WeightTensor": {"Sizes": [1, 1, 2 * gates, 2]},
        "RecurrenceTensor": {"Sizes": [1, 1, 2 * gates, 2]},
        "BiasTensor": {"Sizes": [1, 1, 1, 4 * gates]},
        "ActivationDescs": [{"Type": f"DML_OPERATOR_ACTIVATION_{name}"} for name in activations],
        **members,
    }


_ACCURACY = Accuracy(
    4,
    "the largest sum of magnitudes in a step, where weights do not magnify what the steps before lost",
    0.5,
    "the terms of a gate's sum times the steps",
)


class Rnn(steps.Recurrent):
    """A layer whose output is its state: an activation of the input and of the state before, both weighted."""

    Type: Literal["DML_OPERATOR_RNN", "RNN"]
    InputTensor: InputTensorDesc
    WeightTensor: InputTensorDesc
    RecurrenceTensor: InputTensorDesc
    BiasTensor: OptionalInputTensorDesc = None
    HiddenInitTensor: OptionalInputTensorDesc = None
    SequenceLengthsTensor: OptionalInputTensorDesc = None
    OutputSequenceTensor: OptionalOutputTensorDesc = None
    OutputSingleTensor: OptionalOutputTensorDesc = None
    ActivationDescCount: Count = None
    ActivationDescs: Activations
    Direction: Directions

    gates = 1
    activations = ("f",)
    formula_text = "H_t = f(X_t W^T + H_(t-1) R^T + Wb + Rb), per direction"
    accuracy = _ACCURACY
    same_types = (
        (
            *("InputTensor", "WeightTensor", "RecurrenceTensor", "BiasTensor", "HiddenInitTensor"),
            *("OutputSequenceTensor", "OutputSingleTensor"),
        ),
    )
    support = SupportTable.of("1_0 4 F32-16, SequenceLengthsTensor U32")
    example: ClassVar[Mapping[str, Any]] = _example(1, ["TANH"])
    example_data = steps.LENGTHS
    notes = (
        *_SEQUENCES,
        "RecurrenceTensor is required, as in the operator's structure; the text of its page calls it optional.",
    )

    def rounds(self, of: Ingredients) -> Iterator[Round]:
        (f,) = of.activations
        yield Round(range(1), HIDDEN, [Stage(HIDDEN, f(of.terms.sums[0]))])


class Lstm(steps.Recurrent):
    """A layer with a cell, which keeps what its gates let through: long short-term memory."""

    Type: Literal["DML_OPERATOR_LSTM", "LSTM"]
    InputTensor: InputTensorDesc
    WeightTensor: InputTensorDesc
    RecurrenceTensor: InputTensorDesc
    BiasTensor: OptionalInputTensorDesc = None
    HiddenInitTensor: OptionalInputTensorDesc = None
    CellMemInitTensor: OptionalInputTensorDesc = None
    SequenceLengthsTensor: OptionalInputTensorDesc = None
    PeepholeTensor: OptionalInputTensorDesc = None
    OutputSequenceTensor: OptionalOutputTensorDesc = None
    OutputSingleTensor: OptionalOutputTensorDesc = None
    OutputCellSingleTensor: OptionalOutputTensorDesc = None
    ActivationDescCount: Count = None
    ActivationDescs: Activations
    Direction: Directions
    ClipThreshold: Float = Field(description="Arguments of the activations lie within it.", examples=[0.0])
    UseClipThreshold: Bool = Field(description="Whether they do.", examples=[False])
    CoupleInputForget: Bool = Field(
        description="Whether the forget gate is what the input gate leaves.", examples=[False]
    )

    gates = 4
    activations = ("f", "g", "h")
    formula_text = (
        "i = f(X W_i^T + H R_i^T + P_i * C + Wb_i + Rb_i); fg = f(X W_f^T + H R_f^T + P_f * C + Wb_f + Rb_f), or 1 - i "
        "with CoupleInputForget; c = g(X W_c^T + H R_c^T + Wb_c + Rb_c); C_t = fg * C + i * c; o = f(X W_o^T + H R_o^T "
        "+ P_o * C_t + Wb_o + Rb_o); H_t = o * h(C_t)"
    )
    choices = ("CoupleInputForget",)
    accuracy = _ACCURACY
    same_types = (
        (
            *("InputTensor", "WeightTensor", "RecurrenceTensor", "BiasTensor", "HiddenInitTensor"),
            *("CellMemInitTensor", "PeepholeTensor"),
            *("OutputSequenceTensor", "OutputSingleTensor", "OutputCellSingleTensor"),
        ),
    )
    support = SupportTable.of("1_0 4 F32-16, SequenceLengthsTensor U32")
    example: ClassVar[Mapping[str, Any]] = _example(
        4,
        ["SIGMOID", "TANH", "TANH"],
        CellMemInitTensor={"Sizes": [1, 1, 1, 2]},
        PeepholeTensor={"Sizes": [1, 1, 1, 6]},
        OutputCellSingleTensor={"Sizes": [1, 1, 1, 2]},
    )
    example_data = steps.LENGTHS
    notes = (
        *_SEQUENCES,
        "Gates lie in the order i, o, f, c, those of PeepholeTensor i, o, f.",
        "UseClipThreshold holds for the argument of h as well, as the page says of all activations; its first "
        "equations do not clip that one. A negative ClipThreshold is refused with it.",
        "CoupleInputForget makes fg = 1 - i, so that weights of the forget gate have no effect.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from super().rules(level)
        if self.UseClipThreshold and self.ClipThreshold < 0:
            yield Violation(
                ("ClipThreshold",),
                f"ClipThreshold is {self.ClipThreshold}; it must not be negative, since UseClipThreshold is true.",
                self.ClipThreshold,
                ">= 0",
            )

    def rounds(self, of: Ingredients) -> Iterator[Round]:
        f, g, h = of.activations
        i, o, fg, c = of.terms.sums
        cell = element(CELL)
        i = f(of.looked(i, 0, cell))
        fg = 1 - i if self.CoupleInputForget else f(of.looked(fg, 2, cell))
        kept = Stage(CELL, fg * cell + i * g(of.clip(c)))
        # The cell is the new one from here on.
        yield Round(range(4), HIDDEN, [kept, Stage(HIDDEN, f(of.looked(o, 1, cell)) * h(of.clip(cell)))])


class Gru(steps.Recurrent):
    """A layer whose state is kept as far as its update gate says: a gated recurrent unit."""

    Type: Literal["DML_OPERATOR_GRU", "GRU"]
    InputTensor: InputTensorDesc
    WeightTensor: InputTensorDesc
    RecurrenceTensor: InputTensorDesc
    BiasTensor: OptionalInputTensorDesc = None
    HiddenInitTensor: OptionalInputTensorDesc = None
    SequenceLengthsTensor: OptionalInputTensorDesc = None
    OutputSequenceTensor: OptionalOutputTensorDesc = None
    OutputSingleTensor: OptionalOutputTensorDesc = None
    ActivationDescCount: Count = None
    ActivationDescs: Activations
    Direction: Directions
    LinearBeforeReset: Bool = Field(
        description="Whether the state is weighted before the reset gate, not behind it.", examples=[False]
    )

    gates = 3
    activations = ("f", "g")
    formula_text = (
        "z = f(X W_z^T + H R_z^T + Wb_z + Rb_z); r = f(X W_r^T + H R_r^T + Wb_r + Rb_r); h = g(X W_h^T + (r * H) R_h^T "
        "+ Wb_h + Rb_h), or with LinearBeforeReset g(X W_h^T + r * (H R_h^T + Rb_h) + Wb_h); H_t = (1 - z) * h + z * H"
    )
    choices = ("LinearBeforeReset",)
    accuracy = _ACCURACY
    same_types = Rnn.same_types
    support = SupportTable.of("1_0 4 F32-16, SequenceLengthsTensor U32")
    example: ClassVar[Mapping[str, Any]] = _example(3, ["SIGMOID", "TANH"])
    example_data = steps.LENGTHS
    notes = (*_SEQUENCES, "Gates lie in the order z, r, h.")

    @property
    def apart(self) -> range:
        return range(2, 3) if self.LinearBeforeReset else range(0)

    def rounds(self, of: Ingredients) -> Iterator[Round]:
        f, g = of.activations
        (z, r, h), hidden = of.terms.sums, element(HIDDEN)
        z, r = f(z), f(r)
        if self.LinearBeforeReset:
            h = of.terms.inputs[2] + r * of.terms.states[2]
        made = Stage(HIDDEN, (1 - z) * g(h) + z * hidden)
        if self.LinearBeforeReset:
            yield Round(range(3), HIDDEN, [made])
        else:
            yield Round(range(2), HIDDEN, [Stage(RESET, r * hidden)])
            yield Round(range(2, 3), RESET, [made])

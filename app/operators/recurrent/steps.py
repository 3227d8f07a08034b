"""What recurrent networks have in common: sizes and rules, directions, and the way from step to step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from app.contract.constants import DataType, FeatureLevel, RecurrentNetworkDirection, TensorFlag
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.values import FLOAT32
from app.memory.arrays import numpy_type
from app.operators.arrays import computed
from app.operators.fusion import Fused, activation_violations
from app.operators.grids import packed_in
from app.operators.operator import Operator, Role
from app.operators.recurrent import lasting
from app.operators.recurrent.cells import (
    CELL,
    HIDDEN,
    THRESHOLD,
    Cell,
    Form,
    Ingredients,
    Round,
    Terms,
    cell_of,
    in_arrays,
    in_two,
)
from app.operators.recurrent.stepping import Direction, step_by_step

_STATES = (
    *("HiddenInitTensor", "CellMemInitTensor"),
    *("OutputSequenceTensor", "OutputSingleTensor", "OutputCellSingleTensor"),
)
"""Tensors that have the batch along the same dimension as InputTensor."""

LENGTHS: dict[str, Sequence[float]] = {"SequenceLengthsTensor": (3,)}
"""The example's."""


class Recurrent(Operator):
    """A layer with states, { batch, hidden } each, of which the first is its output."""

    if TYPE_CHECKING:  # they stand where the structures of DirectML have them, each in its own order
        InputTensor: TensorDesc
        WeightTensor: TensorDesc
        RecurrenceTensor: TensorDesc
        BiasTensor: TensorDesc | None
        ActivationDescs: list[Fused]
        Direction: RecurrentNetworkDirection

    gates: ClassVar[int]
    activations: ClassVar[tuple[str, ...]]
    """The names of those of one direction."""
    choices: ClassVar[tuple[str, ...]] = ()
    """Attributes that are true or false and choose formulas."""
    only_queues = makes_in = True
    same_sizes = ()
    sizes_from = ("InputTensor", "RecurrenceTensor", "Direction")
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"ActivationDescCount": ("ActivationDescs",)}

    def rounds(self, of: Ingredients) -> Iterator[Round]:
        """What a step computes, in its order: formulas by what the `choices` say, and nothing else of the operator."""
        raise NotImplementedError

    @property
    def apart(self) -> range:
        """Gates of which the state is not just added to the input."""
        return range(0)

    def cell(self, direction: int, terms: Callable[[int], Terms], functions: tuple[str, ...] = ()) -> Cell:
        """That of a direction, as `cell_of` has it."""
        activations = tuple((type(each), each.model_dump_json()) for each in self._fused_of(direction))
        choices = tuple((name, getattr(self, name)) for name in self.choices)
        threshold = getattr(self, THRESHOLD) if getattr(self, "UseClipThreshold", False) else None
        has_peephole = "PeepholeTensor" in self.tensors()
        form = Form(type(self), choices, activations, threshold, has_peephole)
        return cell_of(form, self.gates, terms, functions)

    def implied_sizes(self, name: str) -> list[int]:
        return self._sizes()[name]

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        yield dict.fromkeys(("InputTensor", *_STATES), 2) | {"SequenceLengthsTensor": 3}

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        sizes = self._sizes()
        for name, desc in self.tensors(Role.INPUT).items():
            if desc.Sizes != sizes[name]:
                yield Violation(
                    (name, "Sizes"),
                    f"{name} has Sizes {desc.Sizes}; it must have {sizes[name]}, by InputTensor "
                    f"{self.InputTensor.Sizes}, RecurrenceTensor {self.RecurrenceTensor.Sizes} and Direction "
                    f"{self.Direction}.",
                    desc.Sizes,
                    sizes[name],
                )
            if desc.owned_by_dml:
                yield Violation(
                    (name, "Flags"),
                    f"Flags of {name} holds OWNED_BY_DML; no tensor of a recurrent network may be owned by DirectML.",
                    TensorFlag.OWNED_BY_DML,
                    [TensorFlag.NONE],
                )
        many = len(self.activations) * self.directions
        if len(self.ActivationDescs) != many:
            yield Violation(
                ("ActivationDescs",),
                f"ActivationDescs has {len(self.ActivationDescs)} entries; it must have {many}, which are "
                f"{', '.join(self.activations)} for each direction.",
                len(self.ActivationDescs),
                many,
            )
        if not self.output_names():
            outputs = self.tensor_names(Role.OUTPUT)
            yield Violation(
                (outputs[0],),
                f"{' and '.join(outputs)} are null; at least one must be stated, for nothing else is computed.",
                None,
                outputs,
            )
        yield from activation_violations(self, level)

    def multiplications(self) -> int:
        _, steps, batch, width = self.InputTensor.Sizes
        hidden = self.RecurrenceTensor.Sizes[-1]
        return self.directions * steps * batch * self.gates * hidden * (width + hidden)

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        batch, hidden, many = self.InputTensor.Sizes[2], self.RecurrenceTensor.Sizes[-1], self.directions
        bias = self._optional(xp, inputs, "BiasTensor", (1, 1, many, 2 * self.gates * hidden))
        peephole = self._optional(xp, inputs, "PeepholeTensor", (1, 1, many, 3 * hidden))
        initial = [
            self._optional(xp, inputs, name, (1, many, batch, hidden))
            for name in ("HiddenInitTensor", "CellMemInitTensor")[: self._states]
        ]
        dtype = numpy_type(self.InputTensor.DataType)
        made = {
            name: packed_in(xp, into[name] if into else None, self.implied_sizes(name), dtype)
            for name in self.output_names()
        }
        sequence = made.get("OutputSequenceTensor")
        singles = ("OutputSingleTensor", "OutputCellSingleTensor")
        for each in range(many):
            form = self._form(xp, each)
            go = partial(self._at_a_stretch, form) if form else self._step_by_step
            vectors, begin = (bias[0, 0, each], peephole[0, 0, each]), [state[0, each] for state in initial]
            states = go(xp, inputs, each, vectors, begin, None if sequence is None else sequence[:, each])
            for name, state in zip(singles, states, strict=False):
                if name in made:
                    made[name][0, each] = state
        return made

    def _step_by_step(
        self,
        xp: Any,
        inputs: Mapping[str, Any],
        each: int,
        vectors: tuple[Any, Any],
        initial: Sequence[Any],
        sequence: Any,
    ) -> Iterable[Any]:
        """The last states of direction `each`, with its bias and peepholes and from its `initial` states on; its output
        is made in `sequence` if there is one."""
        x, weights, recurrence = (
            _whole(xp, inputs[name][0] if name == "InputTensor" else inputs[name][0, each])
            for name in ("InputTensor", "WeightTensor", "RecurrenceTensor")
        )
        lengths = inputs["SequenceLengthsTensor"].reshape(-1, 1) if "SequenceLengthsTensor" in inputs else None
        cell, weights = self.cell(each, in_arrays), (weights.T, recurrence.T)
        direction = Direction(cell, self.apart, self._is_backward(each), *weights, *vectors)
        states = dict(zip((HIDDEN, CELL), initial, strict=False))
        return step_by_step(xp, direction, x, states, lengths, sequence).values()

    def _form(self, xp: Any, each: int) -> lasting.Form | None:
        """That of the kernel that does all steps of a direction on a GPU, if it can. A state that is weighted behind a
        gate would have to be passed on twice in a step."""
        is_half = self.InputTensor.DataType is DataType.FLOAT16
        if xp.__name__ != "cupy" or not is_half or len(self.cell(each, in_arrays).rounds) > 1:
            return None
        kinds = [fused.activation.name() for fused in self._fused_of(each)]
        sizes = self.InputTensor.Sizes[2], self.RecurrenceTensor.Sizes[-1]
        return lasting.form_of(self.short_name(), kinds, sizes, lasting.processors(xp))

    def _at_a_stretch(
        self,
        form: lasting.Form,
        xp: Any,
        inputs: Mapping[str, Any],
        each: int,
        vectors: tuple[Any, Any],
        initial: Sequence[Any],
        sequence: Any,
    ) -> Sequence[Any]:
        """The same as `_step_by_step` by one kernel."""
        bias, peephole = (xp.ascontiguousarray(vector, FLOAT32) for vector in vectors)
        states = xp.stack(initial)
        recurrence = xp.ascontiguousarray(inputs["RecurrenceTensor"][0, each])
        lengths = inputs.get("SequenceLengthsTensor")
        layer = lasting.Layer(
            inputs["InputTensor"][0],
            inputs["WeightTensor"][0, each],
            bias,
            recurrence,
            peephole,
            lengths if lengths is None else xp.ascontiguousarray(lengths.reshape(-1)),
            states,
            sequence,
        )
        cell = self.cell(each, in_two, form.functions)
        lasting.run(xp, form, cell, layer, is_backward=self._is_backward(each))
        return tuple(states)

    def _fused_of(self, direction: int) -> list[Fused]:
        first = direction * len(self.activations)
        return self.ActivationDescs[first : first + len(self.activations)]

    def _is_backward(self, direction: int) -> bool:
        return direction == 1 or self.Direction is RecurrentNetworkDirection.BACKWARD

    @property
    def directions(self) -> int:
        return 2 if self.Direction is RecurrentNetworkDirection.BIDIRECTIONAL else 1

    @property
    def _states(self) -> int:
        return 2 if "CellMemInitTensor" in type(self).model_fields else 1

    def _sizes(self) -> dict[str, list[int]]:
        """Of all tensors, from what only two of them say."""
        _, steps, batch, width = self.InputTensor.Sizes
        hidden, many = self.RecurrenceTensor.Sizes[-1], self.directions
        state = [1, many, batch, hidden]
        return {
            "InputTensor": [1, steps, batch, width],
            "WeightTensor": [1, many, self.gates * hidden, width],
            "RecurrenceTensor": [1, many, self.gates * hidden, hidden],
            "BiasTensor": [1, 1, many, 2 * self.gates * hidden],
            "HiddenInitTensor": state,
            "CellMemInitTensor": state,
            "SequenceLengthsTensor": [1, 1, 1, batch],
            "PeepholeTensor": [1, 1, many, 3 * hidden],
            "OutputSequenceTensor": [steps, many, batch, hidden],
            "OutputSingleTensor": state,
            "OutputCellSingleTensor": state,
        }

    @staticmethod
    def _optional(xp: Any, inputs: Mapping[str, Any], name: str, sizes: tuple[int, ...]) -> Any:
        """The input, or zeros where it is left out."""
        return _whole(xp, inputs[name]) if name in inputs else xp.broadcast_to(xp.zeros((), "float32"), sizes)


def _whole(xp: Any, x: Any) -> Any:
    return xp.broadcast_to(computed(x), x.shape)

"""What recurrent networks have in common: sizes and rules, directions, and the way from step to step."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from app.contract.constants import DataType, FeatureLevel, RecurrentNetworkDirection, TensorFlag
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation
from app.formula.values import FLOAT32
from app.memory.arrays import numpy_type
from app.operators.arrays import SCRATCH, Activation, computed, product, spans
from app.operators.fusion import Fused, activation_violations
from app.operators.grids import packed_in
from app.operators.looks import look
from app.operators.operator import Operator, Role
from app.operators.recurrent import lasting

log = logging.getLogger("app.execution")

_STATES = (
    *("HiddenInitTensor", "CellMemInitTensor"),
    *("OutputSequenceTensor", "OutputSingleTensor", "OutputCellSingleTensor"),
)
"""Tensors that have the batch along the same dimension as InputTensor."""

LENGTHS: dict[str, Sequence[float]] = {"SequenceLengthsTensor": (3,)}
"""The example's."""


@dataclass(frozen=True, slots=True)
class DirectionWeights:
    """What one direction computes with: weights of all gates, transposed to be multiplied from the right."""

    weights: Any
    """{ input, gates * hidden }"""
    weight_bias: Any
    recurrence: Any
    """{ hidden, gates * hidden }"""
    recurrence_bias: Any
    peephole: Any
    activations: Sequence[Activation]
    is_backward: bool
    number: int
    fused: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions that are one kernel each, by name."""


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
    only_queues = makes_in = True
    same_sizes = ()
    sizes_from = ("InputTensor", "RecurrenceTensor", "Direction")
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"ActivationDescCount": ("ActivationDescs",)}

    def step(self, xp: Any, part: DirectionWeights, projected: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        """The states after a step, from those before; `projected` is its input, weighted, with the weights' bias."""
        raise NotImplementedError

    def at_once(self, xp: Any, part: DirectionWeights, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function(xp, part, *arrays)`, which goes element by element, of arrays; on a GPU as one kernel."""
        if xp.__name__ != "cupy":
            return partial(function, xp, part)
        name = function.__name__
        if name not in part.fused:
            part.fused[name] = _fused(xp, type(self), self.model_dump_json(), part.number, name)
        return part.fused[name]

    def implied_sizes(self, name: str) -> list[int]:
        return self._sizes()[name]

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        yield dict.fromkeys(("InputTensor", *_STATES), 2) | {"SequenceLengthsTensor": 3}

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        sizes, tensors = self._sizes(), self.tensors()
        for name, desc in tensors.items():
            if name not in self.output_names() and desc.Sizes != sizes[name]:
                yield Violation(
                    (name, "Sizes"),
                    f"{name} has Sizes {desc.Sizes}; it must have {sizes[name]}, by InputTensor "
                    f"{self.InputTensor.Sizes}, RecurrenceTensor {self.RecurrenceTensor.Sizes} and Direction "
                    f"{self.Direction}.",
                    desc.Sizes,
                    sizes[name],
                )
            if name not in self.output_names() and desc.owned_by_dml:
                yield Violation(
                    (name, "Flags"),
                    f"Flags of {name} holds OWNED_BY_DML; no tensor of a recurrent network may be owned by DirectML.",
                    TensorFlag.OWNED_BY_DML,
                    [TensorFlag.NONE],
                )
        many = len(self.activations) * self._directions
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
        return self._directions * steps * batch * self.gates * hidden * (width + hidden)

    def call(self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        batch, hidden, many = self.InputTensor.Sizes[2], self.RecurrenceTensor.Sizes[-1], self._directions
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
    ) -> Sequence[Any]:
        """The last states of direction `each`, with its bias and peepholes and from its `initial` states on; its output
        is made in `sequence` if there is one."""
        x, weights, recurrence = (
            _whole(xp, inputs[name][0] if name == "InputTensor" else inputs[name][0, each])
            for name in ("InputTensor", "WeightTensor", "RecurrenceTensor")
        )
        (bias, peephole), width = vectors, len(weights)
        lengths = inputs["SequenceLengthsTensor"].reshape(-1, 1) if "SequenceLengthsTensor" in inputs else None
        part = DirectionWeights(
            *(weights.T, bias[:width], recurrence.T, bias[width:], peephole, self._activations(each)),
            *(self._is_backward(each), each),
        )
        states = tuple(initial)
        for step, projected in _projected(xp, x, part):
            look()
            new = self.step(xp, part, projected, states)
            if lengths is not None:
                there = lengths > step
                new = tuple(xp.where(there, now, before) for now, before in zip(new, states, strict=True))
                output = xp.where(there, new[0], xp.zeros_like(new[0]))
            else:
                output = new[0]
            states = new
            if sequence is not None:
                sequence[step] = output
        return states

    def _form(self, xp: Any, each: int) -> lasting.Form | None:
        """That of the kernel that does all steps of a direction on a GPU, if it can."""
        if xp.__name__ != "cupy" or self.InputTensor.DataType is not DataType.FLOAT16:
            return None
        kinds = [fused.activation.name() for fused in self._fused_of(each)]
        return self.lasting_form(kinds, lasting.processors(xp))

    def lasting_form(self, activations: Sequence[str], processors: int) -> lasting.Form | None:
        """Of the kernel for all steps with these activations, on a GPU with so many multiprocessors that can run it."""
        sizes = self.InputTensor.Sizes[2], self.RecurrenceTensor.Sizes[-1]
        return lasting.form_of(self.short_name(), activations, sizes, processors)

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
        lasting.run(xp, form, layer, is_backward=self._is_backward(each), clip=getattr(self, "ClipThreshold", 0.0))
        return tuple(states)

    def _fused_of(self, direction: int) -> list[Fused]:
        first = direction * len(self.activations)
        return self.ActivationDescs[first : first + len(self.activations)]

    def _activations(self, direction: int) -> list[Activation]:
        return [Activation(fused) for fused in self._fused_of(direction)]

    def _is_backward(self, direction: int) -> bool:
        return direction == 1 or self.Direction is RecurrentNetworkDirection.BACKWARD

    @property
    def _directions(self) -> int:
        return 2 if self.Direction is RecurrentNetworkDirection.BIDIRECTIONAL else 1

    @property
    def _states(self) -> int:
        return 2 if "CellMemInitTensor" in type(self).model_fields else 1

    def _sizes(self) -> dict[str, list[int]]:
        """Of all tensors, from what only two of them say."""
        _, steps, batch, width = self.InputTensor.Sizes
        hidden, many = self.RecurrenceTensor.Sizes[-1], self._directions
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


class _Fused:
    """A function of arrays as one kernel; as those of its operations, if CuPy does not fuse these."""

    def __init__(self, cupy: Any, function: Callable[..., Any]) -> None:
        self._plain = function
        self._fused = cupy.fuse(function)

    def __call__(self, *arrays: Any) -> Any:
        if self._fused is not None:
            try:
                return self._fused(*arrays)
            except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
                log.info("CuPy does not fuse a step of a recurrent network: %s", error)
                self._fused = None
        return self._plain(*arrays)


@lru_cache(256)
def _fused(cupy: Any, kind: type[Recurrent], text: str, direction: int, name: str) -> _Fused:
    """The method `name` of the operator that `text` states, of one direction's arrays: to make it takes milliseconds,
    which are not for each dispatch."""
    operator = kind.model_validate_json(text)
    activations = operator._activations(direction)
    nothing = np.zeros(0, np.float32)
    part = DirectionWeights(
        nothing, nothing, nothing, nothing, nothing, activations, False, direction
    )  # of which arrays are given

    def function(*arrays: Any) -> Any:
        return getattr(operator, name)(cupy, part, *arrays)

    return _Fused(cupy, function)


def _whole(xp: Any, x: Any) -> Any:
    return xp.broadcast_to(computed(x), x.shape)


def _projected(xp: Any, x: Any, part: DirectionWeights) -> Iterator[tuple[int, Any]]:
    """The number of each step in its order, and its input weighted: { batch, gates * hidden }. Products are of as many
    steps at once as are bounded in memory."""
    steps, batch, _ = x.shape
    width = part.weights.shape[1]
    order = list(spans(steps, max(SCRATCH[xp.__name__] // (batch * width * x.itemsize), 1)))
    for some in reversed(order) if part.is_backward else order:
        made = product(xp, x[some], part.weights)
        made = xp.broadcast_to(made, (made.shape[0], batch, width)) + part.weight_bias
        made = xp.broadcast_to(made, (some.stop - some.start, batch, width))
        numbers = range(some.start, some.stop)
        for step in reversed(numbers) if part.is_backward else numbers:
            yield step, made[step - some.start]

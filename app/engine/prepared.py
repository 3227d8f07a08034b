"""A request that has passed judgement, ready to be dispatched on any data, and what comes of that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.contract.tensors import in_fields
from app.contract.violations import ContractError
from app.devices.device import Device, ExecutionRecord, kept_bytes, own_bytes
from app.devices.schedules import STEP_BYTES
from app.engine.capabilities import capability
from app.engine.dispatch import DispatchResponse, Execution, GraphFacts, OutputTensor, T, Work, bind
from app.memory.buffers import Buffer
from app.operators.compiled import Judged


@dataclass(slots=True)
class Bound:
    """Buffers that a kernel is dispatched on: inputs in the order of the bind points, outputs by name, scratch."""

    inputs: list[Buffer]
    outputs: dict[str, Buffer]
    scratch: Buffer | None


class Prepared:
    """A request that has passed judgement, on its device, for any data: all that need not be found out again."""

    def __init__(self, work: Work, in_place: str | None, device: Device) -> None:
        self.work = work
        self.name = work.name
        self.in_place = in_place
        self.device = device
        self.kernel = device.prepare(work.runnable)
        self.scratch_bytes = work.scratch_bytes
        self.own_bytes = own_bytes(self.kernel)
        """What a dispatch takes beside its buffers."""
        self.kept_bytes = STEP_BYTES + kept_bytes(self.kernel)
        """What there is of it between dispatches."""
        self.input_names = list(work.inputs)
        self._input_bytes = work.fewest()
        self.output_bytes: dict[str, int] = {}
        self._with_gaps: list[str] = []
        for name, desc in work.outputs.items():
            self.output_bytes[name] = desc.data_bytes
            if not desc.gapless:
                self._with_gaps.append(name)
        # A GPU that fails halfway must leave the inputs to NumPy: in place it works on a copy.
        if in_place is not None and device.kind != "cpu":
            self.own_bytes += next(iter(self.output_bytes.values()))
        self.reusable: list[int] = []
        if device.kind == "cpu" and not self._with_gaps:
            self.reusable += map(self.input_names.index, work.reusable)

    @property
    def stage(self) -> str:
        """What a dispatch is to a trace: that of a GPU has stages of its own."""
        return "kernel" if self.device.kind == "cpu" else "dispatch"

    def bind(self, data: Mapping[str, T]) -> list[T]:
        """`data` in the order of the bind points. Raises ContractError."""
        buffers = []
        for name, fewest in self._input_bytes:
            buffer = data.get(name)
            if buffer is None or (buffer.nbytes != fewest and buffer.nbytes not in self.work.lengths(name)):
                break
            buffers.append(buffer)
        else:
            if len(buffers) == len(data):
                return buffers
        try:
            return list(bind(self.work, data).values())
        except ContractError as error:
            raise error.below("inputs") from None

    def dispatch(self, bound: Bound, cancelled: Callable[[], bool]) -> ExecutionRecord:
        """Compute the outputs. Raises Cancelled soon after `cancelled()` turns true."""
        outputs, scratch = bound.outputs, bound.scratch
        if self.in_place is None:
            for name in self._with_gaps:
                # Gaps between the elements are not written: they must not show what the memory held before.
                np.frombuffer(outputs[name], np.uint8)[:] = 0
        targets = [*outputs.values()] if scratch is None else [*outputs.values(), scratch]
        return self.kernel.dispatch(bound.inputs, targets, cancelled)

    def answer(
        self, ran: ExecutionRecord, data: Mapping[str, Any], queue_seconds: float, compute_seconds: float
    ) -> DispatchResponse:
        """The answer of a dispatch that `ran` there. `data` has one value for each output, by name."""
        outputs = in_fields(
            {
                name: OutputTensor(
                    DataType=desc.DataType,
                    Sizes=desc.Sizes,
                    Strides=desc.Strides,
                    TotalTensorSizeInBytes=desc.total_bytes,
                    data=data[name],
                )
                for name, desc in self.work.outputs.items()
            }
        )
        in_place = self.in_place is not None
        return response(self.work.subject, outputs, ran, in_place, queue_seconds, compute_seconds)


def response(
    subject: Judged | GraphFacts,
    outputs: dict[str, OutputTensor | list[OutputTensor]],
    ran: ExecutionRecord,
    in_place: bool,
    queue_seconds: Any,
    compute_seconds: Any,
) -> DispatchResponse:
    """The answer of a dispatch that `ran` there, with these values, or with holes for them."""
    return DispatchResponse(
        outputs=outputs,
        execution=Execution(
            device=ran.device,
            kind=ran.kind,
            fallback_reason=ran.fallback_reason,
            in_place=in_place,
            queue_seconds=queue_seconds,
            compute_seconds=compute_seconds,
        ),
        capability=subject.capability if isinstance(subject, GraphFacts) else capability(*subject),
    )


@dataclass(slots=True)
class Outcome:
    """The outputs' buffers by name, how long it took, in seconds, and where."""

    outputs: dict[str, Buffer]
    queue_seconds: float
    compute_seconds: float
    ran: ExecutionRecord

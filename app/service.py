"""The one door between the protocols and the devices: dispatch, capabilities, life cycle."""

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from app import __version__
from app.capabilities import Capabilities, capability
from app.contract.constants import FeatureLevel
from app.contract.tensors import MAX_ELEMENTS, MAX_RANK
from app.contract.validation import brief
from app.contract.violations import ContractError, Violation
from app.dispatch import DispatchRequest, DispatchResponse, Execution, OutputTensor, bind
from app.execution.device import Buffer, Device
from app.execution.numpy_device import NumpyDevice
from app.execution.pool import Ticket, WorkerPool
from app.limits import LimitExceeded, MemoryAccount, MemoryShare
from app.operators.catalog import OPERATORS
from app.operators.compiled import CompiledOperator, compile_operator
from app.settings import Settings


class State(StrEnum):
    """Of the service, as readiness tells it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Draining(Exception):
    """The service is shutting down and takes no more work."""


class DeadlineExceeded(Exception):
    """The dispatch was not done in time."""


class Abandoned(Exception):
    """The client hung up."""


class Service:
    """Devices, workers and limits. Make it inside a running process, close it at the end."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = State.STARTING
        self.pool = WorkerPool(settings.threads, settings.queue_depth)
        self.devices: dict[str, Device] = {
            device.name: device for device in [NumpyDevice(self.pool.executor, settings.threads)]
        }
        self.memory = MemoryAccount(settings.max_memory_bytes)

    def open(self) -> None:
        """From now on ready."""
        self.state = State.READY

    def drain(self) -> None:
        """From now on refuse new dispatches; running ones finish."""
        self.state = State.DRAINING

    def close(self) -> None:
        """Stop the workers once they are done."""
        self.state = State.DRAINING
        self.pool.close()

    def capabilities(self) -> Capabilities:
        limits = {name: value for name, value in self.settings if Settings.is_limit(name)}
        return Capabilities(
            version=__version__,
            state=self.state,
            devices=[device.info() for device in self.devices.values()],
            feature_levels=[level.full_name for level in FeatureLevel],
            operators=list(OPERATORS),
            limits=limits | {"max_dimension_count": MAX_RANK, "max_elements": MAX_ELEMENTS},
        )

    async def dispatch(
        self,
        request: DispatchRequest,
        data: Mapping[str, Buffer],
        memory: MemoryShare,
        hang_up: "asyncio.Future[Any] | None" = None,
    ) -> DispatchResponse:
        """Execute `request` with the tensors in `data` and answer with the results as buffers.

        `memory` is the request's share, to which the output is added; `hang_up` is done when the client has gone.
        Raises ContractError, LimitExceeded, MemoryExhausted, QueueFull, Draining, DeadlineExceeded, Abandoned.
        """
        if self.state is State.DRAINING:
            raise Draining
        device = self._device(request.device)
        compiled = _compile(request)
        self._limit(compiled)
        try:
            inputs = bind(compiled, data)
        except ContractError as error:
            raise _below(error, "inputs") from None
        output = self._output(compiled, inputs, request.in_place, memory)

        def job(ticket: Ticket[None]) -> None:
            device.dispatch(compiled, inputs, output, ticket.cancelled)

        ticket = self.pool.submit(job)
        await self._finish(ticket, hang_up)
        return DispatchResponse(
            outputs={
                compiled.output_name: OutputTensor(
                    DataType=compiled.output.DataType,
                    Sizes=compiled.output.Sizes,
                    Strides=compiled.output.Strides,
                    TotalTensorSizeInBytes=compiled.output.total_bytes,
                    data=output,
                )
            },
            execution=Execution(
                device=device.name,
                kind=device.kind,
                fallback_reason=None,
                in_place=request.in_place is not None,
                queue_seconds=ticket.queue_seconds,
                compute_seconds=ticket.compute_seconds,
            ),
            capability=capability(type(compiled.operator), compiled.level),
        )

    def _device(self, name: str) -> Device:
        if name == "auto":
            return next(iter(self.devices.values()))
        if name not in self.devices:
            allowed = ["auto", *self.devices]
            raise ContractError(
                [
                    Violation(
                        ("device",), f"There is no device {brief(name)}; give {' or '.join(allowed)}.", name, allowed
                    )
                ],
                None,
            )
        return self.devices[name]

    def _limit(self, compiled: CompiledOperator) -> None:
        """Before any memory is taken: strides let a few bytes ask for gigabytes."""
        most = self.settings.max_tensor_bytes
        for name, desc in [*compiled.inputs.items(), (compiled.output_name, compiled.output)]:
            dense = desc.elements * desc.DataType.bytes
            for what, size in (("Buffer", desc.total_bytes), ("Elements without repetition", dense)):
                if size > most:
                    raise LimitExceeded(
                        "max_tensor_bytes", f"{what} of {name} in bytes", size, most, ("operator", name)
                    )

    def _output(
        self, compiled: CompiledOperator, inputs: Mapping[str, Buffer], in_place: str | None, memory: MemoryShare
    ) -> Buffer:
        size = compiled.output.data_bytes
        if in_place is not None:
            compiled.check_in_place(in_place)
            taken = inputs[in_place]
            return (memoryview(bytearray(taken)) if taken.readonly else taken)[:size]
        memory.take(size)
        # Gaps between the elements are not written: they must not show what the memory held before.
        gapless = compiled.output.reach == compiled.output.elements
        return (np.empty if gapless else np.zeros)(size, np.uint8).data

    async def _finish(self, ticket: Ticket[None], hang_up: "asyncio.Future[Any] | None") -> None:
        """Wait for the result; a job that nobody will read gives its place free."""
        result = asyncio.wrap_future(ticket.future)
        try:
            waiting = {result} if hang_up is None else {result, hang_up}
            await asyncio.wait(waiting, timeout=self.settings.deadline_seconds, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                result.result()
            elif hang_up is not None and hang_up.done():
                raise Abandoned
            else:
                raise DeadlineExceeded
        finally:
            if not result.done():
                ticket.cancel()
                result.cancel()  # or its exception, which nobody awaits any more, would be logged


def _compile(request: DispatchRequest) -> CompiledOperator:
    try:
        return compile_operator(request.operator, request.feature_level)
    except ContractError as error:
        raise _below(error, "operator") from None


def _below(error: ContractError, parent: str) -> ContractError:
    return ContractError([violation.below(parent) for violation in error.violations], error.hresult)

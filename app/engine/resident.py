"""Dispatches over tensors of which some lie on a GPU already."""

from collections.abc import Mapping
from time import perf_counter

from app.devices.cuda.shared import ResidentKernel
from app.devices.device import OnDevice, Tensor
from app.engine.prepared import Outcome, Prepared
from app.engine.workers import Ticket
from app.memory.accounts import MemoryShare
from app.stages import staged


def execute_resident(
    ticket: Ticket[None],
    prepared: Prepared,
    kernel: ResidentKernel,
    data: Mapping[str, Tensor],
    places: Mapping[str, OnDevice],
    memory: MemoryShare,
) -> Outcome:
    """Execute what was prepared, by its `kernel` on `data`, for a worker. Outputs that have one of the `places`, by
    their names, are written there; the others are the outcome's.

    Raises ContractError, MemoryExhausted, Cancelled, and DeviceFailed: no other device has the tensors.
    """
    inputs = prepared.bind(data)
    made = {name: memory.buffer(size) for name, size in prepared.output_bytes.items() if name not in places}
    outputs: list[Tensor] = [places[name] if name in places else made[name] for name in prepared.output_bytes]
    started = perf_counter()
    ran = staged("dispatch", kernel.dispatch, inputs, outputs, ticket.cancelled)
    return Outcome(made, ticket.queue_seconds, perf_counter() - started, ran)

"""What a device is to the rest: a name, facts about it, and dispatch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

from app.contract.constants import DataType
from app.graphs.schedule import InitializedGraph
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable


class OnDevice(NamedTuple):
    """A tensor's bytes that lie on a GPU already, at this address. They are there as long as `owner` is."""

    address: int
    nbytes: int
    owner: object


Tensor: TypeAlias = Buffer | OnDevice
"""A tensor's bytes, on the host or on a GPU."""


class Cancelled(Exception):
    """Nobody waits for the dispatch any more."""


def ensuring(cancelled: Callable[[], bool]) -> Callable[[], None]:
    """What raises Cancelled once `cancelled()` is true."""

    def ensure() -> None:
        if cancelled():
            raise Cancelled

    return ensure


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts for the capabilities. Memory is in bytes; null where it cannot be told.

    With a compiler also how many kernels are kept; of GPUs CUDA's version that the driver offers and the runtime
    library's, and why it is out of service, if it is.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    description: str
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    data_types: list[DataType]
    compute_capability: str | None = None
    driver_version: str | None = None
    runtime_version: str | None = None
    kernels_cached: int | None = None
    out_of_service: str | None = None


FailureCause = Literal["memory", "lost", "error"]


class DeviceFailed(Exception):
    """A dispatch that the device should have been able to run. `reason` is for the client, `cause` for counting."""

    def __init__(self, cause: FailureCause, reason: str) -> None:
        self.cause = cause
        self.reason = reason
        super().__init__(reason)


class ExecutionRecord(NamedTuple):
    """Where a dispatch ran, and if that is not where it should have, why and which device failed."""

    device: str
    kind: Literal["cpu", "cuda"]
    fallback_reason: str | None = None
    failed: str | None = None
    cause: FailureCause | None = None


class Device(Protocol):
    """Executes compiled operators. Implementations are safe to call from several threads."""

    name: str
    kind: Literal["cpu", "cuda"]

    def info(self) -> DeviceInfo:
        """Facts as of now."""

    def prepare(self, work: Dispatchable | InitializedGraph) -> "Kernel":
        """What is worth doing once for many dispatches."""


class Kernel(Protocol):
    """A compiled operator, or a graph, on a device, ready to be dispatched."""

    @property
    def runs_inline(self) -> bool:
        """Whether a dispatch, now, takes no longer than it takes to hand it to another thread: with all compiled."""

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        """Compute `outputs` from `inputs`.

        There is a buffer for each tensor, in the order of the bind points, each at least as long as its descriptor
        reaches; after the outputs of a graph that needs scratch, one for that. The first output may be one of the
        inputs if the operator permits that. Bytes between an output's elements are left as they are. Raises Cancelled
        soon after `cancelled()` turns true, and DeviceFailed if the device is at fault.
        """


def own_bytes(kernel: Kernel) -> int:
    """How much memory a dispatch takes at most beside its buffers, but for the few MiB that a thread uses again and
    again: what a kernel that takes any tells by this name."""
    own: int = getattr(kernel, "own_bytes", 0)  # isinstance of a Protocol takes as long as a small dispatch computes
    return own


KERNEL_BYTES = 1 << 12
"""Of memory, that any kernel takes."""


def kept_bytes(kernel: Kernel) -> int:
    """How much memory a kernel has for as long as there is it, but for a few KiB: what has more tells by this name."""
    kept: int = getattr(kernel, "kept_bytes", 0)
    return kept


class InTurn:
    """Implements `Kernel`: kernels of one output each, run one after the other over the same inputs.

    The first output, which may take an input's memory, is computed last.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = kernels

    @property
    def runs_inline(self) -> bool:
        return all(kernel.runs_inline for kernel in self.kernels)

    @property
    def own_bytes(self) -> int:
        return max(own_bytes(kernel) for kernel in self.kernels)

    @property
    def kept_bytes(self) -> int:
        return sum(KERNEL_BYTES + kept_bytes(kernel) for kernel in self.kernels)

    def dispatch(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], cancelled: Callable[[], bool]
    ) -> ExecutionRecord:
        for kernel, output in reversed([*zip(self.kernels, outputs, strict=True)]):
            ran = kernel.dispatch(inputs, [output], cancelled)
        return ran

"""cuDNN's graphs, by NVIDIA's frontend, where that is installed."""

import importlib.util
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

log = logging.getLogger("app.execution")

S = TypeVar("S", bound=Hashable)

MOST_PLANS = 512
"""Shapes whose plans are kept, of each kind: to make one takes 5 to 500 ms."""

FARTHEST = (1 << 31) - 1
"""Elements that a tensor of a plan reaches over at most. cuDNN's kernels count with 32 bits, and of tensors that reach
farther some read and write where nothing is."""

_of_thread = threading.local()


def is_there() -> bool:
    """Whether the frontend is installed."""
    return importlib.util.find_spec("cudnn") is not None


def near(cupy: Any, x: Any) -> Any:
    """`x`, or packed if it reaches too far for a plan."""
    reach = 1 + sum((size - 1) * step // x.itemsize for size, step in zip(x.shape, x.strides, strict=True))
    return x if reach <= FARTHEST else cupy.ascontiguousarray(x)


class Plan:
    """A graph of cuDNN's, built. Threads take turns at it."""

    def __init__(self, ordinal: int, graph: Any, tensors: list[int]) -> None:
        """`tensors` are the numbers of those that it reads and, last, writes."""
        self._ordinal = ordinal
        self._graph = graph
        self._tensors = tensors
        self._lock = threading.Lock()
        self._workspace_bytes: int = graph.get_workspace_size()

    @classmethod
    def of(cls, ordinal: int, graph: Any, tensors: Sequence[Any], avoided: Sequence[Any] = ()) -> "Plan":
        """Of a graph that is described, by an engine without the `avoided` numerical notes. Raises what cuDNN does if
        there is none."""
        import cudnn  # noqa: PLC0415 - part of the GPU extras

        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        if avoided:
            graph.deselect_numeric_notes(avoided)
        graph.check_support()
        graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
        return cls(ordinal, graph, [each.get_uid() for each in tensors])

    def run(self, cupy: Any, arrays: list[Any]) -> None:
        """Queue it on the current stream."""
        import cudnn  # noqa: PLC0415 - part of the GPU extras

        workspace = cupy.cuda.alloc(max(self._workspace_bytes, 1))
        handle = handle_on(self._ordinal)
        cudnn.set_stream(handle=handle, stream=cupy.cuda.get_current_stream().ptr)
        addresses = [each.data.ptr for each in arrays]
        with self._lock:
            self._graph.execute(dict(zip(self._tensors, addresses, strict=True)), workspace.ptr, handle=handle)


def kept(what: str) -> Callable[[Callable[[int, S], Plan]], Callable[[int, S], Plan | None]]:
    """For what makes a plan for `what`, for the GPU of a number, the current one, and a shape: MOST_PLANS are kept, and
    None is given where cuDNN has no engine."""

    def around(make: Callable[[int, S], Plan]) -> Callable[[int, S], Plan | None]:
        @lru_cache(MOST_PLANS)
        def plan(ordinal: int, shape: S) -> Plan | None:
            try:
                return make(ordinal, shape)
            except Exception as error:
                if isinstance(error, MemoryError):
                    raise
                log.info("cuda:%d has no %s by cuDNN for %s: %s", ordinal, what, shape, str(error)[:200])
                return None

        return plan

    return around


def handle_on(ordinal: int) -> Any:
    """This thread's on the GPU number `ordinal`, the current one."""
    import cudnn  # noqa: PLC0415 - part of the GPU extras

    handles: dict[int, Any] = _of_thread.__dict__.setdefault("handles", {})
    if ordinal not in handles:
        handles[ordinal] = cudnn.create_handle()
    return handles[ordinal]

"""cuDNN's graphs, by NVIDIA's frontend, where that is installed."""

import importlib.util
import threading
from typing import Any

_of_thread = threading.local()


def is_there() -> bool:
    """Whether the frontend is installed."""
    return importlib.util.find_spec("cudnn") is not None


class Plan:
    """A graph of cuDNN's, built. Threads take turns at it."""

    def __init__(self, ordinal: int, graph: Any, tensors: list[int]) -> None:
        """`tensors` are the numbers of those that it reads and, last, writes."""
        self._ordinal = ordinal
        self._graph = graph
        self._tensors = tensors
        self._lock = threading.Lock()
        self._workspace_bytes: int = graph.get_workspace_size()

    def run(self, cupy: Any, arrays: list[Any]) -> None:
        """Queue it on the current stream."""
        import cudnn  # noqa: PLC0415 - part of the GPU extras

        workspace = cupy.cuda.alloc(max(self._workspace_bytes, 1))
        handle = handle_on(self._ordinal)
        cudnn.set_stream(handle=handle, stream=cupy.cuda.get_current_stream().ptr)
        addresses = [each.data.ptr for each in arrays]
        with self._lock:
            self._graph.execute(dict(zip(self._tensors, addresses, strict=True)), workspace.ptr, handle=handle)


def handle_on(ordinal: int) -> Any:
    """This thread's on the GPU number `ordinal`, the current one."""
    import cudnn  # noqa: PLC0415 - part of the GPU extras

    handles: dict[int, Any] = _of_thread.__dict__.setdefault("handles", {})
    if ordinal not in handles:
        handles[ordinal] = cudnn.create_handle()
    return handles[ordinal]

"""What compiling and computing leave behind refers to nothing that refers to it.

Else it is gone only when the garbage collector comes, which stops all threads while it looks through all there is.
"""

import gc
from typing import Any

import numpy as np
import pytest

from app.codecs.json import JsonCodec
from app.contract.validation import validate
from app.engine.graph_documents import GraphKeepRequest
from app.engine.graph_store import _copy
from app.engine.service import Service
from app.memory.accounts import MemoryAccount
from app.settings import Settings

SIZES = [1, 1, 8, 8]
NODES = 12


def pooled(last: int) -> dict[str, Any]:
    """Windows of windows, which are one formula by coordinates."""
    tensor = {"DataType": "FLOAT32", "Sizes": SIZES}
    desc = {
        "Type": "AVERAGE_POOLING",
        "InputTensor": tensor,
        "OutputTensor": tensor,
        "Strides": [1, 1],
        "WindowSize": [last, 3],
        "StartPadding": [last // 2, 1],
        "EndPadding": [last // 2, 1],
        "IncludePadding": False,
    }
    return {
        "InputCount": 1,
        "OutputCount": 1,
        "Nodes": [{"Type": "OPERATOR", "Desc": desc}] * NODES,
        "InputEdges": [{"GraphInputIndex": 0, "ToNodeIndex": 0, "ToNodeInputIndex": 0}],
        "IntermediateEdges": [
            {"FromNodeIndex": n, "FromNodeOutputIndex": 0, "ToNodeIndex": n + 1, "ToNodeInputIndex": 0}
            for n in range(NODES - 1)
        ],
        "OutputEdges": [{"FromNodeIndex": NODES - 1, "FromNodeOutputIndex": 0, "GraphOutputIndex": 0}],
    }


def used(service: Service, size: int) -> None:
    """Keep a graph, dispatch it, drop it."""
    with service.memory.open() as memory:
        request = validate(GraphKeepRequest, {"graph": pooled(size)})
        kept, _ = service.graphs.keep(request, JsonCodec(), b"", memory, lambda: False)
        (prepared,) = kept.prepared.values()
        (name,) = kept.compiled.inputs
        data = {name: memory.buffer(np.prod(SIZES).item() * 4)}
        with memory.lent():
            prepared.dispatch(service._bound(prepared, prepared.bind(data), memory), lambda: False)
        service.graphs.drop(kept.entry.record.id)


def test_memory_of_a_kept_tensor_is_not_filled_before_it_is_copied() -> None:
    """A bytearray is, in one call, during which no other thread runs."""
    with MemoryAccount(1 << 20).open() as memory:
        made = _copy(memoryview(b"abcd" * 100), memory)
    assert bytes(made) == b"abcd" * 100
    assert not made.readonly
    assert not isinstance(made.obj, bytearray)


@pytest.mark.parametrize("llvm", [False, True])
@pytest.mark.usefixtures("_no_collections")
def test_a_graph_is_gone_when_it_is_dropped(*, llvm: bool) -> None:
    service = Service(Settings(gpus="none", threads=1, llvm=llvm))
    used(service, 3)
    gc.collect()
    used(service, 5)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    ours = {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("app.")}
    gc.garbage.clear()
    assert not ours

"""Graphs that are kept, as all protocols come by them."""

import asyncio

from app.engine.graph_store import KeptGraph
from app.engine.graphs import CompiledGraph
from app.engine.prepared import Prepared
from app.engine.service import Service
from app.http.core.documents import TooHeavy

MOST, MOST_BYTES = 64, 1 << 18
"""Requests for one graph that are remembered, and bytes of their structures."""


async def kept_graph(service: Service, id_: str) -> KeptGraph:
    """The graph, compiled by a worker if another process took it, and for all who want it at once only once.

    Raises UnknownGraph and what `Service.run` does.
    """
    kept = service.graphs.find(id_)
    if kept:
        return kept
    loading = service.graphs.loading
    task = loading.get(id_)
    if task is None:
        task = loading[id_] = asyncio.create_task(_loaded(service, id_))
        task.add_done_callback(lambda _: loading.pop(id_))
    return await asyncio.shield(task)


async def _loaded(service: Service, id_: str) -> KeptGraph:
    with service.memory.open() as memory:
        return await service.run(lambda ticket: service.graphs.load(id_, memory, ticket.cancelled), memory)


def prepared_for(
    service: Service, graph: CompiledGraph, known: dict[str, Prepared], device: str, *, only_light: bool
) -> Prepared:
    """The graph of a `KeptGraph`, on `device`, from what is `known` or added to it.

    Raises ContractError, and TooHeavy if it must be made and only what is light should be.
    """
    prepared = known.get(device)
    if prepared is None:
        service.check_device(device)
        if only_light:
            raise TooHeavy
        prepared = known[device] = service.prepare_graph(graph, device)
    return prepared

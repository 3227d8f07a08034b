"""Regions of shared memory: the system's, and GPUs'."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute

from app.engine.service import Service
from app.http.core.answers import told
from app.http.core.exchange import Reply, Request
from app.http.core.routes import Given, router
from app.http.inference import documents, openapi
from app.http.inference.bodies import read_json
from app.http.inference.shared_memory import AnyRegion, Asked, CudaRegion, Region, Regions


@dataclass(frozen=True, slots=True)
class _Kind:
    """Regions of one kind: how they are called in paths, in ids of operations and to people, and their documents."""

    path: str
    id: str
    all: str
    one: str
    region: type[AnyRegion]
    listed: Any
    asked: type[Asked]


_KINDS = (
    _Kind(
        "systemsharedmemory",
        "SharedMemory",
        "shared memory",
        "shared memory",
        Region,
        list[documents.SharedMemoryRegion],
        documents.SharedMemoryRegisterRequest,
    ),
    _Kind(
        "cudasharedmemory",
        "CudaSharedMemory",
        "memory on GPUs",
        "memory on a GPU",
        CudaRegion,
        list[documents.CudaSharedMemoryRegion],
        documents.CudaSharedMemoryRegisterRequest,
    ),
)


def routes(service: Service, regions: Regions) -> list[BaseRoute]:
    """Those of the `regions` of `service`."""
    v2 = router("inference", "/v2")
    for kind in _KINDS:
        _add(v2, kind, service, regions)
    return v2.routes


def _add(v2: APIRouter, kind: _Kind, service: Service, regions: Regions) -> None:
    every, one = f"/{kind.path}", f"/{kind.path}/region/{{region}}"

    def registered() -> Regions:
        if not service.settings.shared_memory:
            raise HTTPException(404, "Shared memory is off; have the service started with --shared-memory.")
        return regions

    @v2.get(
        f"{every}/status",
        **openapi.answer(f"get{kind.id}Status", f"List regions of {kind.all}", kind.listed, may_lack=True),
    )
    @v2.get(
        f"{one}/status",
        **openapi.answer(f"get{kind.id}Region", f"Describe a region of {kind.one}", kind.listed, "region"),
    )
    async def status(_: Request, path: Given) -> Reply:
        """The regions that are registered, or one of them."""
        name = path.get("region")
        found = [each.described() for each in registered().of(kind.region) if name in (None, each.name)]
        if name is not None and not found:
            raise HTTPException(404, f"There is no region {name[:80]}.")
        return told(found)

    @v2.post(
        f"{one}/register",
        **openapi.post(
            f"register{kind.id}", f"Register a region of {kind.one}", kind.asked, None, 404, 409, path=["region"]
        ),
    )
    async def register(request: Request, path: Given) -> Reply:
        """Make memory of another process usable by a name."""
        registered().register(path["region"], await read_json(service, request, kind.asked))
        return Reply.of(Response())

    @v2.post(
        f"{every}/unregister",
        **openapi.post(f"unregisterAll{kind.id}", f"Unregister all regions of {kind.all}", None, None, 404),
    )
    @v2.post(
        f"{one}/unregister",
        **openapi.post(f"unregister{kind.id}", f"Unregister a region of {kind.one}", None, None, path=["region"]),
    )
    async def unregister(_: Request, path: Given) -> Reply:
        """Forget all regions, or one, if it is registered. They are closed once no inference uses them any more."""
        registered().unregister(kind.region, path.get("region"))
        return Reply.of(Response())

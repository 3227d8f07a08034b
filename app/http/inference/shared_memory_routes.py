"""Regions of shared memory: the system's, and GPUs'."""

from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.http.core.media_types import JSON
from app.http.inference import documents, openapi
from app.http.inference.bodies import read_json
from app.http.inference.shared_memory import AnyRegion, Asked, CudaRegion, Region, Regions

router = APIRouter(prefix="/v2", tags=["inference"])


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


def _serve(kind: _Kind) -> None:
    every, one = f"/{kind.path}", f"/{kind.path}/region/{{region}}"

    @router.get(
        f"{every}/status",
        **openapi.answer(f"get{kind.id}Status", f"List regions of {kind.all}", kind.listed, may_lack=True),
    )
    @router.get(
        f"{one}/status",
        **openapi.answer(f"get{kind.id}Region", f"Describe a region of {kind.one}", kind.listed, "region"),
    )
    async def regions(request: Request) -> Response:
        """The regions that are registered, or one of them."""
        name = _name(request)
        found = [each.described() for each in _regions(request).of(kind.region) if name in (None, each.name)]
        if name is not None and not found:
            raise HTTPException(404, f"There is no region {name[:80]}.")
        return Response(orjson.dumps(found), media_type=JSON)

    @router.post(
        f"{one}/register",
        **openapi.post(
            f"register{kind.id}", f"Register a region of {kind.one}", kind.asked, None, 404, 409, path=["region"]
        ),
    )
    async def register(request: Request) -> Response:
        """Make memory of another process usable by a name."""
        registered = _regions(request)
        registered.register(request.path_params["region"], await read_json(request, kind.asked))
        return Response()

    @router.post(
        f"{every}/unregister",
        **openapi.post(f"unregisterAll{kind.id}", f"Unregister all regions of {kind.all}", None, None, 404),
    )
    @router.post(
        f"{one}/unregister",
        **openapi.post(f"unregister{kind.id}", f"Unregister a region of {kind.one}", None, None, path=["region"]),
    )
    async def unregister(request: Request) -> Response:
        """Forget all regions, or one, if it is registered. They are closed once no inference uses them any more."""
        _regions(request).unregister(kind.region, _name(request))
        return Response()


for _kind in _KINDS:
    _serve(_kind)


def _name(request: Request) -> str | None:
    name: str | None = request.path_params.get("region")
    return name


def _regions(request: Request) -> Regions:
    if not request.app.state.service.settings.shared_memory:
        raise HTTPException(404, "Shared memory is off; have the service started with --shared-memory.")
    registered: Regions = request.app.state.inference.regions
    return registered

"""Regions of shared memory: the system's, and GPUs'."""

from collections.abc import Sequence

import orjson
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.http.inference import documents, openapi
from app.http.inference.bodies import read_json
from app.http.inference.shared_memory import AlreadyRegistered, AnyRegion, CudaRegion, Region, Regions

router = APIRouter(prefix="/v2", tags=["inference"])

SYSTEM, SYSTEM_REGION = "/systemsharedmemory", "/systemsharedmemory/region/{region}"
CUDA, CUDA_REGION = "/cudasharedmemory", "/cudasharedmemory/region/{region}"


@router.get(
    f"{SYSTEM}/status",
    **openapi.answer(
        "getSharedMemoryStatus", "List regions of shared memory", list[documents.SharedMemoryRegion], may_lack=True
    ),
)
@router.get(
    f"{SYSTEM_REGION}/status",
    **openapi.answer(
        "getSharedMemoryRegion", "Describe a region of shared memory", list[documents.SharedMemoryRegion], "region"
    ),
)
async def regions(request: Request) -> Response:
    """The registered regions of shared memory, or one of them."""
    return _listed(request, Region, _regions(request).listed(_name(request)))


@router.get(
    f"{CUDA}/status",
    **openapi.answer(
        "getCudaSharedMemoryStatus",
        "List regions of memory on GPUs",
        list[documents.CudaSharedMemoryRegion],
        may_lack=True,
    ),
)
@router.get(
    f"{CUDA_REGION}/status",
    **openapi.answer(
        "getCudaSharedMemoryRegion",
        "Describe a region of memory on a GPU",
        list[documents.CudaSharedMemoryRegion],
        "region",
    ),
)
async def cuda_regions(request: Request) -> Response:
    """The registered regions of GPUs' memory, or one of them."""
    return _listed(request, CudaRegion, _regions(request).listed_cuda(_name(request)))


@router.post(
    f"{SYSTEM_REGION}/register",
    **openapi.post(
        "registerSharedMemory",
        "Register a region of shared memory",
        documents.SharedMemoryRegisterRequest,
        None,
        404,
        409,
        path=["region"],
    ),
)
async def register(request: Request) -> Response:
    """Make a POSIX shared memory object, or a part of it, usable by a name."""
    registered = _regions(request)
    asked = await read_json(request, documents.SharedMemoryRegisterRequest)
    try:
        registered.register(request.path_params["region"], asked.key, asked.offset, asked.byte_size)
    except AlreadyRegistered as error:
        raise HTTPException(409, str(error)) from None
    return Response()


@router.post(
    f"{CUDA_REGION}/register",
    **openapi.post(
        "registerCudaSharedMemory",
        "Register a region of memory on a GPU",
        documents.CudaSharedMemoryRegisterRequest,
        None,
        404,
        409,
        path=["region"],
    ),
)
async def register_cuda(request: Request) -> Response:
    """Make memory that another process has on a GPU usable by a name."""
    registered = _regions(request)
    asked = await read_json(request, documents.CudaSharedMemoryRegisterRequest)
    try:
        registered.register_cuda(request.path_params["region"], asked.raw_handle.b64, asked.device_id, asked.byte_size)
    except AlreadyRegistered as error:
        raise HTTPException(409, str(error)) from None
    return Response()


@router.post(
    f"{SYSTEM}/unregister",
    **openapi.post("unregisterAllSharedMemory", "Unregister all regions of shared memory", None, None, 404),
)
@router.post(
    f"{SYSTEM_REGION}/unregister",
    **openapi.post("unregisterSharedMemory", "Unregister a region of shared memory", None, None, path=["region"]),
)
async def unregister(request: Request) -> Response:
    """Forget all regions, or one. One that is not registered is forgotten already."""
    _regions(request).unregister(Region, _name(request))
    return Response()


@router.post(
    f"{CUDA}/unregister",
    **openapi.post("unregisterAllCudaSharedMemory", "Unregister all regions of memory on GPUs", None, None, 404),
)
@router.post(
    f"{CUDA_REGION}/unregister",
    **openapi.post("unregisterCudaSharedMemory", "Unregister a region of memory on a GPU", None, None, path=["region"]),
)
async def unregister_cuda(request: Request) -> Response:
    """The same of GPUs' memory. It is closed once no inference uses it any more."""
    _regions(request).unregister(CudaRegion, _name(request))
    return Response()


def _name(request: Request) -> str | None:
    name: str | None = request.path_params.get("region")
    return name


def _listed(request: Request, kind: type[AnyRegion], found: Sequence[object]) -> Response:
    name = _name(request)
    if name is not None and name not in _regions(request).names(kind):
        raise HTTPException(404, f"There is no region {name[:80]}.")
    return Response(orjson.dumps(found), media_type="application/json")


def _regions(request: Request) -> Regions:
    if not request.app.state.service.settings.shared_memory:
        raise HTTPException(404, "Shared memory is off; have the service started with --shared-memory.")
    registered: Regions = request.app.state.inference.regions
    return registered

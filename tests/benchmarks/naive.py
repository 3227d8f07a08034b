"""The naive peer: a FastAPI application that knows one operator, on CuPy where there is a GPU and else on NumPy.

It checks nothing, and answers what `POST /v1/dispatch` of HARD_SIGMOID does in MessagePack. Started as
`uvicorn naive:app`.
"""

import importlib
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response

msgpack: Any = importlib.import_module("msgpack")  # it ships no types
try:
    xp: Any = importlib.import_module("cupy")
    xp.zeros(1)
except Exception:
    xp = np

app = FastAPI()


@app.get("/")
async def ready() -> str:
    return str(xp.__name__)


@app.post("/v1/dispatch")
async def dispatch(request: Request) -> Response:
    asked = msgpack.unpackb(await request.body())
    operator = asked["operator"]
    x = xp.asarray(np.frombuffer(asked["inputs"]["InputTensor"], np.float32))
    y = xp.clip(operator["Alpha"] * x + operator["Beta"], 0, 1).astype(np.float32)
    data = (y if xp is np else xp.asnumpy(y)).tobytes()
    desc = {"DataType": "FLOAT32", "Sizes": operator["InputTensor"]["Sizes"]}
    answer = {"outputs": {"OutputTensor": {**desc, "TotalTensorSizeInBytes": len(data), "data": data}}}
    return Response(msgpack.packb(answer), media_type="application/msgpack")

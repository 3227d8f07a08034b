"""POST /v2/models/{name}/infer, the path that tensors take: a plain ASGI application, as that of dispatch is."""

import asyncio
from time import perf_counter_ns

from starlette.types import Receive, Scope, Send

from app.codecs.codec import Body
from app.codecs.structure import Unreadable
from app.http.bodies import Align, hung_up, no_data, read_body, send_pieces
from app.http.dispatch import OFFLOADED, DirectRoute, aside
from app.http.headers import Headers, fields
from app.http.inference import openapi
from app.http.inference.answers import JSON_LENGTH, Answer
from app.http.inference.compression import coding_of_answer, coding_of_request, compress, decompress
from app.http.inference.models import find_model
from app.http.inference.requests import InferenceReader
from app.http.inference.shared_memory import Regions
from app.http.inference.statistics import VERSION, InferenceCounts
from app.service import Service

_LENGTH = JSON_LENGTH.lower().encode()


class InferEndpoint:
    """The ASGI application behind the routes."""

    def __init__(self, service: Service, counts: InferenceCounts) -> None:
        self.regions = Regions()
        self._service = service
        self._counts = counts
        self._reader = InferenceReader(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path_params"]
        name = path["name"]
        operator = find_model(name, path.get("version", VERSION))
        started = perf_counter_ns()
        succeeded = False
        service, regions = self._service, self.regions
        headers = fields(scope["headers"])
        try:
            given = coding_of_request(headers.get(b"content-encoding", b""))
            wanted = coding_of_answer(headers.get(b"accept-encoding", b""))
            with service.memory.open() as memory:
                body = await read_body(scope, headers, receive, service.settings, memory, _alignment(headers))
                received = perf_counter_ns()
                if given:
                    most = service.settings.max_body_bytes
                    body = await asyncio.to_thread(decompress, body, given, most, memory)
                size = _json_bytes(headers, body)
                inference, parts = await aside(size, self._reader.read, name, operator, body, size)
                scope["state"]["dispatch"] = inference.prepared
                region = inference.form.region(regions)
                copied = inference.copied_bytes
                data = await aside(copied, inference.data, parts, regions, memory)
                read = perf_counter_ns()
                outcome = await service.execute(inference.prepared, data, memory, lambda: hung_up(receive))
                scope["state"]["outcome"] = outcome
                executed = perf_counter_ns()

                def write() -> Answer:
                    answer = inference.form.write(parts.id, outcome, region, memory)
                    if not wanted:
                        return answer
                    return Answer(compress(answer.content.pieces, wanted, memory), answer.json_bytes)

                answer = await aside(OFFLOADED if wanted else copied, write)
                self._counts.executed(
                    operator.name(),
                    queue=int(outcome.queue_seconds * 1e9),
                    compute_input=read - received,
                    compute_infer=int(outcome.compute_seconds * 1e9),
                    compute_output=perf_counter_ns() - executed,
                )
                more = [(b"content-encoding", wanted)] if wanted else []
                if answer.json_bytes is not None:
                    more.append((_LENGTH, b"%d" % answer.json_bytes))
                await send_pieces(send, answer.content, answer.media_type, more)
                succeeded = True
        finally:
            self._counts.observe(operator.name(), "success" if succeeded else "fail", perf_counter_ns() - started)


def _alignment(headers: Headers) -> Align:
    """Where the binary data of a body begin, as its header says."""
    stated = headers.get(_LENGTH, b"")
    if not stated.isdigit() or len(stated) > 18 or b"content-encoding" in headers:
        return no_data
    return lambda _beginning, length: min(int(stated), max(length, 0))


def _json_bytes(headers: Headers, body: Body) -> int:
    """How much of the body is JSON. Raises Unreadable."""
    stated = headers.get(_LENGTH)
    if stated is None:
        return len(body)
    if not stated.isdigit() or len(stated) > 18:
        shown = stated[:40].decode("latin-1")
        raise Unreadable(f"{JSON_LENGTH} is {shown}; give the bytes of the JSON.")
    size = int(stated)
    if size > len(body):
        raise Unreadable(f"{JSON_LENGTH} is {size} but the body has {len(body)} bytes.")
    return size


def routes(endpoint: InferEndpoint) -> list[DirectRoute]:
    """The routes to `endpoint`."""
    plain, versioned = openapi.infer("modelInfer"), openapi.infer("modelVersionInfer", "version")
    return [
        DirectRoute("/v2/models/{name}/infer", endpoint, _documented, "inference", plain),
        DirectRoute("/v2/models/{name}/versions/{version}/infer", endpoint, _documented, "inference", versioned),
    ]


def _documented() -> None:
    """Execute one operator: tensors in, the result out, as JSON numbers or binary."""

"""POST /v1/dispatch, the path that tensors take."""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from starlette.routing import BaseRoute

from app.codecs.codec import Body, Decoder, Encoded
from app.engine.prepared import Outcome
from app.engine.workers import Ticket
from app.http.core.answers import answered
from app.http.core.bodies import (
    OFFLOADED,
    body_at_hand,
    codec_of_request,
    compressed,
    read_plain_body,
)
from app.http.core.documents import TooHeavy
from app.http.core.exchange import Reply, Request
from app.http.core.routes import Given, router
from app.http.native import openapi
from app.http.native.accepted import Wanted, form_of_answer
from app.http.native.answers import AnswerForm
from app.http.native.requests import Dispatch, DispatchReader, Reader
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer
from app.stages import recorded, staged
from app.steps import at_once, in_step

QUICK = 1 << 23
"""Bytes of a document like an earlier one whose tensor data are decoded in less time than a thread is woken twice."""


def answer_dispatch(reader: Reader, request: Request) -> Coroutine[Any, Any, Reply]:
    """What comes of a dispatch that `reader` reads: all of it here if that takes no time, else by a worker.

    Raises HTTPException 406 and 415 before there is anything to wait for.
    """
    headers = request.headers
    wanted = form_of_answer(headers.get(b"accept", b""), headers.get(b"prefer", b""))
    return answer_in(wanted, codec_of_request(headers.get(b"content-type", b"")), reader, request)


async def answer_in(wanted: Wanted, given: Decoder, reader: Reader, request: Request) -> Reply:
    """The same of a body in the representation `given`, answered in the form `wanted`."""
    service = reader.service
    memory = service.memory.open()
    try:
        # What there is to wait for is awaited only: for a small dispatch a coroutine that need not wait is much.
        body = None if b"content-encoding" in request.headers else body_at_hand(request, service.settings, memory)
        if body is None:
            body = await read_plain_body(service, request, memory, given.data_start)
        stages = request.stages
        # Not by way of `recorded` where there is nothing to record: its calls are a per cent of a small dispatch.
        reading = _read_here(reader, given, body, memory)
        read = await reading if stages is None else recorded(stages, at_once, reading)
        if read:
            dispatch, data = read
            request.prepared = prepared = dispatch.prepared
            await in_step()
            if prepared.kernel.runs_inline:
                outcome = service.execute_here(prepared, data, memory, stages)
                await in_step()
            else:
                outcome = await service.execute(prepared, data, memory, request.body.hung_up, stages)
        else:
            work = partial(_read_and_executed, reader, given, body, memory, request)
            dispatch, outcome = await service.run(work, memory, request.body.hung_up, stages)
        request.outcome = outcome
        form = wanted(dispatch)
        if form.takes_long(dispatch):
            encode = partial(_encoded, form, dispatch, outcome, memory)
            content = await service.run(encode, memory, request.body.hung_up, stages)
        elif stages is None:
            content = form.write(dispatch, outcome, memory)
        else:
            content = recorded(stages, staged, "encode", form.write, dispatch, outcome, memory)
        fields = form.fields(dispatch)
        if b"accept-encoding" in request.headers:
            content, coding = await compressed(service, request, content, memory)
            fields = [*fields, *coding]
        reader.done()
        return answered(content, fields, memory.close)
    except BaseException:
        memory.close()
        raise


async def _read_here(
    reader: Reader, codec: Decoder, body: Body, memory: MemoryShare
) -> tuple[Dispatch, dict[str, Buffer]] | None:
    """The request, if it is read in a moment. Raises ContractError, Unreadable, LimitExceeded."""
    if _is_sought_here(codec, body):
        found = reader.find(codec, body, memory)
        if found:
            return found
    if len(body) < OFFLOADED and not codec.expands:
        try:
            await in_step()
            return await reader.judge(codec, body, memory, None)
        except TooHeavy:
            pass
    return None


def _is_sought_here(codec: Decoder, body: Body) -> bool:
    """Whether `_read_here` looks for one like it among earlier requests: the worker then does not."""
    return codec.views or len(body) < QUICK


def _read_and_executed(
    reader: Reader, codec: Decoder, body: Body, memory: MemoryShare, request: Request, ticket: Ticket[None]
) -> tuple[Dispatch, Outcome]:
    """The request and what comes of it, by a worker."""
    read = reader.judge if _is_sought_here(codec, body) else reader.read
    dispatch, data = at_once(read(codec, body, memory, ticket.cancelled))
    request.prepared = dispatch.prepared
    return dispatch, reader.service.execute_in(ticket, dispatch.prepared, data, memory)


def _encoded(form: AnswerForm, dispatch: Dispatch, outcome: Outcome, memory: MemoryShare, _: Ticket[None]) -> Encoded:
    """The answer, by a worker."""
    return staged("encode", form.write, dispatch, outcome, memory)


def routes(reader: DispatchReader) -> list[BaseRoute]:
    """That of all dispatches which say what to execute."""
    reader.service.caches["requests"] = reader.cache
    v1 = router("native", "/v1")

    @v1.post("/dispatch", **openapi.dispatch())
    def answer(request: Request, _: Given) -> Coroutine[Any, Any, Reply]:
        """Execute one operator: a descriptor and tensors in, the result and what the device is capable of out."""
        return answer_dispatch(reader, request)

    return v1.routes

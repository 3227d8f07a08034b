"""Every error as an RFC 9457 problem, in one shape."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NotRequired

import orjson
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from app.codecs.structure import Unreadable
from app.contract.kinds import Kind
from app.contract.validation import abbreviate
from app.contract.violations import ContractError, Hresult, Violation
from app.engine.graph_store import GraphConflict, StoreFull, UnknownGraph
from app.engine.service import Abandoned, DeadlineExceeded, Draining
from app.engine.workers import QueueFull
from app.http.core.answers import told, whole
from app.http.core.exchange import Disconnected, Handler, Reply, Request
from app.memory.accounts import LimitExceeded, MemoryExhausted

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1
INFERENCE_PATHS = "/v2/"
"""Where the Open Inference Protocol is spoken."""


PHRASES = {status.value: status.phrase for status in HTTPStatus} | {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
"""Of statuses, as RFC 9110 has them; Python before 3.13 has those of RFCs that are obsolete."""


class Throttled(Exception):
    """A client asks for more than its API key allows at the moment."""

    def __init__(self, detail: str, seconds: int = RETRY_AFTER_SECONDS) -> None:
        """`seconds` is when to ask again."""
        super().__init__(detail)
        self.seconds = seconds


OF_STATUS = {
    400: Kind.UNREADABLE,
    401: Kind.API_KEY,
    403: Kind.NOT_ALLOWED,
    404: Kind.NOT_FOUND,
    405: Kind.METHOD,
    406: Kind.NOT_ACCEPTABLE,
    408: Kind.TIMEOUT,
    409: Kind.CONFLICT,
    412: Kind.CHANGED,
    413: Kind.LIMIT,
    414: Kind.HEADER,
    415: Kind.MEDIA_TYPE,
    422: Kind.ATTRIBUTE,
    429: Kind.RATE,
    431: Kind.HEADER,
    500: Kind.INTERNAL,
    503: Kind.BUSY,
    504: Kind.DEADLINE,
    507: Kind.GRAPHS_FULL,
}
"""What a problem is of that does not say."""

_OTHER = (Kind.UNREADABLE, Kind.UNSUPPORTED)
"""The same of any other status, of a client's error and of a server's."""


class ProblemError(TypedDict):
    """One thing that is wrong, of the kind `type`. `pointer` (RFC 6901) leads to the field in the request body, or in
    the query. `allowed` lists what would be right: values, or in words."""

    type: str
    pointer: str
    message: str
    given: Any
    allowed: list[Any]


class ProblemDetails(TypedDict):
    """RFC 9457. `type` is the kind of the first error, at its place on the page /errors. `hresult` is what DirectML
    answers in the same situation, where it has an answer."""

    type: str
    title: str
    status: int
    detail: str
    hresult: NotRequired[str]
    errors: list[ProblemError]


class Problem:
    """What a request fails of, as clients are told."""

    def __init__(
        self,
        status: int,
        detail: str,
        violations: Iterable[Violation] = (),
        hresult: Hresult | None = None,
        headers: Mapping[str, str] | None = None,
        kind: Kind | None = None,
    ) -> None:
        """`kind` is that of the first of the `violations` if there are any, else it follows from the status. With 503
        it says when to ask again."""
        violations = list(violations)
        if kind is None:
            kind = violations[0].kind if violations else OF_STATUS.get(status, _OTHER[status // 500])
        self.document = ProblemDetails(
            type=kind.uri,
            title=PHRASES[status],
            status=status,
            detail=detail,
            errors=[
                ProblemError(
                    type=violation.kind.uri,
                    pointer=violation.pointer,
                    message=violation.message,
                    given=abbreviate(violation.given),
                    allowed=violation.options,
                )
                for violation in violations
            ],
        )
        if hresult:
            self.document["hresult"] = hresult.value
        self._told = " ".join(violation.placed_message for violation in violations) or detail
        retry = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
        self.headers = {**retry, **(headers or {})}

    def at(self, path: str) -> Reply:
        """The answer, in the shape that errors have at `path`: the Open Inference Protocol knows 400, not 422."""
        status = self.document["status"]
        fields = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        if f"{path}/".startswith(INFERENCE_PATHS):
            return told({"error": self._told}, fields, 400 if status == 422 else status)
        return whole(orjson.dumps(self.document), MEDIA_TYPE, fields, status)


def problem_for(error: Exception) -> Problem:
    """The problem that tells a client of `error`."""
    match error:
        case Unreadable():
            return Problem(400, str(error))
        case ContractError():
            return Problem(422, str(error), error.violations, error.hresult)
        case LimitExceeded():
            violation = Violation(error.path, str(error), error.given, error.allowed, Kind.LIMIT)
            return Problem(413, str(error), [violation] if error.path else [])
        case UnknownGraph():
            return Problem(404, str(error))
        case GraphConflict():
            return Problem(409, str(error), [error.violation], kind=Kind.CONFLICT)
        case StoreFull():
            return Problem(507, str(error), hresult=Hresult.E_OUTOFMEMORY)
        case Throttled():
            return Problem(429, str(error), headers={"Retry-After": str(error.seconds)})
        case QueueFull():
            return Problem(503, f"All workers are busy and {error}; try again.")
        case MemoryExhausted():
            return Problem(503, f"{error} Try again.", hresult=Hresult.E_OUTOFMEMORY, kind=Kind.MEMORY)
        case MemoryError():
            message = "The system has no memory left for this request, within max_memory_bytes as it is; try again."
            return Problem(503, message, hresult=Hresult.E_OUTOFMEMORY, kind=Kind.MEMORY)
        case Draining():
            return Problem(503, "The service is shutting down; send the request elsewhere.", kind=Kind.DRAINING)
        case DeadlineExceeded():
            return Problem(504, str(error))
        case Abandoned() | Disconnected():
            return Problem(408, "The client closed the connection before its answer was ready.")  # seen in logs only
        case HTTPException():
            return Problem(error.status_code, error.detail, headers=error.headers)
    return Problem(500, "The service failed to answer; its log says why, under the request's id.")


REASONS: dict[type[Exception], str] = {
    Unreadable: "unreadable",
    ContractError: "contract",
    LimitExceeded: "too_large",
    UnknownGraph: "graph_missing",
    GraphConflict: "graph_conflict",
    StoreFull: "graphs_full",
    Throttled: "key_limit",
    QueueFull: "queue_full",
    MemoryExhausted: "memory",
    MemoryError: "memory",
    Draining: "draining",
    DeadlineExceeded: "deadline",
    Abandoned: "abandoned",
    Disconnected: "abandoned",
    HTTPException: "http",
}
"""What a request may fail of, and what metrics call that. Anything else is a fault of the service."""

EXPECTED = tuple(REASONS)
FAULT = "fault"


def refused(request: Request, error: Exception) -> Reply:
    """The problem that tells a client of `error`, noted with `request`."""
    request.refusal = next((reason for kind, reason in REASONS.items() if isinstance(error, kind)), FAULT)
    return problem_for(error).at(request.path)


def refusing(handler: Handler) -> Handler:
    """Middleware that answers with a problem where `handler` raises what is EXPECTED."""

    async def handle(request: Request) -> Reply:
        try:
            return await handler(request)
        except EXPECTED as error:
            refusal = refused(request, error)
        return refusal  # the error is gone here, and with it what the frames on its way held of the request

    return handle

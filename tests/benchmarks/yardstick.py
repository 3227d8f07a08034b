"""The yardstick: the least an ASGI app on uvicorn can do with a body, join it and send it back.

Started as `uvicorn yardstick:app --loop uvloop --http httptools`.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def app(scope: Message, receive: Receive, send: Send) -> None:
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

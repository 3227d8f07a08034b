"""Answers' headers, kept back until there is a body to send with them."""

import asyncio

from app.http.core.transfer import JOINED
from app.memory.buffers import Buffer

_CONTINUE = b"HTTP/1.1 100 "


class Cork:
    """A transport that holds a response's header back until its body begins: one packet instead of two."""

    __slots__ = ("_header", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._header: bytes | None = None

    def write(self, data: bytes | Buffer) -> None:
        if self._header:
            pieces = self._header, data
            self._header = b""
            if len(data) <= JOINED:
                self._transport.write(b"".join(pieces))
            else:
                self._transport.writelines(pieces)
        elif self._header is None and not bytes(data[:13]).startswith(_CONTINUE):
            self._header = bytes(data)
        else:
            self._transport.write(data)

    def flush(self) -> None:
        if self._header:
            self._transport.write(self._header)
            self._header = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

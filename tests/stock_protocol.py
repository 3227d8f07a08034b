"""The command `dmlserve` on uvicorn's own HTTP protocol: the application must not depend on ours to answer rightly."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import app.main
from app.cli import main

setattr(app.main, "connections", lambda *_: HttpToolsProtocol)  # noqa: B010 - it is no export
main()

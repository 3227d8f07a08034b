"""/errors: what the types of errors mean."""

from html import escape

from starlette.responses import Response
from starlette.routing import BaseRoute

from app.contract.kinds import MEANINGS
from app.http.core.exchange import Reply, Request
from app.http.core.routes import Given, pages

_STYLE = (
    ":root{color-scheme:light dark;background:Canvas;color:CanvasText}"
    "body{font:16px/1.5 system-ui;max-width:48rem;margin:2rem auto;padding:0 1rem}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def routes() -> list[BaseRoute]:
    """That of the page."""
    found = pages()

    @found.get("/errors")
    async def errors(_: Request, __: Given) -> Reply:
        return Reply.of(Response(_PAGE, media_type="text/html", headers={"content-security-policy": _POLICY}))

    return found.routes


def _page() -> str:
    kinds = "".join(
        f'<dt id="{kind}"><a href="#{kind}"><code>{kind}</code></a></dt><dd>{escape(meaning)}</dd>\n'
        for kind, meaning in MEANINGS.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Errors of dmlserve</title><style>{_STYLE}</style><main><h1>Errors</h1>"
        "<p>Every error of the API is a problem document (RFC 9457) whose <code>type</code> is one of these, as "
        "<code>/errors#tensor-sizes</code>. They stay what they are.</p>\n"
        f"<dl>\n{kinds}</dl></main></html>\n"
    )


_PAGE = _page()

"""/errors: what the types of errors mean."""

from html import escape

from fastapi import FastAPI
from starlette.responses import Response

from app.contract.kinds import MEANINGS

_STYLE = (
    ":root{color-scheme:light dark;background:Canvas;color:CanvasText}"
    "body{font:16px/1.5 system-ui;max-width:48rem;margin:2rem auto;padding:0 1rem}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def install(app: FastAPI) -> None:
    """Have `app` serve the page."""

    @app.get("/errors", include_in_schema=False)
    async def errors() -> Response:
        return Response(_PAGE, media_type="text/html", headers={"content-security-policy": _POLICY})


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

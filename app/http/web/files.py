"""Files for browsers."""

from starlette.responses import Response

from app.http.core.exchange import Reply

HTML = "text/html; charset=utf-8"


def answer_file(content: bytes, media_type: str, policy: str = "", **more: str) -> Reply:
    """`content`, and what a page may do. That it is sent only once, and compressed, http/core/kept.py sees to."""
    headers = {"vary": "accept-encoding", "x-content-type-options": "nosniff"} | more
    if policy:
        headers["content-security-policy"] = policy
    return Reply.of(Response(content, headers=headers, media_type=media_type))

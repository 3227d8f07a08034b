"""Header fields by name."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

REQUEST_ID = "X-Request-ID"
JSON_LENGTH = "Inference-Header-Content-Length"
"""How many bytes of a body are JSON, where others follow (the Open Inference Protocol)."""

Headers: TypeAlias = Mapping[bytes, bytes]
"""Header fields by lower-case name."""


def fields(raw: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Header fields by name; those that come several times are joined (RFC 9110, 5.3)."""
    headers = dict(raw)
    if len(headers) < len(raw):
        headers = {name: b", ".join(value for other, value in raw if other == name) for name in headers}
    return headers

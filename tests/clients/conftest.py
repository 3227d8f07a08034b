"""What the tests of the OpenAPI document share."""

from typing import Any

import httpx
import pytest


@pytest.fixture(scope="session")
def document(client: httpx.Client) -> dict[str, Any]:
    """The document as a user of a generator gets it."""
    found: dict[str, Any] = client.get("/openapi.json").raise_for_status().json()
    return found

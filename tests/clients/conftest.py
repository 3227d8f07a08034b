"""What the tests of the OpenAPI document share."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What package.json of the TypeScript tests asks for, installed once."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(Path(__file__).with_name("typescript") / "package.json", folder)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--prefer-offline", "--loglevel=error"],
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1", "NPM_CONFIG_UPDATE_NOTIFIER": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout + done.stderr
    if any(code in told for code in ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT")):
        pytest.skip("npm's registry cannot be reached")
    assert done.returncode == 0, told
    return folder / "node_modules"


@pytest.fixture(scope="session")
def document(client: httpx.Client) -> dict[str, Any]:
    """The document as a user of a generator gets it."""
    found: dict[str, Any] = client.get("/openapi.json").raise_for_status().json()
    return found

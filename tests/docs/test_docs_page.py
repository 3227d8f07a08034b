"""/docs in a real browser, with no other host to be reached."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RunningServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_shows_the_api_without_the_internet(server: RunningServer, tmp_path: Path) -> None:
    completed = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--virtual-time-budget=10000",
            "--dump-dom",
            f"{server.url}/docs",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    page = completed.stdout
    for shown in ("/v1/dispatch", "/v1/operators/{Type}", "/v1/feature-support", "/health/ready", "DispatchRequest"):
        assert shown in page or shown.replace("/", "/<wbr>") in page.replace("\u200b", ""), shown
    assert "Failed to load" not in page

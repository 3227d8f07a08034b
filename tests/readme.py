"""The code blocks of the README, and of the documents that it leads to, for the tests that run them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = {
    name: (ROOT / name).read_text()
    for name in (
        "README.md",
        "app/http/inference/README.md",
        "app/models/README.md",
        "tests/clients/README.md",
    )
}
"""What users read, by its path."""

TEXT = "\n".join(DOCUMENTS.values())
ADDRESS = "http://localhost:8000"


def blocks(language: str) -> list[str]:
    """The code blocks in `language`, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [block for each, block in found if each == language]


def code(language: str, text: str, url: str) -> str:
    """The one code block in `language` that contains `text`, with the service at `url`."""
    (found,) = [block for block in blocks(language) if text in block]
    return found.replace(ADDRESS, url)

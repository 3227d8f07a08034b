"""The README's code blocks, for the tests that run them."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
ADDRESS = "http://localhost:8000"


def code(language: str, text: str, url: str) -> str:
    """The one code block in `language` that contains `text`, with the service at `url`."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if text in block]
    return str(found).replace(ADDRESS, url)

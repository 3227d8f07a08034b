"""The time that the fuzzer may take is up to a flag."""

from pathlib import Path

import pytest

SPARE_SECONDS = 120
"""For servers that start and end, and for clients that have not asked enough."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(config.option.fuzz_seconds + SPARE_SECONDS))

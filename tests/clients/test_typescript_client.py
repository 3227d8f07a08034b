"""The document gives TypeScript types that compile strictly, and a client with them works."""

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.trials import TRIALS, ULPS
from tests.conftest import RunningServer
from tests.readme import code

SOURCES = Path(__file__).with_name("typescript")
EXAMPLES = {"example": 'client.POST("/v1/dispatch"', "graph": 'client.POST("/v1/graphs"'}
"""The README's, by what they have."""

pytestmark = [
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="Node.js and npm are not installed"),
    pytest.mark.timeout(600),  # npm fetches packages
]


def run(folder: Path, *command: str) -> str:
    environment = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def trials() -> str:
    """The trials as a module, for the compiler to judge their descriptors."""
    listed = [
        {
            "operator": trial.operator,
            "inputs": trial.data,
            "expected": {
                "DataType": trial.data_type,
                "Sizes": list(trial.expected.shape),
                "bytes": trial.expected.dtype.itemsize,
                "data": base64.b64encode(trial.expected.tobytes()).decode(),
            },
            "ulps": ULPS.get(trial.data_type, 0),
        }
        for trial in TRIALS
    ]
    return f'import type {{ Trial }} from "./main.js";\n\nexport const trials: Trial[] = {json.dumps(listed)};\n'


@pytest.fixture(scope="module")
def folder(server: RunningServer, node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the generated types, made by the README's line, and everything compiled."""
    made = tmp_path_factory.mktemp("typescript")
    shutil.copytree(SOURCES, made, dirs_exist_ok=True)
    (made / "node_modules").symlink_to(node_modules)
    printed = run(made, "bash", "-euc", code("sh", "openapi-typescript", server.url) + " 2>&1")
    (made / "trials.ts").write_text(trials())
    for name, text in EXAMPLES.items():
        (made / f"{name}.ts").write_text(code("ts", text, server.url))
    assert "warning" not in printed.lower(), printed
    run(made, str(made / "node_modules/.bin/tsc"), "-p", ".")
    return made


@pytest.mark.parametrize(
    ("name", "expected"), [("example", [-1.729, -1.264, 0, 1, 2, 4]), ("graph", [0, 0, 3, 2, 4, 7])]
)
def test_the_lines_of_the_readme_run(folder: Path, name: str, expected: list[float]) -> None:
    printed = run(folder, "node", f"built/{name}.js").partition("[")[2]
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", printed)]
    assert numbers == pytest.approx(expected, abs=1e-3)


def test_every_operation_works(folder: Path, server: RunningServer) -> None:
    assert run(folder, "node", "built/main.js", server.url) == "done\n"

"""The house: imports go one way, down, and each floor knows only what it needs to know."""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FLOORS = [
    {
        "app",
        "app.devices",
        "app.http",
        "app.models",
        "app.settings",
        "app.signals",
        "app.sink",
        "app.stages",
        "app.steps",
        "app.contract",
    },
    {"app.memory", "app.formula", "app.logs", "app.environment", "app.apart"},
    {"app.programs", "app.codecs"},
    {"app.operators"},
    {"app.graphs"},
    {"app.models.onnx"},
    {"app.devices.binaries", "app.devices.device", "app.devices.layout"},
    {"app.devices.cpu.threads", "app.devices.schedules"},
    {"app.devices.cpu.numpy"},
    {"app.devices.cpu.llvm"},
    {"app.devices.cpu", "app.devices.cuda"},
    {"app.devices.estimates"},
    {"app.devices.placement"},
    {"app.engine"},
    {"app.models.repository"},
    {"app.models.dxdispatch"},
    {"app.http.core"},
    {"app.http.server"},
    {"app.http.telemetry"},
    {"app.http.native", "app.http.inference", "app.http.web"},
    {"app.main"},
    {"app.cli", "app.cluster"},
]
"""Rooms from the ground up. A room is a package, or a module that stands alone; it imports from lower floors only, so
that those on the same floor do not know each other."""

HALLS = {"app", "app.devices", "app.http", "app.models"}
"""Packages that hold rooms and nothing else."""

FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

LOWEST = {"numpy": "app.memory", "fastapi": "app.http.core", "starlette": "app.http.core"}
"""Packages that only the named room and the floors above it may import."""

ONLY = {
    "uvicorn": ("app.http.server", "app.main"),
    "cudnn": ("app.operators.convolution.library", "app.operators.attention.library", "app.operators.cudnn"),
    "cupy": ("app.devices.cuda", "app.devices.placement"),
    "cupy_backends": ("app.devices.cuda",),
    "llvmlite": ("app.devices.cpu.llvm.compiler",),
    "threadpoolctl": ("app.devices.cpu.device",),
    "PIL": ("app.models.dxdispatch.images",),
    "opentelemetry": ("app.http.telemetry.tracing",),
    "pynvml": ("app.http.telemetry.gpus",),
    "flatbuffers": ("app.models.dxdispatch",),
    "onnx": ("app.models.onnx",),
    "google": ("app.models.onnx",),
    "ray": ("app.cluster",),
}
"""Packages that nobody else imports."""

EXTRAS = {"cudnn", "cupy", "cupy_backends", "google", "onnx", "opentelemetry", "PIL", "pynvml", "ray"}
"""Packages of extras: a test below sees to who imports them."""

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "app").rglob("*.py"))
}


def of_each_module(test: Callable[[str], None]) -> Callable[[], None]:
    """One test, which goes through them: as tests of their own they would take most of a minute."""

    def run() -> None:
        for module in MODULES:
            test(module)

    return run


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that `module` imports, at its top or anywhere in it."""
    return frozenset(_imports(ast.parse(MODULES[module].read_text())))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "imports are absolute"
            assert not node.level, "imports are absolute"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in MODULES else node.module


def room_of(module: str) -> str:
    """The narrowest one. What is in a HALL must be in a room of its own."""
    names = module.split(".")
    rooms = (".".join(names[:count]) for count in range(len(names), 0, -1))
    return next(room for room in rooms if room in FLOOR_OF and (room == module or room not in HALLS))


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_every_room_has_a_floor() -> None:
    assert {room_of(module) for module in MODULES} == set(FLOOR_OF)


@of_each_module
def test_imports_come_from_lower_floors_or_the_same_room(module: str) -> None:
    room = room_of(module)
    for imported in imports(module):
        if package_of(imported) == "app" and room_of(imported) != room:
            assert FLOOR_OF[room_of(imported)] < FLOOR_OF[room], f"{module} imports {imported}"


def test_no_import_circle() -> None:
    graph = {module: {each for each in imports(module) if each in MODULES} for module in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError


@of_each_module
def test_lower_floors_know_neither_arrays_nor_http(module: str) -> None:
    for imported in imports(module):
        lowest = LOWEST.get(package_of(imported))
        assert lowest is None or FLOOR_OF[room_of(module)] >= FLOOR_OF[lowest], f"{module} imports {imported}"


def test_every_imported_package_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {_normal(re.split(r"[<>=!~;\[ ]", each)[0]) for each in project["dependencies"]}
    declared.add("pydantic-core")  # of which pydantic requires one version exactly
    used = {package_of(imported) for module in MODULES for imported in imports(module)}
    used -= EXTRAS | {"backports" if sys.version_info >= (3, 14) else "compression"}  # one for the other
    distributions = packages_distributions()
    for package in used - sys.stdlib_module_names - {"app"}:
        assert {_normal(each) for each in distributions[package]} & declared, f"{package} is imported"


@of_each_module
def test_connections_know_nothing_of_what_they_carry(module: str) -> None:
    if room_of(module) == "app.http.server":
        for imported in imports(module):
            assert not imported.startswith(("app.engine", "app.operators", "app.devices")), f"{module} imports it"


@of_each_module
def test_some_packages_are_imported_in_one_room_only(module: str) -> None:
    for imported in imports(module):
        rooms = ONLY.get(package_of(imported))
        assert rooms is None or module.startswith(rooms), f"{module} imports {imported}"


@of_each_module
def test_what_may_be_missing_is_imported_where_it_is_wanted_and_never_with_the_module(module: str) -> None:
    """Without what extras bring, and llvmlite, the service starts, and with it as fast."""
    top = ast.Module([node for node in ast.parse(MODULES[module].read_text()).body if not _defines(node)], [])
    own = {"ray"} if module == "app.cluster" else set()  # which Ray imports, and nobody else
    assert not {package_of(imported) for imported in _imports(top)} & (EXTRAS | {"llvmlite"}) - own


def _defines(node: ast.stmt) -> bool:
    is_for_checkers = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return is_for_checkers or isinstance(node, ast.FunctionDef | ast.ClassDef)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

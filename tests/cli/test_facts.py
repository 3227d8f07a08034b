"""`dmlserve operators` and `dmlserve capabilities`: what people and machines read."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app import __version__
from app.contract.constants import Constant, DataType, FeatureLevel
from app.engine.capabilities import describe, summarize
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX, Operator
from app.settings import Settings
from tests.cli.command import dmlserve, printed, refusal
from tests.conftest import COMMAND
from tests.operators.facts import FAMILIES, takes

OPERATOR = pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.short_name())


OF_EACH_FAMILY = pytest.mark.parametrize(
    "operator",
    {operator.family(): operator for operator in OPERATORS.values()}.values(),
    ids=lambda operator: operator.short_name(),
)

CONSTANTS = {each.prefix().removesuffix("_"): each for each in Constant.__subclasses__()}
"""The enumerations, by the types that attributes have."""


def test_version() -> None:
    assert printed(dmlserve("--version")) == f"dmlserve, version {__version__}\n"


def test_operators_are_a_line_each_when_piped() -> None:
    _, *lines = printed(dmlserve("operators")).splitlines()
    assert lines == [line.rstrip() for line in lines]
    for line, operator in zip(lines, OPERATORS.values(), strict=True):
        introduced = operator.support.introduced
        assert " ".join(line.split()) == f"{operator.short_name()} {introduced} {operator.formula_text}"


def test_operators_for_machines() -> None:
    assert json.loads(printed(dmlserve("operators", "--json"))) == [summarize(each) for each in OPERATORS.values()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [["operators"], ["capabilities", "--json"]])
def test_what_cannot_be_printed_is_told(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "Error: Standard output cannot be written: No space left on device.\n"


def listed(*flags: str) -> list[str]:
    return [each["Type"] for each in json.loads(printed(dmlserve("operators", "--json", *flags)))]


@pytest.mark.parametrize("level", [FeatureLevel.V1_0, FeatureLevel.V4_1, FeatureLevel.V6_4])
@pytest.mark.parametrize("data_type", [DataType.FLOAT16, DataType.INT8, DataType.UINT4])
def test_operators_of_a_type_at_a_level(level: FeatureLevel, data_type: DataType) -> None:
    expected = [name for name in OPERATORS if takes(name, level, data_type)]
    for flags in (
        ("--feature-level", level.value, "--data-type", data_type.value),
        ("--feature-level", level.full_name.lower(), "--data-type", data_type.full_name.lower()),
    ):
        assert listed(*flags) == expected
        for family in FAMILIES:
            of_family = [name for name in expected if OPERATORS[name].family() == family]
            assert listed(*flags, "--family", family) == listed(*flags, "--family", family.lower()) == of_family


def test_operators_that_there_are_none_of() -> None:
    flags = ("--data-type", "UINT4", "--feature-level", "6_2")  # one level before there are any
    assert printed(dmlserve("operators", *flags)) == "No operator is like that.\n"
    assert listed(*flags) == []


def test_operators_are_filtered_for_people_too() -> None:
    _, *lines = printed(dmlserve("operators", "--family", "activation")).splitlines()
    assert [line.split()[0] for line in lines] == [
        name.removeprefix(PREFIX) for name in OPERATORS if name.startswith(f"{PREFIX}ACTIVATION")
    ]


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("--family", "celu", ", ".join(FAMILIES) + "."),
        ("--data-type", "FLOAT31", f"{', '.join(DataType)}. Did you mean FLOAT32?"),
        ("--feature-level", "9_9", f"{', '.join(FeatureLevel)}."),
    ],
)
def test_unknown_filters(flag: str, value: str, allowed: str) -> None:
    (line,) = refusal(dmlserve("operators", flag, value), status=2)
    assert line == f"{flag} is {value}; give one of {allowed}"


def test_a_name_is_not_filtered() -> None:
    (line,) = refusal(dmlserve("operators", "ACTIVATION_CELU", "--family", "ACTIVATION"), status=2)
    assert "ACTIVATION_CELU, or --family, not both" in line


def parts(text: str) -> tuple[str, str]:
    """What is told of an operator, and the request to paste after it."""
    told, _, request = text.partition("\nA request, for 'dmlserve run' or POST /v1/dispatch:\n")
    return told, request


@OF_EACH_FAMILY
def test_operator_by_each_of_its_names(operator: type[Operator]) -> None:
    text = printed(dmlserve("operators", operator.name()))
    assert text == printed(dmlserve("operators", operator.short_name()))
    assert text == printed(dmlserve("operators", operator.short_name().lower()))


@OPERATOR
def test_operator_tells_everything(operator: type[Operator]) -> None:
    described = describe(operator)
    text, request = parts(printed(dmlserve("operators", operator.short_name())))
    asked = json.loads(request)
    assert asked["operator"] == described["example"]["operator"]
    assert '"' not in json.dumps([*asked["inputs"].values()]), "numbers"
    for fact in (operator.name(), described["summary"], described["formula"], *described["notes"]):
        assert fact in text
    lines = [line.split() for line in text.splitlines()]
    for field in described["fields"]:
        (line,) = [line for line in lines if line[:1] == [field["name"]]]
        assert line[-len(field["description"].split()) :] == field["description"].split()
        assert (line[1] in ("input", "output")) == (field["kind"] != "attribute")
        assert (line[2].endswith("tensor[]")) == (field["type"] == "DML_TENSOR_DESC[]")
    for row in described["support"]:
        assert row["feature_level"].removeprefix("DML_FEATURE_LEVEL_") in [line[0] for line in lines if line]


@OPERATOR
def test_constants_are_told(operator: type[Operator]) -> None:
    for field in describe(operator)["fields"]:
        if (constants := CONSTANTS.get(field["type"])) and constants is not DataType:
            told = set(re.findall(r"\w+", field["description"])) & set(constants)
            restricted = field["name"] == "ReductionFunction"  # to two of REDUCE's
            assert told == ({"AVERAGE", "MAX"} if restricted else set(constants)), field["description"]


@OPERATOR
def test_operator_for_machines(operator: type[Operator]) -> None:
    assert json.loads(printed(dmlserve("operators", operator.short_name(), "--json"))) == describe(operator)


@OF_EACH_FAMILY
def test_the_shown_request_runs(operator: type[Operator], tmp_path: Path) -> None:
    """That all do is tested of the page, which shows the same ones (tests/http/test_reference.py)."""
    _, request = parts(printed(dmlserve("operators", operator.short_name(), columns=80)))
    file = tmp_path / "request.json"
    file.write_text(request)
    assert operator.short_name() in printed(dmlserve("run", file))


@pytest.mark.parametrize("name", ["CELU", "celu", "DML_OPERATOR_SOFTPLUS"])
def test_unknown_operator(name: str) -> None:
    (line,) = refusal(dmlserve("operators", name))
    assert line.startswith(f"There is no operator {name}; ")
    assert ("ACTIVATION_CELU?" in line) == (name in ("CELU", "celu"))


def test_a_name_that_is_part_of_many_is_not_told_with_all_of_them() -> None:
    assert refusal(dmlserve("operators", "e")) == ["There is no operator e; 'dmlserve operators' lists them."]
    (line,) = refusal(dmlserve("operators", "pooling"))
    assert line.count("_POOLING") == sum("_POOLING" in name for name in OPERATORS) > 8


def test_capabilities_for_people() -> None:
    text = printed(
        dmlserve("capabilities", env={"DMLSERVE_MAX_BODY_BYTES": "1500", "DMLSERVE_DEADLINE_SECONDS": "2.5"})
    )
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line}
    assert f"{__version__}: {len(OPERATORS)} operators, feature levels 1_0 to 6_4" in rows["dmlserve"]
    assert "GiB" in rows["numpy"]
    assert rows["max_body_bytes"] == "1,500 bytes Request body."
    assert rows["max_tensor_bytes"].startswith("256 MiB ")
    assert rows["deadline_seconds"].startswith("2.5 s ")
    assert rows["queue_depth"].startswith("64 ")


def test_capabilities_for_machines() -> None:
    facts = json.loads(printed(dmlserve("capabilities", "--json", env={"DMLSERVE_QUEUE_DEPTH": "7"})))
    assert facts["version"] == __version__
    assert facts["operators"] == list(OPERATORS)
    assert {name for name in Settings.model_fields if Settings.is_limit(name)} < set(facts["limits"])
    assert facts["limits"]["queue_depth"] == 7


def test_a_misspelt_variable_is_told() -> None:
    result = dmlserve("capabilities", "--json", env={"DMLSERVE_THREAD": "1"})
    assert json.loads(result.stdout)["version"] == __version__
    assert result.stderr == "Warning: The variable DMLSERVE_THREAD is no setting's. Did you mean DMLSERVE_THREADS?\n"


def test_capabilities_of_gpus_that_are_not_there() -> None:
    (line,) = refusal(dmlserve("capabilities", env={"DMLSERVE_GPUS": "99"}), status=2)
    assert line.startswith("The setting gpus is 99, but ")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["operators", *(f"operators {name}" for name in OPERATORS), "capabilities"])
def test_tables_fit_the_terminal(command: str, columns: int) -> None:
    told, request = parts(printed(dmlserve(*command.split(), columns=columns)))
    assert max(map(len, told.splitlines())) <= columns
    for line in request.splitlines():  # a tensor's data are one word, which to break would be to break the JSON
        assert len(line) <= columns or re.fullmatch(r' *("\w+": )?"[A-Za-z0-9+/]+=*",?', line), line


def test_a_table_that_has_no_room_is_read_row_by_row() -> None:
    lines = printed(dmlserve("operators", "--family", "POOLING", columns=44)).splitlines()
    assert lines[:2] == ["AVERAGE_POOLING", "  since: 1_0"]
    assert max(map(len, lines)) <= 44
    assert min(len(line) for line in lines if line.startswith("  formula: ")) > 20


@pytest.mark.parametrize("command", ["operators", "operators ACTIVATION_CELU", "capabilities"])
def test_tables_are_plain_text(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in printed(dmlserve(*command.split()))
    printed(dmlserve(*command.split(), charset="ascii")).encode("ascii")


@pytest.mark.parametrize("command", [["operators"], ["operators", "--json"]])
def test_a_reader_that_has_enough_is_no_error(command: list[str]) -> None:
    with subprocess.Popen([COMMAND, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout
        assert running.stderr
        running.stdout.close()
        assert running.stderr.read() == b""


def test_facts_load_no_http_server() -> None:
    program = """if True:
        import sys
        from app.cli import main
        main(["operators"], standalone_mode=False)
        loaded = {"fastapi", "starlette", "uvicorn", "httptools", "prometheus_client"} & set(sys.modules)
        sys.exit(f"loaded: {loaded}" if loaded else 0)
    """
    finished = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")

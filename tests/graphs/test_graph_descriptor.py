"""The models of graphs: what they take, what they refuse, their JSON schema; and the id of what was sent."""

import json
import math
import os
import subprocess
import sys
from typing import Any, get_args

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given

from app.contract.constants import NEWEST, FeatureLevel
from app.contract.validation import validate
from app.contract.violations import ContractError, Hresult, Violation
from app.engine.graph_documents import EDGES_OF_A_NODE, MOST_FIELDS, hold_parts
from app.graphs.descriptor import ConstantNode, GraphDesc, OperatorNode
from app.graphs.identity import _LEVELS, _canonical, graph_id
from app.graphs.judgement import resolve
from app.memory.accounts import MemoryAccount
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.contract.refusals import check_wording
from tests.graphs.documents import Document, add, between, constant, graph, into, out, relu

DOCUMENT = graph(
    [relu("a"), add("sum"), constant("k")],
    [into("x", "a")],
    [out("sum", "y")],
    [between("a", "sum"), between("k", "sum", "BTensor")],
)

NAMES = [
    name
    for operator in OPERATORS.values()
    for name in get_args(operator.model_fields["Type"].annotation)
    if name.startswith(PREFIX)
]
"""Of all operators; one of them has two."""


def refused(document: Document) -> list[Violation]:
    with pytest.raises(ContractError) as refusal:
        validate(GraphDesc, document)
    return list(refusal.value.violations)


def edited(path: str, value: Any) -> Document:
    """DOCUMENT with `value` at `path`; Ellipsis takes away what is there."""
    document: Document = json.loads(json.dumps(DOCUMENT))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place: Any = document
    for each in parents:
        place = place[each]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize("prefix", ["", "DML_GRAPH_NODE_TYPE_"])
def test_nodes_have_their_type_with_or_without_prefix(prefix: str) -> None:
    document = graph([relu() | {"Type": f"{prefix}OPERATOR"}, constant() | {"Type": f"{prefix}CONSTANT"}], [], [])
    assert [type(each) for each in validate(GraphDesc, document).Nodes] == [OperatorNode, ConstantNode]


@pytest.mark.parametrize("prefix", ["", "DML_GRAPH_EDGE_TYPE_"])
@pytest.mark.parametrize("kind", ["INPUT", "OUTPUT", "INTERMEDIATE"])
def test_edges_may_have_their_type(prefix: str, kind: str) -> None:
    edges = f"{kind.capitalize()}Edges"
    assert getattr(validate(GraphDesc, edited(f"{edges}/0/Type", prefix + kind)), edges)[0].Type == prefix + kind
    assert getattr(validate(GraphDesc, edited(f"{edges}/0/Type", None)), edges)[0].Type is None
    for wrong in [1, *(prefix + other for other in {"INVALID", "INPUT", "OUTPUT", "INTERMEDIATE", "EDGE"} - {kind})]:
        with pytest.raises(ContractError) as refusal:
            validate(GraphDesc, edited(f"{edges}/0/Type", wrong))
        (violation,) = refusal.value.violations
        check_wording(violation)
        assert (violation.pointer, violation.given) == (f"/{edges}/0/Type", wrong)
        assert violation.allowed == [f"DML_GRAPH_EDGE_TYPE_{kind}", kind]
        is_of_directml = wrong not in ("EDGE", "DML_GRAPH_EDGE_TYPE_EDGE", 1)
        assert refusal.value.hresult == (Hresult.E_INVALIDARG if is_of_directml else None)


@pytest.mark.parametrize("data", ["AAAA", b"\0\0\0", memoryview(b"\0")])
def test_data_stay_as_they_are(data: Any) -> None:
    node = validate(GraphDesc, edited("Nodes/2", constant() | {"Data": data})).Nodes[2]
    assert isinstance(node, ConstantNode)
    assert node.Data is data


@pytest.mark.parametrize("field", ["InputEdges", "IntermediateEdges"])
def test_edges_that_a_graph_may_lack_may_be_null_or_left_out(field: str) -> None:
    values: list[Any] = [None, [], ...]
    for value in values:
        assert not getattr(validate(GraphDesc, edited(field, value)), field)


@pytest.mark.parametrize(
    ("path", "value", "pointer", "was_given", "allowed"),
    [
        ("Nodes", ..., "/Nodes", None, "a value"),
        ("OutputEdges", ..., "/OutputEdges", None, "a value"),
        ("OutputEdges", None, "/OutputEdges", None, "an array"),
        ("NodeCount", -1, "/NodeCount", -1, ">= 0"),
        ("NodeCount", 3.0, "/NodeCount", 3.0, "an integer"),
        ("Edges", [], "/Edges", [], sorted(GraphDesc.model_fields)),
        ("Nodes/0/Type", ..., "/Nodes/0/Type", None, "a value"),
        (
            "Nodes/0/Type",
            "INVALID",
            "/Nodes/0/Type",
            "INVALID",
            ["DML_GRAPH_NODE_TYPE_OPERATOR", "DML_GRAPH_NODE_TYPE_CONSTANT"],
        ),
        ("Nodes/0/Desc", ..., "/Nodes/0/Desc", None, "a value"),
        ("Nodes/0/Data", "", "/Nodes/0/Data", "", ["Desc", "Name", "Type"]),
        ("Nodes/0/Name", 1, "/Nodes/0/Name", 1, "a string"),
        ("Nodes/0/Desc/Type", "RELU", "/Nodes/0/Desc/Type", "RELU", NAMES),
        ("Nodes/0/Desc/InputTensor/Sizes/1", 0, "/Nodes/0/Desc/InputTensor/Sizes/1", 0, ">= 1"),
        ("Nodes/2/Data", ..., "/Nodes/2/Data", None, "a value"),
        ("InputEdges/0/ToNodeIndex", -1, "/InputEdges/0/ToNodeIndex", -1, ">= 0"),
        ("InputEdges/0/ToNodeIndex", 1 << 32, "/InputEdges/0/ToNodeIndex", 1 << 32, f"<= {2**32 - 1}"),
        ("InputEdges/0/ToNodeIndex", True, "/InputEdges/0/ToNodeIndex", True, "an integer"),
        ("OutputEdges/0/GraphOutput", 0, "/OutputEdges/0/GraphOutput", 0, "a string"),
    ],
)
def test_refusals(path: str, value: Any, pointer: str, was_given: Any, allowed: Any) -> None:
    (violation,) = refused(edited(path, value))
    check_wording(violation)
    assert (violation.pointer, violation.given, violation.allowed) == (pointer, was_given, allowed)


@pytest.mark.parametrize("edges", ["InputEdges", "OutputEdges", "IntermediateEdges"])
def test_edges_have_no_other_fields(edges: str) -> None:
    (violation,) = refused(edited(f"{edges}/0/Index", 1))
    check_wording(violation)
    assert violation.pointer == f"/{edges}/0/Index"
    assert {"Name"} < set(violation.allowed)  # type: ignore[call-overload]  # a list of names


def test_the_schema_says_what_each_part_is() -> None:
    schema = GraphDesc.model_json_schema()
    parts = schema["$defs"]
    for part in (schema, *[parts[name] for name in ("InputEdge", "OutputEdge", "IntermediateEdge")]):
        assert part["additionalProperties"] is False
        assert all(each["description"] for each in part["properties"].values())
    assert schema["required"] == ["Nodes", "OutputEdges"]
    assert parts["ConstantNode"]["properties"]["Data"]["contentEncoding"] == "base64"
    for kind in ("OPERATOR", "CONSTANT"):
        tag = parts[f"{kind.capitalize()}Node"]["properties"]["Type"]
        assert tag["default"] == tag["enum"][0] == f"DML_GRAPH_NODE_TYPE_{kind}"
        assert tag["enum"][1] == kind


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 4)
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=3)
    | st.sampled_from(["OPERATOR", "CONSTANT", "ELEMENT_WISE_ADD", "a", "sum", "x", "ATensor", "Data"]),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.sampled_from(["Type", "Name", "Desc", "ToNode", "Index"]), each, max_size=3)
    ),
    max_leaves=5,
)


def places(value: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Paths to all that is in a document."""
    within = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    deeper = [place for key, each in within for place in places(each, (*path, str(key)))]
    return ["/".join(path), *deeper] if path else deeper


@given(st.sampled_from(places(DOCUMENT)), JUNK, st.sampled_from(FeatureLevel))
def test_whatever_is_sent_is_a_graph_or_refused(path: str, junk: Any, level: FeatureLevel) -> None:
    """Nothing else is raised, and what is said can be sent."""
    document = edited(path, junk)
    constants = dict.fromkeys(range(8), memoryview(bytes(24)))
    try:
        desc = validate(GraphDesc, document)
        assert graph_id(desc, level, {}, {})
        resolve(desc, level, constants)
    except ContractError as error:
        for violation in error.violations:
            json.dumps([violation.pointer, violation.message, violation.given, violation.allowed], allow_nan=False)


# The id

DATA = {2: memoryview(bytes(24))}
OWNED = {"w": memoryview(b"abcd")}


def id_of(document: Document, level: FeatureLevel = NEWEST, data: Any = DATA, owned: Any = OWNED) -> str:
    return graph_id(validate(GraphDesc, document), level, data, owned)


def test_the_id_stays_what_it_was() -> None:
    """Clients keep it: it changes only on purpose, when what is sent comes to mean something else."""
    one = id_of(DOCUMENT)
    assert one == "86f2873794a857c6d3dece4b465540fe"


@pytest.mark.parametrize(
    "other",
    [
        id_of(edited("Nodes/0/Name", "b")),
        id_of(edited("Nodes/0/Desc/InputTensor/Sizes/1", 4)),
        id_of(edited("OutputEdges/0/GraphOutput", "z")),
        id_of(edited("InputEdges/0/ToNode", "sum")),
        id_of(DOCUMENT, FeatureLevel.V6_2),
        id_of(DOCUMENT, data={2: memoryview(bytes(23))}),
        id_of(DOCUMENT, data={2: memoryview(bytes(23) + b"\1")}),
        id_of(DOCUMENT, data={1: memoryview(bytes(24))}),
        id_of(DOCUMENT, owned={"v": memoryview(b"abcd")}),
        id_of(DOCUMENT, owned={"w": memoryview(b"abce")}),
        id_of(DOCUMENT, owned={}),
    ],
)
def test_whatever_differs_gives_another_id(other: str) -> None:
    assert other != id_of(DOCUMENT)


def test_neither_representation_nor_the_order_of_fields_matter() -> None:
    as_json = json.loads(json.dumps(DOCUMENT))
    as_msgpack = msgpack.unpackb(msgpack.packb(edited("Nodes/2/Data", bytes(24))))
    turned = json.loads(json.dumps(DOCUMENT), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert list(turned) != list(DOCUMENT)
    assert {id_of(as_json), id_of(as_msgpack), id_of(turned)} == {id_of(DOCUMENT)}


def test_infinities_are_numbers_too() -> None:
    padding: dict[str, Any] = {
        "Type": "PADDING1",
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [2]},
        "PaddingMode": "CONSTANT",
    }
    padding |= {"PaddingValueDataType": "FLOAT32", "StartPadding": [1], "EndPadding": [0]}
    nodes = [{"Type": "OPERATOR", "Desc": padding | {"PaddingValue": value}} for value in (math.inf, -math.inf, 0)]
    assert len({id_of(graph([node], [], [])) for node in nodes}) == 3


def test_whole_numbers_of_either_type_are_one() -> None:
    elu = relu()
    elu["Desc"] |= {"Type": "ACTIVATION_ELU", "Alpha": 1}
    one = id_of(graph([elu], [], []))
    elu["Desc"]["Alpha"] = 1.0
    assert id_of(graph([elu], [], [])) == one


def test_any_name_has_an_id() -> None:
    """A lone surrogate, which cannot be sent as UTF-8, comes by an escape in JSON."""
    names = ["\ud800", "\x00", "\N{GRINNING FACE}", ""]
    assert len({id_of(graph([relu(name)], [], [])) for name in names}) == len(names)


def test_the_id_is_the_same_in_every_process() -> None:
    program = "from tests.graphs.test_graph_descriptor import DOCUMENT, id_of\nprint(id_of(DOCUMENT), end='')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=_environment()
    )
    assert done.stdout == id_of(DOCUMENT)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}


def test_no_call_writes_more_than_a_node_for_the_id() -> None:
    """The text is that of the whole document, which other versions hash at once."""
    nodes = [{"Type": "OPERATOR", "Name": f"é{number}", "Desc": {"b": [1, None], "a": {}}} for number in range(100)]
    whole = {"inputs": {}, "graph": {"OutputEdges": [], "Nodes": nodes, "InputCount": 1.5}, "constants": {"0": "ab"}}
    pieces = list(_canonical(whole, _LEVELS))
    assert "".join(pieces) == json.dumps(whole, sort_keys=True, separators=(",", ":"))
    assert max(map(len, pieces)) < 100


@pytest.mark.parametrize("path", ["", "graph", "graph/Nodes/1", "graph/Nodes/0/Desc", "graph/Nodes/0/Desc/InputTensor"])
def test_an_object_of_very_many_fields_is_refused_before_each_is_judged(path: str) -> None:
    document = {"graph": edited("Nodes/0/Name", "a")}
    found: Any = document
    for name in filter(None, path.split("/")):
        found = found[int(name) if isinstance(found, list) else name]
    found |= {f"{number}": number for number in range(MOST_FIELDS - len(found))}
    with MemoryAccount(1 << 20).open() as memory:
        hold_parts(document, 8, memory)
        found["one more"] = None
        with pytest.raises(ContractError, match="An object has 257 fields; none has more than 256"):
            hold_parts(document, 8, memory)


def test_data_for_more_inputs_than_edges_may_lead_to_are_refused_before_they_are_judged() -> None:
    document = {"graph": DOCUMENT, "inputs": {f"{number}": "" for number in range(EDGES_OF_A_NODE * 8)}}
    with MemoryAccount(1 << 20).open() as memory:
        hold_parts(document, 8, memory)
        document["inputs"]["one more"] = ""
        with pytest.raises(ContractError, match="inputs has 129 entries; allowed are <= 128"):
            hold_parts(document, 8, memory)

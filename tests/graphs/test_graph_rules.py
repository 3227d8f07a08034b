"""The rules for graphs: each refusal, and what is legal though it looks odd."""

import time
from typing import Any

import pytest

from app.contract.constants import FeatureLevel
from app.contract.names import listed
from app.contract.validation import validate
from app.contract.violations import MAX_VIOLATIONS
from app.graphs.descriptor import GraphDesc
from app.graphs.ends import first_readers
from tests.contract.refusals import check_wording
from tests.graphs.documents import (
    OWNED,
    QUANTIZED,
    Document,
    X,
    add,
    between,
    chain,
    constant,
    graph,
    into,
    node,
    out,
    refusals,
    relu,
    resolved,
    tensor,
)

ONE = graph([relu()], [into(0, 0)], [out(0)])
CHAIN_OF_FOUR = [between(0, 1), between(1, 2), between(2, 3)]
CHAIN = graph([relu(), relu()], [into(0, 0)], [out(1)], [between(0, 1)])


def with_data(reader: Document) -> Document:
    """A constant, Nodes[1], that `reader` adds to an input of the graph."""
    return graph([add(b=reader, a=reader), constant()], [into(0, 0)], [out(0)], [between(1, 0, 1)])


REFUSED: dict[str, tuple[Document, str, Any, Any]] = {
    # The whole
    "no nodes": (graph([], [], [out(0)], OutputEdgeCount=1), "/Nodes", 0, ">= 1"),
    "no outputs": (graph([relu()], [into(0, 0)], []), "/OutputEdges", 0, ">= 1"),
    "NodeCount": (ONE | {"NodeCount": 2}, "/NodeCount", 2, 1),
    "InputEdgeCount": (ONE | {"InputEdgeCount": 0}, "/InputEdgeCount", 0, 1),
    "OutputEdgeCount": (ONE | {"OutputEdgeCount": 3}, "/OutputEdgeCount", 3, 1),
    "IntermediateEdgeCount": (ONE | {"IntermediateEdgeCount": 1}, "/IntermediateEdgeCount", 1, 0),
    # Nodes
    "name of two": (
        graph([relu("a"), relu("a")], [into(0, 0)], [out(1)], [between("a", 1)]),
        "/IntermediateEdges/0/FromNode",
        "a",
        "a name that one node has",
    ),
    "invalid operator": (
        graph([add(b=tensor(sizes=(3, 2)))], [into(0, 0), into(1, 0, 1)], [out(0)]),
        "/Nodes/0/Desc/BTensor/Sizes",
        [3, 2],
        [2, 3],
    ),
    "invalid operator that reads another": (
        graph([relu(), add(b=tensor(sizes=(3, 2)))], [into(0, 0), into(1, 1, 1)], [out(1)], [between(0, 1)]),
        "/Nodes/1/Desc/BTensor/Sizes",
        [3, 2],
        [2, 3],
    ),
    "second source of a tensor, before another's only one": (
        graph([add()], [into(0, 0), into(1, 0), into(2, 0, 1)], [out(0)]),
        "/InputEdges/1",
        "InputEdges[1]",
        "InputEdges[0]",
    ),
    "OWNED_BY_DML output": (
        graph([relu(OutputTensor=OWNED)], [into(0, 0)], [out(0)]),
        "/Nodes/0/Desc/OutputTensor/Flags",
        "OWNED_BY_DML",
        ["NONE"],
    ),
    # Ends that lead nowhere
    "no such node to": (graph([relu()], [into(0, 1)], [out(0)]), "/InputEdges/0/ToNodeIndex", 1, "< 1"),
    "no such node from": (graph([relu()], [into(0, 0)], [out(7)]), "/OutputEdges/0/FromNodeIndex", 7, "< 1"),
    "no such name to": (graph([relu("a")], [into(0, "b")], [out(0)]), "/InputEdges/0/ToNode", "b", ["a"]),
    "no such name from": (graph([relu()], [into(0, 0)], [out("b")]), "/OutputEdges/0/FromNode", "b", []),
    "no such input": (graph([relu()], [into(0, 0, 1)], [out(0)]), "/InputEdges/0/ToNodeInputIndex", 1, "< 1"),
    "no such output": (graph([relu()], [into(0, 0)], [out(0, 0, 1)]), "/OutputEdges/0/FromNodeOutputIndex", 1, "< 1"),
    "no such input's name": (
        graph([add()], [into(0, 0), into(0, 0, "CTensor")], [out(0)]),
        "/InputEdges/1/ToNodeInput",
        "CTensor",
        ["ATensor", "BTensor"],
    ),
    "no such output's name": (
        graph([relu()], [into(0, 0)], [out(0, 0, "InputTensor")]),
        "/OutputEdges/0/FromNodeOutput",
        "InputTensor",
        ["OutputTensor"],
    ),
    "no such node between": (
        graph([relu(), relu()], [into(0, 0)], [out(1)], [between(0, 2)]),
        "/IntermediateEdges/0/ToNodeIndex",
        2,
        "< 2",
    ),
    "input left out": (
        graph([QUANTIZED], [into(0, 0), into(1, 0, 1), into(2, 0, 2)], [out(0)]),
        "/InputEdges/2/ToNodeInputIndex",
        2,
        ["InputTensor", "ScaleTensor"],
    ),
    "input left out, by name": (
        graph([QUANTIZED], [into(0, 0), into(1, 0, 1), into(2, 0, "ZeroPointTensor")], [out(0)]),
        "/InputEdges/2/ToNodeInput",
        "ZeroPointTensor",
        ["InputTensor", "ScaleTensor"],
    ),
    "graph input beyond": (ONE | {"InputCount": 0}, "/InputEdges/0/GraphInputIndex", 0, "< 0"),
    "graph output beyond": (
        graph([relu()], [into(0, 0)], [out(0), out(0, 3)], OutputCount=1),
        "/OutputEdges/1/GraphOutputIndex",
        3,
        "< 1",
    ),
    "neither index nor name": (
        graph([relu()], [into(0, 0)], [{"FromNodeIndex": 0, "GraphOutputIndex": 0}]),
        "/OutputEdges/0/FromNodeOutputIndex",
        None,
        ["FromNodeOutputIndex", "FromNodeOutput"],
    ),
    "neither index nor name of a graph input": (
        graph([relu()], [{"ToNodeIndex": 0, "ToNodeInputIndex": 0}], [out(0)]),
        "/InputEdges/0/GraphInputIndex",
        None,
        ["GraphInputIndex", "GraphInput"],
    ),
    "index and name": (
        graph([relu("a")], [into(0, 0) | {"ToNode": "a"}], [out(0)]),
        "/InputEdges/0/ToNode",
        "a",
        ["ToNodeIndex", "ToNode"],
    ),
    "graph inputs by index and by name": (
        graph([add()], [into(0, 0), into("b", 0, 1)], [out(0)]),
        "/InputEdges/1/GraphInput",
        "b",
        "GraphInputIndex",
    ),
    "graph outputs by name and by index": (
        graph([relu()], [into(0, 0)], [out(0, "y"), out(0, 0)]),
        "/OutputEdges/1/GraphOutputIndex",
        0,
        "GraphOutput",
    ),
    "more than one by name, said of the first": (
        graph([relu()], [into(0, 0)], [out(0, 0), out(0, "y"), out(0, "z")]),
        "/OutputEdges/1/GraphOutput",
        "y",
        "GraphOutputIndex",
    ),
    "a number of outputs, which nobody can count": (
        graph([relu()], [into(0, 0)], [out(0, "y"), out(0, 0)], OutputCount=2),
        "/OutputEdges/1/GraphOutputIndex",
        0,
        "GraphOutput",
    ),
    # Connections
    "input without an edge": (
        graph([add()], [into(0, 0)], [out(0)]),
        "/Nodes/0",
        "BTensor",
        "an edge of InputEdges or IntermediateEdges",
    ),
    "output without an edge": (
        graph([relu(), relu("dead")], [into(0, 0), into(0, 1)], [out(0)]),
        "/Nodes/1",
        "OutputTensor",
        "an edge of IntermediateEdges or OutputEdges",
    ),
    "two edges into one input": (
        graph([relu(), relu()], [into(0, 0), into(1, 1)], [out(1)], [between(0, 1)]),
        "/IntermediateEdges/0",
        "IntermediateEdges[0]",
        "InputEdges[1]",
    ),
    "two edges into one input, of which the second would not fit either": (
        graph([relu(desc=tensor(sizes=(3, 3))), relu()], [into(0, 0), into(1, 1)], [out(1)], [between(0, 1)]),
        "/IntermediateEdges/0",
        "IntermediateEdges[0]",
        "InputEdges[1]",
    ),
    "graph output of two edges": (
        graph([relu()], [into(0, 0)], [out(0), out(0)]),
        "/OutputEdges/1/GraphOutputIndex",
        0,
        "an output without an edge",
    ),
    "graph output of two edges, by name": (
        graph([relu()], [into(0, 0)], [out(0, "y"), out(0, "y")]),
        "/OutputEdges/1/GraphOutput",
        "y",
        "an output without an edge",
    ),
    "graph output without an edge": (
        graph([relu()], [into(0, 0)], [out(0, 0), out(0, 3)]),
        "/OutputEdges",
        ["1 to 2"],
        "every index from 0 on",
    ),
    "last graph output without an edge": (ONE | {"OutputCount": 2}, "/OutputEdges", ["1"], "every index from 0 on"),
    "most graph outputs without an edge": (
        ONE | {"OutputCount": 2**32 - 1},
        "/OutputEdges",
        [f"1 to {2**32 - 2}"],
        "every index from 0 on",
    ),
    "named outputs of another number": (
        graph([relu()], [into(0, 0)], [out(0, "y")], OutputCount=2),
        "/OutputCount",
        2,
        1,
    ),
    "graph input without an edge": (
        graph([relu()], [into(1, 0)], [out(0)]),
        "/InputEdges",
        ["0"],
        "every index from 0 on",
    ),
    "named inputs of another number": (graph([relu()], [into("x", 0)], [out(0)], InputCount=2), "/InputCount", 2, 1),
    "self-edge": (
        graph([add()], [into(0, 0)], [out(0)], [between(0, 0, 1)]),
        "/IntermediateEdges/0",
        [0],
        "a node that does not depend on the reader",
    ),
    "cycle": (
        graph([relu(), add("sum"), relu()], [into(0, 0)], [out(2)], [between(2, 1, 1), between(0, 1), between(1, 2)]),
        "/IntermediateEdges/2",
        [1, 2],
        "a node that does not depend on the reader",
    ),
    # Bytes
    "bytes along an edge": (
        graph([relu(), relu(desc=tensor(sizes=(3, 3)))], [into(0, 0)], [out(1)], [between(0, 1)]),
        "/IntermediateEdges/0",
        36,
        24,
    ),
    "readers of unequal bytes": (
        graph([relu(), relu(desc=tensor(sizes=(7,)))], [into(0, 0), into(0, 1)], [out(0), out(1, 1)]),
        "/InputEdges/1",
        28,
        24,
    ),
    # Ownership
    "one of two readers owned": (
        graph([add(b=OWNED)], [into(0, 0), into(0, 0, 1)], [out(0)]),
        "/InputEdges/1",
        "OWNED_BY_DML",
        "NONE",
    ),
    "owned from a node": (
        graph([relu(), relu(desc=OWNED)], [into(0, 0)], [out(1)], [between(0, 1)]),
        "/IntermediateEdges/0",
        "OWNED_BY_DML",
        ["NONE"],
    ),
}


@pytest.mark.parametrize(("document", "pointer", "was_given", "allowed"), REFUSED.values(), ids=REFUSED)
def test_refusals(document: Document, pointer: str, was_given: Any, allowed: Any) -> None:
    found = refusals(document)
    for violation in found:
        check_wording(violation)
    assert [(each.pointer, each.given, each.allowed) for each in found] == [(pointer, was_given, allowed)]


@pytest.mark.parametrize(("name", "called"), [(None, "Nodes[0]"), ("r", "Nodes[0] (r)"), ("", "Nodes[0] ('')")])
def test_a_node_is_told_by_its_index_and_by_its_name_if_it_has_one(name: str | None, called: str) -> None:
    (violation,) = refusals(graph([relu(name), relu()], [into(0, 0), into(1, 1)], [out(1)], [between(0, 1)]))
    assert "leads to InputTensor of Nodes[1], to which" in violation.message
    (violation,) = refusals(graph([relu(name)], [], [out(0)]))
    assert violation.message.startswith(f"InputTensor of {called} has no edge;")


def test_inputs_that_nobody_reads_are_told_how_to_be_counted_and_outputs_are_not() -> None:
    """There is no output that no edge leads to."""
    (of_input,), (of_output,) = (refusals(REFUSED[f"graph {end} without an edge"][0]) for end in ("input", "output"))
    assert of_input.message.endswith("without gaps, or InputCount counts those that nobody reads.")
    assert of_output.message.endswith("without gaps.")


def test_a_tensor_that_is_left_out_is_named_once() -> None:
    by_index, by_name = (REFUSED[f"input left out{form}"][0] for form in ("", ", by name"))
    assert [each.message.split(", but")[0] for document in (by_index, by_name) for each in refusals(document)] == [
        "ToNodeInputIndex is 2, which is ZeroPointTensor",
        "ToNodeInput is ZeroPointTensor",
    ]


@pytest.mark.parametrize("edges", [None, []])
def test_a_graph_may_have_no_inputs(edges: list[Any] | None) -> None:
    document = graph([relu(), constant()], [], [out(0)], [between(1, 0)]) | {"InputEdges": edges}
    assert refusals(document, data={1: bytes(24)}) == []
    assert first_readers(validate(GraphDesc, document)) == {}


CONSTANTS: dict[str, tuple[Document, bytes, str, Any, Any]] = {
    "too short": (with_data(X), bytes(20), "/Nodes/1/Data", 20, "24"),
    "too long": (with_data(X), bytes(28), "/Nodes/1/Data", 28, "24"),
    "empty": (with_data(tensor("UINT8", (1,))), b"", "/Nodes/1/Data", 0, "1 to 4"),
    "fewer than the elements": (with_data(tensor("UINT8", (4,))), bytes(3), "/Nodes/1/Data", 3, "4"),
    "more than 3 fewer than stated": (
        with_data(tensor("UINT8", (1,), TotalTensorSizeInBytes=8)),
        bytes(4),
        "/Nodes/1/Data",
        4,
        "5 to 8",
    ),
    "one of two readers": (
        graph(
            [relu(), relu(desc=tensor(sizes=(7,))), constant()], [], [out(0), out(1, 1)], [between(2, 0), between(2, 1)]
        ),
        bytes(24),
        "/Nodes/2/Data",
        24,
        "28",
    ),
    "of an invalid operator": (
        graph([add(b=tensor(sizes=(3, 2))), constant()], [into(0, 0)], [out(0)], [between(1, 0, 1)]),
        bytes(24),
        "/Nodes/0/Desc/BTensor/Sizes",
        [3, 2],
        [2, 3],
    ),
    "owned": (
        graph([relu(desc=OWNED), constant()], [], [out(0)], [between(1, 0)]),
        bytes(24),
        "/IntermediateEdges/0",
        "OWNED_BY_DML",
        ["NONE"],
    ),
    "second output": (
        graph([relu(), constant()], [], [out(0)], [between(1, 0, 0, 1)]),
        bytes(24),
        "/IntermediateEdges/0/FromNodeOutputIndex",
        1,
        "< 1",
    ),
    "output's name": (
        graph([relu(), constant()], [], [out(0)], [between(1, 0, 0, "OutputTensor")]),
        bytes(24),
        "/IntermediateEdges/0/FromNodeOutput",
        "OutputTensor",
        ["Data"],
    ),
    "an input": (
        graph([relu(), constant()], [into(0, 1)], [out(0)], [between(1, 0)]),
        bytes(24),
        "/InputEdges/0/ToNodeIndex",
        1,
        "an operator node",
    ),
    "nobody reads": (
        graph([relu(), constant()], [into(0, 0)], [out(0)], []),
        bytes(24),
        "/Nodes/1",
        "Data",
        "an edge of IntermediateEdges or OutputEdges",
    ),
    "its size": (
        graph([relu(), constant() | {"DataSize": 23}], [], [out(0)], [between(1, 0)]),
        bytes(24),
        "/Nodes/1/DataSize",
        23,
        24,
    ),
    "straight out": (
        graph([relu(), constant("k")], [into(0, 0)], [out(0), out("k", 1)], []),
        bytes(24),
        "/OutputEdges/1",
        1,
        "an operator node",
    ),
}


@pytest.mark.parametrize(("document", "data", "pointer", "was_given", "allowed"), CONSTANTS.values(), ids=CONSTANTS)
def test_refusals_of_constants(document: Document, data: bytes, pointer: str, was_given: Any, allowed: Any) -> None:
    (index,) = (index for index, each in enumerate(document["Nodes"]) if each["Type"] == "CONSTANT")
    found = refusals(document, data={index: data})
    for violation in found:
        check_wording(violation)
    assert [(each.pointer, each.given, each.allowed) for each in found] == [(pointer, was_given, allowed)]


def with_constant(desc: Document) -> Document:
    """A reader of a constant, Nodes[1]."""
    return graph([node("ELEMENT_WISE_IDENTITY", InputTensor=desc), constant()], [], [out(0)], [between(1, 0)])


@pytest.mark.parametrize(
    ("desc", "lengths"),
    [
        (X, {24}),
        (tensor("UINT8", (3,)), {3, 4}),
        (tensor("FLOAT16", (3,)), {6, 7, 8}),
        (tensor("UINT8", (1,)), {1, 2, 3, 4}),
        (tensor(sizes=(2, 3), Strides=[0, 1]), {12}),
        (tensor(sizes=(2, 3), TotalTensorSizeInBytes=32), {29, 30, 31, 32}),
    ],
)
def test_constants_may_lack_the_bytes_that_round_up(desc: Document, lengths: set[int]) -> None:
    document = with_constant(desc)
    assert {length for length in range(48) if not refusals(document, data={1: bytes(length)})} == lengths


def test_inputs_that_nobody_reads_may_be_counted() -> None:
    for unread in ({"InputCount": 2}, {"InputCount": 0}):
        assert refusals(with_constant(X) | unread, data={1: bytes(24)}) == []
    assert refusals(ONE | {"InputCount": 3}) == []


@pytest.mark.parametrize("level", FeatureLevel)
def test_graphs_and_constants_have_their_levels(level: FeatureLevel) -> None:
    desc = tensor(sizes=(1, 1, 2, 3))
    assert [
        (each.pointer, each.given, each.allowed)
        for each in refusals(graph([relu(desc=desc)], [into(0, 0)], [out(0)]), level)
    ] == ([("", level.full_name, ">= DML_FEATURE_LEVEL_2_1")] if level < "2_1" else [])
    found = [each for each in refusals(with_constant(desc), level, {1: bytes(24)}) if each.path]
    for violation in found:
        check_wording(violation)
    assert [(each.pointer, each.given, each.allowed) for each in found] == (
        [("/Nodes/1/Type", level.full_name, ">= DML_FEATURE_LEVEL_6_2")] if level < "6_2" else []
    )


def test_nodes_above_the_level_are_refused() -> None:
    gelu = node("ACTIVATION_GELU", InputTensor=X)
    document = graph([gelu], [into(0, 0)], [out(0)])
    assert refusals(document, FeatureLevel.V5_1) == []
    (violation,) = refusals(document, FeatureLevel.V5_0)
    assert violation.pointer == "/Nodes/0/Desc/Type"


def test_nodes_are_limited() -> None:
    assert refusals(CHAIN, max_nodes=2) == []
    (violation,) = refusals(CHAIN, max_nodes=1)
    check_wording(violation)
    assert (violation.pointer, violation.given, violation.allowed) == ("/Nodes", 2, "<= 1")


def test_all_that_is_wrong_is_said_at_once() -> None:
    four = tensor(sizes=(1, 1, 2, 3))
    document = graph(
        [
            relu(desc=four),
            add(a=four, b=tensor()),
            relu(desc=four | {"Flags": ["OWNED_BY_DML"]}),
            relu(desc=four),
            constant(),
        ],
        [into(0, 0), into(0, 1), into(1, 1, 3)],
        [out(0, 0), out(0, 0), out(2, 2)],
        [between(1, 2), between(3, 3), between(4, 0)],
        NodeCount=7,
    )
    assert [each.pointer for each in refusals(document, FeatureLevel.V2_0, {4: bytes(24)})] == [
        "",
        "/NodeCount",
        "/Nodes/1/Desc/BTensor/Sizes",
        "/Nodes/1/Desc/BTensor/Sizes",
        "/Nodes/4/Type",
        "/InputEdges/2/ToNodeInputIndex",
        "/IntermediateEdges/0",
        "/IntermediateEdges/1",
        "/IntermediateEdges/2",
        "/OutputEdges/1/GraphOutputIndex",
        "/OutputEdges",
    ]


@pytest.mark.parametrize("name", ["ToNode", "FromNode"])
def test_what_an_edge_may_be_meant_for_is_not_missing(name: str) -> None:
    """An edge to nowhere may be the one that a tensor lacks; one that is right is not."""
    document = graph(
        [relu("a"), relu("b"), relu("c"), relu("d")],
        [into(0, "a"), into(0, "c"), into(0, "d")],
        [out("b"), out("c", 1), out("d", 2)],
        [between("a", "b") | {name: "e"}],
    )
    (violation,) = refusals(document)
    assert violation.pointer == f"/IntermediateEdges/0/{name}"


def test_names_that_two_nodes_have_lead_to_none() -> None:
    document = graph([relu("a"), relu("a")], [into(0, "a"), into(0, 1)], [out("a"), out(1, 1)])
    assert [each.pointer for each in refusals(document)] == ["/InputEdges/0/ToNode", "/OutputEdges/0/FromNode"]


def test_names_are_for_people_where_edges_give_indices() -> None:
    """As in DirectML, where they appear in messages only."""
    nodes = resolved(graph([relu("a"), relu("a"), relu(""), relu("")], [into(0, 0)], [out(3)], CHAIN_OF_FOUR)).nodes
    assert [nodes[index].name for index in range(4)] == ["a", "a", "", ""]


def test_tensors_of_an_invalid_node_must_exist_too() -> None:
    bad = add("bad", b=tensor(sizes=(3, 2)))
    document = graph([bad, relu()], [into(0, 0), into(0, 0, 2)], [out(1)], [between(0, 1, 0, "Output")])
    assert [each.pointer for each in refusals(document)] == [
        "/Nodes/0/Desc/BTensor/Sizes",
        "/InputEdges/1/ToNodeInputIndex",
        "/IntermediateEdges/0/FromNodeOutput",
    ]


def test_bytes_of_an_invalid_node_are_not_compared() -> None:
    """Its layout may make no sense."""
    bad = relu(desc=X | {"Strides": [1]}, OutputTensor=X)
    document = graph([bad, relu(desc=tensor(sizes=(7,)))], [into(0, 0)], [out(1)], [between(0, 1)])
    assert {each.pointer for each in refusals(document)} == {"/Nodes/0/Desc/InputTensor/Strides"}


def test_names_in_messages_are_short() -> None:
    long = "x" * 10_000
    document = graph([relu(long)], [into(0, long, long)], [out(long + "y", long, long)])
    found = refusals(document)
    assert len(found) == 2
    for violation in found:
        assert len(violation.message) < 400
        assert len(str(violation.given)) <= 80
        assert len(str(violation.allowed)) <= 90


def test_a_misspelt_node() -> None:
    (violation,) = refusals(graph([relu("first")], [into(0, "frist")], [out("first")]))
    assert violation.message == "ToNode is frist but no node has that Name; there are first. Did you mean first?"


def test_a_cycle_is_called_one() -> None:
    (violation,) = refusals(graph([add()], [into(0, 0)], [out(0)], [between(0, 0, 1)]))
    assert violation.message == "IntermediateEdges[0] leads from Nodes[0] to itself; a graph has no cycles."


def test_long_cycles() -> None:
    document = chain(5_000)
    document["Nodes"][-1] = add()
    document["IntermediateEdges"].append(between(0, 4_999, 1))
    (violation,) = refusals(document)
    check_wording(violation)
    assert violation.pointer == "/IntermediateEdges/4999"
    assert violation.given == "a list of 5000"
    assert len(violation.message) < 300


def least_seconds(document: Document) -> float:
    """Of three times: Python may look for garbage in one of them."""
    took = []
    for _ in range(3):
        started = time.thread_time()
        refusals(document)
        took.append(time.thread_time() - started)
    return min(took)


def test_a_graph_full_of_mistakes_is_refused_as_fast() -> None:
    """Names that nobody has, among many: no message goes through all of them."""
    document = chain(5_000)
    for index, each in enumerate(document["Nodes"]):
        each["Name"] = f"n{index}"
    right = least_seconds(document)
    document["IntermediateEdges"] = [between("nobody", "nobody", "X", "Y") for _ in range(5_000)]
    assert least_seconds(document) < 5 * right
    found = refusals(document)
    assert len(found) == MAX_VIOLATIONS


def test_readers_of_inputs_are_found_by_index_and_by_name() -> None:
    """What leads nowhere is left out: judgement tells it."""
    edges = [into("a", "sum", "BTensor"), into("b", 0, 0), into("c", "sum", "Tensor"), into("d", 0, 2), into("e", 1, 0)]
    found = first_readers(validate(GraphDesc, graph([add("sum", b=tensor("FLOAT16"))], edges, [out(0)])))
    assert {name: desc.DataType for name, desc in found.items()} == {"a": "FLOAT16", "b": "FLOAT32"}


@pytest.mark.parametrize(
    ("strides", "known"), [(None, True), ([0, 1], True), ([1], False), ([1, 1, 1], False), ([2**31, 1], True)]
)
def test_readers_that_are_no_tensors_are_left_out(strides: list[int] | None, known: bool) -> None:
    """Nothing can be read by their sizes and strides."""
    described = graph([add(b=tensor(Strides=strides))], [into(0, 0, 0), into(1, 0, 1)], [out(0)])
    found = first_readers(validate(GraphDesc, described))
    assert {name: desc.Strides for name, desc in found.items()} == {"0": None} | ({"1": strides} if known else {})


def test_of_a_graph_without_inputs_nobody_is_a_reader() -> None:
    assert first_readers(validate(GraphDesc, graph([relu()], [], [out(0)]) | {"InputEdges": None})) == {}


def test_the_first_few_of_many_are_listed() -> None:
    first = ", ".join(map(str, range(16)))
    assert listed(range(16)) == first
    assert listed(range(17)) == f"{first} and 1 more"

"""Graphs that are legal, though some look odd, and what is known of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from app.contract.constants import NEWEST
from app.graphs.ends import NodeTensor, bind_points
from app.graphs.graph import Constant, GraphInput, NodeOutput
from app.operators.operator import Role
from tests.graphs.documents import (
    OWNED,
    QUANTIZED,
    Document,
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


def edge(writer: Document, reader: Document) -> Document:
    """A graph of an edge between two tensors."""
    nodes = [node("ELEMENT_WISE_IDENTITY", InputTensor=each) for each in (writer, reader)]
    nodes[1]["Desc"]["OutputTensor"] = {"DataType": reader["DataType"], "Sizes": reader["Sizes"]}
    return graph(nodes, [into(0, 0)], [out(1)], [between(0, 1)])


@pytest.mark.parametrize(
    ("writer", "reader", "legal"),
    [
        (tensor(sizes=(2, 3)), tensor("INT32", (6,)), True),
        (tensor(sizes=(4,)), tensor("FLOAT16", (8,)), True),
        (tensor(sizes=(4,)), tensor("FLOAT16", (4,)), False),
        (tensor("FLOAT16", (3,)), tensor("UINT8", (5,)), True),
        (tensor("FLOAT16", (3,)), tensor("UINT8", (8,)), True),
        (tensor("FLOAT16", (3,)), tensor("UINT8", (9,)), False),
        (tensor(sizes=(1, 3)), tensor(sizes=(2, 3), Strides=[0, 1]), True),
        (tensor(sizes=(3, 1)), tensor(sizes=(3, 4), Strides=[1, 0]), True),
        (tensor(sizes=(2, 3)), tensor(sizes=(3, 2), Strides=[1, 3]), True),
        (tensor(sizes=(2, 3)), tensor(sizes=(2, 3), TotalTensorSizeInBytes=28), False),
        (tensor(sizes=(8,)), tensor(sizes=(7,), TotalTensorSizeInBytes=32), True),
        (tensor(sizes=(8,)), tensor(sizes=(7,)), False),
    ],
)
def test_ends_of_an_edge_agree_in_bytes_alone(writer: Document, reader: Document, legal: bool) -> None:
    found = refusals(edge(writer, reader))
    assert [each.pointer for each in found] == ([] if legal else ["/IntermediateEdges/0"])


def test_one_operator_is_a_graph() -> None:
    judged = resolved(ONE)
    (one,) = judged.nodes.values()
    assert one.sources == {"InputTensor": GraphInput("0")}
    assert list(judged.inputs) == ["0"]
    assert judged.inputs["0"].readers == {NodeTensor(0, "InputTensor"): one.compiled.inputs["InputTensor"]}
    assert judged.inputs["0"].total_bytes == 24
    assert not judged.inputs["0"].owned_by_dml
    assert judged.outputs["0"].source == NodeOutput(0, "OutputTensor")
    assert judged.outputs["0"].desc is one.compiled.outputs["OutputTensor"]
    assert judged.level == NEWEST


def test_nodes_that_do_the_same_are_judged_once() -> None:
    clips = [node("ELEMENT_WISE_CLIP", InputTensor=tensor(), Min=-1.0, Max=most) for most in (0.0, -0.0)]
    nodes = [relu("a"), relu("b"), relu("c", desc=tensor("FLOAT16", (2, 6))), *clips]
    judged = resolved(graph(nodes, [into(0, n) for n in range(5)], [out(n, n) for n in range(5)])).nodes
    assert judged[0].compiled is judged[1].compiled
    assert [judged[0].name, judged[1].name] == ["a", "b"]
    assert len({judged[n].compiled for n in range(5)}) == 4
    assert [str(judged[n].compiled.numbers["Max"]) for n in (3, 4)] == ["0.0", "-0.0"]
    broken = [relu(), relu(desc=tensor("UINT8", (24,))), relu(desc=tensor("UINT8", (24,)))]
    found = refusals(graph(broken, [into(0, n) for n in range(3)], [out(n, n) for n in range(3)]))
    assert [each.pointer for each in found] == [f"/Nodes/{n}/Desc/InputTensor/DataType" for n in (1, 2)]


def test_optional_tensors_that_are_left_out_keep_their_index() -> None:
    assert bind_points(resolved(ONE).nodes[0].compiled.operator, Role.INPUT) == ["InputTensor"]
    document = graph([QUANTIZED], [into(0, 0), into(1, 0, 1)], [out(0)])
    judged = resolved(document).nodes[0]
    assert bind_points(judged.compiled.operator, Role.INPUT) == ["InputTensor", "ScaleTensor", "ZeroPointTensor"]
    assert judged.sources == {"InputTensor": GraphInput("0"), "ScaleTensor": GraphInput("1")}


def test_names_and_indices_say_the_same() -> None:
    nodes = [relu("a"), add("sum"), constant("k")]
    by_index = graph(nodes, [into(0, 0)], [out(1)], [between(0, 1, 0), between(2, 1, 1)])
    by_name = graph(
        nodes,
        [into("x", "a", "InputTensor")],
        [out("sum", "y", "OutputTensor")],
        [between("a", "sum", "ATensor", "OutputTensor"), between("k", "sum", "BTensor", "Data")],
    )
    one, two = resolved(by_index, data={2: bytes(24)}), resolved(by_name, data={2: bytes(24)})
    assert (
        one.nodes[1].sources
        == two.nodes[1].sources
        == {"ATensor": NodeOutput(0, "OutputTensor"), "BTensor": Constant(2)}
    )
    assert (list(one.inputs), list(one.outputs)) == (["0"], ["0"])
    assert (list(two.inputs), list(two.outputs)) == (["x"], ["y"])
    assert [each.name for each in two.nodes.values()] == ["a", "sum"]
    assert one.constants[2].nbytes == 24


def test_ends_of_the_graph_are_in_their_order() -> None:
    indices = [10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9]
    nodes = [relu() for _ in indices]
    by_index = graph(nodes, [into(i, n) for n, i in enumerate(indices)], [out(n, i) for n, i in enumerate(indices)])
    judged = resolved(by_index)
    assert list(judged.inputs) == list(judged.outputs) == [str(index) for index in range(11)]
    by_name = graph(
        nodes, [into(str(i), n) for n, i in enumerate(indices)], [out(n, str(i)) for n, i in enumerate(indices)]
    )
    judged = resolved(by_name)
    assert list(judged.inputs) == list(judged.outputs) == [str(index) for index in indices]


def test_inputs_that_nobody_reads_are_counted_and_no_more() -> None:
    document = graph([relu()], [into(2, 0)], [out(0)], InputCount=2**32 - 1)
    assert list(resolved(document).inputs) == ["2"]


def test_a_graph_may_have_no_inputs_and_many_readers_of_one_tensor() -> None:
    document = graph(
        [add(), relu(), constant()],
        [],
        [out(0), out(0, 1), out(1, 2)],
        [between(2, 0), between(2, 0, 1), between(0, 1)],
        InputCount=0,
        OutputCount=3,
        NodeCount=3,
        InputEdgeCount=0,
        OutputEdgeCount=3,
        IntermediateEdgeCount=3,
    )
    judged = resolved(document, data={2: bytes(24)})
    assert judged.inputs == {}
    assert judged.outputs["0"].source == judged.outputs["1"].source == NodeOutput(0, "OutputTensor")


def test_an_owned_input_may_have_several_owned_readers() -> None:
    document = graph([add(a=OWNED, b=OWNED)], [into("w", 0), into("w", 0, 1)], [out(0)])
    owned = resolved(document).inputs["w"]
    assert owned.owned_by_dml
    assert [end.tensor for end in owned.readers] == ["ATensor", "BTensor"]


def test_nodes_keep_their_order_if_it_is_one() -> None:
    nodes = [relu(), relu(), relu(), add()]
    document = graph(nodes, [into(0, 2), into(0, 1)], [out(3)], [between(2, 0), between(0, 3), between(1, 3, 1)])
    assert list(resolved(document).nodes) == [1, 2, 0, 3]


@given(st.data())
def test_any_graph_is_put_into_an_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    place = data.draw(st.permutations(range(count)))
    sources = [
        [data.draw(st.integers(-1, each - 1)) for _ in range(2)] for each in range(count)
    ]  # -1: the graph's input; nodes are numbered as they run, and listed elsewhere
    inputs, links, read = [], [], set()
    for each, writers in enumerate(sources):
        for tensor_index, writer in enumerate(writers):
            read.add(writer)
            if writer < 0:
                inputs.append(into("x", place[each], tensor_index))
            else:
                links.append(between(place[writer], place[each], tensor_index))
    outputs = [out(place[each], f"y{each}") for each in range(count) if each not in read]
    judged = resolved(graph([add() for _ in range(count)], inputs, outputs, data.draw(st.permutations(links))))
    ran: set[int] = set()
    for index, made in judged.nodes.items():
        wanted = [
            GraphInput("x") if w < 0 else NodeOutput(place[w], "OutputTensor") for w in sources[place.index(index)]
        ]
        assert list(made.sources.values()) == wanted
        assert {source.node for source in wanted if isinstance(source, NodeOutput)} <= ran
        ran.add(index)
    assert len(ran) == count


def test_deep_chains() -> None:
    judged = resolved(chain(20_000))
    assert list(judged.nodes) == list(range(20_000))[::-1]

"""Documents of graphs, and what is said of them."""

from typing import Any

from app.contract.constants import NEWEST, FeatureLevel
from app.contract.validation import validate
from app.contract.violations import ContractError, Violation
from app.graphs.descriptor import GraphDesc
from app.graphs.graph import Graph
from app.graphs.judgement import resolve

Document = dict[str, Any]


def tensor(data_type: str = "FLOAT32", sizes: tuple[int, ...] = (2, 3), **members: Any) -> Document:
    return {"DataType": data_type, "Sizes": list(sizes), **members}


X = tensor()


def node(kind: str, name: str | None = None, **members: Any) -> Document:
    """An operator; `members` are those of its descriptor."""
    return {"Type": "OPERATOR", "Name": name, "Desc": {"Type": kind, **members}}


def relu(name: str | None = None, desc: Document = X, **members: Any) -> Document:
    return node("ACTIVATION_RELU", name, InputTensor=desc, **members)


def add(name: str | None = None, a: Document = X, b: Document = X, **members: Any) -> Document:
    return node("ELEMENT_WISE_ADD", name, ATensor=a, BTensor=b, **members)


def constant(name: str | None = None) -> Document:
    return {"Type": "CONSTANT", "Name": name, "Data": ""}


def of_many_inputs(names: list[str]) -> Document:
    """Each has a node and an output by its name."""
    return {
        "Nodes": [relu(name, tensor(sizes=(1,))) for name in names],
        "InputEdges": [{"GraphInput": name, "ToNode": name, "ToNodeInput": "InputTensor"} for name in names],
        "OutputEdges": [{"FromNode": name, "FromNodeOutput": "OutputTensor", "GraphOutput": name} for name in names],
    }


def into(graph_input: int | str, to: int | str, tensor: int | str = 0) -> Document:
    """An input edge; ends are by index or by name, as they are given."""
    return end("GraphInput", graph_input) | end("ToNode", to) | end("ToNodeInput", tensor)


def between(writer: int | str, reader: int | str, tensor: int | str = 0, output: int | str = 0) -> Document:
    """An intermediate edge."""
    return end("FromNode", writer) | end("FromNodeOutput", output) | end("ToNode", reader) | end("ToNodeInput", tensor)


def out(writer: int | str, graph_output: int | str = 0, output: int | str = 0) -> Document:
    """An output edge."""
    return end("FromNode", writer) | end("FromNodeOutput", output) | end("GraphOutput", graph_output)


def end(name: str, value: int | str) -> Document:
    return {name if isinstance(value, str) else f"{name}Index": value}


def graph(
    nodes: list[Document],
    inputs: list[Document],
    outputs: list[Document],
    between: list[Document] | None = None,
    **members: Any,
) -> Document:
    return {"Nodes": nodes, "InputEdges": inputs, "IntermediateEdges": between, "OutputEdges": outputs, **members}


def resolved(
    document: Document, level: FeatureLevel = NEWEST, data: dict[int, bytes] | None = None, **options: Any
) -> Graph:
    """The graph that `document` states, its constants of `data`."""
    constants = {index: memoryview(each) for index, each in (data or {}).items()}
    return resolve(validate(GraphDesc, document), level, constants, **options)


def refusals(
    document: Document, level: FeatureLevel = NEWEST, data: dict[int, bytes] | None = None, **options: Any
) -> list[Violation]:
    """Everything that is wrong with a graph."""
    try:
        resolved(document, level, data, **options)
    except ContractError as error:
        return list(error.violations)
    return []


def chain(length: int) -> Document:
    """Operators one after another, listed from the last to the first."""
    return graph(
        [relu() for _ in range(length)],
        [into(0, length - 1)],
        [out(0)],
        [between(each, each - 1) for each in range(1, length)],
    )


OWNED = tensor(Flags=["OWNED_BY_DML"])
QUANTIZED = node(
    "ELEMENT_WISE_QUANTIZE_LINEAR",
    InputTensor=X,
    ScaleTensor=X,
    OutputTensor=tensor("UINT8"),
)
"""It leaves out ZeroPointTensor, the third input."""

"""Graphs in flatbuffers: all kinds of attributes, constants inside and beside, and files made in bad faith."""

import contextlib
import json
import random
import struct
from typing import Any
from unittest import mock

import flatbuffers
import httpx
import numpy as np
import pytest

from app.codecs import json_slices
from app.codecs.structure import PARSED, Unreadable
from app.contract.violations import ContractError
from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryShare
from app.models.dxdispatch import document, jsonc, serialized
from app.models.dxdispatch.flatbuffer import File
from app.settings import MIB, Settings
from tests.models.dxdispatch.models import EXAMPLES, NAMES, Json, floats, lines, problem, zipped
from tests.models.dxdispatch.serialized import (
    BOOL,
    FLOAT,
    INTS,
    SCALAR,
    SCALE_BIAS,
    SIZE,
    UINT,
    UINTS,
    Node,
    graph,
)

FILE = (EXAMPLES / "matmul_add" / "Partition_0.bin").read_bytes()


def model(inputs: dict[str, list[Any]], outputs: dict[str, int], data_type: str = "FLOAT32") -> Json:
    """One that runs graph.bin and prints its outputs."""
    resources = {name: floats(*values, initialValuesDataType=data_type) for name, values in inputs.items()}
    made = {name: floats(*[0] * count, initialValuesDataType=data_type) for name, count in outputs.items()}
    bindings = {name: name for name in (*inputs, *outputs)}
    commands: list[Json] = [{"type": "dispatch", "dispatchable": "g", "bindings": bindings}]
    commands += [{"type": "print", "resource": name} for name in outputs]
    dispatchable = {"type": "DMLSerializedGraph", "sourcePath": "graph.bin", "executionFlags": "NONE"}
    return {"resources": resources | made, "dispatchables": {"g": dispatchable}, "commands": commands}


def run(client: httpx.Client, file: bytes, sent: Json, **more: bytes) -> list[str]:
    return lines(client, zipped({"model.json": json.dumps(sent), "graph.bin": file, **more}))


def refused(client: httpx.Client, file: bytes, sent: Json | None = None, **more: bytes) -> dict[str, str]:
    sent = model({"x": [1, 2]}, {"y": 2}) if sent is None else sent
    return problem(client, zipped({"model.json": json.dumps(sent), "graph.bin": file, **more}))


def unary(operator: str, *attributes: tuple[int, Any], **more: Any) -> Node:
    return Node(operator, ["x"], ["y"], [[1, 1, 1, 2], [1, 1, 1, 2]], attributes, more=more)


RELU = ("DML_OPERATOR_ACTIVATION_RELU",)
SOFTMAX1 = ("DML_OPERATOR_ACTIVATION_SOFTMAX1", (UINT, 1), (UINTS, [3]))


@pytest.mark.parametrize(
    ("node", "values"),
    [
        (unary("ACTIVATION_ELU", (FLOAT, 0.5)), "-0.432332, 3"),
        (unary("ELEMENT_WISE_IDENTITY", (SCALE_BIAS, (2, 1))), "-3, 7"),
        (unary("ELEMENT_WISE_IDENTITY", (0, None)), "-2, 3"),
        (unary("ELEMENT_WISE_ROUND", (UINT, 1)), "-2, 3"),
        (unary("CUMULATIVE_SUMMATION", (UINT, 3), (UINT, 1), (BOOL, True)), "3, 0"),
        (unary("ELEMENT_WISE_CLIP1", (0, None), (UINT, 1), (SCALAR, -1.0), (SCALAR, struct.pack("<f4x", 2))), "-1, 2"),
        (unary("SLICE1", (UINT, 4), (UINTS, [0] * 4), (UINTS, [1, 1, 1, 2]), (INTS, [1, 1, 1, -1])), "3, -2"),
        (Node("UPSAMPLE_2D", ["x"], ["y"], [[1, 1, 1, 2], [1, 1, 1, 4]], [(SIZE, (2, 1)), (UINT, 0)]), "-2, -2, 3, 3"),
    ],
)
def test_attributes(client: httpx.Client, node: Node, values: str) -> None:
    sent = model({"x": [-2, 3]}, {"y": values.count(",") + 1})
    assert run(client, graph([node], ["x"], ["y"]), sent) == [f"Resource 'y': {values}"]


def test_activations_arrays_intermediate_edges_and_constants(client: httpx.Client) -> None:
    square = [1, 1, 2, 2]
    gemm = Node("GEMM", ["x", "w", ""], ["xw"], [square] * 3, [(UINT, 0), (UINT, 1), (FLOAT, 1), (FLOAT, 0), (1, RELU)])
    split = Node("SPLIT", ["xw"], ["y", "z"], [square, [1, 1, 1, 2], [1, 1, 1, 2]], [(UINT, 2), (UINT, 2)])
    join = Node("JOIN", ["y", "b", "z"], ["j"], [[1, 1, 1, 2]] * 3 + [[1, 1, 3, 2]], [(UINT, 3), (UINT, 2)])
    constants = [Node(outputs=["w"], data=struct.pack("<4f", 1, 2, 3, 4)), Node(outputs=["b"], data="bias")]
    file = graph([join, *constants, split, gemm], ["x"], ["j"])
    sent = model({"x": [1, 0, -1, 0]}, {"j": 6})
    bias = struct.pack("<2f", 7, 8) + b"more than a tensor has"
    assert run(client, file, sent, **{"bias.bin": bias}) == ["Resource 'j': 1, 3, 7, 8, 0, 0"]
    assert list(refused(client, file, sent)) == ["/dispatchables/g/sourcePath"]
    assert list(refused(client, file, sent, **{"bias.bin": bias[:4]})) == ["/dispatchables/g/sourcePath"]


def test_what_is_bound_ends_where_its_elements_are_counted(client: httpx.Client) -> None:
    file, sent = graph([unary("ACTIVATION_RELU")], ["x"], ["y"]), model({"x": [0, 0, 0, 0, -1, 2]}, {"y": 2})
    place = sent["commands"][0]["bindings"]
    for count in (6, 0):
        place["x"] = {"name": "x", "elementOffset": 4, "elementCount": count}
        assert run(client, file, sent) == ["Resource 'y': 0, 2"]
    for count in (5, 7):  # too few for the tensor, and more than there are
        place["x"] = {"name": "x", "elementOffset": 4, "elementCount": count}
        assert list(refused(client, file, sent)) == ["/commands/0/bindings/x"]
    place["x"] = "x"
    sent["resources"]["x"] = {"initialValues": [{"type": "FLOAT32", "value": each} for each in (-1, 2)]}
    assert run(client, file, sent) == ["Resource 'y': 0, 2"]  # without a type all of it is
    sent["resources"]["x"] = floats(-1, sizeInBytes=64)
    assert list(refused(client, file, sent)) == ["/commands/0/bindings/x"]


def test_a_recurrent_network_with_activations_in_an_array(client: httpx.Client) -> None:
    sizes = [[1, 1, 1, 1]] * 4
    activations = (2, [RELU])
    rnn = Node("RNN", ["x", "w", "r", "", "", ""], ["", "y"], sizes, [(UINT, 1), activations, (UINT, 0)])
    sent = model({"x": [3], "w": [2], "r": [1]}, {"y": 1})
    assert run(client, graph([rnn], ["x", "w", "r"], ["y"]), sent) == ["Resource 'y': 6"]


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "says"),
    [
        ([unary("MADE_UP")], ["x"], ["y"], "which is no operator"),
        ([unary("ACTIVATION_RELU", (FLOAT, 1))], ["x"], ["y"], "1 attributes; DML_OPERATOR_ACTIVATION_RELU has 0"),
        ([unary("ACTIVATION_ELU", (99, 1.0))], ["x"], ["y"], "of an unknown kind"),
        ([unary("ACTIVATION_ELU", (0, None))], ["x"], ["y"], "has no Alpha"),
        ([unary("ACTIVATION_ELU", (FLOAT, None))], ["x"], ["y"], "has no Alpha"),
        ([unary("ACTIVATION_SOFTMAX1", (UINT, 1), (UINTS, None))], ["x"], ["y"], "has no Axes"),
        ([unary("ACTIVATION_ELU", (SCALAR, ()))], ["x"], ["y"], "a scalar without a value"),
        ([unary("ELEMENT_WISE_ADD1", (1, ("DML_OPERATOR_MADE_UP",)))], ["x"], ["y"], "has an activation"),
        ([unary("ACTIVATION_ELU", (SCALAR, bytes(8)))], ["x"], ["y"], "whose type nothing tells"),
        ([unary("ELEMENT_WISE_ROUND", (UINT, 3))], ["x"], ["y"], "which is no DML_ROUNDING_MODE"),
        ([unary("ACTIVATION_RELU")], ["w"], ["y"], "comes from no node"),
        ([unary("ACTIVATION_RELU")], ["x"], ["z"], "comes from no node"),
        ([unary("ACTIVATION_RELU")], ["x", "x"], ["y"], "called alike"),
        ([unary("ACTIVATION_RELU")] * 2, ["x"], ["y"], "Two edges"),
        ([unary("ACTIVATION_RELU", type="FLOAT64")], ["x"], ["y"], "/Desc/OutputTensor/DataType"),
        ([unary("ACTIVATION_RELU", strides=[1])], ["x"], ["y"], "/Desc/OutputTensor/Strides"),
        ([Node("ACTIVATION_RELU", ["x", "x"], ["y"], [[1, 1, 1, 2]] * 3)], ["x"], ["y"], "more inputs than"),
        ([Node("ACTIVATION_RELU", ["x"], ["y"], [[1, 1, 1, 2], [0]])], ["x"], ["y"], "/Nodes/0/Desc/OutputTensor"),
        ([unary("ACTIVATION_SOFTMAX1", (UINT, 2), (UINTS, [3]))], ["x"], ["y"], "AxisCount"),
    ],
)
def test_what_is_wrong_in_a_graph_is_said_at_the_file(
    client: httpx.Client, nodes: list[Node], inputs: list[str], outputs: list[str], says: str
) -> None:
    ((pointer, message),) = list(refused(client, graph(nodes, inputs, outputs)).items())[:1]
    assert pointer == "/dispatchables/g/sourcePath"
    assert "graph.bin" in message
    assert says in message


def test_a_graph_of_more_than_a_tensor_may_have_is_refused_at_the_file(client: httpx.Client) -> None:
    large = Node("ACTIVATION_RELU", ["x"], ["y"], [[1, 1, 1, 1 << 30]] * 2)
    sent = zipped({"model.json": json.dumps(model({"x": [1]}, {"y": 1})), "graph.bin": graph([large], ["x"], ["y"])})
    assert list(problem(client, sent, 413)) == ["/dispatchables/g/sourcePath"]


def test_a_chain_that_leads_round_is_refused(client: httpx.Client) -> None:
    one = Node("ACTIVATION_RELU", ["b"], ["a"], [[1, 1, 1, 2]] * 2)
    other = Node("ACTIVATION_RELU", ["a"], ["b"], [[1, 1, 1, 2]] * 2)
    assert list(refused(client, graph([one, other, unary("ACTIVATION_RELU")], ["x"], ["y"])))


def read(data: bytes, most: int = 4 * MIB) -> serialized.Graph:
    with MemoryAccount(1 << 30).open() as memory:
        return serialized.read(memoryview(data), most, memory)


def test_no_file_breaks_the_reader() -> None:
    """Bytes changed, cut and put in: it is a graph, or refused in words."""
    chance = random.Random(0)
    assert len(read(FILE).document["Nodes"]) == 3
    outcomes = {"graph": 0, "refused": 0}
    for number in range(3000):
        data = bytearray(FILE)
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    data[place : place + 4] = struct.pack(
                        "<i", chance.choice([-1, 1 << 30, -(1 << 31), chance.randrange(2048)])
                    )
                case 2:
                    data[place : place + 4] = struct.pack("<I", chance.randrange(64))
                case _ if number % 5 == 0:
                    del data[place:]
                    data += bytes(8)
        try:
            read(bytes(data)).desc()
            outcomes["graph"] += 1
        except (Unreadable, LimitExceeded, ContractError):
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 250, outcomes


def test_one_table_that_is_read_a_thousand_times_counts_a_thousand_times() -> None:
    """A small file must not come to much memory."""
    shared = bytearray(graph([unary("ACTIVATION_RELU")], ["x" * 1000] * 1, ["y"] * 2000))
    with pytest.raises(LimitExceeded):
        read(bytes(shared), 8192)
    # All names in one vector lead to the same string.
    vector = shared.index(struct.pack("<I", 2000))
    string = shared.index(struct.pack("<I", 1000) + b"x")
    for number in range(2000):
        place = vector + 4 + 4 * number
        shared[place : place + 4] = struct.pack("<I", (string - place) % (1 << 32))
    if string > vector:
        with pytest.raises(LimitExceeded):
            read(bytes(shared), 1 << 20)
    with pytest.raises((LimitExceeded, Unreadable)):
        read(bytes(shared), 1 << 20)


def test_vectors_of_numbers_are_counted() -> None:
    builder = flatbuffers.Builder()
    builder.StartVector(4, 100, 4)
    for number in reversed(range(100)):
        builder.PrependFloat32(number)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    data, size = memoryview(bytes(builder.Output())), 64 + 4 + 4 * 100
    with MemoryAccount(MIB).open() as memory:
        assert File(data, size, memory).root().numbers(4, "f") == list(range(100))
        assert memory.held == 32 * size
        with pytest.raises(LimitExceeded, match="max_graph_structure_bytes"):
            File(data, size - 1, memory).root().numbers(4, "f")
        with pytest.raises(Unreadable, match=f"points to 400 bytes at [0-9]+; it has {len(data) - 4} in all"):
            File(data[:-4], size, memory).root().numbers(4, "f")


def test_no_text_breaks_the_parser() -> None:
    """The examples, changed: parsed, or refused in words."""
    chance = random.Random(0)
    texts = [(EXAMPLES / f"{name}.json").read_text() for name in NAMES]
    pieces = ["//", "/*", "*/", '"', "\\", ",", "]", "}", "{", "[", "1e999", "NaN", "null", "\\ud800", "\n", "\0", "é"]
    settings = Settings()
    parsed = 0
    for _ in range(1500):
        text = chance.choice(texts)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(text))
            text = text[:place] + chance.choice([*pieces, ""]) + text[place + chance.randrange(3) :]
        with MemoryAccount(1 << 30).open() as memory:
            try:
                jsonc.read(text.encode(), settings, memory)
                parsed += 1
            except (Unreadable, LimitExceeded):
                pass
    assert 100 < parsed < 1450, parsed


def test_what_is_made_of_a_models_json_is_limited_and_charged() -> None:
    text = b"[" + b" " * 2000 + b"]"
    with MemoryAccount(1 << 30).open() as memory:
        assert jsonc.read(text, Settings(max_graph_structure_bytes=len(text)), memory) == []
        with pytest.raises(LimitExceeded, match="max_graph_structure_bytes"):
            jsonc.read(text, Settings(max_graph_structure_bytes=len(text) - 1), memory)
    with (
        MemoryAccount(PARSED * len(text) // 2).open() as memory,
        pytest.raises(LimitExceeded, match="max_memory_bytes"),
    ):
        jsonc.read(text, Settings(), memory)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'"\xff"', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark comes first"),
        (b"[,]", "The model is not JSON: "),
        (b"/* {}", "The model is not JSON: "),
        (b"[1e999]", "1e999 is beyond the range of double precision"),
        (b"[-Infinity]", "-Infinity is no JSON number"),
        (b"9" * 5000, "integer of thousands of digits"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
    ],
)
def test_no_models_json(text: bytes, said: str) -> None:
    with MemoryAccount(1 << 30).open() as memory, pytest.raises(Unreadable, match=said):
        jsonc.read(text, Settings(), memory)


def test_how_deep_a_models_json_may_be() -> None:
    """What follows the root is not looked at, and brackets in strings are none."""
    most = Settings().max_depth
    with MemoryAccount(1 << 30).open() as memory:
        assert jsonc.read(b"[" * most + b'"[["' + b"]" * most + b"[" * 5000, Settings(), memory)
        with pytest.raises(LimitExceeded, match="max_depth"):
            jsonc.read(b"[" * (most + 1) + b"]" * (most + 1), Settings(), memory)


def test_the_parts_of_a_model_are_not_copied() -> None:
    """Pydantic would, in one call, however many there are."""
    given: Json = {"resources": {"a": 1}, "dispatchables": {"b": 2}, "commands": []}
    made = document.part(document.ModelFile, given, ())
    assert made.resources is given["resources"]
    assert made.dispatchables is given["dispatchables"]
    with pytest.raises(ContractError, match=r"resources is .*; it must be an object"):
        document.part(document.ModelFile, given | {"resources": [1]}, ())


@pytest.mark.parametrize("size", [2, 3, 7, 100])
def test_a_models_json_is_the_same_however_much_is_read_at_once(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Strings, comments and commas lie on both sides of where one part ends."""
    monkeypatch.setattr(jsonc, "SEARCHED", size)
    monkeypatch.setattr(json_slices, "SLICE", size)
    texts = [(EXAMPLES / f"{name}.json").read_text() for name in NAMES]
    texts.append('{"a//b": [1, /* [ */ 2, "/*", "\\\\\\"]", [ ] , ], // "\n "c": "\\u00e9\\\\", } /* more')
    for text in texts:
        whole = read_whole(text.encode())
        with MemoryAccount(1 << 30).open() as memory:
            assert jsonc.read(text.encode(), Settings(), memory) == whole


def read_whole(text: bytes) -> object:
    with pytest.MonkeyPatch.context() as patch, MemoryAccount(1 << 30).open() as memory:
        patch.setattr(jsonc, "SEARCHED", MIB)
        patch.setattr(json_slices, "SLICE", MIB)
        return jsonc.read(text, Settings(), memory)


@pytest.mark.parametrize(
    ("begin", "middle", "end"),
    [
        (b"[", b"1,", b"1]"),
        (b"[", b"1 ,", b"1,]"),
        (b'["', b"\\\\", b'"]'),
        (b"", b" ", b"[]"),
        (b"/*", b"*", b"*/[]"),
        (b"//", b"a", b"\n[]"),
        (b"[1", b"0", b".0]"),
    ],
)
def test_others_have_their_turn_while_a_models_json_is_read(
    monkeypatch: pytest.MonkeyPatch, begin: bytes, middle: bytes, end: bytes
) -> None:
    """No call goes on for longer than for so much text."""
    most = 1 << 10
    monkeypatch.setattr(jsonc, "SEARCHED", most)
    monkeypatch.setattr(json_slices, "SLICE", most)
    times = 64 if begin != b'["' else 64 * 256  # of a string, as much as is searched at once is in the pattern
    text = begin + middle * (most * times // len(middle)) + end
    with MemoryAccount(1 << 34).open() as memory, mock.patch.object(MemoryShare, "ensure_open") as asked:
        if begin == b"[1":
            with pytest.raises(Unreadable, match="beyond the range"):
                jsonc.read(text, Settings(), memory)
        else:
            assert jsonc.read(text, Settings(max_graph_structure_bytes=1 << 25), memory) is not None
    assert asked.call_count >= 60


@pytest.mark.parametrize("piece", ["/* ", "//", "[,", " ,", '"\\', '\\"', ",]", "[ ", '"'])
@pytest.mark.timeout(60)
def test_the_parser_takes_time_in_proportion(piece: str) -> None:
    """What would take a search for each character takes one for all."""
    text = piece * (MIB // len(piece))
    with MemoryAccount(1 << 30).open() as memory, contextlib.suppress(Unreadable, LimitExceeded):
        jsonc.read(text.encode(), Settings(), memory)


def test_models_that_are_changed_at_random_are_answered(client: httpx.Client) -> None:
    """Whatever a field is, the answer is a result or a refusal, never a fault of the service."""
    chance = random.Random(1)
    values: list[Any] = [
        None,
        True,
        0,
        -1,
        1 << 40,
        0.5,
        "",
        "x",
        "A",
        "FLOAT32",
        [],
        [1],
        {},
        {"name": "A"},
        [[]],
        "deferred",
    ]
    documents = [json.loads((EXAMPLES / f"{name}.json").read_text()) for name in NAMES if "gemm" not in name]
    answered = np.zeros(600, int)
    for _ in range(300):
        document = json.loads(json.dumps(chance.choice(documents)))
        for _ in range(chance.randint(1, 2)):
            _change(document, chance, values)
        response = client.post(
            "/v1/dxdispatch", content=json.dumps(document), headers={"content-type": "application/json"}
        )
        assert response.status_code in (200, 413, 422), (response.text, document)
        answered[response.status_code] += 1
    assert answered[200] > 10
    assert answered[422] > 100


def _change(part: Any, chance: random.Random, values: list[Any]) -> None:
    while True:
        key = chance.choice(list(part)) if isinstance(part, dict) else chance.randrange(len(part))
        inner = part[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.8:
            part = inner
            continue
        if chance.random() < 0.2:
            del part[key]
        else:
            part[key] = chance.choice(values)
        return

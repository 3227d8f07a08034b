"""Arrays of tensors, optional outputs, implied sizes and counts, on an operator that is made for it."""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgpack
import numpy as np
import pytest
from pydantic import Field

from app.codecs.json import JsonCodec
from app.codecs.msgpack import MsgpackCodec
from app.contract.constants import NEWEST, DataType, FeatureLevel
from app.contract.scalars import Uint
from app.contract.support import SupportTable
from app.contract.validation import validate
from app.contract.violations import ContractError, Violation
from app.engine.dispatch import DispatchRequest
from app.engine.prepared import Bound
from app.engine.service import Service
from app.formula.values import Value, saturate
from app.http.native import requests
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer
from app.operators.compiled import compile_operator
from app.operators.operator import (
    Count,
    InputTensorDesc,
    InputTensorDescs,
    Operator,
    OptionalOutputTensorDesc,
    OutputTensorDesc,
)
from app.operators.parameters import Parameters
from app.settings import Settings
from app.steps import at_once
from tests.contract.refusals import check_wording


class Sums(Operator):
    """The sum of tensors, and if it is asked for their number."""

    Type: Literal["DML_OPERATOR_SUMS", "SUMS"] = "DML_OPERATOR_SUMS"
    InputCount: Count = None
    InputTensors: InputTensorDescs
    BiasTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    OutputCountTensor: OptionalOutputTensorDesc = None
    Repeats: list[Uint] = Field(default_factory=list)
    Offsets: list[Uint] = Field(default_factory=list)

    formula_text = "the sum"
    counts: ClassVar[Mapping[str, tuple[str, ...]]] = {"InputCount": ("InputTensors",)}
    same_types = (("InputTensors", "BiasTensor", "OutputTensor"),)
    same_sizes = (("InputTensors", "BiasTensor"),)
    same_ranks = (("InputTensors", "OutputTensor"),)
    sizes_from = ("InputTensors", "Offsets")
    support = SupportTable.of("1_0 1-4 F32-16, OutputCountTensor U32")

    def implied_sizes(self, name: str) -> list[int] | None:
        offset = self.Offsets[0] if self.Offsets else 0
        return [size - offset for size in self.InputTensors[0].Sizes]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        if len(self.Offsets) > 1:
            yield Violation(("Offsets",), "Offsets has too many entries.")

    def formula(self, p: Parameters, inputs: list[Value], bias: Value) -> dict[str, Value]:
        total = bias
        for each in inputs:
            total = total + each
        return {"OutputTensor": total, "OutputCountTensor": saturate(bias * 0 + len(inputs), "uint32")}


DESC = {"DataType": "FLOAT32", "Sizes": [2, 3]}
COUNT = {"DataType": "UINT32", "Sizes": [2, 3]}
A = np.arange(6, dtype=np.float32)


def descriptor(**members: Any) -> dict[str, Any]:
    return {"Type": "SUMS", "InputTensors": [DESC, DESC], "BiasTensor": DESC} | members


def refusals(**members: Any) -> list[Violation]:
    try:
        compile_operator(validate(Sums, descriptor(**members)), NEWEST)
    except ContractError as error:
        for each in error.violations:
            check_wording(each)
        return list(error.violations)
    return []


def test_tensors_of_an_array_have_names_of_their_own() -> None:
    compiled = compile_operator(validate(Sums, descriptor()), NEWEST)
    assert list(compiled.inputs) == ["InputTensors[0]", "InputTensors[1]", "BiasTensor"]
    assert list(compiled.outputs) == ["OutputTensor"]


def test_an_optional_output_is_there_if_it_is_described() -> None:
    compiled = compile_operator(validate(Sums, descriptor(OutputCountTensor=COUNT)), NEWEST)
    assert list(compiled.outputs) == list(compiled.program.maps) == ["OutputTensor", "OutputCountTensor"]


@pytest.mark.parametrize(
    ("members", "pointer", "told"),
    [
        ({"InputTensors": []}, "/InputTensors", "has 0 entries"),
        ({"InputTensors": [DESC] * 129}, "/InputTensors", "has 129 entries"),
        ({"InputTensors": [DESC, None]}, "/InputTensors/1", "an object"),
        (
            {"InputTensors": [DESC, DESC | {"DimensionCount": 3}]},
            "/InputTensors/1/DimensionCount",
            "DimensionCount is 3",
        ),
        ({"InputTensors": [DESC, DESC | {"DataType": "INT8"}]}, "/InputTensors/1/DataType", "INT8"),
        ({"InputTensors": [DESC, DESC | {"Sizes": [3, 2]}]}, "/InputTensors/1/Sizes", "InputTensors[0] has [2, 3]"),
        ({"InputCount": 3}, "/InputCount", "InputCount is 3 but InputTensors has 2 entries; they must agree."),
        (
            {"OutputTensor": DESC | {"Sizes": [2, 4]}},
            "/OutputTensor/Sizes",
            "OutputTensor has Sizes [2, 4]; InputTensors[0] [2, 3] and InputTensors[1] [2, 3] with Offsets [] imply",
        ),
        ({"OutputTensor": DESC, "Offsets": [1]}, "/OutputTensor/Sizes", "with Offsets [1] imply [1, 2]."),
        ({"OutputTensor": DESC | {"Sizes": [6]}}, "/OutputTensor/Sizes", "has 1 dimensions but InputTensors[0] has 2"),
        ({"OutputCountTensor": COUNT | {"Sizes": [1, 1]}}, "/OutputCountTensor/Sizes", "imply [2, 3]"),
        ({"Offsets": [2]}, "/OutputTensor/Sizes", "would have Sizes [0, 1]"),
        ({"Offsets": [1, 1], "OutputTensor": DESC | {"Sizes": [9, 9]}}, "/Offsets", "too many"),
    ],
)
def test_what_is_refused(members: dict[str, Any], pointer: str, told: str) -> None:
    found = {each.pointer: each.message for each in refusals(**members)}
    assert told in found[pointer]


def test_own_rules_are_asked_only_where_tensors_are_right() -> None:
    assert [each.pointer for each in refusals(BiasTensor=DESC | {"DataType": "INT8"}, Offsets=[1, 1])] == [
        "/BiasTensor/DataType",
        "/BiasTensor/DataType",
    ]


def test_types_and_sizes_are_implied() -> None:
    compiled = compile_operator(validate(Sums, descriptor(InputCount=2, Offsets=[1])), NEWEST)
    assert compiled.outputs["OutputTensor"].Sizes == [1, 2]
    half = {"DataType": "FLOAT16", "Sizes": [2]}
    compiled = compile_operator(validate(Sums, descriptor(InputTensors=[half], BiasTensor=half)), NEWEST)
    assert compiled.outputs["OutputTensor"].DataType is DataType.FLOAT16


# On the wire


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Service, requests.DispatchReader]]:
    """Of requests for Sums, which is not in the catalog."""

    def judged(max_nodes: int, codec: Any, memory: MemoryShare, only_light: bool, document: Any) -> DispatchRequest:
        return DispatchRequest.model_construct(
            operator=validate(Sums, document["operator"]),
            inputs=document["inputs"],
        )

    monkeypatch.setattr(requests, "_dispatch_request", judged)
    service = Service(Settings())
    service.open()
    yield service, requests.DispatchReader(service)
    service.close()


@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec()], ids=["json", "msgpack"])
@pytest.mark.parametrize("scale", [1, 40])
def test_data_and_results_are_lists(reader: tuple[Service, requests.DispatchReader], codec: Any, scale: int) -> None:
    service, dispatches = reader
    desc = {"DataType": "FLOAT32", "Sizes": [2, 3 * scale]}
    pack: Any = (lambda each: base64.b64encode(each).decode()) if codec.media_type.endswith("json") else bytes
    dump: Any = (lambda each: json.dumps(each).encode()) if codec.media_type.endswith("json") else msgpack.packb
    for number in range(4):
        a, b, c = (np.arange(6 * scale, dtype=np.float32) + number + each for each in range(3))
        document = {
            "operator": descriptor(
                InputTensors=[desc, desc], BiasTensor=desc, OutputCountTensor=desc | {"DataType": "UINT32"}
            ),
            "inputs": {"InputTensors": [pack(a.tobytes()), pack(b.tobytes())], "BiasTensor": pack(c.tobytes())},
        }
        with service.memory.open() as memory:
            dispatch, data = at_once(dispatches.read(codec, dump(document), memory, lambda: False))
            assert list(data) == ["InputTensors[0]", "InputTensors[1]", "BiasTensor"]
            buffers = dispatch.prepared.bind(data)
            outputs = {name: memoryview(bytearray(size)) for name, size in dispatch.prepared.output_bytes.items()}
            dispatch.prepared.dispatch(Bound(buffers, outputs, None), lambda: False)
            assert np.array_equal(np.frombuffer(outputs["OutputTensor"], np.float32), a + b + c)
            assert np.array_equal(np.frombuffer(outputs["OutputCountTensor"], np.uint32), [2] * a.size)
    # Data in lists are known as data: what differs in them alone is judged once.
    assert dispatches.cache.hits == 2


@pytest.mark.parametrize(
    ("inputs", "pointer"),
    [
        ({"InputTensors": "AAAA", "BiasTensor": "A" * 32}, "/inputs/InputTensors"),
        ({"InputTensors": ["A" * 32, 5], "BiasTensor": "A" * 32}, "/inputs/InputTensors/1"),
        ({"InputTensors": ["A" * 32, "AAAA"], "BiasTensor": "A" * 32}, "/inputs/InputTensors/1"),
        ({"InputTensors": ["A" * 32], "BiasTensor": "A" * 32}, "/inputs/InputTensors/1"),
        ({"InputTensors": ["A" * 32] * 3, "BiasTensor": "A" * 32}, "/inputs/InputTensors/2"),
        ({"InputTensors": ["A" * 32] * 2, "BiasTensor": ["A" * 32]}, "/inputs/BiasTensor"),
        ({"InputTensors[0]": "A" * 32, "BiasTensor": "A" * 32}, "/inputs/InputTensors[0]"),
    ],
)
def test_data_that_are_refused(
    reader: tuple[Service, requests.DispatchReader], inputs: dict[str, Any], pointer: str
) -> None:
    service, dispatches = reader
    body = json.dumps({"operator": descriptor(), "inputs": inputs}).encode()

    def bound() -> list[Buffer]:
        with service.memory.open() as memory:
            dispatch, data = at_once(dispatches.read(JsonCodec(), body, memory, lambda: False))
            return dispatch.prepared.bind(data)

    with pytest.raises(ContractError) as refusal:
        bound()
    assert refusal.value.violations[0].pointer == pointer

"""What a run answers over HTTP: the protocol-independent form."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from typing_extensions import TypedDict

from app.codecs.codec import Codec, Encoded, Hole
from app.contract import constants
from app.engine.dispatch import TensorData
from app.memory.buffers import Buffer
from app.models.dxdispatch.model import Result


class PrintedResource(TypedDict):
    """What a print command showed: which one it is among the commands, and the elements, packed and little-endian."""

    command: int
    resource: str
    DataType: constants.DataType
    data: TensorData


class WrittenFile(TypedDict):
    """A file that a writeFile command made. Its path is relative."""

    path: str
    data: TensorData


class ModelRun(TypedDict):
    """What came of a DxDispatch model. `lines` are those that DxDispatch would log, of all commands in their order."""

    lines: list[str]
    printed: list[PrintedResource]
    files: list[WrittenFile]


EXAMPLE: dict[str, Any] = {
    "resources": {
        "A": {"initialValuesDataType": "FLOAT32", "initialValues": [1, 2, 3]},
        "B": {"initialValuesDataType": "FLOAT32", "initialValues": {"valueStart": 5, "valueDelta": 1, "valueCount": 3}},
        "Out": {"initialValuesDataType": "FLOAT32", "initialValues": {"value": 0, "valueCount": 3}},
    },
    "dispatchables": {
        "add": {
            "type": "DML_OPERATOR_ELEMENT_WISE_ADD",
            "desc": {
                "ATensor": {"DataType": "FLOAT32", "Sizes": [3]},
                "BTensor": {"DataType": "FLOAT32", "Sizes": [3]},
                "OutputTensor": {"DataType": "FLOAT32", "Sizes": [3]},
            },
        }
    },
    "commands": [
        {
            "type": "dispatch",
            "dispatchable": "add",
            "bindings": {"ATensor": "A", "BTensor": "B", "OutputTensor": "Out"},
        },
        {"type": "print", "resource": "Out"},
    ],
}


def encoded(result: Result, written: Mapping[str, Buffer], codec: Codec) -> Encoded:
    """The answer in one representation; data are encoded as they are sent."""
    hole: Any = Hole("data")
    document = ModelRun(
        lines=result.lines,
        printed=[
            PrintedResource(command=each.command, resource=each.resource, DataType=each.data_type, data=hole)
            for each in result.printed
        ],
        files=[WrittenFile(path=path, data=hole) for path in written],
    )
    data = iter([*(each.data for each in result.printed), *written.values()])
    parts = []
    length = 0
    for piece in codec.encode(document):
        if isinstance(piece, Hole):
            made = codec.encode_data(next(data))
            parts.append(made.pieces)
            length += made.length
        else:
            parts.append((piece,))
            length += len(piece)
    return Encoded(length, chain.from_iterable(parts))

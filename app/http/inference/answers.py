"""Inference answers: JSON, and behind it or in shared memory the output's data."""

from dataclasses import dataclass

import orjson

from app.codecs.codec import Encoded, Piece
from app.contract.violations import ContractError, refused
from app.engine.service import Outcome, Prepared
from app.http.inference.documents import InferOutput, InferResponse, OutputParameters
from app.http.inference.shared_memory import Region, Regions
from app.http.inference.statistics import VERSION
from app.http.inference.tensors import NAMES, write_numbers
from app.memory.accounts import MemoryShare

JSON, BINARY = "application/json", "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """`json_bytes` is how many of the bytes are JSON, where others follow."""

    content: Encoded
    json_bytes: int | None

    @property
    def media_type(self) -> str:
        return JSON if self.json_bytes is None else BINARY


class AnswerForm:
    """What the answers to one request have in common, whatever its data."""

    def __init__(
        self, prepared: Prepared, model: str, wanted: OutputParameters, binary_data_output: bool | None
    ) -> None:
        """`wanted` is said of the output, `binary_data_output` of all. Raises ContractError."""
        ((name, output),) = prepared.compiled.outputs.items()
        self._name = name
        self._data_type = output.DataType
        self._wanted = wanted
        size = prepared.output_bytes[name]
        if output.DataType not in NAMES:
            raise _refused(name, f"{name} is {output.DataType}, which this protocol has no data type for.")
        datatype = NAMES[output.DataType]
        binary = binary_data_output if wanted.binary_data is None else wanted.binary_data
        self._shared = wanted.shared_memory_region is not None
        document = InferOutput(name=name, datatype=datatype, shape=output.Sizes)
        if self._shared:
            self._check_shared(size)
            document["parameters"] = wanted.model_dump(exclude_defaults=True, exclude={"binary_data"})
        elif datatype == "FP16" and binary is False:
            raise _refused(name, f"{name} is FP16, which is given as binary only; ask for binary_data.")
        self._binary = not self._shared and bool(binary or datatype == "FP16")
        if self._binary:
            document["parameters"] = {"binary_data_size": size}
        self._json = orjson.dumps(
            InferResponse(
                model_name=model,
                model_version=VERSION,
                parameters={"device": prepared.device.name, "feature_level": prepared.compiled.level.full_name},
                outputs=[document],
            )
        )
        self.copied_bytes = 0 if self._binary else size
        """Bytes to be written elsewhere or as text."""

    def region(self, regions: Regions) -> Region | None:
        """The region that the output goes to. Raises ContractError."""
        return regions.find(self._wanted.shared_memory_region) if self._wanted.shared_memory_region else None

    def write(self, request_id: str | None, outcome: Outcome, region: Region | None, memory: MemoryShare) -> Answer:
        """The answer. Raises ContractError, MemoryExhausted, LimitExceeded."""
        text = self._json
        if request_id is not None:
            text = b'{"id":%b,%b' % (orjson.dumps(request_id), text[1:])
        if region:
            region.write(self._wanted.shared_memory_offset, outcome.outputs[self._name])
            return _answer([text], None)
        if self._binary:
            return _answer([text, outcome.outputs[self._name]], len(text))
        numbers = write_numbers(self._name, outcome.outputs[self._name], self._data_type, memory)
        return _answer([text[:-3], b',"data":', *numbers, text[-3:]], None)

    def _check_shared(self, size: int) -> None:
        name, wanted = self._name, self._wanted
        if wanted.binary_data:
            raise _refused(name, f"{name} has binary_data and shared_memory_region; give one of them.")
        if wanted.shared_memory_byte_size is None:
            raise _refused(name, f"{name} has a shared_memory_region without shared_memory_byte_size; give both.")
        if wanted.shared_memory_byte_size < size:
            raise _refused(
                name, f"{name} is {size} bytes; shared_memory_byte_size is {wanted.shared_memory_byte_size}."
            )


def _answer(pieces: list[Piece], json_bytes: int | None) -> Answer:
    return Answer(Encoded(sum(map(len, pieces)), pieces), json_bytes)


def _refused(name: str, message: str) -> ContractError:
    return refused(("outputs", name), message)

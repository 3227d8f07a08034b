"""Inference answers: JSON, and behind it or in shared memory the output's data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import orjson

from app.codecs.codec import Encoded, Piece
from app.codecs.number_writing import write_numbers
from app.contract.violations import ContractError, refused
from app.devices.device import OnDevice
from app.engine.prepared import Outcome, Prepared
from app.http.inference.documents import InferOutput, InferResponse, OutputParameters
from app.http.inference.model import Made
from app.http.inference.shared_memory import AnyRegion, CudaRegion, Region, check_span
from app.http.inference.tensors import NAMES
from app.memory.accounts import MemoryShare

_CLOSING = b"]}"


@dataclass(slots=True)
class Answer:
    """`json_bytes` is how many of the bytes are JSON, where others follow."""

    content: Encoded
    json_bytes: int | None


class OutputForm:
    """What the answers to one request have in common about one output. Raises ContractError."""

    def __init__(
        self,
        prepared: Prepared,
        name: str,
        wanted: OutputParameters,
        binary_data_output: bool | None,
        made: Made | None,
    ) -> None:
        """`wanted` is said of this output, `binary_data_output` of all; `made` is what it is, if not as it lies."""
        self.size = size = prepared.output_bytes[name]
        self.name = name
        self.wanted = wanted
        datatype, shape, self.data_type = made or _made(prepared, name)
        binary = binary_data_output if wanted.binary_data is None else wanted.binary_data
        is_shared = wanted.shared_memory_region is not None
        document = InferOutput(name=name, datatype=datatype, shape=shape)
        if is_shared:
            self._check_shared(size)
            document["parameters"] = wanted.model_dump(exclude_defaults=True, exclude={"binary_data"})
        elif datatype == "FP16" and binary is False:
            raise _refused(name, f"{name} is FP16, which is given as binary only; ask for binary_data.")
        self.is_binary = not is_shared and bool(binary or datatype == "FP16")
        if self.is_binary:
            document["parameters"] = {"binary_data_size": size}
        self.is_numbers = not is_shared and not self.is_binary
        self.has_booleans = datatype == "BOOL"
        self.json = orjson.dumps(document)
        self.copied_bytes = 0 if self.is_binary else size

    def _check_shared(self, size: int) -> None:
        name, wanted = self.name, self.wanted
        if wanted.binary_data:
            raise _refused(name, f"{name} has binary_data and shared_memory_region; give one of them.")
        if wanted.shared_memory_byte_size is None:
            raise _refused(name, f"{name} has a shared_memory_region without shared_memory_byte_size; give both.")
        if wanted.shared_memory_byte_size < size:
            raise _refused(
                name, f"{name} is {size} bytes; shared_memory_byte_size is {wanted.shared_memory_byte_size}."
            )


class AnswerForm:
    """What the answers to one request have in common, whatever its data."""

    def __init__(
        self,
        prepared: Prepared,
        model: str,
        version: str,
        wanted: Mapping[str, OutputParameters],
        binary_data_output: bool | None,
        made: Mapping[str, Made],
    ) -> None:
        """`wanted` are the outputs to be answered, with what is said of them. Raises ContractError."""
        self._outputs = [
            OutputForm(prepared, name, said, binary_data_output, made.get(name)) for name, said in wanted.items()
        ]
        _check_apart(self._outputs)
        document = InferResponse(
            model_name=model,
            model_version=version,
            parameters={"device": prepared.device.name, "feature_level": prepared.work.subject.level.full_name},
            outputs=[],
        )
        self._opening = orjson.dumps(document).removesuffix(_CLOSING)
        self._has_numbers = any(each.is_numbers for each in self._outputs)
        self._rest = b",".join(each.json for each in self._outputs) + _CLOSING
        """What is behind the opening, if there are no numbers in it."""
        self.copied_bytes = sum(each.copied_bytes for each in self._outputs)
        """Bytes to be written elsewhere or as text."""

    def check(self, regions: Mapping[str, AnyRegion]) -> None:
        """Whether outputs will all be in their regions, so that none is written if another cannot be. Raises
        ContractError."""
        for each in self._outputs:
            if each.wanted.shared_memory_region is not None:
                region = regions[each.wanted.shared_memory_region]
                check_span(region, each.wanted.shared_memory_offset, each.wanted.shared_memory_byte_size or each.size)

    def places(self, regions: Mapping[str, AnyRegion]) -> dict[str, OnDevice]:
        """Where on a GPU outputs are to be made, by their names. Raises ContractError."""
        return {
            each.name: region.span(each.wanted.shared_memory_offset, each.size)
            for each in self._outputs
            if isinstance(region := regions.get(each.wanted.shared_memory_region or ""), CudaRegion)
        }

    def write(
        self, request_id: str | None, outcome: Outcome, regions: Mapping[str, AnyRegion], memory: MemoryShare
    ) -> Answer:
        """The answer; outputs that are on a GPU are there already. Raises ContractError, MemoryExhausted,
        LimitExceeded."""
        opening = self._opening
        if request_id is not None:
            opening = b'{"id":%b,%b' % (orjson.dumps(request_id), opening[1:])
        pieces: list[Piece] = [opening]
        if self._has_numbers:
            pieces += self._with_numbers(outcome, memory)
        else:
            pieces.append(self._rest)
        size = total = sum(map(len, pieces))
        has_binary = False
        for each in self._outputs:
            if each.is_binary:
                output = outcome.outputs[each.name]
                pieces.append(output)
                total += len(output)
                has_binary = True
            elif isinstance(region := regions.get(each.wanted.shared_memory_region or ""), Region):
                region.write(each.wanted.shared_memory_offset, outcome.outputs[each.name])
        return Answer(Encoded(total, pieces), size if has_binary else None)

    def _with_numbers(self, outcome: Outcome, memory: MemoryShare) -> Iterator[Piece]:
        """What is behind the opening."""
        separator = b""
        for each in self._outputs:
            if each.is_numbers:
                data = outcome.outputs[each.name]
                numbers = write_numbers(each.name, data, each.data_type, memory, has_booleans=each.has_booleans)
                yield from (separator, each.json[:-1], b',"data":', *numbers, b"}")
            else:
                yield separator + each.json
            separator = b","
        yield _CLOSING


def _check_apart(outputs: Sequence[OutputForm]) -> None:
    """Whether no two outputs meet in a region, where one would write over the other. Raises ContractError."""
    placed = [
        (each.wanted.shared_memory_region, each.wanted.shared_memory_offset, each.size, each.name)
        for each in outputs
        if each.wanted.shared_memory_region is not None
    ]
    for (region, start, size, name), (other_region, other_start, _, other) in pairwise(sorted(placed)):
        if region == other_region and other_start < start + size:
            raise _refused(
                other,
                f"{other} begins at offset {other_start} of region {region}, where {name} ends at {start + size}; "
                "no two outputs may overlap.",
            )


def _made(prepared: Prepared, name: str) -> Made:
    """As it lies."""
    output = prepared.work.outputs[name]
    if output.DataType not in NAMES:
        raise _refused(name, f"{name} is {output.DataType}, which this protocol has no data type for.")
    if not output.is_packed:
        raise _refused(
            name, f"{name} has strides {output.Strides}, and tensors of this protocol are packed; ask for others."
        )
    return Made(NAMES[output.DataType], output.Sizes, output.DataType)


def _refused(name: str, message: str) -> ContractError:
    return refused(("outputs", name), message)

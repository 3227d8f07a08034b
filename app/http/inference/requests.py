"""Inference requests: JSON, and behind it or in shared memory the tensors' data.

Clients send the same request again and again, with other data and another id. What differs is cut out first; what was
made of the rest once, all judgement included, holds for every request with the same rest.
"""

import math
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from app.codecs.codec import Body, Piece, Span
from app.codecs.numbers import read_numbers
from app.codecs.request_cache import LONGEST, MOST, MOST_BYTES, Doorkeeper, LastUsed
from app.codecs.structure import SEARCHED, Search, Unreadable, too_long
from app.contract.suggestions import did_you_mean
from app.contract.validation import abbreviate, in_words, validate
from app.contract.violations import refused
from app.devices.cuda.shared import ResidentKernel
from app.devices.device import Tensor
from app.engine.prepared import Prepared
from app.engine.service import Service
from app.http.core.documents import CODECS, LIGHT, TooHeavy, read_document
from app.http.core.media_types import JSON
from app.http.inference.answers import AnswerForm
from app.http.inference.documents import (
    InferInput,
    InferRequest,
    InferRequestedOutput,
    InputParameters,
    OutputParameters,
)
from app.http.inference.model import Model
from app.http.inference.shared_memory import AnyRegion, CudaRegion, Regions, gpu_of
from app.http.inference.tensors import DATATYPES, elements_of, meant_datatype
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.buffers import Buffer
from app.steps import in_step

_JSON = CODECS[JSON]
_ID = re.compile(rb'\{"id":\s?"([ !#-\[\]-~]{0,256})",')  # as clients write it: first, and without escapes
_DATA = re.compile(rb'"data"\s*+:\s*+(?=\[)')
_NO_NUMBERS = (b'"', b"{", b"}")  # what is in no array of numbers
_MARK = secrets.token_hex(16)  # stands for an array that was cut out; no client knows it


@dataclass(slots=True)
class Parts:
    """A request's parts: its JSON without id and numbers, where these are in `body`, where its binary data begin, and
    the regions that it has."""

    body: Body
    structure: bytes
    arrays: Sequence[Span]
    binary: int
    id: str | None
    regions: Mapping[str, AnyRegion]


class Source(Protocol):
    """Where an input's elements are."""

    @property
    def size(self) -> int:
        """Bytes that are copied to get at them."""

    def data(self, parts: Parts, memory: MemoryShare) -> Tensor:
        """The elements. Raises ContractError, Unreadable, LimitExceeded, MemoryExhausted."""


@dataclass(frozen=True, slots=True)
class Binary:
    """Behind the JSON."""

    start: int
    stop: int
    size: int = 0

    def data(self, parts: Parts, memory: MemoryShare) -> Buffer:
        return memoryview(parts.body)[parts.binary + self.start : parts.binary + self.stop]


@dataclass(frozen=True, slots=True)
class JsonNumbers:
    """In the JSON."""

    name: str
    array: int
    shape: Sequence[int]
    datatype: str
    size: int

    def data(self, parts: Parts, memory: MemoryShare) -> Buffer:
        span = parts.arrays[self.array]
        text = memoryview(parts.body)[span.start : span.stop]
        return read_numbers(elements_of(self.name, self.datatype), text, self.shape, memory)


@dataclass(frozen=True, slots=True)
class Shared:
    """In shared memory."""

    region: str
    offset: int
    size: int

    def data(self, parts: Parts, memory: MemoryShare) -> Tensor:
        region = parts.regions[self.region]
        if isinstance(region, CudaRegion):
            return region.span(self.offset, self.size)
        return region.read(self.offset, self.size, memory)


@dataclass(frozen=True, slots=True)
class Inference:
    """What all requests have in common that differ in tensor data and id only."""

    prepared: Prepared
    id: str | None
    sources: Mapping[str, Source]
    binary_bytes: int
    copied_bytes: int
    form: AnswerForm
    regions: tuple[str, ...]
    """Names of those that tensors are in."""
    gpu: str | None
    """The GPU that some of these are on."""
    kernel: ResidentKernel | None
    """What executes it there."""
    is_all_there: bool
    """Whether all its tensors are on that GPU."""

    @property
    def runs_inline(self) -> bool:
        """Whether what is there takes no longer, now, than to hand it to another thread."""
        return self.kernel is not None and self.is_all_there and self.kernel.runs_inline

    def data(self, parts: Parts, memory: MemoryShare) -> dict[str, Tensor]:
        """The tensors' data, if there is room for the outputs. Raises ContractError, Unreadable, LimitExceeded,
        MemoryExhausted."""
        if parts.regions:
            self.form.check(parts.regions)
        return {name: source.data(parts, memory) for name, source in self.sources.items()}


class InferenceReader:
    """Reads inference requests. `cache` has what was made of the last ones, by their model and structure."""

    def __init__(
        self,
        service: Service,
        regions: Regions,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
        *,
        is_of_model: bool = False,
    ) -> None:
        """What was prepared for requests is the model's, if it is that of one, and else the requests'."""
        self._service = service
        self._is_of_model = is_of_model
        self._regions = regions
        self.cache: LastUsed[tuple[str, bytes], Inference] = LastUsed(most, most_bytes)
        self._doorkeeper = Doorkeeper(most)

    def find(
        self, name: str, body: Body, json_bytes: int, memory: MemoryShare, *, only_light: bool = False
    ) -> tuple[Inference | None, Parts]:
        """The parts of a request of which the first `json_bytes` are JSON, and what was made of one like it before.

        Raises Unreadable, LimitExceeded, RequestOver, and TooHeavy if it is not light and should be.
        """
        most = self._service.settings.max_structure_bytes
        found = _ID.match(body, 0, json_bytes)
        try:
            structure, arrays = _cut(
                body, found.end() if found else 0, json_bytes, min(most, LIGHT) if only_light else most, memory
            )
        except LimitExceeded:
            if only_light and most > LIGHT:
                raise TooHeavy from None
            raise
        structure = b"{" + structure if found else structure
        parts = Parts(body, structure, arrays, json_bytes, found[1].decode() if found else None, {})
        inference = self.cache.find([(name, structure)])
        if inference is None:
            return None, parts
        if inference.regions:
            parts.regions = self._regions.found(inference.regions)
            if gpu_of(parts.regions.values()) != inference.gpu:
                return None, parts  # these names have become others'
        _check(inference, parts)
        return inference, parts

    async def judge(self, name: str, model: Model, parts: Parts, *, only_light: bool = False) -> Inference:
        """What is made of a request with these parts.

        Raises ContractError, Unreadable, LimitExceeded, RequestOver, and TooHeavy if it is not light and should be.
        """
        inference, parts.regions = await self._judge(name, model, parts.structure, only_light=only_light)
        key = name, parts.structure
        if len(parts.structure) <= LONGEST and self._doorkeeper.admits(key):
            made_bytes = 0 if self._is_of_model else inference.prepared.kept_bytes
            self.cache.add(key, inference, len(parts.structure) + made_bytes)
        _check(inference, parts)
        return inference

    async def _judge(
        self, name: str, model: Model, structure: bytes, *, only_light: bool
    ) -> tuple[Inference, Mapping[str, AnyRegion]]:
        """Judge a request of which ids and arrays of numbers were cut out, with the regions that it names."""
        settings = self._service.settings
        with self._service.memory.open() as memory:
            request = read_document(_JSON, structure, settings, memory, partial(validate, InferRequest))
        for what, given, allowed in (
            ("model_name", request.model_name, name),
            ("model_version", request.model_version, model.version),
        ):
            if given not in (None, allowed):
                raise refused(
                    (what,), f"{what} is {in_words(given)} but the path says {in_words(allowed)}.", given, allowed
                )
        for what, tensors in (("inputs", request.inputs), ("outputs", request.outputs or [])):
            if len({each.name for each in tensors}) < len(tensors):
                (twice, _), *_ = Counter(each.name for each in tensors).most_common(1)
                raise refused(
                    (what,), f"{in_words(twice)} stands twice among the {what}; give each tensor once.", twice
                )
        for each in request.inputs:
            _check_datatype(each)
        names = tuple(_regions_of([*request.inputs, *(request.outputs or [])], are_on=settings.shared_memory))
        regions = self._regions.found(names)
        gpu = gpu_of(regions.values())
        request = _on(gpu, request) if gpu else request
        await in_step()
        prepared, binary_data_output, described, unread = await model.judge(request, only_light=only_light)
        await in_step()

        sources: dict[str, Source] = {}
        binary = 0
        for each in request.inputs:
            source = _source(each, binary)
            sources[each.name] = source
            binary = source.stop if isinstance(source, Binary) else binary
        numbers = sum(math.prod(source.shape) for source in sources.values() if isinstance(source, JsonNumbers))
        if numbers > settings.max_numbers:
            what = "Elements given as numbers (binary data have no such limit)"
            raise LimitExceeded("max_numbers", what, numbers, settings.max_numbers)
        made = list(prepared.work.outputs if described is None else described)
        outputs = {each.name: each for each in request.outputs or []}
        for each_name in outputs:
            if each_name not in made:
                raise refused(
                    ("outputs",),
                    f"{in_words(each_name)} is no output of this request; outputs are {', '.join(made)}."
                    f"{did_you_mean(each_name, made)}",
                    each_name,
                    made,
                )
        wanted = {each: outputs[each].parameters if outputs else None for each in outputs or made}
        form = AnswerForm(
            prepared,
            name,
            model.version,
            {each: said or OutputParameters() for each, said in wanted.items()},
            binary_data_output,
            described or {},
        )
        for each_name in unread:
            del sources[each_name]
        copied = sum(source.size for source in sources.values()) + form.copied_bytes
        device = gpu and self._service.placement.gpu(gpu)
        kernel = device.resident(prepared.work.runnable) if device else None
        is_all_there = len(names) == len(request.inputs) + len(made) and all(
            isinstance(each, CudaRegion) for each in regions.values()
        )
        inference = Inference(prepared, request.id, sources, binary, copied, form, names, gpu, kernel, is_all_there)
        return inference, regions


def _check(inference: Inference, parts: Parts) -> None:
    """Whether these are parts of such a request, whose id they have from now on. Raises Unreadable."""
    given = len(parts.body) - parts.binary
    if given != inference.binary_bytes:
        raise Unreadable(
            f"Behind the JSON are {given} bytes; binary_data_size of the inputs asks for {inference.binary_bytes}."
        )
    if inference.id is not None:
        if parts.id is not None:
            raise Unreadable("The name 'id' stands twice in one object; give it once.")
        parts.id = inference.id


def _cut(
    body: Body, start: int, stop: int, max_structure_bytes: int, memory: MemoryShare
) -> tuple[bytes, Sequence[Span]]:
    """`body` from `start` to `stop`, with a mark in place of each array of numbers, and where these are, by mark."""
    most = max_structure_bytes + 1  # what is beyond is numbers, or the structure too long
    found = _DATA.search(body, start, min(stop, most))
    pieces: list[Piece] = []
    arrays: list[Span] = []
    if found:
        text = memoryview(body)[:stop]
        search = Search(text, memory)
        while found:
            position = found.end()
            end = _after_array(text, position, search, memory)
            if end:
                pieces += [text[start:position], b'"%b%d"' % (_MARK.encode(), len(arrays))]
                arrays.append(Span(position, end))
                most += end - position
                start = position = end
            found = _DATA.search(body, position, min(stop, most))
    if stop > most - 1:
        raise too_long(max_structure_bytes)
    pieces.append(body[start:stop])
    return b"".join(pieces), arrays


def _after_array(text: Buffer, start: int, search: Search, memory: MemoryShare) -> int:
    """Where an array of numbers ends that begins at `start`, or 0 if none does."""
    stop = search.find(_NO_NUMBERS, start)
    stop = len(text) if stop < 0 else stop
    while stop > start:
        block = max(start, stop - SEARCHED)
        found = bytes(text[block:stop]).rfind(b"]")
        if found >= 0:
            return block + found + 1
        stop = block
        memory.ensure_open()
    return 0


def _regions_of(tensors: Sequence[InferInput | InferRequestedOutput], *, are_on: bool) -> Iterator[str]:
    """Names of the regions that these are in. Raises ContractError where one is, and regions are off."""
    for tensor in tensors:
        if tensor.parameters and tensor.parameters.shared_memory_region is not None:
            if not are_on:
                raise refused(
                    (tensor.name, "shared_memory_region"),
                    f"{tensor.name} is in shared memory, which is off here; use binary data, or have the service "
                    "started with --shared-memory.",
                )
            yield tensor.parameters.shared_memory_region


def _on(gpu: str, request: InferRequest) -> InferRequest:
    """`request` for the device that its regions are on. Raises ContractError."""
    given = request.parameters.get("device", "auto")
    if given not in ("auto", gpu):
        raise refused(
            ("parameters", "device"),
            f"device is {in_words(given)} but tensors are in regions on {gpu}, where they are used; leave it out.",
            abbreviate(given),
            ["auto", gpu],
        )
    return request.model_copy(update={"parameters": request.parameters | {"device": gpu}})


def _check_datatype(tensor: InferInput) -> None:
    if tensor.datatype not in DATATYPES:
        raise refused(
            (tensor.name, "datatype"),
            f"datatype of {tensor.name} is {in_words(tensor.datatype)}; it must be one of {', '.join(DATATYPES)}."
            f"{meant_datatype(tensor.datatype)}",
            tensor.datatype,
            list(DATATYPES),
        )


def _source(tensor: InferInput, binary: int) -> Source:
    """Where the elements of `tensor` are; `binary` bytes behind the JSON belong to those before it."""
    name, given = tensor.name, tensor.parameters or InputParameters()
    ways = [
        way
        for way, value in (
            ("data", tensor.data),
            ("binary_data_size", given.binary_data_size),
            ("shared_memory_region", given.shared_memory_region),
        )
        if value is not None
    ]
    if len(ways) != 1:
        raise refused(
            (name,),
            f"{name} has {' and '.join(ways) or 'no data'}; give one of data, binary_data_size, shared_memory_region.",
            ways,
        )
    if given.shared_memory_region is not None:
        if given.shared_memory_byte_size is None:
            raise refused((name,), f"{name} has a shared_memory_region without shared_memory_byte_size; give both.")
        return Shared(given.shared_memory_region, given.shared_memory_offset, given.shared_memory_byte_size)
    if given.binary_data_size is not None:
        return Binary(binary, binary + given.binary_data_size)
    if tensor.datatype == "FP16":
        raise refused(
            (name, "data"), f"Data of {name} are numbers, but FP16 is taken as binary only (binary_data_size)."
        )
    if not (isinstance(tensor.data, str) and tensor.data.startswith(_MARK)):
        raise refused((name, "data"), f"Data of {name} must be an array of numbers.", abbreviate(tensor.data))
    size = math.prod(tensor.shape) * DATATYPES[tensor.datatype].bytes
    return JsonNumbers(name, int(tensor.data.removeprefix(_MARK)), tensor.shape, tensor.datatype, size)

"""Inputs that tell what they are: with a descriptor beside their data, as outputs have it, or as nested numbers."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from app.codecs.codec import Decoder, Span
from app.codecs.numbers import Numbers
from app.contract.kinds import Kind
from app.contract.suggestions import did_you_mean
from app.contract.tensors import TensorDesc, path_of, tensor_name
from app.contract.validation import abbreviate, in_json, in_words, validate
from app.contract.violations import MAX_VIOLATIONS, ContractError, Hresult, Path, Violation, refused
from app.engine.dispatch import DispatchRequest
from app.engine.inputs import apart
from app.http.core.documents import TooHeavy
from app.memory.accounts import LimitExceeded, MemoryShare
from app.operators.catalog import find_operator
from app.operators.operator import Operator, Role

LIGHT_NUMBERS = 1 << 15
"""Bytes of numbers that are read in so little time that an event loop may do it."""

_PLAIN = {Span, str}
"""Data that tell nothing of themselves."""

_PREFIX = "DML_TENSOR_DATA_TYPE_"


def number_bytes(value: object) -> int:
    """Bytes of the numbers in an input, or in several."""
    if isinstance(value, Numbers):
        return len(value.text)
    if isinstance(value, dict):
        return sum(map(number_bytes, value.values()))
    return sum(map(number_bytes, value)) if isinstance(value, list) else 0


def check_light(document: object) -> None:
    """Raises TooHeavy if the numbers among the inputs of `document` take long."""
    if isinstance(document, dict) and number_bytes(document.get("inputs")) > LIGHT_NUMBERS:
        raise TooHeavy


def described(document: object, codec: Decoder, memory: MemoryShare, *, only_light: bool = False) -> object:
    """`document`, a dispatch of an operator, with what its inputs tell in the operator's descriptor: their own where it
    has none, and of numbers FLOAT32 and the sizes of their lists where it says nothing else.

    Raises ContractError where the two disagree, and where lists are ragged, and TooHeavy for what is not light if it
    should be.
    """
    inputs = document.get("inputs") if isinstance(document, dict) else None
    if not isinstance(inputs, dict) or {*map(type, inputs.values())} <= _PLAIN:
        return document
    assert isinstance(document, dict)
    if only_light:
        check_light(document)
    operator = document.get("operator")
    called = operator.get("Type") if isinstance(operator, dict) else None
    found = find_operator(called) if isinstance(called, str) else None
    if found is None or not isinstance(operator, dict):
        return document  # which is refused
    if unknown := _unknown(found, inputs):
        raise _with_the_rest(unknown, found, document, codec, memory)
    operator = dict(operator)
    # What is null on both sides is an optional tensor that is not there.
    inputs = {name: each for name, each in inputs.items() if each is not None or operator.get(name) is not None}
    for name in [name for name in found.tensor_names(Role.INPUT) if name in inputs]:
        desc, value, path = operator.get(name), inputs[name], ("inputs", name)
        if name not in found.array_names():
            operator[name], inputs[name] = _described(desc, value, path, codec, memory)
            continue
        if isinstance(value, Numbers):
            value = value.split(path, memory)
        if isinstance(value, list):
            descs = desc if isinstance(desc, list) and len(desc) == len(value) else [None] * len(value)
            pairs = [
                _described(each, data, (*path, place), codec, memory)
                for place, (each, data) in enumerate(zip(descs, value, strict=True))
            ]
            inputs[name] = [data for _, data in pairs]
            if desc is None or descs is desc:
                operator[name] = [each for each, _ in pairs]
    for name in [name for name, desc in operator.items() if desc is None and name not in document["operator"]]:
        del operator[name]  # it is missing, as it was
    return document | {"operator": operator, "inputs": inputs}


def undescribed(document: object, error: ContractError) -> ContractError:
    """`error`, which `document` is refused with. Of an input that has data, but no descriptor, it says what is missing:
    its sender sees that the input is there."""
    inputs = document.get("inputs") if isinstance(document, dict) else None
    inputs = inputs if isinstance(inputs, dict) else {}
    given = {("operator", name) for name, data in inputs.items() if data is not None}
    allowed = "an object with DataType and Sizes"
    violations = [
        replace(
            each,
            message=f"{each.path[-1]} is missing in the operator; its data alone do not tell its DataType and Sizes.",
            allowed=allowed,
            stated_kind=each.kind,
        )
        if each.kind is Kind.FIELD_MISSING and each.path in given
        else each
        for each in error.violations
    ]
    return ContractError(violations, error.hresult)


def _unknown(operator: type[Operator], inputs: Mapping[str, object]) -> dict[str, Violation]:
    """Data of tensors that the operator has not, by name: else the one that was meant is missing."""
    known = operator.tensor_names(Role.INPUT)
    told = ", ".join(known) or "none"
    unknown = (name for name in inputs if path_of(name)[0] not in known)
    return {
        name: Violation(
            ("inputs", name),
            f"{operator.name()} has no input {in_words(name)}; inputs are {told}.{did_you_mean(name, known)}",
            abbreviate(name),
            known,
        )
        for name in islice(unknown, MAX_VIOLATIONS)  # more are not told, and there may be ten thousands
    }


def _with_the_rest(
    unknown: Mapping[str, Violation],
    operator: type[Operator],
    document: dict[str, Any],
    codec: Decoder,
    memory: MemoryShare,
) -> ContractError:
    """What is to be said of `unknown` inputs of a dispatch, and of all else in it but for tensors that they may be."""
    known = [name for name in document["inputs"] if path_of(name)[0] in operator.tensor_names(Role.INPUT)]
    inputs = {name: document["inputs"][name] for name in known}
    hresult: Hresult | None = Hresult.DXGI_ERROR_DEVICE_REMOVED
    others: list[Violation] = []
    try:
        validate(DispatchRequest, described(document | {"inputs": inputs}, codec, memory))
    except ContractError as error:
        tensors = [("operator", name) for name in operator.tensor_names(Role.INPUT)]
        others = [each for each in error.violations if each.path not in tensors or each.kind is not Kind.FIELD_MISSING]
        hresult = error.hresult if others else hresult
    return ContractError([*unknown.values(), *others], hresult)


def _described(desc: Any, value: Any, path: Path, codec: Decoder, memory: MemoryShare) -> tuple[Any, Any]:
    """The descriptor of an input, and its data."""
    is_empty = desc is None and not isinstance(value, dict)
    stated, value = apart(value, path)
    if isinstance(value, list) and codec.numbers:
        value = Numbers.of(value)
    if not (desc is None or isinstance(desc, dict)):
        return desc, value  # which is refused
    for member in stated.keys() & (desc or {}).keys():
        one, other = _plain(stated[member]), _plain((desc or {})[member])
        if one != other:
            raise refused(
                (*path, member),
                f"{member} is {in_words(one)} here and {in_words(other)} in the operator's descriptor; they must "
                "agree.",
                abbreviate(one),
                [abbreviate(other)],
            )
    if desc is None and isinstance(value, int | float | list | None):
        several = ["base64", "numbers in lists"]
        takes, told = (several, " or ".join(several)) if codec.numbers else ("binary", "binary")
        raise refused(
            path,
            f"Data of {tensor_name(path)} are {in_json(value)}; give {told}.",
            value,
            takes,
        )
    made = {**stated, **(desc or {})}
    if isinstance(value, Numbers):
        if made.get("DataType") is None:
            made["DataType"] = "FLOAT32"
        if made.get("Sizes") is None:
            made["Sizes"] = value.shape(path, memory)
    return made or (None if is_empty else made), value


def limit_numbers(values: Mapping[str, object], descs: Mapping[str, TensorDesc], most: int) -> None:
    """Raise LimitExceeded for more numbers than `most` among the data of inputs, before any is read."""
    count = sum(descs[name].elements for name, value in values.items() if isinstance(value, Numbers) and name in descs)
    if count > most:
        what = "Elements given as numbers (base64 and binary data have no such limit)"
        raise LimitExceeded("max_numbers", what, count, most, ("inputs",))


def _plain(value: object) -> object:
    return value.removeprefix(_PREFIX) if isinstance(value, str) else value

"""Triton's config.pbtxt, as far as it says what a model takes and gives."""

import re
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from app.models.onnx.files import opened
from app.models.onnx.reading import Port, Signature

_BLANK = re.compile(r"\s*+(?:\#[^\n]*+\s*+)*+")
_TOKEN = re.compile(_BLANK.pattern + r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[-+\w./]+|[{}\[\]:,;<>]|$)""")
_SIGNS = frozenset("{}[]:,;<>")

_MOST_BYTES = 1 << 20

_DEEPEST = 16

_MOST_DIGITS = 9

POLICY = "version_policy"

_TYPES = {
    "TYPE_BOOL": "bool",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
    **{f"TYPE_{sign}{bits}": f"{sign}{bits}".lower() for sign in ("INT", "UINT") for bits in (8, 16, 32, 64)},
}

Message = dict[str, list[Any]]
"""Fields by name, each a list: a text, or a message."""


class BadConfig(Exception):
    """This config.pbtxt does not fit its model, or is none. The text is a sentence."""


class VersionPolicy(NamedTuple):
    """Which versions are served: so many of the newest, or some by their numbers, or else all."""

    latest: int | None = None
    specific: tuple[str, ...] | None = None


class _Stated(NamedTuple):
    """What is said of an input or output."""

    name: str
    type: str | None
    sizes: tuple[int | None, ...] | None


def apply_config(text: str, name: str, model: Signature) -> Signature:
    """`model`, the signature of the model that is called `name`, with what the config makes of it: sizes of dimensions
    that are free in the file. Raises BadConfig."""
    config = parse(text)
    stated = text_of(config, "name", name)
    if stated != name:
        raise BadConfig(f"config.pbtxt is of {stated}, and lies in the folder of {name}.")
    is_batched = bool(number(config, "max_batch_size", None))
    return Signature(
        _applied("input", config, model.inputs, is_batched), _applied("output", config, model.outputs, is_batched)
    )


def policy_of(config: Message) -> VersionPolicy:
    """Raises BadConfig."""
    policies = config.get(POLICY)
    if not policies:
        return VersionPolicy()
    policy = policies[-1]
    if isinstance(policy, dict):
        if "all" in policy:
            return VersionPolicy()
        if (latest := policy.get("latest")) and isinstance(latest[-1], dict):
            return VersionPolicy(latest=number(latest[-1], "num_versions", None) or 1)
        if (specific := policy.get("specific")) and isinstance(specific[-1], dict):
            return VersionPolicy(specific=tuple(str(each) for each in specific[-1].get("versions", [])))
    raise BadConfig(f"{POLICY} in config.pbtxt is none of latest, all and specific.")


def text_in(file: Path) -> str:
    """What is in a config.pbtxt, or so much of it that `parse` refuses it. Raises OSError."""
    with TextIOWrapper(opened(file), "utf-8", "replace") as text:
        return text.read(_MOST_BYTES + 1)


def parse(text: str) -> Message:
    """A message in protobuf's text format. Raises BadConfig."""
    if len(text) > _MOST_BYTES:
        raise BadConfig(f"config.pbtxt has more than the {_MOST_BYTES} characters that are allowed.")
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            blank = _BLANK.match(text, position)  # of which there may be lines
            line = text.count("\n", 0, blank.end() if blank else position) + 1
            raise BadConfig(f"config.pbtxt is no text of protobuf: line {line} cannot be read.")
        position = match.end()
        if match[1]:
            tokens.append(match[1])
    tokens.reverse()
    message = _message(tokens, None, 0)
    if tokens:
        raise BadConfig(f"config.pbtxt is no text of protobuf: {tokens[-1]} ends nothing.")
    return message


def _message(tokens: list[str], end: str | None, depth: int) -> Message:
    """Up to `end`. Tokens are taken from the list's end."""
    if depth > _DEEPEST:
        raise BadConfig("config.pbtxt is nested too deep.")
    found: Message = {}
    while True:
        while tokens and tokens[-1] in ",;":
            tokens.pop()
        if not tokens or tokens[-1] == end:
            break
        if end is None and tokens[-1] in "}>]":
            return found
        field = _take(tokens)
        if field in _SIGNS:
            raise BadConfig(f"config.pbtxt is no text of protobuf: {field} stands where a field should.")
        if tokens and tokens[-1] == ":":
            tokens.pop()
        found.setdefault(field, []).extend(_values(tokens, depth))
    if end is not None:
        _take(tokens)
    return found


def _values(tokens: list[str], depth: int) -> list[Any]:
    first = _take(tokens)
    if first == "{":
        return [_message(tokens, "}", depth + 1)]
    if first == "<":
        return [_message(tokens, ">", depth + 1)]
    if first != "[":
        return [_text(first)]
    values: list[Any] = []
    while tokens and tokens[-1] != "]":
        if tokens[-1] == ",":
            tokens.pop()
            continue
        opening = _take(tokens)
        values.append(_message(tokens, "}", depth + 1) if opening == "{" else _text(opening))
    _take(tokens)
    return values


def _take(tokens: list[str]) -> str:
    if not tokens:
        raise BadConfig("config.pbtxt is no text of protobuf: it ends within a message.")
    return tokens.pop()


def _text(token: str) -> str:
    if token in _SIGNS:
        raise BadConfig(f"config.pbtxt is no text of protobuf: {token} stands where a value should.")
    if token[0] in "\"'":
        return re.sub(r"\\(.)", r"\1", token[1:-1])
    return token


def number(message: Message, field: str, default: int | None) -> int | None:
    """A field that is a number, and not below 0; `default` where it is left out. Raises BadConfig."""
    stated = text_of(message, field, "")
    if not stated:
        return default
    if not (stated.isascii() and stated.isdigit() and len(stated) <= _MOST_DIGITS):
        raise BadConfig(f"{field} in config.pbtxt is {stated[:40]}, which is no number from 0 on.")
    return int(stated)


def text_of(message: Message, field: str, default: str) -> str:
    """A field that is no message; `default` where it is left out. Raises BadConfig."""
    values = message.get(field) or [default]
    if not isinstance(values[-1], str):
        raise BadConfig(f"{field} in config.pbtxt is a message.")
    return values[-1]


def _applied(kind: str, config: Message, ports: dict[str, Port], is_batched: bool) -> dict[str, Port]:
    made = dict(ports)
    for message in config.get(kind, []):
        if not isinstance(message, dict):
            raise BadConfig(f"{kind} in config.pbtxt is no message.")
        stated = _stated(message, is_batched)
        port = ports.get(stated.name)
        if port is None:
            raise BadConfig(f"config.pbtxt has an {kind} {stated.name}; the model has {', '.join(ports)}.")
        if stated.type not in (None, port.type):
            raise BadConfig(f"{stated.name} is {stated.type} in config.pbtxt and {port.type} in the model.")
        made[stated.name] = port._replace(sizes=_merged(stated, port))
    return made


def _stated(message: Message, is_batched: bool) -> _Stated:
    name = text_of(message, "name", "")
    if "reshape" in message:
        raise BadConfig(f"config.pbtxt has {name} reshaped, which is not done here.")
    type_ = text_of(message, "data_type", "")
    if type_ and type_ not in _TYPES:
        raise BadConfig(f"{name} is {type_} in config.pbtxt, which is none of {', '.join(_TYPES)}.")
    sizes: tuple[int | None, ...] | None = None
    if "dims" in message:
        try:
            dims = [int(each) for each in message["dims"]]
        except (TypeError, ValueError):
            raise BadConfig(f"dims of {name} in config.pbtxt are no numbers.") from None
        for each in dims:
            if each < 1 and each != -1:
                raise BadConfig(f"dims of {name} in config.pbtxt have a {each}; each is -1, for any size, or >= 1.")
        sizes = (*([None] if is_batched else []), *(each if each > 0 else None for each in dims))
    return _Stated(name, _TYPES.get(type_), sizes)


def _merged(stated: _Stated, port: Port) -> tuple[int | str | None, ...] | None:
    if stated.sizes is None or port.sizes is None:
        return stated.sizes or port.sizes
    fits = len(stated.sizes) == len(port.sizes) and all(
        said is None or not isinstance(own, int) or said == own
        for said, own in zip(stated.sizes, port.sizes, strict=True)
    )
    if not fits:
        shown = ["x".join(str(each or "?") for each in sizes) for sizes in (stated.sizes, port.sizes)]
        raise BadConfig(f"{stated.name} is {shown[0]} in config.pbtxt and {shown[1]} in the model.")
    return tuple(own if said is None else said for said, own in zip(stated.sizes, port.sizes, strict=True))

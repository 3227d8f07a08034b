"""Triton's config.pbtxt, as far as it says what a model takes and gives."""

from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

from app.contract.suggestions import did_you_mean
from app.models.onnx.errors import shown
from app.models.onnx.files import opened
from app.models.onnx.reading import Port, Signature
from app.models.repository import text_format
from app.models.repository.text_format import Message, NoText, integer

_MOST_BYTES = 1 << 20

_MOST = 10**9
"""Numbers are below it."""

POLICY = "version_policy"

_TYPES = {
    "TYPE_BOOL": "bool",
    **{f"TYPE_{sign}{bits}": f"{sign}{bits}".lower() for sign in ("UINT", "INT") for bits in (8, 16, 32, 64)},
    **{f"TYPE_FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
"""In the order of their numbers, of which the first is 1."""

_FIELDS = (
    "name", "max_batch_size", "input", "output", "default_model_filename", "cc_model_filenames",
    "version_policy", "dynamic_batching", "batch_input", "batch_output", "sequence_batching",
)  # fmt: skip
_FIELDS_OF_TENSORS = ("name", "data_type", "dims", "reshape")
"""Some, for which others may be written by mistake. What is like none of these is for other servers."""

_MADE_BY_TRITON = ("batch_input", "batch_output")
_IN_SEQUENCES = ("control_input", "state")


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
    require_known(config, _FIELDS)
    _require_served(config)
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
            require_known(latest[-1], ("num_versions",))
            return VersionPolicy(latest=number(latest[-1], "num_versions", None) or 1)
        if (specific := policy.get("specific")) and isinstance(specific[-1], dict):
            return VersionPolicy(specific=tuple(map(_version, specific[-1].get("versions", []))))
    raise BadConfig(f"{POLICY} in config.pbtxt is none of latest, all and specific.")


def _version(stated: object) -> str:
    value = integer(stated)
    if value is None:
        raise BadConfig(f"{POLICY} in config.pbtxt has a version that is no number.")
    return str(value)


def text_in(file: Path) -> str:
    """What is in a config.pbtxt, or so much of it that `parse` refuses it. Raises OSError."""
    with TextIOWrapper(opened(file), "utf-8-sig", "replace") as text:
        return text.read(_MOST_BYTES + 1)


def parse(text: str) -> Message:
    """A message in protobuf's text format. Raises BadConfig."""
    if len(text) > _MOST_BYTES:
        raise BadConfig(f"config.pbtxt has more than the {_MOST_BYTES} characters that are allowed.")
    try:
        return text_format.parse(text)
    except NoText as error:
        raise BadConfig(f"config.pbtxt is no text of protobuf: {error}.") from None


def require_known(message: Message, known: tuple[str, ...]) -> None:
    """That no field is written by mistake for one of these. Raises BadConfig."""
    for field in message:
        if meant := did_you_mean(field, known):
            raise BadConfig(f"config.pbtxt has {field[:40]}, which is no field there.{meant}")


def number(message: Message, field: str, default: int | None) -> int | None:
    """A field that is a number, and not below 0; `default` where it is left out. Raises BadConfig."""
    stated = text_of(message, field, "")
    if not stated:
        return default
    value = integer(stated)
    if value is None or not 0 <= value < _MOST:
        raise BadConfig(f"{field} in config.pbtxt is {stated[:40]}, which is no number from 0 on below {_MOST}.")
    return value


def text_of(message: Message, field: str, default: str) -> str:
    """A field that is no message; `default` where it is left out. Raises BadConfig."""
    values = message.get(field) or [default]
    if len(values) > 1:
        raise BadConfig(f"{field} in config.pbtxt is given {len(values)} times.")
    if not isinstance(values[-1], str):
        raise BadConfig(f"{field} in config.pbtxt is a message.")
    return values[-1]


def _require_served(config: Message) -> None:
    """Nothing that Triton would put between clients and the model."""
    for field in _MADE_BY_TRITON:
        if field in config:
            raise BadConfig(f"config.pbtxt has {field}, tensors that Triton makes of batches, which is not done here.")
    for message in config.get("sequence_batching", []):
        for field in _IN_SEQUENCES:
            if isinstance(message, dict) and field in message:
                raise BadConfig(
                    f"config.pbtxt has {field} in sequence_batching, which is not done here; what a model keeps from "
                    "request to request is sent with each."
                )


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
    require_known(message, _FIELDS_OF_TENSORS)
    name = text_of(message, "name", "")
    if "reshape" in message:
        raise BadConfig(f"config.pbtxt has {name} reshaped, which is not done here.")
    type_ = text_of(message, "data_type", "")
    if (numbered := integer(type_)) is not None and 0 < numbered <= len(_TYPES):
        type_ = [*_TYPES][numbered - 1]
    if type_ and type_ not in _TYPES:
        raise BadConfig(f"{name} is {type_} in config.pbtxt, which is none of {', '.join(_TYPES)}.")
    sizes: tuple[int | None, ...] | None = None
    if "dims" in message:
        dims = [integer(each) for each in message["dims"]]
        for each in dims:
            if each is None:
                raise BadConfig(f"dims of {name} in config.pbtxt are no numbers.")
            if each < 1 and each != -1:
                raise BadConfig(f"dims of {name} in config.pbtxt have a {each}; each is -1, for any size, or >= 1.")
        sizes = (*([None] if is_batched else []), *(None if each == -1 else each for each in dims))
    return _Stated(name, _TYPES.get(type_), sizes)


def _merged(stated: _Stated, port: Port) -> tuple[int | str | None, ...] | None:
    if stated.sizes is None or port.sizes is None:
        return stated.sizes or port.sizes
    fits = len(stated.sizes) == len(port.sizes) and all(
        said is None or not isinstance(own, int) or said == own
        for said, own in zip(stated.sizes, port.sizes, strict=True)
    )
    if not fits:
        raise BadConfig(f"{stated.name} is {shown(stated.sizes)} in config.pbtxt and {shown(port.sizes)} in the model.")
    return tuple(own if said is None else said for said, own in zip(stated.sizes, port.sizes, strict=True))

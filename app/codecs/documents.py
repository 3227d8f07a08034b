"""The representations there are, and requests read from them."""

from app.codecs.codec import Codec
from app.codecs.json import JsonCodec
from app.codecs.msgpack import MsgpackCodec
from app.contract.validation import validate
from app.dispatch import DispatchRequest
from app.execution.device import Buffer
from app.limits import MemoryShare
from app.settings import Settings

CODECS: dict[str, Codec] = {codec.media_type: codec for codec in (JsonCodec(), MsgpackCodec())}
"""By media type, the default first."""


def read_document(codec: Codec, body: bytearray, settings: Settings, memory: MemoryShare) -> object:
    """What `body` says. Raises Unreadable, LimitExceeded."""
    return codec.decode(body, settings.max_structure_bytes, settings.max_depth, memory)


def read_dispatch(
    codec: Codec, body: bytearray, settings: Settings, memory: MemoryShare
) -> tuple[DispatchRequest, dict[str, Buffer]]:
    """The dispatch that `body` asks for, and its tensors' data. Raises ContractError, Unreadable, LimitExceeded."""
    stated = validate(DispatchRequest, read_document(codec, body, settings, memory))
    return stated, {name: codec.binary(value, ("inputs", name), memory) for name, value in stated.inputs.items()}

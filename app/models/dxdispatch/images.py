"""Images as tensors: NCHW, of numbers from 0 to 1. Pillow reads and writes them, which may be missing."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.memory.accounts import LimitExceeded, MemoryShare
from app.memory.arrays import Array, numpy_type
from app.memory.buffers import Buffer
from app.models.dxdispatch.arrays import Unusable, words_of
from app.models.dxdispatch.values import truncated

SUFFIXES = {".jpg": "JPEG", ".png": "PNG"}

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_FLOATS = (DataType.FLOAT32, DataType.FLOAT16)
_DECODED = 8
"""Bytes for each pixel and channel that decoding, converting and scaling hold at one time, at most."""


def load(file: Buffer, data_type: DataType, size: Sequence[int], most_bytes: int, memory: MemoryShare) -> Buffer:
    """The image in `file`, as `size` (N, C, H, W; 0 or nothing: as it is) says. Raises Unusable, LimitExceeded,
    MemoryExhausted.

    What is scaled is scaled by bicubic interpolation, over larger areas where it becomes smaller.
    """
    image_module = _pillow()
    if data_type not in _FLOATS:
        raise Unusable(f"is an image, which becomes {' or '.join(_FLOATS)} elements, not {data_type}")
    _, channels, height, width = size or (1, 0, 0, 0)
    if channels not in (0, 3, 4):
        raise Unusable(f"becomes 3 or 4 channels, not {channels}")
    try:
        with image_module.open(io.BytesIO(file), formats=list(SUFFIXES.values())) as image:
            channels = channels or (4 if image.has_transparency_data else 3)
            height, width = height or image.height, width or image.width
            made = channels * height * width * data_type.bytes
            pixels = image.width * image.height + width * height
            for each in (made, 4 * image.width * image.height):
                if each > most_bytes:
                    raise LimitExceeded("max_tensor_bytes", "Bytes of an image as a tensor", each, most_bytes)
            with memory.passing(pixels * 4 * _DECODED + len(file)):
                whole = image.convert(_MODES[channels])
                if whole.size != (width, height):
                    whole = whole.resize((width, height), image_module.Resampling.BICUBIC)
                buffer = memory.buffer(made)
                target: Array = np.frombuffer(buffer, numpy_type(data_type)).reshape(channels, height, width)
                floats = np.asarray(whole).astype(np.float32) / np.float32(255)
                target[:] = np.moveaxis(truncated(floats) if data_type is DataType.FLOAT16 else floats, 2, 0)
    except (LimitExceeded, Unusable):
        raise
    except (OSError, ValueError, SyntaxError, TypeError, image_module.DecompressionBombError) as error:
        raise Unusable(f"is no image that Pillow reads: {words_of(error)}") from None
    return buffer


def saved(data: Buffer, data_type: DataType, size: Sequence[int], suffix: str, memory: MemoryShare) -> Buffer:
    """A file of the numbers in `data`, which are brought into 0 to 1 first. `size` is N, C, H, W. Raises Unusable,
    MemoryExhausted."""
    image_module = _pillow()
    if data_type not in _FLOATS:
        raise Unusable(f"only {' and '.join(_FLOATS)} elements become an image, not {data_type}")
    if not size:  # one pixel, as of dimensions that are all 1, would be the first of what may be many
        raise Unusable("an image needs dimensions, [1, channels, height, width]")
    channels, height, width = [*size[1:], 1, 1, 1][:3]
    if channels not in _MODES:
        raise Unusable(f"Unsupported channel count {channels} for image file")
    count = channels * height * width
    if not count or count * data_type.bytes > len(data):
        raise Unusable(f"dimensions {list(size)} are {count * data_type.bytes} bytes; the resource has {len(data)}")
    with memory.passing(count * _DECODED * 2):
        floats = np.frombuffer(data, numpy_type(data_type), count).astype(np.float32)
        with np.errstate(invalid="ignore"):
            clamped = np.fmax(np.fmin(floats, np.float32(1)), np.float32(0))  # NaN is what fmin makes of it, 1
        pixels = (clamped * np.float32(255)).astype(np.uint8)
        whole = np.moveaxis(pixels.reshape(channels, height, width), 0, 2)
        image = image_module.fromarray(np.ascontiguousarray(whole[:, :, 0] if channels == 1 else whole))
        if suffix == ".jpg" and channels == 4:
            image = image.convert("RGB")  # JPEG has no transparency
        made = io.BytesIO()
        try:
            image.save(made, SUFFIXES[suffix])
        except (OSError, ValueError) as error:
            raise Unusable(words_of(error)) from None
        file = memory.buffer(made.tell())
        file[:] = made.getbuffer()
    return file


def _pillow() -> Any:
    """Raises Unusable where it is missing."""
    try:
        from PIL import Image  # noqa: PLC0415 - an extra
    except ImportError:
        raise Unusable("is an image, for which Pillow is missing; install dmlserve[images]") from None
    Image.MAX_IMAGE_PIXELS = None  # it would warn on standard error; the limits here are those of tensors
    return Image

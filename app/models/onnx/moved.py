"""Elements that are moved between DequantizeLinear and QuantizeLinear, as tools write them around all nodes: bytes are
moved, a quarter of the memory, and restored after that, or quantized before. What both do alike is not done at all."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from app.contract.constants import DataType
from app.models.onnx.builder import Builder, Made
from app.models.onnx.tensors import Sizes, View

_DEQUANTIZE = "ELEMENT_WISE_DEQUANTIZE_LINEAR"

Make: TypeAlias = Callable[[View], View]


class Restored(NamedTuple):
    """What a tensor was restored from, as it lies, and by what."""

    x: View
    scale: View
    zero: View | None
    whole: View
    """All that was restored with it."""

    @property
    def is_by_one(self) -> bool:
        """Whether scale and zero point are one for all."""
        given = [self.scale, *([] if self.zero is None else [self.zero])]
        return all(
            size == 1 or step == 0 for each in given for size, step in zip(each.sizes, each.strides, strict=True)
        )

    def again(self, build: Builder, x: View) -> View:
        """The same of other bytes, by one scale."""

        def for_all(view: View) -> View:
            return replace(view, sizes=x.sizes, strides=(0,) * len(x.sizes))

        zero = None if self.zero is None else for_all(self.zero)
        inputs = {"InputTensor": x, "ScaleTensor": for_all(self.scale), "ZeroPointTensor": zero}
        outputs = {"OutputTensor": (self.whole.data_type, x.sizes)}
        return build.operator(_DEQUANTIZE, inputs, outputs=outputs)["OutputTensor"]


def restored_from(build: Builder, view: View) -> Restored | None:
    """None if it was not restored from 8 bits."""
    found = build.origin(view)
    if found is None or found[0].desc["Type"] != _DEQUANTIZE:
        return None
    made, whole = found
    x = made.reads["InputTensor"]
    if x.data_type not in (DataType.INT8, DataType.UINT8) or not x.is_packed or view.data_type is not whole.data_type:
        return None
    own = replace(view, source=x.source, data_type=x.data_type)
    return Restored(own, made.reads["ScaleTensor"], made.reads.get("ZeroPointTensor"), whole)


def restored_by_one(build: Builder, view: View) -> Restored | None:
    """The same; None if it was by several scales, too."""
    found = restored_from(build, view)
    return found if found and found.is_by_one else None


def made_before(build: Builder, x: View, make: Make, known: Callable[[View], View | None]) -> View | None:
    """What `make` makes of `x`, each element of one; None if that had better be made of `x` itself. What it makes of
    some tensors is `known`: larger elements of such are never smaller ones then."""
    found = build.maker(x)
    if found is None:
        return None
    if found.desc["Type"] == "JOIN":
        parts = [make(each) for each in found.reads.values()]
        outputs = {"OutputTensor": (parts[0].data_type, x.sizes)}
        return build.operator("JOIN", {"InputTensors": parts}, {"Axis": found.desc["Axis"]}, outputs)["OutputTensor"]
    before = found.reads.get("InputTensor")
    if before is None:
        return None
    if found.desc["Type"] == "RESAMPLE2" and found.desc["InterpolationMode"] == "NEAREST_NEIGHBOR":
        return _again(build, found, make(before), x.sizes) if before.elements <= x.elements else None
    if found.desc["Type"] == "MAX_POOLING":
        made = known(before)
        return made and _again(build, found, made, x.sizes)
    return None


def _again(build: Builder, made: Made, x: View, sizes: Sizes) -> View:
    """The same of a tensor of another type."""
    tensors = ("Type", "InputTensor", "OutputTensor")
    attributes = {name: value for name, value in made.desc.items() if name not in tensors}
    outputs = {"OutputTensor": (x.data_type, sizes)}
    return build.operator(made.desc["Type"], {"InputTensor": x}, attributes, outputs)["OutputTensor"]

"""Elements that are moved between DequantizeLinear and QuantizeLinear, as tools write them around all nodes: bytes are
moved, a quarter of the memory, and restored after that, or quantized before. What both do alike is not done at all."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from app.contract.constants import DataType
from app.models.onnx.builder import Builder, Made
from app.models.onnx.tensors import Sizes, View

DEQUANTIZE = "ELEMENT_WISE_DEQUANTIZE_LINEAR"

Make: TypeAlias = Callable[[View], View]


class Restored(NamedTuple):
    """What a tensor was restored from, as it lies, by one scale and zero point for all."""

    x: View
    scale: View
    zero: View | None
    made: DataType
    """What it was restored as."""

    def again(self, build: Builder, x: View) -> View:
        """The same of other bytes."""

        def for_all(view: View) -> View:
            return replace(view, sizes=x.sizes, strides=(0,) * len(x.sizes))

        zero = None if self.zero is None else for_all(self.zero)
        inputs = {"InputTensor": x, "ScaleTensor": for_all(self.scale), "ZeroPointTensor": zero}
        return build.operator(DEQUANTIZE, inputs, outputs={"OutputTensor": (self.made, x.sizes)})["OutputTensor"]


def restored_from(build: Builder, view: View) -> Restored | None:
    """None if it was not, or not by one scale."""
    found = build.origin(view)
    if found is None or found[0].desc["Type"] != DEQUANTIZE or found[1].data_type is not view.data_type:
        return None
    x, scale, zero = (found[0].reads.get(name) for name in ("InputTensor", "ScaleTensor", "ZeroPointTensor"))
    assert x is not None, "it reads something"
    assert scale is not None, "it is multiplied"
    if x.data_type not in (DataType.INT8, DataType.UINT8) or not x.is_packed or not _is_one(scale):
        return None
    if zero is not None and not _is_one(zero):
        return None
    return Restored(replace(view, source=x.source, data_type=x.data_type), scale, zero, view.data_type)


def _is_one(view: View) -> bool:
    return all(size == 1 or step == 0 for size, step in zip(view.sizes, view.strides, strict=True))


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

"""What is made of each element that was only moved, made before that. Of QuantizeLinear, behind nodes that put parts
together, repeat elements or pick the largest, bytes are moved then, a quarter of the memory."""

from collections.abc import Callable
from typing import TypeAlias

from app.models.onnx.builder import Builder, Made
from app.models.onnx.movement import joined
from app.models.onnx.tensors import Sizes, View

_TENSORS = ("InputTensor", "OutputTensor")

Make: TypeAlias = Callable[[View], View]


def made_before(build: Builder, x: View, make: Make, known: Callable[[View], View | None]) -> View | None:
    """What `make` makes of `x`; None if that had better be made of `x` itself. What `make` makes of some tensors is
    `known`: larger elements of such are never smaller ones then."""
    found = build.maker(x)
    if found is None:
        return None
    if found.desc["Type"] == "JOIN":
        return joined(build, [make(each) for each in found.reads.values()], found.desc["Axis"])
    x_before = found.reads.get("InputTensor")
    if x_before is None:
        return None
    if found.desc["Type"] == "RESAMPLE2" and found.desc["InterpolationMode"] == "NEAREST_NEIGHBOR":
        return _again(build, found, make(x_before), x.sizes) if x_before.elements <= x.elements else None
    if found.desc["Type"] == "MAX_POOLING":
        made = known(x_before)
        return made and _again(build, found, made, x.sizes)
    return None


def _again(build: Builder, made: Made, x: View, sizes: Sizes) -> View:
    """The same of a tensor of another type."""
    attributes = {name: value for name, value in made.desc.items() if name not in ("Type", *_TENSORS)}
    outputs = {"OutputTensor": (x.data_type, sizes)}
    return build.operator(made.desc["Type"], {"InputTensor": x}, attributes, outputs)["OutputTensor"]

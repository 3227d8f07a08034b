"""QUANTIZE and DEQUANTIZE as operators on elements by themselves, for devices that compute formulas."""

from typing import Any

from app.contract.constants import NEWEST
from app.contract.tensors import MAX_RANK, TensorDesc
from app.formula.structures import Structures
from app.operators.compiled import CompiledOperator, compile_operator
from app.operators.element_wise.quantization import ElementWiseDequantizeLinear, ElementWiseQuantizeLinear
from app.operators.quantization.elements import Dequantize, Quantize


def by_elements(
    compiled: CompiledOperator, operator: Quantize | Dequantize, structures: Structures
) -> CompiledOperator:
    """The same of tensors of whole bytes, with two dimensions for each, blocks and what is in them, along which scales
    and zero points repeat. `compiled` itself if there are more than tensors may have, or elements of four bits."""
    x, *by = compiled.inputs.values()
    made = compiled.outputs["OutputTensor"]
    if any(each.DataType.bits < 8 for each in (x, made)):
        return compiled
    counts = [max(sizes) for sizes in zip(*[each.Sizes for each in by], strict=True)]
    if any(size not in (1, count) for each in by for size, count in zip(each.Sizes, counts, strict=True)):
        return compiled
    inside = [size // count for size, count in zip(x.Sizes, counts, strict=True)]
    sizes = [part for pair in zip(counts, inside, strict=True) for part in pair]
    kept = [axis for axis, size in enumerate(sizes) if size > 1] or [0]
    if len(kept) > MAX_RANK:
        return compiled

    def desc(of: TensorDesc, steps: list[int]) -> TensorDesc:
        return TensorDesc(
            DataType=of.DataType, Sizes=[sizes[axis] for axis in kept], Strides=[steps[axis] for axis in kept]
        )

    def whole(of: TensorDesc) -> TensorDesc:
        return desc(of, [step for each, size in zip(of.steps, inside, strict=True) for step in (each * size, each)])

    def repeated(of: TensorDesc) -> TensorDesc:
        return desc(of, [step for each in of.steps for step in (each, 0)])

    tensors: dict[str, Any] = {
        "InputTensor": whole(x),
        "ScaleTensor": repeated(by[0]),
        "ZeroPointTensor": repeated(by[1]) if len(by) > 1 else None,
        "OutputTensor": whole(made),
    }
    if isinstance(operator, Quantize):
        quantizing = ElementWiseQuantizeLinear(Type="ELEMENT_WISE_QUANTIZE_LINEAR", **tensors)
        return compile_operator(quantizing, NEWEST, structures)
    dequantizing = ElementWiseDequantizeLinear(Type="ELEMENT_WISE_DEQUANTIZE_LINEAR", **tensors)
    return compile_operator(dequantizing, NEWEST, structures)

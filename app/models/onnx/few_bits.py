"""Weights of few bits, in blocks that have a scale each: multiplied, and looked up by rows."""

from collections.abc import Sequence
from math import prod

import numpy as np

from app.contract.constants import DataType
from app.models.onnx.element_wise import binary
from app.models.onnx.indexing import gathered, indices_of
from app.models.onnx.linear_algebra import matmul
from app.models.onnx.mapping import Node, Value, maps
from app.models.onnx.operands import FLOATS, broadcast, number, operate
from app.models.onnx.quantization import Parameters, in_blocks
from app.models.onnx.shapes import axis_of
from app.models.onnx.tensors import Sizes, Unsupported, View, packed_strides

_OF_BITS = {4: DataType.UINT4, 8: DataType.UINT8}


@maps("MatMulNBits", domain="com.microsoft")
def _of_few_bits(node: Node) -> Value:
    """B is [N, blocks, bytes of a block], packed; it is restored as [N, K], and multiplied transposed."""
    depth, columns, block = (node.attribute(name) for name in ("K", "N", "block_size"))
    if node.has(4):
        raise Unsupported("it has a g_idx")
    if node.attribute("weight_prepacked", 0):
        raise Unsupported("its B lies as a kernel of CUDA's takes it")
    a, scale = node.view(0), node.view(2)
    blocks = -(-depth // block)
    restored = in_rows(node, "its B", (1, 2, 3), node.attribute("bits", 4), (columns, blocks, block))
    # Without what the last block of a column has beyond K.
    right = View(restored.source, scale.data_type, (depth, columns), (1, blocks * block))
    made = matmul(node, node.cast(a, scale.data_type), right)
    if node.has(5):
        made = operate(node, "ELEMENT_WISE_ADD", {"ATensor": made, "BTensor": broadcast(node.view(5), made.sizes)})
    return node.cast(made, a.data_type)


def type_of_bits(bits: int) -> DataType:
    """Raises Unsupported."""
    if bits not in _OF_BITS:
        raise Unsupported(f"its bits are {bits}, not 4 or 8")
    return _OF_BITS[bits]


def in_rows(node: Node, called: str, inputs: Sequence[int], bits: int, sizes: tuple[int, int, int]) -> View:
    """Packed weights as floats, of so many rows, blocks of each and elements of these; `inputs` are the numbers of the
    weights', their scales' and their zero points'. Raises Unsupported."""
    data_type, packed = type_of_bits(bits), node.packed(node.view(inputs[0]))
    rows, blocks, block = sizes
    if packed.elements * 8 != rows * blocks * block * bits:
        raise Unsupported(f"{called} has {packed.elements} bytes, not those of {rows} x {blocks} blocks of {block}")
    weights = View.packed(packed.source, data_type, sizes)
    scale = node.reshaped(node.view(inputs[1]), (rows, blocks, 1))
    return _restored(node, Parameters(weights, scale, _zero_points(node, inputs[2], data_type, (rows, blocks))))


def _restored(node: Node, given: Parameters) -> View:
    """(weight - zero point) * scale"""
    x, scale, zero = given
    if zero is None or zero.data_type is x.data_type:
        return in_blocks(node, "DEQUANTIZE", given, scale.data_type)
    one = number(node, 1, scale.data_type, (1,) * len(x.sizes))
    whole = in_blocks(node, "DEQUANTIZE", Parameters(x, one, None), scale.data_type)
    moved = binary(node, "ELEMENT_WISE_SUBTRACT", whole, node.cast(zero, scale.data_type))
    return binary(node, "ELEMENT_WISE_MULTIPLY", moved, scale)


def _zero_points(node: Node, index: int, data_type: DataType, sizes: Sizes) -> View:
    """One for each block, which may be a float: half-quadratic quantization finds such. Of integers each column's begin
    with a byte of their own."""
    columns, blocks = sizes
    if not node.has(index):
        return _middle(node, data_type, 3)
    if node.data_type(index) in FLOATS:
        return node.reshaped(node.view(index), (columns, blocks, 1))
    if node.data_type(index) is not DataType.UINT8:
        raise Unsupported(f"its zero points are {node.data_type(index)}")
    if data_type is DataType.UINT8 or blocks % 2 == 0:
        packed = node.packed(node.view(index))
        if packed.elements * 8 != columns * blocks * data_type.bits:
            raise Unsupported(f"its zero points have {packed.elements} bytes")
        return View.packed(packed.source, data_type, (columns, blocks, 1))
    pairs = node.array(index, "zero point").reshape(columns, -1)
    apart = np.stack([pairs & 15, pairs >> 4], -1).reshape(columns, -1)[:, :blocks]
    return node.build.constant(np.ascontiguousarray(apart[..., None]), data_type)


def _middle(node: Node, data_type: DataType, rank: int) -> View:
    """The zero point that there is where none is given: half of what the type has."""
    return node.build.constant(np.full((1,) * rank, 1 << data_type.bits - 1, np.uint8), data_type)


# Rows


@maps("GatherBlockQuantized", domain="com.microsoft")
def _gathered_of_few_bits(node: Node) -> Value:
    """Rows are looked up as bytes, and restored behind that: a table may be large."""
    data, indices, scale = node.view(0), indices_of(node, 1), node.view(2)
    rank, bits = len(data.sizes), node.attribute("bits", 4)
    rows = axis_of(node.attribute("gather_axis", 0), rank, "gather_axis")
    axis = axis_of(node.attribute("quantize_axis", 1), rank, "quantize_axis")
    if rows != 0 or axis == 0:
        raise Unsupported(f"its gather_axis is {rows} and its quantize_axis {axis}; the one must be 0, the other not")
    is_bytes = data.data_type is DataType.UINT8
    data_type = _OF_BITS.get(bits) if is_bytes else data.data_type
    if data_type is None or data_type.bits != bits:
        raise Unsupported(f"its bits are {bits}, and its data {data.data_type}")
    sizes = (*data.sizes[:-1], data.sizes[-1] * data.data_type.bits // bits)
    block = node.attribute("block_size", 128)
    blocks = (*sizes[:axis], sizes[axis] // block, *sizes[axis + 1 :])
    if scale.sizes != blocks or blocks[axis] * block != sizes[axis]:
        raise Unsupported(
            f"its scales have sizes {list(scale.sizes)}, which are not those of whole blocks of {block} along "
            f"dimension {axis} of {list(sizes)}"
        )
    by, zero = gathered(node, scale, indices, 0), None
    if node.has(3):
        zero = _rows(node, node.view(3), data_type, indices, blocks)
    elif is_bytes:
        zero = _middle(node, data_type, len(by.sizes))
    found = Parameters(_rows(node, data, data_type, indices, sizes), by, zero)
    return in_blocks(node, "DEQUANTIZE", found, scale.data_type)


def _rows(node: Node, table: View, data_type: DataType, indices: View, sizes: Sizes) -> View:
    """Those of elements of `data_type`, of which `table` has `sizes`. In bytes, the last dimension ends with a whole
    one."""
    each = table.data_type.bits // data_type.bits
    wide = (*sizes[:-1], -(-sizes[-1] // each) * each)
    packed = (*wide[:-1], wide[-1] // each)
    if table.sizes != packed:
        raise Unsupported(
            f"one of its inputs has sizes {list(table.sizes)}, where {list(sizes)} elements of {data_type} take "
            f"{list(packed)}"
        )
    bits = prod(wide[1:]) * data_type.bits
    if bits % 8:
        raise Unsupported(f"a row of {prod(wide[1:])} elements of {data_type} ends amid a byte")
    lying = View.packed(node.packed(table).source, DataType.UINT8, (wide[0], bits // 8))
    made = gathered(node, lying, indices, 0)
    return View(made.source, data_type, (*indices.sizes, *sizes[1:]), packed_strides((*indices.sizes, *wide[1:])))


# Of numbers from a table

_FLOATS = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_NORMAL = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_NUMBERS = {0: (*_FLOATS, *(-each for each in _FLOATS)), 1: _NORMAL}
"""What 4 bits stand for, by quant_type: bitsandbytes' FP4 and NF4."""


@maps("MatMulBnb4", domain="com.microsoft")
def _of_a_table(node: Node) -> Value:
    """B is [N, K], row after row in blocks, and the first of two numbers in a byte's upper half. It is multiplied
    transposed; to leave it as it is is for training."""
    depth, columns, block, kind = (node.attribute(name) for name in ("K", "N", "block_size", "quant_type"))
    a, packed, scale = node.view(0), node.view(1), node.view(2)
    if kind not in _NUMBERS:
        raise Unsupported(f"its quant_type is {kind}, not 0 or 1")
    if not node.attribute("transB", 1):
        raise Unsupported("its transB is 0, not 1")
    count = columns * depth
    if packed.elements * 2 != count or scale.elements * block != count:
        raise Unsupported(
            f"its B has {packed.elements} bytes and {scale.elements} scales, not those of whole blocks of {block} of "
            f"{columns} x {depth}"
        )
    numbers = np.array(_NUMBERS[kind], np.float32)
    pairs = np.stack([np.repeat(numbers, 16), np.tile(numbers, 16)], 1)
    places = node.cast(node.reshaped(packed, (packed.elements,)), DataType.UINT32)
    found = node.reshaped(gathered(node, node.build.constant(pairs), places, 0), (count // block, block))
    by = node.cast(node.reshaped(scale, (count // block, 1)), DataType.FLOAT32)
    weights = binary(node, "ELEMENT_WISE_MULTIPLY", found, broadcast(by, found.sizes))
    right = node.cast(node.reshaped(weights, (columns, depth)), a.data_type)
    return matmul(node, a, right.transposed((1, 0)))

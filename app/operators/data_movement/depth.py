"""Operators that make channels of an image's blocks, and the way back.

Source: the DML_SPACE_TO_DEPTH*_OPERATOR_DESC and DML_DEPTH_TO_SPACE*_OPERATOR_DESC pages of DirectML's reference.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.contract.constants import DepthSpaceOrder, FeatureLevel
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import Value, quotient, remainder_of_floor
from app.operators.accuracy import EXACT
from app.operators.data_movement.attributes import Positive
from app.operators.operator import InputTensorDesc, Operator, OutputTensorDesc
from app.operators.parameters import TensorParameters

Block = Annotated[Positive, Field(description="Height and width of a block.", examples=[2])]
DepthOrder = Annotated[
    DepthSpaceOrder,
    Field(
        description="How a channel is told: by row, column and depth, or depth first.", examples=["DEPTH_COLUMN_ROW"]
    ),
]

OLD_TABLE = SupportTable.of("5_0 4 F64-16 I64-8 U64-8", "2_1 4 F32-16 I32-8 U32-8", "1_0 4 F32-16")
TABLE = SupportTable.of("5_0 4 F64-16 I64-8 U64-8", "2_1 4 F32-16 I32-8 U32-8")
SIZES = "Sizes are those of the example on the operator's page; its text has those of the inverse."


class _Moved(Operator):
    """What all four have in common."""

    same_types: ClassVar = (("InputTensor", "OutputTensor"),)
    same_sizes: ClassVar = ()
    sizes_from: ClassVar = ("InputTensor", "BlockSize")
    by_coordinates: ClassVar = True

    def is_bitwise(self) -> bool:
        return True


class SpaceToDepth(_Moved):
    """Blocks of an image as channels, by row and column in the block, then by channel."""

    Type: Literal["DML_OPERATOR_SPACE_TO_DEPTH", "SPACE_TO_DEPTH"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    BlockSize: Block

    formula_text = (
        "f(x)[n, (bh * B + bw) * C + c, h, w] = x[n, c, h * B + bh, w * B + bw], B = BlockSize, C input channels, bh "
        "and bw from 0 to B - 1"
    )
    accuracy = EXACT
    example: ClassVar = {"InputTensor": {"Sizes": [1, 1, 2, 4]}}
    support = OLD_TABLE
    notes = (SIZES,)

    def implied_sizes(self, name: str) -> list[int]:
        return _deep(self.InputTensor.Sizes, self.BlockSize)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _space_violations(self)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return _to_depth(p, x, DepthSpaceOrder.DEPTH_COLUMN_ROW)


class SpaceToDepth1(_Moved):
    """Blocks of an image as channels."""

    Type: Literal["DML_OPERATOR_SPACE_TO_DEPTH1", "SPACE_TO_DEPTH1"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    BlockSize: Block
    Order: DepthOrder

    formula_text = (
        "f(x)[n, d, h, w] = x[n, c, h * B + bh, w * B + bw], B = BlockSize, C input channels, bh and bw from 0 to B - "
        "1, d = (bh * B + bw) * C + c for DEPTH_COLUMN_ROW, (c * B + bh) * B + bw for COLUMN_ROW_DEPTH"
    )
    accuracy = EXACT
    example: ClassVar = {"InputTensor": {"Sizes": [1, 1, 2, 4]}}
    support = TABLE
    notes = (SIZES,)

    def implied_sizes(self, name: str) -> list[int]:
        return _deep(self.InputTensor.Sizes, self.BlockSize)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _space_violations(self)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return _to_depth(p, x, self.Order)


class DepthToSpace(_Moved):
    """Channels as blocks of an image: the way back from SPACE_TO_DEPTH."""

    Type: Literal["DML_OPERATOR_DEPTH_TO_SPACE", "DEPTH_TO_SPACE"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    BlockSize: Block

    formula_text = (
        "f(x)[n, c, h * B + bh, w * B + bw] = x[n, (bh * B + bw) * C + c, h, w], B = BlockSize, C output channels, bh "
        "and bw from 0 to B - 1"
    )
    accuracy = EXACT
    example: ClassVar = {"InputTensor": {"Sizes": [1, 4, 1, 2]}}
    support = OLD_TABLE

    def implied_sizes(self, name: str) -> list[int]:
        return _flat(self.InputTensor.Sizes, self.BlockSize)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _depth_violations(self)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return _to_space(p, x, DepthSpaceOrder.DEPTH_COLUMN_ROW)


class DepthToSpace1(_Moved):
    """Channels as blocks of an image: the way back from SPACE_TO_DEPTH1."""

    Type: Literal["DML_OPERATOR_DEPTH_TO_SPACE1", "DEPTH_TO_SPACE1"]
    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    BlockSize: Block
    Order: DepthOrder

    formula_text = (
        "f(x)[n, c, h * B + bh, w * B + bw] = x[n, d, h, w], B = BlockSize, C output channels, bh and bw from 0 to B "
        "- 1, d = (bh * B + bw) * C + c for DEPTH_COLUMN_ROW, (c * B + bh) * B + bw for COLUMN_ROW_DEPTH"
    )
    accuracy = EXACT
    example: ClassVar = {"InputTensor": {"Sizes": [1, 4, 1, 2]}}
    support = TABLE

    def implied_sizes(self, name: str) -> list[int]:
        return _flat(self.InputTensor.Sizes, self.BlockSize)

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from _depth_violations(self)

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        return _to_space(p, x, self.Order)


def _deep(sizes: list[int], block: int) -> list[int]:
    batch, depth, height, width = sizes
    return [batch, depth * block * block, height // block, width // block]


def _flat(sizes: list[int], block: int) -> list[int]:
    batch, depth, height, width = sizes
    return [batch, depth // (block * block), height * block, width * block]


def _space_violations(operator: SpaceToDepth | SpaceToDepth1) -> Iterator[Violation]:
    *_, height, width = operator.InputTensor.Sizes
    if height % operator.BlockSize or width % operator.BlockSize:
        yield Violation(
            ("BlockSize",),
            f"BlockSize is {operator.BlockSize}; it must divide the height and the width of InputTensor, which are "
            f"{height} and {width}.",
            operator.BlockSize,
            f"a divisor of {height} and {width}",
        )


def _depth_violations(operator: DepthToSpace | DepthToSpace1) -> Iterator[Violation]:
    depth = operator.InputTensor.Sizes[1]
    if depth % operator.BlockSize**2:
        yield Violation(
            ("BlockSize",),
            f"BlockSize is {operator.BlockSize}; its square must divide the channels of InputTensor, which are "
            f"{depth}.",
            operator.BlockSize,
            f"a number whose square divides {depth}",
        )


def _to_depth(p: TensorParameters, x: Operand, order: DepthSpaceOrder) -> Value:
    n, d, h, w = coordinates(4)
    block, channels = p.BlockSize, x.sizes[1]
    if order is DepthSpaceOrder.DEPTH_COLUMN_ROW:
        channel, place = remainder_of_floor(d, channels), quotient(d, channels)
    else:
        channel, place = quotient(d, block * block), remainder_of_floor(d, block * block)
    return x[[n, channel, h * block + quotient(place, block), w * block + remainder_of_floor(place, block)]]


def _to_space(p: TensorParameters, x: Operand, order: DepthSpaceOrder) -> Value:
    n, c, h, w = coordinates(4)
    block, channels = p.BlockSize, p.out("OutputTensor").sizes[1]
    place = remainder_of_floor(h, block) * block + remainder_of_floor(w, block)
    depth = place * channels + c if order is DepthSpaceOrder.DEPTH_COLUMN_ROW else c * (block * block) + place
    return x[[n, depth, quotient(h, block), quotient(w, block)]]

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

    InputTensor: InputTensorDesc
    OutputTensor: OutputTensorDesc = None
    BlockSize: Block

    accuracy = EXACT
    same_types: ClassVar = (("InputTensor", "OutputTensor"),)
    same_sizes: ClassVar = ()
    sizes_from: ClassVar = ("InputTensor", "BlockSize")
    by_coordinates: ClassVar = True

    def is_bitwise(self) -> bool:
        return True

    @property
    def order(self) -> DepthSpaceOrder:
        """How a channel is told."""
        return DepthSpaceOrder.DEPTH_COLUMN_ROW


class _ToDepth(_Moved):
    """Blocks of an image as channels."""

    example: ClassVar = {"InputTensor": {"Sizes": [1, 1, 2, 4]}}
    notes = (SIZES,)

    def implied_sizes(self, name: str) -> list[int]:
        batch, depth, height, width = self.InputTensor.Sizes
        return [batch, depth * self.BlockSize**2, height // self.BlockSize, width // self.BlockSize]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        *_, height, width = self.InputTensor.Sizes
        if height % self.BlockSize or width % self.BlockSize:
            yield Violation(
                ("BlockSize",),
                f"BlockSize is {self.BlockSize}; it must divide the height and the width of InputTensor, which are "
                f"{height} and {width}.",
                self.BlockSize,
                f"a divisor of {height} and {width}",
            )

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        n, d, h, w = coordinates(4)
        block, channels = p.BlockSize, x.sizes[1]
        if self.order is DepthSpaceOrder.DEPTH_COLUMN_ROW:
            channel, place = remainder_of_floor(d, channels), quotient(d, channels)
        else:
            channel, place = quotient(d, block * block), remainder_of_floor(d, block * block)
        return x[[n, channel, h * block + quotient(place, block), w * block + remainder_of_floor(place, block)]]


class _ToSpace(_Moved):
    """Channels as blocks of an image."""

    example: ClassVar = {"InputTensor": {"Sizes": [1, 4, 1, 2]}}

    def implied_sizes(self, name: str) -> list[int]:
        batch, depth, height, width = self.InputTensor.Sizes
        return [batch, depth // self.BlockSize**2, height * self.BlockSize, width * self.BlockSize]

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        depth = self.InputTensor.Sizes[1]
        if depth % self.BlockSize**2:
            yield Violation(
                ("BlockSize",),
                f"BlockSize is {self.BlockSize}; its square must divide the channels of InputTensor, which are "
                f"{depth}.",
                self.BlockSize,
                f"a number whose square divides {depth}",
            )

    def formula(self, p: TensorParameters, x: Operand) -> Value:
        n, c, h, w = coordinates(4)
        block, channels = p.BlockSize, p.out("OutputTensor").sizes[1]
        place = remainder_of_floor(h, block) * block + remainder_of_floor(w, block)
        by_depth = self.order is DepthSpaceOrder.DEPTH_COLUMN_ROW
        depth = place * channels + c if by_depth else c * (block * block) + place
        return x[[n, depth, quotient(h, block), quotient(w, block)]]


class SpaceToDepth(_ToDepth):
    """Blocks of an image as channels, by row and column in the block, then by channel."""

    Type: Literal["DML_OPERATOR_SPACE_TO_DEPTH", "SPACE_TO_DEPTH"]

    formula_text = (
        "f(x)[n, (bh * B + bw) * C + c, h, w] = x[n, c, h * B + bh, w * B + bw], B = BlockSize, C input channels, bh "
        "and bw from 0 to B - 1"
    )
    support = OLD_TABLE


class SpaceToDepth1(_ToDepth):
    """Blocks of an image as channels."""

    Type: Literal["DML_OPERATOR_SPACE_TO_DEPTH1", "SPACE_TO_DEPTH1"]
    Order: DepthOrder

    formula_text = (
        "f(x)[n, d, h, w] = x[n, c, h * B + bh, w * B + bw], B = BlockSize, C input channels, bh and bw from 0 to B - "
        "1, d = (bh * B + bw) * C + c for DEPTH_COLUMN_ROW, (c * B + bh) * B + bw for COLUMN_ROW_DEPTH"
    )
    support = TABLE

    @property
    def order(self) -> DepthSpaceOrder:
        return self.Order


class DepthToSpace(_ToSpace):
    """Channels as blocks of an image: the way back from SPACE_TO_DEPTH."""

    Type: Literal["DML_OPERATOR_DEPTH_TO_SPACE", "DEPTH_TO_SPACE"]

    formula_text = (
        "f(x)[n, c, h * B + bh, w * B + bw] = x[n, (bh * B + bw) * C + c, h, w], B = BlockSize, C output channels, bh "
        "and bw from 0 to B - 1"
    )
    support = OLD_TABLE


class DepthToSpace1(_ToSpace):
    """Channels as blocks of an image: the way back from SPACE_TO_DEPTH1."""

    Type: Literal["DML_OPERATOR_DEPTH_TO_SPACE1", "DEPTH_TO_SPACE1"]
    Order: DepthOrder

    formula_text = (
        "f(x)[n, c, h * B + bh, w * B + bw] = x[n, d, h, w], B = BlockSize, C output channels, bh and bw from 0 to B "
        "- 1, d = (bh * B + bw) * C + c for DEPTH_COLUMN_ROW, (c * B + bh) * B + bw for COLUMN_ROW_DEPTH"
    )
    support = TABLE

    @property
    def order(self) -> DepthSpaceOrder:
        return self.Order

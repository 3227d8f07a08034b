"""Windows over the spatial dimensions of convolutions and poolings: steps and paddings as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.models.onnx.mapping import Node
from app.models.onnx.tensors import Sizes, Unsupported


@dataclass(frozen=True, slots=True)
class Windows:
    """Along each spatial dimension."""

    window: list[int]
    strides: list[int]
    dilations: list[int]
    starts: list[int]
    """Padding before the first elements, `ends` behind the last ones."""
    ends: list[int]
    outputs: list[int]

    @property
    def is_dilated(self) -> bool:
        return any(each != 1 for each in self.dilations)

    def with_spatial(self, count: int) -> "Windows":
        """With as many dimensions of one element in front that there are `count`."""
        more = max(count - len(self.window), 0)
        ones, zeros = [1] * more, [0] * more
        return Windows(
            ones + self.window,
            ones + self.strides,
            ones + self.dilations,
            zeros + self.starts,
            zeros + self.ends,
            ones + self.outputs,
        )


def numbers(node: Node, name: str, count: int, default: int) -> list[int]:
    """An attribute with an entry for each of `count` spatial dimensions. Raises Unsupported for another length."""
    given = node.attribute(name)
    if not given:
        return [default] * count
    if len(given) != count:
        raise Unsupported(f"{name} has {len(given)} entries for {count} spatial dimensions")
    return [int(each) for each in given]


def window_steps(node: Node, window: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and how far the window reaches. Raises Unsupported for what lets nothing move."""
    strides = numbers(node, "strides", len(window), 1)
    dilations = numbers(node, "dilations", len(window), 1)
    for name, each in (("kernel_shape", window), ("strides", strides), ("dilations", dilations)):
        if any(number < 1 for number in each):
            raise Unsupported(f"{name} {list(each)} are not all at least 1")
    return strides, dilations, [(k - 1) * dilation + 1 for k, dilation in zip(window, dilations, strict=True)]


def given_pads(node: Node, count: int) -> tuple[list[int], list[int]]:
    """The attribute pads, before and behind. Raises Unsupported for negative ones."""
    pads = numbers(node, "pads", 2 * count, 0)
    if any(pad < 0 for pad in pads):
        raise Unsupported(f"pads {pads} are negative")
    return pads[:count], pads[count:]


def windows_of(node: Node, sizes: Sizes, window: Sequence[int]) -> Windows:
    """Of a forward convolution or a pooling over a tensor of these spatial `sizes`.

    With ceil_mode, paddings behind are as large as the last window needs, which begins in the tensor or before it.
    """
    count = len(sizes)
    strides, dilations, reaches = window_steps(node, window)
    mode = node.attribute("auto_pad", "NOTSET")
    round_up = bool(node.attribute("ceil_mode", 0))
    starts, ends = given_pads(node, count) if mode == "NOTSET" else ([0] * count, [0] * count)
    outputs = []
    for axis, (size, stride, reach) in enumerate(zip(sizes, strides, reaches, strict=True)):
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            output = -(-size // stride)
            total = max((output - 1) * stride + reach - size, 0)
            less, more = total // 2, total - total // 2
            starts[axis], ends[axis] = (less, more) if mode == "SAME_UPPER" else (more, less)
        elif mode not in ("NOTSET", "VALID"):
            raise Unsupported(f"auto_pad is {mode}")
        else:
            room = size + starts[axis] + ends[axis] - reach
            output = (-(-room // stride) if round_up else room // stride) + 1
            if round_up and (output - 1) * stride >= size + starts[axis]:
                output -= 1
            if output < 1:
                raise Unsupported(f"its windows are larger than the tensor, which is {size} long there")
            ends[axis] = max(ends[axis], (output - 1) * stride + reach - size - starts[axis])
        outputs.append(output)
    return Windows(list(window), strides, dilations, starts, ends, outputs)

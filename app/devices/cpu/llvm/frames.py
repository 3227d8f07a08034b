"""What frames of loops over formulas begin and end with: numbers of 8 bytes each."""

import struct
from array import array
from collections.abc import Sequence

from app.formula.uniform import Numbers, evaluator
from app.formula.values import Value

_FORMS = {
    "bool": "?7x",
    "float32": "f4x",
    "float64": "d",
    **{
        name: f"{letter}{8 - size}x"
        for name, letter, size in (
            ("int8", "b", 1),
            ("int16", "h", 2),
            ("int32", "i", 4),
            ("int64", "q", 8),
            ("uint8", "B", 1),
            ("uint16", "H", 2),
            ("uint32", "I", 4),
            ("uint64", "Q", 8),
        )
    },
}
"""How `struct` packs a number into the lowest bytes of 8, by NumPy's name of its type."""


class Arguments:
    """The end of a frame: `parameters` by the numbers of a request, each in the lowest bytes of 8."""

    def __init__(self, parameters: Sequence[Value]) -> None:
        self._parameters = [evaluator(each) for each in parameters]
        self._form = struct.Struct("<" + "".join(_FORMS[each.type] for each in parameters))

    def of(self, numbers: Numbers) -> "array[int]":
        return array("q", self._form.pack(*[evaluate(numbers) for evaluate in self._parameters]))


def start_of_frame(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple["array[int]", list[int]]:
    """What a frame begins with for arrays of these strides in bytes, the output's last, and where in it the arrays'
    addresses go."""
    dimensions = len(sizes)
    numbers = [*sizes]
    for each in strides:
        numbers += [0, *each]
    return array("q", numbers), [*range(dimensions, len(numbers), dimensions + 1)]

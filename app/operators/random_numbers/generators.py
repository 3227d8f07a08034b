"""Operators that generate random numbers.

Source: the DML_RANDOM_GENERATOR_OPERATOR_DESC page of DirectML's reference, and J. K. Salmon and others, "Parallel
random numbers: as easy as 1, 2, 3" (SC11), which has Philox.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.contract import constants
from app.contract.constants import DataType, FeatureLevel
from app.contract.support import SupportTable
from app.contract.violations import Violation
from app.formula.coordinates import Operand, coordinates
from app.formula.values import INT64, Constant, Value, cast, equal, where
from app.operators.accuracy import EXACT
from app.operators.operator import InputTensorDesc, Operator, OptionalOutputTensorDesc, StatedOutputTensorDesc
from app.operators.parameters import TensorParameters

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
"""What is added to the words of the key after each round."""
STATE = 6
"""Words of a state: four of the counter, the least significant first, and two of the key."""


class RandomGenerator(Operator):
    """Random bits, uniformly distributed, that follow from a state. Not for cryptography."""

    Type: Literal["DML_OPERATOR_RANDOM_GENERATOR", "RANDOM_GENERATOR"]
    InputStateTensor: InputTensorDesc
    OutputTensor: StatedOutputTensorDesc
    OutputStateTensor: OptionalOutputTensorDesc = None
    GeneratorType: Annotated[
        constants.RandomGeneratorType,
        Field(description="The generator. DirectML calls this field Type.", examples=["PHILOX_4X32_10"]),
    ]

    formula_text = (
        "output = consecutive 32-bit words of Philox 4x32-10 for the counters N, N+1, ... and key K of "
        "InputStateTensor, 4 words a counter value; OutputStateTensor = counter + ceil(elements / 4), same key"
    )
    accuracy = EXACT
    support = SupportTable.of("4_0 1-8 U32", "3_0 4 U32")
    same_types = ()
    same_sizes = (("InputStateTensor", "OutputStateTensor"),)
    by_coordinates = True
    example: ClassVar[Mapping[str, Any]] = {
        "InputStateTensor": {"Sizes": [1, 1, 1, STATE]},
        "OutputTensor": {},
        "OutputStateTensor": {"Sizes": [1, 1, 1, STATE]},
    }
    example_data: ClassVar[Mapping[str, Sequence[float]]] = {"InputStateTensor": (0, 0, 0, 0, 2023, 0)}
    notes = (
        "Element 0 of the state is the least significant word of the counter, and the words of a counter value come in "
        "the order that the authors of Philox give them; DirectML's documentation does not say.",
        "OutputStateTensor counts on, as the formula has it; in the example of DirectML's page it counts back.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        sizes = self.InputStateTensor.Sizes
        allowed = [*[1] * (len(sizes) - 1), STATE]
        if sizes != allowed:
            yield Violation(
                ("InputStateTensor", "Sizes"),
                f"InputStateTensor has Sizes {sizes}; it must be {allowed}, four words of a counter and two of a key.",
                sizes,
                allowed,
            )

    def implied_sizes(self, name: str) -> list[int] | None:
        return self.InputStateTensor.Sizes if name == "OutputStateTensor" else None

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return DataType.UINT32

    def formula(self, p: TensorParameters, state: Operand) -> dict[str, Value]:
        leading = [0] * (state.rank - 1)
        *counter, first, second = (state[[*leading, word]] for word in range(STATE))
        sizes = p.out("OutputTensor").sizes
        place = _row_major(coordinates(len(sizes)), sizes)
        words = _philox(_advanced(counter, place >> 2), (first, second))
        elements: Value = Constant(INT64, 1)
        for size in sizes:
            elements = elements * size
        made = {"OutputTensor": _chosen(place & 3, words)}
        if p.has("OutputStateTensor"):
            word = coordinates(state.rank)[-1]
            made["OutputStateTensor"] = _chosen(word, [*_advanced(counter, (elements + 3) >> 2), first, second])
        return made


def _row_major(at: Sequence[Value], sizes: Sequence[Value]) -> Value:
    place: Value = Constant(INT64, 0)
    for along, size in zip(at, sizes, strict=True):
        place = place * size + along
    return place


def _chosen(which: Value, words: Sequence[Value]) -> Value:
    made = words[-1]
    for place in range(len(words) - 2, -1, -1):
        made = where(equal(which, place), words[place], made)
    return made


def _advanced(counter: Sequence[Value], count: Value) -> list[Value]:
    """A counter of four words, the least significant first, and `count` more."""
    low, high = (
        cast(one, "uint64") | (cast(other, "uint64") << 32)
        for one, other in ((counter[0], counter[1]), (counter[2], counter[3]))
    )
    more = low + cast(count, "uint64")
    high = high + cast(more < low, "uint64")
    return [cast(part, "uint32") for whole in (more, high) for part in (whole, whole >> 32)]


def _philox(counter: Sequence[Value], key: tuple[Value, Value]) -> list[Value]:
    """The four words of Philox 4x32-10 for a counter of four and a key of two."""
    words = list(counter)
    for turn in range(ROUNDS):
        products = [
            cast(word, "uint64") * factor for word, factor in zip((words[0], words[2]), MULTIPLIERS, strict=True)
        ]
        (high0, low0), (high1, low1) = ((cast(each >> 32, "uint32"), cast(each, "uint32")) for each in products)
        bumped = [word + (turn * step & 0xFFFFFFFF) for word, step in zip(key, WEYL, strict=True)]
        words = [high1 ^ words[1] ^ bumped[0], low1, high0 ^ words[3] ^ bumped[1], low0]
    return words

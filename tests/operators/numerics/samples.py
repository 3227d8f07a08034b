"""How far results are from exact ones, in the units that `Accuracy` states bounds in.

Operators that are no float arithmetic have no samples: their tests compare bit for bit. References of others, in
`sampled_sums.py` and `sampled_products.py`, are written from the documented formulas, in float64 or long double.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from app.memory.arrays import Array
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.operators import calls


@dataclass(frozen=True)
class Exact:
    """An output's exact values, what their bound is of, and how many terms the longest sum in it has."""

    values: Array
    of: Array | None = None
    terms: int = 1


@dataclass(frozen=True)
class Sample:
    """What is asked, and by output what is right."""

    members: Mapping[str, Any]
    inputs: Mapping[str, calls.Given]
    exact: Mapping[str, Exact]


class Draw:
    """Random tensors of a type, and their exact values."""

    def __init__(self, rng: np.random.Generator, dtype: str, size: int) -> None:
        """Sums have about `size` terms."""
        self.rng, self.dtype, self.size = rng, dtype, size

    def __call__(self, *sizes: int, positive: bool = False, scale: float = 1.0) -> Array:
        made = self.rng.standard_normal(sizes) * scale
        return (np.abs(made) if positive else made).astype(self.dtype)


Make: TypeAlias = Callable[[Draw], Iterator[Sample]]
SAMPLES: dict[str, Make] = {}
"""By the operator's short name."""


def of(*kinds: str) -> Callable[[Callable[[Draw, str], Iterator[Sample]]], None]:
    def add(made: Callable[[Draw, str], Iterator[Sample]]) -> None:
        SAMPLES.update({kind: lambda draw, kind=kind: made(draw, kind) for kind in kinds})  # type: ignore[misc]

    return add


def wide(*arrays: Array) -> list[Array]:
    return [each.astype(np.longdouble) for each in arrays]


def single(value: float) -> Any:
    """An attribute, which is a float32."""
    return np.longdouble(np.float32(value))


def magnitude(*terms: Array) -> Array:
    made: Array = np.sum([np.abs(each) for each in np.broadcast_arrays(*terms)], axis=0)
    return made


def off_by(made: Array, exact: Exact) -> float:
    """The largest error in units in the last place of float32; of float16 what is beyond its own rounding."""
    with np.errstate(all="ignore"):
        off = np.abs(made.astype(np.longdouble) - exact.values)
        if made.dtype == np.float16:
            off = np.maximum(off - 0.501 * np.spacing(np.abs(made)).astype(np.longdouble), 0)
        off = np.where(np.isinf(made) & (made == exact.values.astype(made.dtype)), 0, off)
        of = np.abs(exact.values if exact.of is None else exact.of)
        units = off / (np.maximum(of, np.finfo(np.float32).tiny) * 2.0**-23)
    return float(units.max()) if np.isfinite(units).all() else float("inf")


@dataclass(frozen=True)
class Measured:
    """The largest error of an operator, and the bound of where it came next to it, or beyond."""

    units: float
    bound: float
    terms: int

    @property
    def part(self) -> float:
        """How much of the bound that is."""
        return self.units / self.bound


def measured(kind: str, dtype: str, size: int, seed: int = 1) -> Measured:
    """Of all samples of the operator, where `calls.run` computes."""
    accuracy = OPERATORS[PREFIX + kind].accuracy
    found = []
    for sample in SAMPLES[kind](Draw(np.random.default_rng(seed), dtype, size)):
        made = calls.run({"Type": kind, **sample.members}, sample.inputs)
        for name, exact in sample.exact.items():
            units = off_by(made[name].reshape(exact.values.shape), exact)
            found.append(Measured(units, accuracy.bound(exact.terms), exact.terms))
    return max(found, key=lambda each: each.part)

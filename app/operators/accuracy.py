"""How exact results are, stated by each operator: what users are told, and what tests hold measurements to."""

from dataclasses import dataclass

FLOAT16 = "FLOAT16 is computed in FLOAT32 and rounded once more."


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Results in FLOAT32 are off by at most `units` + `each` n units in the last place of what they are said to be
    `of`, on every device; for a magnitude m that is 2^-23 m each. n is what `terms` says."""

    units: float
    of: str = "the result"
    each: float = 0
    terms: str = "the terms of a sum"

    def bound(self, terms: int) -> float:
        """Units in the last place, of a result with so many terms."""
        return self.units + self.each * terms

    def __str__(self) -> str:
        """A note to users."""
        grown = f" + {self.each:g} n" if self.each else ""
        counted = f", n being {self.terms}" if self.each else ""
        return f"Accuracy: within {self.units:g}{grown} ULP of {self.of}{counted}. {FLOAT16}"


class _Exact(Accuracy):
    def __str__(self) -> str:
        return "Accuracy: the exact result, rounded once where its type does not hold it."


class _Nearest(Accuracy):
    def __str__(self) -> str:
        return (
            "Accuracy: the integer nearest to the exact value. Sums are exact; a quotient is rounded to FLOAT64 "
            "before, so one within 2^-52 of a half may go either way."
        )


class _NearestToQuotient(Accuracy):
    def __str__(self) -> str:
        return "Accuracy: the integer nearest to the quotient as FLOAT32 has it, or FLOAT64 of an INT32."


EXACT = _Exact(0)
"""Elements of the inputs, integers, and what is rounded correctly."""

NEAREST = _Nearest(0)
"""Integers that quantization makes of sums."""

NEAREST_TO_QUOTIENT = _NearestToQuotient(0)
"""The same of elements."""

LINEAR = Accuracy(2, "the largest term")
"""A few additions and multiplications."""

FUNCTION = Accuracy(4)
"""Exponentials, logarithms, trigonometric functions and what is made of them."""

ONCE = Accuracy(1)
"""Computed with more digits than FLOAT32 has, and rounded once."""

SUM = Accuracy(1, "the sum of the magnitudes of its terms")
"""The same of sums, whose terms may cancel."""

PRODUCTS = Accuracy(2, "the sum of the magnitudes of its terms", 0.5)
"""Sums of products in FLOAT32, in whatever order. A fused activation is within 4 ULP more, of its result."""

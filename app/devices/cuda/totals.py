"""What is known of a formula's totals before it is written: how many terms they have, and how these lie."""

import math
from collections.abc import Sequence

from app.devices.cuda.layouts import ACCESS_BYTES
from app.devices.cuda.vectors import going_along
from app.formula.coordinates import Coordinate, Element, Total
from app.formula.uniform import Numbers, evaluator
from app.formula.values import Number, Value, parts

LONG, MOST = 1 << 8, 1 << 31
"""Totals of so many combinations are worth a block's threads. These count them with 32 bits, and a step beyond the last
one, too: at 2^32 it would lead back to the first, and the loop would never end."""


def is_long(least: int, *counts: Number) -> bool:
    """Whether a total of so many combinations, `least` and more, is worth several threads."""
    return least <= math.prod(max(int(each), 0) for each in counts) < MOST


def elements_of(total: Total) -> list[Element]:
    """Those that its terms are made of, but for tensors of no dimensions."""
    return [node for node in parts(total.argument) if isinstance(node, Element) and node.at]


def is_along_rows(total: Total) -> bool:
    """Whether terms that follow each other lie together."""
    return any(total.indices[-1] in parts(each.at[-1]) for each in elements_of(total))


def is_row(total: Total, axis: int) -> bool:
    """Whether its terms are a row of the input, of which the output's neighbours along `axis` have others: they share
    nothing that threads which have one each would load together, as those of a product of matrices do."""
    own, waiting = set[Value](), [total.argument]
    while waiting:
        node = waiting.pop()
        if node not in own and not isinstance(node, Total):  # which is known before
            own.add(node)
            waiting += node.operands()
    last = [each.at[-1] for each in own if isinstance(each, Element) and each.at]
    changes = any(isinstance(each, Coordinate) and each.axis == axis for each in own)
    return bool(last) and all(total.indices[-1] in parts(each) for each in last) and not changes


def terms_of(total: Total, numbers: Numbers) -> int:
    return math.prod(max(int(evaluator(each)(numbers)), 0) for each in total.counts)


def width_of_terms(root: Value, totals: Sequence[Total], numbers: Numbers) -> int:
    """How many neighbouring terms make one load, and do not go beyond a row of terms."""
    width = ACCESS_BYTES
    for total in totals:
        along = going_along(root, total.indices[-1], numbers)
        found = [node.stored.bytes for node in elements_of(total) if along.first(node, lambda _: "")]
        width = min(width, ACCESS_BYTES // max(found)) if found else 1
        while int(evaluator(total.counts[-1])(numbers)) % width:
            width //= 2
    return width


def width_across(root: Value, totals: Sequence[Total], numbers: Numbers, axis: int) -> int:
    """How many neighbours along rows of the output make one load of what is added up; 0 if terms lie together."""
    along = going_along(root, axis, numbers)
    if any(map(is_along_rows, totals)):
        return 0
    elements = [node for total in totals for node in elements_of(total)]
    found = [node.stored.bytes for node in elements if along.first(node, lambda _: "")]
    return ACCESS_BYTES // max(found) if found else 0

"""What a formula says that goes by coordinates before there are numbers and sizes, so that it is found once for all
requests."""

from functools import cached_property

from app.formula.coordinates import Index, Total
from app.formula.uniform import uniform_among
from app.formula.values import Value, parts


class Outline:
    """Of the formula `root`."""

    def __init__(self, root: Value) -> None:
        self.root = root
        self.parts = tuple(parts(root))
        """In their order."""
        self.uniform = uniform_among(self.parts)
        """Those that are the same for all elements."""
        self.totals = [node for node in self.parts if isinstance(node, Total)]
        self.counts: dict[Index, Value] = {}
        """How far each index goes."""
        for total in self.totals:
            self.counts |= zip(total.indices, total.counts, strict=True)

    @cached_property
    def nested(self) -> list[frozenset[Total]]:
        """Each total with those whose terms it is computed again for.

        What the indices of a total do not change is computed once, before it: only what they do change is computed
        again for each of its terms.
        """
        free: dict[Value, frozenset[Index]] = {}
        for node in self.parts:
            indices = frozenset[Index]().union(*[free[each] for each in node.operands()])
            if isinstance(node, Total):
                indices -= set(node.indices)
            free[node] = frozenset([node]) if isinstance(node, Index) else indices
        loops: dict[Index, set[Total]] = {}
        """The totals inside of which an index is known."""
        found = []
        for total in reversed(self.totals):  # what is around a total comes before it
            around = {total}.union(*[loops.get(each, ()) for each in free[total]])
            found.append(frozenset(around))
            for index in total.indices:
                loops.setdefault(index, set()).update(around)
        return found

    @cached_property
    def outer_totals(self) -> list[Total]:
        """Those that no other total's indices change, each after those that it needs; their counts are the same for all
        elements."""
        inner: dict[Value, frozenset[Value]] = {}
        found = []
        for node in self.parts:
            free = frozenset[Value]().union(*[inner[each] for each in node.operands()])
            if isinstance(node, Total):
                free -= set(node.indices)
                if not free and self.uniform.issuperset(node.counts):
                    found.append(node)
            elif isinstance(node, Index):
                free = frozenset([node])
            inner[node] = free
        return found

"""What the C++ of one formula is written into: declarations, the kernel's arguments, the functions that it needs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from app.devices.cuda.c_types import C_TYPES
from app.formula.expansions import Ask
from app.formula.uniform import Uniformity
from app.formula.values import BOOL, Constant, Value


class Writing(ABC):
    """All that operations need to write themselves; as exact as they say, or as the stored type needs."""

    looks_again = True
    """Whether what is written is a template over NEAR, that elements are computed with a second time if it was too far.
    If not, functions look themselves."""

    of_terms = False
    """Whether results are as exact as the terms that they are made of, which may cancel, and these are sums."""

    def __init__(self, ask: Ask, *, smooth: bool, half: bool) -> None:
        """`smooth` and `half` say what the stored type permits: see `app/formula/precision.py`."""
        self.ask = ask
        self.smooth = smooth
        self.half = half
        self._lines: list[str] = []
        self._arguments: dict[Value, tuple[str, Value]] = {}
        self._functions: set[str] = set()
        self.multiplied: frozenset[Value] = frozenset()
        """Differences of float64 that nothing but products is made of, if results are `of_terms`."""
        self.of_host: dict[Value, str] = {}
        """What is given for float64 values that are the same for all elements."""
        self._is_uniform = Uniformity()

    @abstractmethod
    def write(self, node: Value) -> str:
        """The C++ expression of `node`: a name or a literal, so that it may stand several times."""

    def function(self, name: str) -> str:
        """`name`, which the source then defines."""
        self._functions.add(name)
        return name

    def argument(self, key: Value, value: Value) -> str:
        """The name of the kernel's argument for `key`."""
        return self._arguments.setdefault(key, (f"p{len(self._arguments)}", value))[0]

    def is_one(self, node: Value) -> bool:
        """Whether `node` is 1 for all elements."""
        if isinstance(node, Constant):
            return node.type != BOOL and node.value == 1
        return self.is_uniform(node) and node.type != BOOL and bool(self.ask(lambda number: number == 1, node))

    def is_uniform(self, node: Value) -> bool:
        """Whether `node` is the same for all elements."""
        return self._is_uniform(node)

    def call(self, name: str, arguments: Sequence[str], template: Sequence[str] = (), *, far: bool = True) -> str:
        """A call of a function that may have led too `far`."""
        if far and self.looks_again:
            template, arguments = ["NEAR", *template], [*arguments, "far"]
        types = f"<{', '.join(template)}>" if template else ""
        return f"{self.function(name)}{types}({', '.join(arguments)})"

    def declare(self, kind: str, expression: str) -> str:
        """The name of a variable with this value."""
        return self.declare_as(C_TYPES[kind], expression)

    def declare_as(self, c_type: str, expression: str) -> str:
        """The same of a type of C++'s."""
        name = f"v{len(self._lines)}"
        self._lines.append(f"{c_type} {name} = {expression};")
        return name

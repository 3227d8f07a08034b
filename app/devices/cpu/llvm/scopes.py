"""LLVM's assembly, written from the inside of loops outwards: a value goes to the outermost loop that has all it needs.

A `Scope` is a place where coordinates and indices have values: the function's beginning, or the inside of a loop. What
is written in a loop may still add to the scopes around it, since their lines come before it when it is closed.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from app.devices.cpu.llvm.lowering import Lowering
from app.formula.coordinates import Coordinate, Index, Total
from app.formula.expansions import Ask
from app.formula.values import Constant, Value

Key = Hashable
"""What has a value in a scope: an axis of the output, or an `Index`."""

Start = tuple[str, str]
"""The type and the value of what is accumulated."""


@dataclass(slots=True)
class Scope:
    """`bound` are the names of the values of keys here; `block` is the label of the one that lines go to."""

    outer: "Scope | None"
    block: str
    bound: Mapping[Key, str]
    lines: list[str] = field(default_factory=list)
    values: dict[Value, str] = field(default_factory=dict)


class Writer(Lowering):
    """Writes instructions to the scope that they belong to."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(ask, False, False, keeps=False)
        self.entry = self.scope = Scope(None, "entry", {})
        self._numbers = count()
        self._free: dict[Value, frozenset[Key]] = {}

    def free(self, node: Value) -> frozenset[Key]:
        """The coordinates and indices that `node` depends on."""
        if node not in self._free:
            match node:
                case Coordinate():
                    made = frozenset[Key]([node.axis])
                case Index():
                    made = frozenset[Key]([node])
                case _:
                    made = frozenset[Key]().union(*map(self.free, node.operands()))
            if isinstance(node, Total):
                made -= set(node.indices)
            self._free[node] = made
        return self._free[node]

    @contextmanager
    def within(self, scope: Scope) -> Iterator[None]:
        """What is written goes to `scope`."""
        before, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = before

    def write(self, node: Value) -> str:
        if isinstance(node, Constant):
            return super().write(node)
        home, free = self.scope, self.free(node)
        while home.outer and free.isdisjoint(home.bound):
            home = home.outer
        if node not in home.values:
            with self.within(home):
                home.values[node] = self._write(node)
        return home.values[node]

    def emit(self, expression: str) -> str:
        name = self.name("v")
        self.scope.lines.append(f"{name} = {expression}")
        return name

    def name(self, letter: str) -> str:
        """One that there is not yet."""
        return f"%{letter}{next(self._numbers)}"

    def intrinsic(self, name: str, type_: str, *arguments: str) -> str:
        """The name of what a function of LLVM's own gives."""
        return self.emit(self.call(name, type_, *arguments))

    def store(self, type_: str, value: str, address: str, note: str = "") -> None:
        self.scope.lines.append(f"store {type_} {value}, ptr {address}, align 1{note}")

    def go(self, target: str) -> None:
        """To the block of that label, which is written next."""
        self.scope.lines.append(f"br label %{target}")
        self.begin(target)

    def begin(self, label: str) -> None:
        """The block of that label, to which something goes already."""
        self.scope.lines.append(f"{label}:")
        self.scope.block = label

    def loop(
        self,
        begin: str,
        end: str,
        keys: Callable[[str], Mapping[Key, str]],
        body: Callable[[str, Sequence[str]], Sequence[str]],
        starts: Sequence[Start] = (),
        step: str = "1",
    ) -> Sequence[str]:
        """A loop from `begin` to below `end`, perhaps of no iteration, in a scope where `keys` of the index are bound.

        `body` writes what is in it, given the index and what is accumulated before, and gives what is then.
        """
        index, head, inside, done = self.name("i"), self.name("l"), self.name("l"), self.name("l")
        names = [self.name("a") for _ in starts]
        scope = Scope(self.scope, inside[1:], keys(index))
        with self.within(scope):
            results = body(index, names)
            following = self.emit(f"add nsw i64 {index}, {step}")
        outer = self.scope
        first = outer.block
        self.go(head[1:])
        self.emit_as(index, f"phi i64 [{begin}, %{first}], [{following}, %{scope.block}]")
        for name, (type_, start), result in zip(names, starts, results, strict=True):
            self.emit_as(name, f"phi {type_} [{start}, %{first}], [{result}, %{scope.block}]")
        more = self.emit(f"icmp slt i64 {index}, {end}")
        outer.lines += [f"br i1 {more}, label {inside}, label {done}", f"{inside[1:]}:", *scope.lines]
        outer.lines.append(f"br label {head}")
        self.begin(done[1:])
        return names

    def emit_as(self, name: str, expression: str) -> None:
        """An instruction whose result has a name already."""
        self.scope.lines.append(f"{name} = {expression}")

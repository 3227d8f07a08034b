"""Loops in which threads take turns at the terms of a total, some neighbours of each thread at a time.

What several turns load is loaded before the first of it is added up: left to itself, the compiler has most loads wait
for what is done with those before them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.devices.cuda.folds import Fold

TOGETHER = (4, 2, 1)
"""Turns whose loads are made at once, as long as there are as many left for all threads."""

BLOCKS = 8
"""That are to fit on a multiprocessor. For more, which is what the compiler is after if nothing is said, it has too few
registers, and makes loads one after the other."""

BLOCKS_ACROSS = 6
"""The same where each thread has totals of several neighbours, which take registers from the loads."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Of the total called `name`: what a thread has `kept`, one for each of its `width` neighbours or for all, and what
    it does: `places` are the lines that find out which terms it has in the turn number `u`, from the term `j` on,
    `loads` the names and types of what it loads with a line for each, and `each` what it does with neighbour `k`."""

    name: str
    fold: Fold
    width: int
    kept: int
    places: Sequence[str]
    loads: Sequence[tuple[str, str, str]]
    each: Sequence[str]
    held: Sequence[str] = ()
    """What is declared for several turns."""

    def loop(self, first: str, begin: str, step: str, end: str) -> list[str]:
        """The accumulators, and the loop from term `first` to before `end`, of which a thread has those from `begin`
        further on, and after each `step`."""
        start = self.fold.start
        start = f"{self.fold.kind}{start}" if start[0] == "{" else start
        turn, base = f"turn_{self.name}", f"base_{self.name}"
        place = [f"const unsigned j = {base} + {begin} + u * ({step});", "unsigned rest = j;", *self.places]
        lines = [
            f"{self.fold.kind} {self.name}[{self.kept}];",
            *_of_each(self.kept, [f"{self.name}[k] = {start};"]),
            f"unsigned {base} = {first};",
            f"const auto {turn} = [&](auto together)",
            braced(
                [
                    "constexpr int turns = decltype(together)::value;",
                    *self.held,
                    *(f"{kind} {name}[turns] = {{}};" for name, kind, _ in self.loads),
                    *(_turns([*place, *(line for _, _, line in self.loads)]) if self.loads else []),
                    *_turns([*place, *_of_each(self.width, self.each)]),
                    *(_of_each(self.kept, [self.fold.settle]) if self.fold.settle else []),
                ]
            )
            + ";",
        ]
        for times in TOGETHER if self.loads else TOGETHER[-1:]:
            more = f"{end} - {base} >= {times}u * ({step})" if times > 1 else f"{begin} < {end} - {base}"
            lines += [
                "#pragma unroll 1",
                f"for (; {base} < {end} && {more}; {base} += {times}u * ({step})) {turn}(times_of<{times}>());",
            ]
        return lines

    def joined(self, result: str) -> list[str]:
        """What a group's threads have, joined, as `result`."""
        fold, join = self.fold, f"joined_{self.name}"
        packed, mine = fold.packed, f"mine_{self.name}"
        lines = [
            f"auto {join} = [&]({packed} a, {packed} b) {{ return {fold.joined}; }};",
            f"auto packed_{self.name} = [&](int k) {{ return {fold.pack}; }};",
            f"{packed} {mine} = packed_{self.name}(0);",
        ]
        if self.kept > 1:
            again = f"{mine} = {join}({mine}, packed_{self.name}(k));"
            lines += ["#pragma unroll", f"for (int k = 1; k < {self.kept}; ++k) {again}"]
        return [*lines, f"const {packed} {result} = reduced<TEAM>({mine}, {join});"]


def _of_each(width: int, lines: Sequence[str]) -> list[str]:
    return ["#pragma unroll", f"for (int k = 0; k < {width}; ++k)", braced(lines)]


def _turns(lines: Sequence[str]) -> list[str]:
    return ["#pragma unroll", "for (int u = 0; u < turns; ++u)", braced(lines)]


def braced(lines: Sequence[str]) -> str:
    inner = "\n".join(lines).replace("\n", "\n    ")
    return f"{{\n    {inner}\n}}"

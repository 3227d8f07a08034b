"""Windows that lie one after the other along rows, of which a thread loads several at once."""

from app.contract.tensors import TensorDesc
from app.devices.cuda.layouts import ACCESS_BYTES
from app.devices.cuda.totals import elements_of
from app.formula.coordinates import Coordinate, Element, Index, Total
from app.formula.uniform import Numbers, evaluator, uniform_parts
from app.formula.values import Operation, Value, parts


def window_step(root: Value, numbers: Numbers, made: TensorDesc, window: tuple[int, ...]) -> tuple[int, int]:
    """How far windows are apart along a row, and of how many a thread has the elements by one load for each row of
    theirs; 0 and 1 if none are. `window` are the sizes of those of the formula's only total."""
    nothing, uniform = (0, 1), uniform_parts(root)
    (total,) = [node for node in parts(root) if isinstance(node, Total)]
    elements = elements_of(total)
    is_alone = len(elements) == sum(isinstance(node, Element) for node in parts(root))
    if not elements or not is_alone or not uniform.issuperset(total.counts):
        return nothing
    along: tuple[int, Index] = made.rank - 1, total.indices[-1]
    steps = set()
    for node in elements:
        *outer, last = (_linear(each, uniform, numbers) for each in node.at)
        if last is None or any(each is None or not {*along}.isdisjoint(each) for each in outer):
            return nothing
        step, ends = last.pop(along[0], 0), {None: 0, along[1]: 1}
        if {None: 0} | last != ends:
            return nothing
        steps.add(step)
    step, width = steps.pop(), ACCESS_BYTES // max(node.stored.bytes for node in elements)
    if steps or step not in (2, 4, 8) or step >= width or window[-1] > step or made.Sizes[-1] % (width // step):
        return nothing
    return step, width // step


def _linear(node: Value, uniform: set[Value], numbers: Numbers) -> dict[int | Index | None, int] | None:
    """How often each coordinate, by its dimension, and each index is in a sum, and what is added to them."""
    if node in uniform:
        return {None: int(evaluator(node)(numbers))}
    match node:
        case Coordinate():
            return {node.axis: 1}
        case Index():
            return {node: 1}
        case Operation(name="add" | "subtract" | "multiply", arguments=arguments):
            a, b = (_linear(each, uniform, numbers) for each in arguments)
            if a is None or b is None:
                return None
            if node.name != "multiply":
                sign = 1 if node.name == "add" else -1
                return {each: a.get(each, 0) + sign * b.get(each, 0) for each in {*a, *b}}
            a, factor = (a, b) if {*b} == {None} else (b, a)
            return {each: times * factor[None] for each, times in a.items()} if {*factor} == {None} else None
    return None

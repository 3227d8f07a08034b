"""Einsum: products of two operands at a time, by GEMM where labels are summed, and sums over what nobody needs."""

from dataclasses import replace
from math import prod
from typing import NamedTuple

from app.models.onnx.mapping import Node, maps
from app.models.onnx.shapes import inserted, removed
from app.models.onnx.tensors import Sizes, Unsupported, View

_FLOATS = ("FLOAT32", "FLOAT16")


class _Operand(NamedTuple):
    """A tensor with a label for each dimension, each once. Dimensions of an ellipsis have numbers as labels."""

    view: View
    labels: list[str]

    def ordered(self, labels: list[str]) -> View:
        """With these dimensions, which are its own in another order."""
        return self.view.transposed([self.labels.index(label) for label in labels])

    def spread(self, labels: list[str], sizes: Sizes) -> View:
        """With these dimensions, some of which it repeats."""
        view = self.ordered([label for label in labels if label in self.labels])
        for axis, label in enumerate(labels):
            if label not in self.labels:
                view = inserted(view, axis)
        return view.broadcast(sizes)


@maps("Einsum")
def einsum(node: Node) -> View:
    views = [node.view(index) for index in range(len(node.inputs))]
    terms, output = _parsed(node.attribute("equation"), views)
    operands = [_diagonal(view, labels) for view, labels in zip(views, terms, strict=True)]
    sizes = _sizes_of(operands)
    operands = [_without_repeated(each, sizes) for each in operands]
    made = operands[0]
    for place, operand in enumerate(operands[1:], 2):
        later = {*output, *(label for each in operands[place:] for label in each.labels)}
        made = _product(node, made, operand, later, sizes)
    made = _summed(node, made, set(output))
    if set(made.labels) != set(output):
        raise Unsupported(f"its equation {node.attribute('equation')} makes labels that no operand has")
    return made.ordered(output)


def _parsed(equation: str, views: list[View]) -> tuple[list[list[str]], list[str]]:
    """Labels of each operand and of the output."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(views):
        raise Unsupported(f"its equation {equation} has {len(terms)} operands, not {len(views)}")
    extra = [len(view.sizes) - len(term.replace("...", "")) for term, view in zip(terms, views, strict=True)]
    most = max([count for term, count in zip(terms, extra, strict=True) if "..." in term], default=0)
    dots = [str(place) for place in range(most)]
    made = []
    for term, count in zip(terms, extra, strict=True):
        before, dotted, behind = term.partition("...")
        if count < 0 or (count and not dotted) or (not (before + behind).isalpha() and before + behind):
            raise Unsupported(f"its equation {equation} does not fit its operands")
        made.append([*before, *(dots[most - count :] if dotted else []), *behind])
    if arrow:
        before, dotted, behind = right.partition("...")
        output = [*before, *(dots if dotted else []), *behind]
    else:
        letters = left.replace(",", "").replace("...", "")
        output = [*dots, *sorted(letter for letter in set(letters) if letters.count(letter) == 1)]
    if len(set(output)) != len(output):
        raise Unsupported(f"its equation {equation} has a label twice in the output")
    return made, output


def _diagonal(view: View, labels: list[str]) -> _Operand:
    """A label that is there twice goes along the diagonal of both dimensions, where strides add up."""
    sizes: dict[str, int] = {}
    strides: dict[str, int] = {}
    for label, size, stride in zip(labels, view.sizes, view.strides, strict=True):
        if sizes.setdefault(label, size) != size:
            raise Unsupported(f"dimensions of {sizes[label]} and {size} elements have the label {label}")
        strides[label] = strides.get(label, 0) + stride
    return _Operand(replace(view, sizes=tuple(sizes.values()), strides=tuple(strides.values())), list(sizes))


def _sizes_of(operands: list[_Operand]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for view, labels in operands:
        for label, size in zip(labels, view.sizes, strict=True):
            known = sizes.get(label, 1)
            if 1 not in (known, size) and known != size:
                raise Unsupported(f"dimensions of {known} and {size} elements have the label {label}")
            sizes[label] = max(known, size)
    return sizes


def _without_repeated(operand: _Operand, sizes: dict[str, int]) -> _Operand:
    """Without dimensions of one element that others have more of: it is the same for all of theirs."""
    view, labels = operand.view, list(operand.labels)
    for axis in range(len(labels) - 1, -1, -1):
        if view.sizes[axis] != sizes[labels[axis]]:
            view = removed(view, axis)
            del labels[axis]
    return _Operand(view, labels)


def _product(node: Node, one: _Operand, other: _Operand, later: set[str], sizes: dict[str, int]) -> _Operand:
    one = _summed(node, one, later | set(other.labels))
    other = _summed(node, other, later | set(one.labels))
    both = [label for label in one.labels if label in other.labels]
    batches, inner = [label for label in both if label in later], [label for label in both if label not in later]
    rows = [label for label in one.labels if label not in both]
    columns = [label for label in other.labels if label not in both]

    def lengths(labels: list[str]) -> Sizes:
        return tuple(sizes[label] for label in labels)

    data_type = one.view.data_type
    if inner and data_type in _FLOATS:
        batch, m, k, n = (prod(lengths(each)) for each in (batches, rows, inner, columns))
        made = node.build.operator(
            "GEMM",
            {
                "ATensor": node.reshaped(one.ordered([*batches, *rows, *inner]), (batch, m, k)),
                "BTensor": node.reshaped(other.ordered([*batches, *inner, *columns]), (batch, k, n)),
                "CTensor": None,
            },
            {"TransA": "NONE", "TransB": "NONE", "Alpha": 1.0, "Beta": 0.0},
            {"OutputTensor": (data_type, (batch, m, n))},
        )
        labels = [*batches, *rows, *columns]
        return _Operand(node.reshaped(made["OutputTensor"], lengths(labels)), labels)
    labels = [*batches, *rows, *columns, *inner]
    factors = {"ATensor": one.spread(labels, lengths(labels)), "BTensor": other.spread(labels, lengths(labels))}
    outputs = {"OutputTensor": (data_type, lengths(labels))}
    made = node.build.operator("ELEMENT_WISE_MULTIPLY", factors, {}, outputs)
    return _summed(node, _Operand(made["OutputTensor"], labels), later)


def _summed(node: Node, operand: _Operand, needed: set[str]) -> _Operand:
    """Without labels that are not `needed`."""
    view, labels = operand
    axes = [axis for axis, label in enumerate(labels) if label not in needed]
    if not axes:
        return operand
    sizes = tuple(1 if axis in axes else size for axis, size in enumerate(view.sizes))
    made = node.build.operator(
        "REDUCE",
        {"InputTensor": view},
        {"Function": "SUM", "Axes": axes},
        {"OutputTensor": (view.data_type, sizes)},
    )["OutputTensor"]
    for axis in reversed(axes):
        made = removed(made, axis)
    return _Operand(made, [label for label in labels if label in needed])

"""Formulas evaluated one operation after the other on whole arrays: what any lowering must amount to."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from app.execution.numpy_lowering import Array
from app.formula.values import FLOAT32, Constant, Input, Operation, Parameter, Value


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Of float32 in float64, which holds the product; how exact that is, the tests of numerics tell."""
    if a.dtype != FLOAT32:
        return np.asarray(a * b + c)
    return np.asarray(np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


MEANINGS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "where": np.where,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "power": np.power,
    "multiply_add": _multiply_add,
}


def evaluate(value: Value, inputs: Mapping[str, Array]) -> Array:
    """What `value` is for `inputs`, in the type of `value`."""
    done: dict[Value, Array] = {}

    def result(node: Value) -> Array:
        if node not in done:
            match node:
                case Input():
                    done[node] = inputs[node.name].astype(node.type)
                case Constant() | Parameter():
                    done[node] = np.asarray(node.value, node.type)
                case Operation(name="cast"):
                    done[node] = result(node.arguments[0]).astype(node.type)
                case Operation():
                    made = np.asarray(MEANINGS[node.name](*map(result, node.arguments)))
                    assert made.dtype == node.type, f"{node.name} makes {made.dtype}, the formula says {node.type}"
                    done[node] = made
        return done[node]

    with np.errstate(all="ignore"):
        return result(value)

"""Whether an answer is what a case expects."""

import base64
from typing import Any

import numpy as np

from tests.conformance.client import Answer, Case
from tests.messages import Array


def fault(case: Case, answer: Answer) -> str | None:
    """What is wrong with the answer, or None."""
    status, outputs, body = answer
    if status != 200 or outputs is None:
        return f"status {status}: {body}"
    for expected in case.get("outputs") or [case["output"]]:
        name, made = expected["name"], outputs.get(expected["name"])
        if "index" in expected:
            name = f"{name}[{expected['index']}]"
            made = made[expected["index"]] if isinstance(made, list) and expected["index"] < len(made) else None
        if not isinstance(made, np.ndarray):
            return f"there is no {name}"
        if found := difference(expected, made, case["tolerance"]):
            return f"{name}: {found}"
    return None


def difference(output: dict[str, Any], made: Array, tolerance: dict[str, Any]) -> str | None:
    """How the array that was made differs from the output of a case; None if it does so within the tolerance."""
    data_type = np.dtype(output["DataType"].lower())
    expected = np.frombuffer(base64.b64decode(output["data_b64"]), data_type).reshape(output["Sizes"])
    if (made.dtype, made.shape) != (data_type, expected.shape):
        return f"{made.dtype} {list(made.shape)} in place of {data_type} {list(expected.shape)}"
    counts = tuple(slice(*limits) for limits in output.get("compare", []))
    expected, made = expected[counts], made[counts]
    wrong = ~within(tolerance, expected, made)
    return f"{made[wrong][0]} in place of {expected[wrong][0]}, and so for {wrong.sum()}" if wrong.any() else None


def within(tolerance: dict[str, Any], expected: Array, made: Array) -> Array:
    """NaN is only like NaN, an infinity only like itself, integers only like equal ones."""
    same: Array = (expected == made) | ((expected != expected) & (made != made))
    if tolerance["kind"] == "exact" or expected.dtype.kind != "f":
        return same
    near = np.isfinite(expected) & np.isfinite(made)
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(expected.astype(np.float64))
        limits = {
            "ulp": tolerance["value"] * np.spacing(np.abs(expected)).astype(np.float64),
            "abs": tolerance["value"],
            "rel": tolerance["value"] * size + tolerance.get("atol", 0),
        }
        close = np.abs(expected.astype(np.float64) - made.astype(np.float64)) <= limits[tolerance["kind"]]
    result: Array = same | (near & close)
    return result

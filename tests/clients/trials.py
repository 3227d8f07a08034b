"""Dispatches that generated clients are tried with: every kind of field, several data types, results that are known."""

import base64
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.operators.operator import PREFIX
from tests.messages import Array, desc

ULPS = {"FLOAT32": 4, "FLOAT16": 1}
"""How far a result may be from the exact one, in units in the last place; the other types are exact."""


@dataclass(frozen=True)
class Trial:
    """An operator's descriptor as a client states it, its inputs and its output."""

    operator: dict[str, Any]
    inputs: dict[str, Array]
    expected: Array

    def __str__(self) -> str:
        return str(self.operator["Type"]).removeprefix(PREFIX)

    @property
    def name(self) -> str:
        """DML_OPERATOR_..."""
        return PREFIX + str(self)

    @property
    def data_type(self) -> str:
        return self.expected.dtype.name.upper()

    @property
    def data(self) -> dict[str, str]:
        """The inputs in base64."""
        return {name: base64.b64encode(array.tobytes()).decode() for name, array in self.inputs.items()}

    def check(self, data: bytes) -> None:
        """That `data` are the output, as exactly as its type asks for."""
        bits = np.dtype(f"i{self.expected.dtype.itemsize}")
        given, expected = np.frombuffer(data, bits).astype(object), self.expected.ravel().view(bits).astype(object)
        assert abs(given - expected).max() <= ULPS.get(self.data_type, 0), np.frombuffer(data, self.expected.dtype)


def trial(kind: str, expected: Array, inputs: dict[str, Array], **members: Any) -> Trial:
    """A trial of `kind` on packed `inputs`; `members` are added to the descriptor or override."""
    descs = {name: desc(array) for name, array in inputs.items()}
    return Trial({"Type": kind} | descs | members, inputs, expected)


F32, F16, I64, I8, U8 = np.float32, np.float16, np.int64, np.int8, np.uint8
X = np.array([[-4, -2.5, -0.5], [0.5, 1.5, 4]], F32)
WIDE = np.array([2**62 + 1, -(2**53) - 1, 7], I64)  # that float64 has not

TRIALS = [
    trial("ACTIVATION_HARD_SIGMOID", np.clip(X / 4 + F32(0.5), 0, 1), {"InputTensor": X}, Alpha=0.25),
    trial(
        "DML_OPERATOR_ACTIVATION_CELU",
        np.where(X > 0, X, np.expm1(X.astype(np.float64))).astype(F16),
        {"InputTensor": X.astype(F16)},
        OutputTensor={"DataType": "DML_TENSOR_DATA_TYPE_FLOAT16", "Sizes": [2, 3]},
    ),
    trial(
        "ACTIVATION_PARAMETERIZED_RELU",
        np.array([-6, -3, 5], I8),
        {"InputTensor": np.array([-2, -1, 5], I8), "SlopeTensor": np.array([3], I8)},
        SlopeTensor={"DataType": "INT8", "Sizes": [3], "Strides": [0], "Flags": ["OWNED_BY_DML"]},
    ),
    trial(
        "ELEMENT_WISE_CONSTANT_POW",
        (2 * X + 1) ** 2,
        {"InputTensor": X},
        ScaleBias={"Scale": 2, "Bias": 1},
        Exponent=2,
    ),
    trial("ELEMENT_WISE_ADD", WIDE + 2, {"ATensor": WIDE, "BTensor": np.full(3, 2, I64)}),
    trial(
        "ELEMENT_WISE_LOGICAL_GREATER_THAN",
        np.array([0, 0, 1], U8),
        {"ATensor": np.array([1, 2, 3], F16), "BTensor": np.array([2, 2, 2], F16)},
        OutputTensor={"DataType": "UINT8", "Sizes": [3]},
    ),
    trial(
        "ELEMENT_WISE_ROUND",
        np.array([[-4, -2, -1], [1, 2, 4]], F32) * np.array([[1, 1, 0], [0, 1, 1]], F32),
        {"InputTensor": X},
        RoundingMode="HALVES_TO_NEAREST_EVEN",
    ),
    trial(
        "ELEMENT_WISE_CLIP1",
        np.array([-2, 0, 3], np.int32),
        {"InputTensor": np.array([-9, 0, 9], np.int32)},
        MinMaxDataType="INT32",
        Min={"Int32": -2},
        Max=3,
    ),
    trial(
        "ELEMENT_WISE_ADD1",
        np.array([0, 0, 3], F32),
        {"ATensor": np.array([-3, 0, 1], F32), "BTensor": np.array([1, 0, 2], F32)},
        FusedActivation={"Type": "ACTIVATION_RELU"},
    ),
    trial(
        "ELEMENT_WISE_QUANTIZE_LINEAR",
        np.array([255, 128, 130], U8),
        {
            "InputTensor": np.array([1000, 0, 1], F32),
            "ScaleTensor": np.array([0.5] * 3, F32),
            "ZeroPointTensor": np.array([128] * 3, U8),
        },
        OutputTensor={"DataType": "UINT8", "Sizes": [3]},
    ),
    trial(
        "ELEMENT_WISE_IF",
        np.array([1, 20, 3], np.uint16),
        {
            "ConditionTensor": np.array([1, 0, 255], U8),
            "ATensor": np.array([1, 2, 3], np.uint16),
            "BTensor": np.array([10, 20, 30], np.uint16),
        },
    ),
    trial(
        "ACTIVATION_SOFTMAX1",
        np.array([[1, 3], [3, 1]], F32) / 4,
        {"InputTensor": np.array([[0, math.log(3)], [math.log(3), 0]], F32)},
        AxisCount=1,
        Axes=[1],
    ),
]

"""Dispatch requests and their right answers: what is sent, and what must come back."""

import base64
import importlib
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
msgpack: Any = importlib.import_module("msgpack")  # it ships no types

# Data type -> NumPy type, relative and absolute tolerance: a few units in the last place, and room for `exp(x) - 1`.
DATA_TYPES = {"FLOAT32": ("<f4", 5e-6, 1e-6), "FLOAT16": ("<f2", 4e-3, 2e-3)}
BLOCK_ELEMENTS = 1 << 20


class WrongAnswerError(Exception):
    """The service answered 200 with something else than the operator's result."""


@dataclass(frozen=True)
class Operator:
    """An operator with its attributes, its formula in float64, and the range of its random input."""

    type: str
    attributes: dict[str, float]
    formula: Callable[[Array, Array], Array]
    low: float = -4.0
    high: float = 4.0
    sloped: bool = False


OPERATORS = {
    "HARD_SIGMOID": Operator(
        "DML_OPERATOR_ACTIVATION_HARD_SIGMOID",
        {"Alpha": 0.2, "Beta": 0.5},
        lambda x, _: np.clip(0.2 * x + 0.5, 0, 1),
    ),
    "CELU": Operator(
        "DML_OPERATOR_ACTIVATION_CELU",
        {"Alpha": 1.5},
        lambda x, _: np.maximum(0, x) + np.minimum(0, 1.5 * np.expm1(x / 1.5)),
    ),
    "PARAMETERIZED_RELU": Operator(
        "DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU",
        {},
        lambda x, slope: np.where(x >= 0, x, slope * x),
        sloped=True,
    ),
    "CONSTANT_POW": Operator(
        "DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW",
        {"Exponent": 2.5},
        lambda x, _: np.power(x, 2.5),
        low=0.0,  # a negative base would make NaN
    ),
    "CONSTANT_POW_1.7": Operator(  # neither products nor a root
        "DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW",
        {"Exponent": 1.7},
        lambda x, _: np.power(x, 1.7),
        low=0.0,
    ),
}


@dataclass(frozen=True, eq=False)
class Case:
    """One operator on a random [1, 1, H, W] tensor; `slope` holds H elements, repeated along W by a zero stride. A
    dispatch, in JSON or MessagePack, names a `device` or leaves the choice to the service."""

    name: str
    data_type: str
    input: Array
    slope: Array
    device: str | None = None

    @property
    def operator(self) -> Operator:
        return OPERATORS[self.name]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of tensor data in and out."""
        return 2 * self.input.nbytes + (self.slope.nbytes if self.operator.sloped else 0)

    @property
    def sizes(self) -> list[int]:
        return [1, 1, *self.input.shape]

    def body(self, encoding: str) -> bytes:
        """In `json` or `msgpack`, an inference in `infer`, the input as a file in `npy`, its bare elements in `raw`."""
        if encoding == "raw":
            return self.input.tobytes()
        if encoding == "npy":
            if self.operator.sloped:
                raise ValueError(f"{self.name} has two tensors, and a .npy file has one")
            file = io.BytesIO()
            np.save(file, self.input.reshape(self.sizes))
            return file.getvalue()
        if encoding == "infer":
            return b"".join(self.inference())
        tensor = {"DataType": self.data_type, "Sizes": self.sizes}
        operator: dict[str, Any] = {"Type": self.operator.type, "InputTensor": tensor, **self.operator.attributes}
        inputs = {"InputTensor": self.input.tobytes()}
        if self.operator.sloped:
            operator["SlopeTensor"] = {**tensor, "Strides": [0, 0, 1, 0]}
            inputs["SlopeTensor"] = self.slope.tobytes()
        device = {"device": self.device} if self.device else {}
        if encoding == "msgpack":
            return bytes(msgpack.packb({"operator": operator, "inputs": inputs, **device}))
        texts = {name: base64.b64encode(data).decode() for name, data in inputs.items()}
        return json.dumps({"operator": operator, "inputs": texts, **device}).encode()

    def inference(self) -> list[bytes]:
        """An inference with binary data: its JSON, and each tensor's elements. There are no strides, so all of them."""
        tensors = {"InputTensor": self.input}
        if self.operator.sloped:
            tensors["SlopeTensor"] = np.repeat(self.slope[:, None], self.input.shape[1], axis=1)
        inputs = [
            {
                "name": name,
                "shape": self.sizes,
                "datatype": self.data_type.replace("FLOAT", "FP"),
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array in tensors.items()
        ]
        parameters = {**self.operator.attributes, "binary_data_output": True}
        text = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
        return [text, *(array.tobytes() for array in tensors.values())]

    def check(self, encoding: str, answer: bytes) -> None:
        """WrongAnswerError unless the encoded answer holds this case's output."""
        if encoding == "infer":
            self._check_inference(answer)
            return
        if encoding == "npy":
            array = np.load(io.BytesIO(answer))
            if array.dtype != self.input.dtype or list(array.shape) != self.sizes:
                raise WrongAnswerError(f"output is {array.dtype} {array.shape}, expected {self.data_type} {self.sizes}")
            self.check_data(array.tobytes())
            return
        try:
            output = (json.loads if encoding == "json" else msgpack.unpackb)(answer)["outputs"]["OutputTensor"]
            data = base64.b64decode(output["data"], validate=True) if encoding == "json" else output["data"]
            described = output["DataType"], output["Sizes"], output["TotalTensorSizeInBytes"]
        except (ValueError, LookupError, TypeError) as error:
            raise WrongAnswerError(f"not a dispatch answer: {error!r}: {answer[:200]!r}") from error
        expected = self.data_type, self.sizes, self.input.nbytes
        if described != expected:
            raise WrongAnswerError(f"output described as {described}, expected {expected}")
        self.check_data(data)

    def _check_inference(self, answer: bytes) -> None:
        try:
            document, end = json.JSONDecoder().raw_decode(answer[:4096].decode("latin-1"))
            (output,) = document["outputs"]
            described = output["datatype"], output["shape"], output["parameters"]["binary_data_size"]
        except (ValueError, LookupError, TypeError) as error:
            raise WrongAnswerError(f"not an inference's answer: {error!r}: {answer[:200]!r}") from error
        expected = self.data_type.replace("FLOAT", "FP"), self.sizes, self.input.nbytes
        if described != expected:
            raise WrongAnswerError(f"output described as {described}, expected {expected}")
        self.check_data(answer[end:])

    def check_data(self, data: bytes) -> None:
        """WrongAnswerError unless the little-endian elements are this case's output; by blocks of rows, for memory."""
        dtype, relative, absolute = DATA_TYPES[self.data_type]
        if len(data) != self.input.nbytes:
            raise WrongAnswerError(f"{len(data)} bytes of output, expected {self.input.nbytes}")
        output = np.frombuffer(data, dtype).reshape(self.input.shape)
        height, width = self.input.shape
        step = max(1, BLOCK_ELEMENTS // width)
        for start in range(0, height, step):
            rows = slice(start, start + step)
            slope = self.slope[rows, None].astype(np.float64)
            expected = self.operator.formula(self.input[rows].astype(np.float64), slope)
            if not np.allclose(output[rows], expected, relative, absolute):
                worst = float(np.max(np.abs(output[rows] - expected)))
                raise WrongAnswerError(f"wrong values in rows {start} and on, off by up to {worst:g}")

    def check_echo(self, data: bytes) -> None:
        """WrongAnswerError unless `data` is the input itself."""
        if data != self.input.tobytes():
            raise WrongAnswerError("the yardstick did not echo its input")


def make(name: str, data_type: str, size: int) -> Case:
    """A case of an operator whose input tensor has `size` bytes, as square as the size allows."""
    operator = OPERATORS[name]
    dtype = np.dtype(DATA_TYPES[data_type][0])
    elements = size // dtype.itemsize
    height = next(h for h in range(math.isqrt(elements), 0, -1) if elements % h == 0)
    random = np.random.default_rng(20)
    span = operator.high - operator.low
    values = (random.random((height, elements // height), np.float32) * span + operator.low).astype(dtype)
    return Case(name, data_type, values, random.uniform(0.1, 0.3, height).astype(dtype))

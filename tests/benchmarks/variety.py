"""Requests that differ from one another as those of users do: which operator, attributes, sizes and headers.

A row differs from `same` in one thing, and `all` in all of them. Every tensor is of FLOAT32, of 1,024 elements or
around that, and random; only `same` sends one tensor again and again.
"""

import base64
import importlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cases
import load
import numpy as np
from cases import Array

msgpack: Any = importlib.import_module("msgpack")  # it ships no types

ELEMENTS = 1024
A, E = "DML_OPERATOR_ACTIVATION_", "DML_OPERATOR_ELEMENT_WISE_"
SCALE_BIAS = {"ScaleBias.Scale": (0.5, 2.0), "ScaleBias.Bias": (0.0, 1.0)}

# 33 operators of one input, and between which numbers their attributes are drawn.
ATTRIBUTES: dict[str, dict[str, tuple[float, float]]] = {
    A + "HARD_SIGMOID": {"Alpha": (0.1, 0.3), "Beta": (0.4, 0.6)},
    A + "CELU": {"Alpha": (0.5, 2.0)},
    A + "ELU": {"Alpha": (0.5, 2.0)},
    A + "SCALED_ELU": {"Alpha": (1.0, 2.0), "Gamma": (0.5, 1.5)},
    A + "IDENTITY": {},
    A + "LEAKY_RELU": {"Alpha": (0.01, 0.3)},
    A + "LINEAR": {"Alpha": (0.5, 2.0), "Beta": (-1.0, 1.0)},
    A + "PARAMETRIC_SOFTPLUS": {"Alpha": (0.5, 2.0), "Beta": (0.5, 2.0)},
    A + "RELU": {},
    A + "SCALED_TANH": {"Alpha": (0.5, 2.0), "Beta": (0.5, 2.0)},
    A + "SIGMOID": {},
    A + "SOFTPLUS": {"Steepness": (1.0, 4.0)},
    A + "SOFTSIGN": {},
    A + "TANH": {},
    A + "THRESHOLDED_RELU": {"Alpha": (0.1, 2.0)},
    A + "SHRINK": {"Bias": (0.0, 0.5), "Threshold": (0.5, 1.0)},
    A + "GELU": {},
    A + "SWISH": {"SigmoidInputScale": (0.5, 2.0)},
    A + "HARD_SWISH": {"Alpha": (0.1, 0.3), "Beta": (0.4, 0.6)},
    E + "ABS": SCALE_BIAS,
    E + "NEGATE": {},
    E + "SIGN": {},
    E + "FLOOR": SCALE_BIAS,
    E + "CEIL": SCALE_BIAS,
    E + "EXP": SCALE_BIAS,
    E + "SIN": SCALE_BIAS,
    E + "COS": SCALE_BIAS,
    E + "ATAN": SCALE_BIAS,
    E + "ERF": SCALE_BIAS,
    E + "RECIP": SCALE_BIAS,
    E + "SQRT": SCALE_BIAS,
    E + "CLIP": {"Min": (-2.0, 0.0), "Max": (0.0, 2.0)} | SCALE_BIAS,
    E + "CONSTANT_POW": {"Exponent": (0.1, 3.0)},
}
POSITIVE = {E + "RECIP", E + "SQRT", E + "CONSTANT_POW"}
FOUR_SIZES = (832, 960, 1088, 1216)
MOST_DIMENSIONS = 8

Attributes = dict[str, float]


@dataclass(frozen=True)
class Structure:
    """All of a request but its tensor's elements and its header."""

    type: str
    attributes: Attributes
    sizes: list[int]

    def descriptor(self) -> dict[str, Any]:
        """The operator's descriptor of a dispatch, in which attributes of structures are nested."""
        made: dict[str, Any] = {"Type": self.type, "InputTensor": {"DataType": "FLOAT32", "Sizes": self.sizes}}
        for name, value in self.attributes.items():
            outer, _, inner = name.rpartition(".")
            (made.setdefault(outer, {}) if outer else made)[inner] = value
        return made


@dataclass(frozen=True, eq=False)
class Message:
    """A request: its structure, its elements, and its `traceparent` if it has one."""

    structure: Structure
    input: Array
    traceparent: str | None = None

    def http(self, encoding: str) -> bytes:
        """Head and body, the same for every server on this machine."""
        path, json_bytes, body = self._body(encoding)
        content_type = load.CONTENT_TYPES[encoding]
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\nAccept: {content_type}\r\n"
        if json_bytes is not None:
            head += f"Inference-Header-Content-Length: {json_bytes}\r\n"
        if self.traceparent is not None:
            head += f"traceparent: {self.traceparent}\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _body(self, encoding: str) -> tuple[str, int | None, bytes]:
        """The path, how many bytes of JSON an inference begins with, and the body."""
        data = self.input.tobytes()
        if encoding == "infer":
            tensor = {
                "name": "InputTensor",
                "shape": self.structure.sizes,
                "datatype": "FP32",
                "parameters": {"binary_data_size": len(data)},
            }
            parameters = {**self.structure.attributes, "binary_data_output": True}
            text = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
            return f"/v2/models/{self.structure.type}/infer", len(text), text + data
        request = {"operator": self.structure.descriptor(), "inputs": {"InputTensor": data}}
        if encoding == "msgpack":
            return "/v1/dispatch", None, bytes(msgpack.packb(request))
        request["inputs"] = {"InputTensor": base64.b64encode(data).decode()}
        return "/v1/dispatch", None, json.dumps(request).encode()

    def expected(self) -> Array | None:
        """The result in float64, of the operators whose formula is written here; else None."""
        x, attributes = self.input.astype(np.float64), self.structure.attributes
        if self.structure.type == A + "HARD_SIGMOID":
            return np.clip(attributes["Alpha"] * x + attributes["Beta"], 0, 1)
        if self.structure.type == A + "CELU":
            alpha = attributes["Alpha"]
            return np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha))
        return None

    def check(self, encoding: str, answer: bytes) -> bytes:
        """The result's bytes; WrongAnswerError unless they are as many as they should and as the formula says."""
        data = output_of(encoding, answer)
        if len(data) != self.input.nbytes:
            raise cases.WrongAnswerError(f"{len(data)} bytes of output, expected {self.input.nbytes}")
        expected = self.expected()
        _, relative, absolute = cases.DATA_TYPES["FLOAT32"]
        if expected is not None and not np.allclose(np.frombuffer(data, "<f4"), expected, relative, absolute):
            raise cases.WrongAnswerError(f"wrong values of {self.structure}")
        return data


def output_of(encoding: str, answer: bytes) -> bytes:
    """The elements in a service's answer; WrongAnswerError if it has none."""
    try:
        if encoding == "infer":
            document, end = json.JSONDecoder().raw_decode(answer.decode("latin-1"))
            (output,) = document["outputs"]
            return answer[end:][: output["parameters"]["binary_data_size"]]
        data = (json.loads if encoding == "json" else msgpack.unpackb)(answer)["outputs"]["OutputTensor"]["data"]
        return base64.b64decode(data, validate=True) if encoding == "json" else bytes(data)
    except (ValueError, LookupError, TypeError) as error:
        raise cases.WrongAnswerError(f"no answer with a tensor: {error!r}: {answer[:200]!r}") from error


class Generator:
    """Makes messages, the same ones in each run."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(15)

    def number(self, bounds: tuple[float, float]) -> float:
        """One between `bounds`, of some digits, as a user would give it."""
        return round(float(self.random.uniform(*bounds)), 6)

    def tensor(self, structure: Structure) -> Array:
        x = self.random.random(np.prod(structure.sizes), np.float32) * np.float32(8) - np.float32(4)
        return np.abs(x) + np.float32(0.01) if structure.type in POSITIVE else x

    def traceparent(self) -> str:
        number = self.random.bytes(24).hex()
        return f"00-{number[:32]}-{number[32:]}-01"

    def some(self, kind: str) -> Attributes:
        """Attributes of `kind`, all of them given."""
        return {name: self.number(bounds) for name, bounds in ATTRIBUTES[kind].items()}

    def usual(self, kind: str) -> Attributes:
        """One choice of attributes, in the middle of their bounds, without ScaleBias."""
        bounds = {name: each for name, each in ATTRIBUTES[kind].items() if name not in SCALE_BIAS}
        return {name: round(least + 0.45 * (most - least), 6) for name, (least, most) in bounds.items()}

    def unique(self) -> Iterator[Structure]:
        """Structures that differ in operator, attributes, number of elements and rank, none of them twice."""
        seen = set()
        for kind in itertools.cycle(ATTRIBUTES):
            while True:
                elements = int(self.random.integers(ELEMENTS - 256, ELEMENTS + 256))
                sizes = [1] * int(self.random.integers(MOST_DIMENSIONS)) + [elements]
                made = Structure(kind, self.some(kind), sizes)
                key = kind, *made.attributes.values(), *sizes
                if key not in seen:
                    break
            seen.add(key)
            yield made


HARD_SIGMOID = A + "HARD_SIGMOID"
SAME = Structure(HARD_SIGMOID, {"Alpha": 0.2, "Beta": 0.5}, [1, 1, 32, 32])


def same(_: Generator) -> Iterator[Structure]:
    return itertools.repeat(SAME)


def operators(generator: Generator) -> Iterator[Structure]:
    made = [Structure(kind, generator.usual(kind), [size]) for size in FOUR_SIZES for kind in ATTRIBUTES]
    return itertools.cycle(made)


def attributes(generator: Generator) -> Iterator[Structure]:
    values = (generator.some(HARD_SIGMOID) for _ in range(512))
    return itertools.cycle([Structure(HARD_SIGMOID, each, SAME.sizes) for each in values])


def sizes(_: Generator) -> Iterator[Structure]:
    counts = range(ELEMENTS - 256, ELEMENTS + 256)
    return itertools.cycle([Structure(HARD_SIGMOID, SAME.attributes, [count]) for count in counts])


@dataclass(frozen=True)
class Row:
    """A way in which requests differ, and the ratio to the yardstick that issue 15 wants in MessagePack."""

    name: str
    what: str
    wanted: float
    structures: Callable[[Generator], Iterator[Structure]]
    kinds: int | None = None
    """How many structures there are; None: no two are alike."""
    own_header: bool = False

    def messages(self, count: int) -> tuple[list[Message], list[Message]]:
        """Those that warm a server up, in which each kind of kernel is met, and `count` that are measured.

        Where structures are finitely many they are each in the warm-up once; else the warm-up's do not come again.
        """
        generator = Generator()
        structures = self.structures(generator)
        warm = [self._message(generator, next(structures)) for _ in range(self.kinds or WARM)]
        if self.name == "same":
            return warm, warm
        return warm, [self._message(generator, next(structures)) for _ in range(count)]

    def _message(self, generator: Generator, structure: Structure) -> Message:
        header = generator.traceparent() if self.own_header else None
        return Message(structure, generator.tensor(structure), header)


WARM = 33 * 32
ROWS = {
    row.name: row
    for row in (
        Row("same", "the same request again and again", 0.65, same, 1),
        Row("header", "a `traceparent` of its own in each", 0.60, same, 1, own_header=True),
        Row("operators", "33 operators, four sizes each, in turn", 0.55, operators, 33 * len(FOUR_SIZES)),
        Row("attributes", "512 values of Alpha and Beta of HARD_SIGMOID, in turn", 0.30, attributes, 512),
        Row("sizes", "512 sizes, 768 to 1,279 elements, in turn", 0.30, sizes, 512),
        Row("all", "operator, attributes, sizes and header, none twice", 0.25, Generator.unique, None, own_header=True),
    )
}


def wanted(row: Row, encoding: str) -> float | None:
    """Of requests/s over the yardstick's; None for inferences, which are wanted beside MessagePack (`INFER_WANTED`)."""
    return {"msgpack": row.wanted, "json": round(JSON_WANTED * row.wanted, 2)}.get(encoding)


JSON_WANTED = 0.8
"""Of the ratio wanted in MessagePack."""

INFER_WANTED = 0.9
"""Of requests/s in MessagePack, the same request again and again."""

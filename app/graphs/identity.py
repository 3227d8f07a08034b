"""The id of a graph: what was sent, by its hash."""

import hashlib
import json
from collections.abc import Iterator, Mapping

from app.contract.constants import FeatureLevel
from app.graphs.descriptor import GraphDesc
from app.memory.buffers import Buffer

_DIGITS = 32

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

_LEVELS = 3
"""From the document to a graph's nodes and edges."""


def graph_id(desc: GraphDesc, level: FeatureLevel, constants: Mapping[int, Buffer], owned: Mapping[str, Buffer]) -> str:
    """32 hexadecimal digits, the same in every process for the same graph: the document without data, the level, the
    data of constant nodes by index, and those of OWNED_BY_DML inputs by name.

    In which representation it was sent makes no difference, nor does the order of fields. What may be left out does.
    It reads all data, at some GB/s, without holding the interpreter's lock.
    """
    whole = {
        "graph": desc.as_sent,
        "feature_level": level.value,
        "constants": {str(index): _digest(data) for index, data in constants.items()},
        "inputs": {name: _digest(data) for name, data in owned.items()},
    }
    hashed = hashlib.sha256()
    for piece in _canonical(whole, _LEVELS):
        hashed.update(piece.encode())
    return hashed.hexdigest()[:_DIGITS]


def _canonical(value: object, levels: int) -> Iterator[str]:
    """JSON of `value`, whose names are sorted, in pieces: one for each of its parts that is so many `levels` down. All
    of it would be one call for each graph, during which no other thread runs."""
    if not levels or not value or not isinstance(value, dict | list):
        yield _ENCODER.encode(value)
    elif isinstance(value, dict):
        for number, name in enumerate(sorted(value)):
            yield f"{',' if number else '{'}{_ENCODER.encode(name)}:"
            yield from _canonical(value[name], levels - 1)
        yield "}"
    else:
        for number, each in enumerate(value):
            yield "," if number else "["
            yield from _canonical(each, levels - 1)
        yield "]"


def _digest(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()

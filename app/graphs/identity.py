"""The id of a graph: what was sent, by its hash. And those of what it computes of constants alone."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from app.contract.constants import FeatureLevel
from app.graphs.descriptor import GraphDesc
from app.graphs.graph import Constant, Graph, NodeOutput, Source
from app.memory.buffers import Buffer

Digest: TypeAlias = Callable[[Buffer], str]

_DIGITS = 32

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

_LEVELS = 3
"""From the document to a graph's nodes and edges."""


def digest(data: Buffer) -> str:
    """Its hash. It is read at some GB/s, without holding the interpreter's lock."""
    return hashlib.sha256(data).hexdigest()


def graph_id(desc: GraphDesc, level: FeatureLevel, constants: Mapping[int, Buffer], owned: Mapping[str, Buffer]) -> str:
    """32 hexadecimal digits, the same in every process for the same graph: the document without data, the level, the
    data of constant nodes by index, and those of OWNED_BY_DML inputs by name.

    In which representation it was sent makes no difference, nor does the order of fields. What may be left out does.
    """
    whole = {
        "graph": desc.as_sent,
        "feature_level": level.value,
        "constants": {str(index): digest(data) for index, data in constants.items()},
        "inputs": {name: digest(data) for name, data in owned.items()},
    }
    return _hashed(whole, _LEVELS)[:_DIGITS]


def computed_ids(desc: GraphDesc, graph: Graph, digest: Digest) -> dict[Source, str]:
    """Of all that `graph`, which `desc` describes, computes of constants alone: the same for the same operators over
    the same data, in whatever graph."""
    ids: dict[Source, str] = {}
    digests: dict[Source, str] = {}
    nodes = desc.as_sent["Nodes"]
    for index, node in graph.nodes.items():
        reads = {}
        for name, source in node.sources.items():
            if isinstance(source, Constant) and source not in digests:
                digests[source] = digest(graph.constants[source.node])
            known = digests.get(source) or ids.get(source)
            if known is None:
                break
            reads[name] = known
        else:
            made = _hashed([nodes[index]["Desc"], reads], 1)
            ids |= {NodeOutput(index, name): f"{made}.{name}" for name in node.compiled.outputs}
    return ids


def _hashed(value: object, levels: int) -> str:
    hashed = hashlib.sha256()
    for piece in _canonical(value, levels):
        hashed.update(piece.encode())
    return hashed.hexdigest()


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

"""The id of a graph: what was sent, by its hash."""

import hashlib
import json
from collections.abc import Mapping

from app.contract.constants import FeatureLevel
from app.graphs.descriptor import GraphDesc
from app.memory.buffers import Buffer

_DIGITS = 32


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
    canonical = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGITS]


def _digest(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()

"""What DirectML's documentation says of each operator: the tables that the classes are held against.

`facts.json` has the element-wise operators and the activations, `other_facts.json` all others: once a class of one of
these is in the catalog, every test of facts covers it. Where programs that DirectML runs contradict a page's types, the
table has what they state as well, and the operator's notes say so: ADAM_OPTIMIZER, MATRIX_MULTIPLY_INTEGER_TO_FLOAT and
MULTIHEAD_ATTENTION1.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.contract.constants import DataType, FeatureLevel
from app.operators.catalog import OPERATORS


@dataclass(frozen=True)
class TensorFacts:
    """What a tensor may be at some feature level."""

    data_types: list[DataType]
    dimension_counts: range


@dataclass(frozen=True)
class OperatorFacts:
    """An operator as documented. `support` has, by the level it holds from, a row for each tensor."""

    operator: str
    struct: str
    introduced: FeatureLevel
    in_place_inputs: list[str]
    typical_defaults: dict[str, float]
    same_types: list[list[str]]
    """Groups of tensors whose data types are equal."""
    fields: list[dict[str, Any]]
    support: dict[FeatureLevel, dict[str, TensorFacts]]

    def __str__(self) -> str:
        return self.operator

    def at(self, level: FeatureLevel) -> dict[str, TensorFacts] | None:
        """The row that holds at `level`: that of the highest level not above it."""
        levels = [each for each in self.support if each <= level]
        return self.support[max(levels)] if levels else None

    def names(self, *kinds: str) -> list[str]:
        """Fields of these kinds (input_tensor, output_tensor, attribute), in the structure's order."""
        return [field["name"] for field in self.fields if field["kind"] in kinds]

    def levels(self) -> list[FeatureLevel]:
        """The levels at which something changes, the ones before them, and the newest."""
        every = list(FeatureLevel)
        changes = [every.index(level) for level in self.support]
        return [every[place] for place in sorted({*changes, *(max(each - 1, 0) for each in changes), len(every) - 1})]


def _read(entry: dict[str, Any]) -> OperatorFacts:
    """A field is its name, kind and type, and whether it is optional or, for an output, has to be stated since nothing
    implies it; a row says what groups of tensors may be."""
    fields = [
        {"name": name, "kind": kind, "type": type_, "optional": more == ["optional"], "stated": more == ["stated"]}
        for name, kind, type_, *more in map(str.split, entry["fields"])
    ]
    support = {
        FeatureLevel(level): {
            name: TensorFacts([DataType(each) for each in data_types.split()], range(least, most + 1))
            for names, ((least, most), data_types) in groups.items()
            for name in names.split()
        }
        for level, groups in entry["support"]
    }
    changed = {"introduced": FeatureLevel(entry["introduced"]), "fields": fields, "support": support}
    return OperatorFacts(**entry | changed)


def _all(file: str) -> list[OperatorFacts]:
    return [_read(entry) for entry in json.loads(Path(__file__).with_name(file).read_text())]


FACTS = [*_all("facts.json"), *(each for each in _all("other_facts.json") if each.operator in OPERATORS)]


FAMILIES = sorted({operator.family() for operator in OPERATORS.values()})


def takes(name: str, level: FeatureLevel, data_type: DataType | None = None) -> bool:
    """Whether the operator exists at `level` and, if `data_type` is given, has a tensor that may be of this type."""
    (facts,) = [facts for facts in FACTS if facts.operator == name]
    row = facts.at(level)
    return row is not None and (data_type is None or any(data_type in tensor.data_types for tensor in row.values()))

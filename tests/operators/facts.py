"""What DirectML's documentation says of each operator, from `facts.json`: the tables that the classes are held against.

To add an operator, add its entry there; every test of facts then covers it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.contract.constants import DataType, FeatureLevel


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


def _read(entry: dict[str, Any]) -> OperatorFacts:
    support = {
        FeatureLevel(row["feature_level"]): {
            name: TensorFacts(
                [DataType(each) for each in tensor["data_types"]],
                range(tensor["dimension_counts"][0], tensor["dimension_counts"][1] + 1),
            )
            for name, tensor in row["tensors"].items()
        }
        for row in entry["support"]
    }
    return OperatorFacts(**entry | {"introduced": FeatureLevel(entry["introduced"]), "support": support})


FACTS = [_read(entry) for entry in json.loads(Path(__file__).with_name("facts.json").read_text())]


def takes(name: str, level: FeatureLevel, data_type: DataType | None = None) -> bool:
    """Whether the operator exists at `level` and, if `data_type` is given, has a tensor that may be of this type."""
    (facts,) = [facts for facts in FACTS if facts.operator == name]
    row = facts.at(level)
    return row is not None and (data_type is None or any(data_type in tensor.data_types for tensor in row.values()))

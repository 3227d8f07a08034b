"""Every row of every support table, both ways: what the documentation lists is taken, everything else is refused."""

from typing import Any

import pytest

from app.contract.constants import DataType, FeatureLevel
from app.contract.tensors import MAX_RANK
from app.operators.catalog import OPERATORS
from tests.contract.refusals import check_wording
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.facts import FACTS, OperatorFacts, TensorFacts

pytestmark = pytest.mark.parametrize("facts", FACTS, ids=str)
levels = pytest.mark.parametrize("level", FeatureLevel)
RANKS = range(1, MAX_RANK + 1)


def expected(tensors: dict[str, TensorFacts], data_type: DataType, rank: int) -> dict[str, object]:
    """What is refused where all `tensors` are of one type and rank: the pointers, and what is allowed instead."""
    wrong: dict[str, object] = {}
    for name, tensor in tensors.items():
        if data_type not in tensor.data_types:
            wrong[f"/{name}/DataType"] = tensor.data_types
        if rank not in tensor.dimension_counts:
            wrong[f"/{name}/Sizes"] = list(tensor.dimension_counts)
    return wrong


@levels
def test_every_data_type_and_rank_of_every_tensor(facts: OperatorFacts, level: FeatureLevel) -> None:
    row = facts.at(level)
    for data_type in DataType:
        for rank in RANKS:
            desc = {"DataType": data_type.value, "Sizes": [1] * (rank - 1) + [3]}
            outputs = dict.fromkeys(facts.names("output_tensor"), desc)
            found = refusals(descriptor(facts.operator, desc, **outputs), level)
            if row is None:
                (refusal,) = found
                assert (refusal.pointer, refusal.given) == ("/Type", level.full_name)
            else:
                assert {each.pointer: each.allowed for each in found} == expected(row, data_type, rank)
                assert {each.given for each in found} <= {data_type, rank}
            for each in found:
                check_wording(each)


@levels
def test_one_tensor_out_of_line(facts: OperatorFacts, level: FeatureLevel) -> None:
    """One tensor's type and rank vary while the others keep to what is listed: that one tensor is named.

    That it also differs from the others is told as a refusal of its own, which gives one type or one list of sizes.
    """
    row = facts.at(level)
    if row is None:
        return
    (first, *_) = row.values()
    fine = {"DataType": first.data_types[0].value, "Sizes": [1] * first.dimension_counts[0]}
    tensors = facts.names("input_tensor", "output_tensor")
    for name, tensor in row.items():
        for data_type in DataType:
            for rank in RANKS:
                odd = {"DataType": data_type.value, "Sizes": [1] * rank}
                found = refusals(descriptor(facts.operator, **dict.fromkeys(tensors, fine)) | {name: odd}, level)
                judged = {each.pointer for each in found if "feature level" in each.message}
                assert judged == set(expected({name: tensor}, data_type, rank))


@levels
def test_left_out_output_is_judged_by_its_inputs_alone(facts: OperatorFacts, level: FeatureLevel) -> None:
    row = facts.at(level)
    inputs = {name: tensor for name, tensor in (row or {}).items() if name in facts.names("input_tensor")}
    for data_type in DataType:
        for rank in RANKS:
            desc = {"DataType": data_type.value, "Sizes": [1] * rank}
            pointers = {each.pointer for each in refusals(descriptor(facts.operator, desc), level)}
            assert pointers == (set(expected(inputs, data_type, rank)) if row else {"/Type"})


def test_refusal_says_from_which_level_on_it_would_do(facts: OperatorFacts) -> None:
    for level in FeatureLevel:
        row = facts.at(level)
        for data_type in DataType:
            desc = {"DataType": data_type.value, "Sizes": [1, 1, 1, 1]}
            found = refusals(descriptor(facts.operator, desc), level)
            if row is None:
                assert facts.introduced.value in found[0].message
                assert found[0].allowed == f">= {facts.introduced.full_name}"
                continue
            for name in facts.names("input_tensor"):
                later = [at for at in facts.support if at > level and data_type in facts.support[at][name].data_types]
                told = [each.message for each in found if each.pointer == f"/{name}/DataType"]
                if later and told:
                    assert f"from {min(later)} on" in told[0]
                elif told:
                    assert " on." not in told[0]


def test_introduced(facts: OperatorFacts) -> None:
    assert OPERATORS[facts.operator].support.introduced is facts.introduced
    for level in FeatureLevel:
        assert (facts.at(level) is not None) == (level >= facts.introduced)


def test_rows_are_the_documented_ones(facts: OperatorFacts) -> None:
    rows: dict[FeatureLevel, Any] = {row.level: row for row in OPERATORS[facts.operator].support.rows}
    assert list(rows) == sorted(facts.support)
    for level, tensors in facts.support.items():
        for name, tensor in tensors.items():
            support = rows[level].of(name)
            assert list(support.data_types) == tensor.data_types
            assert support.ranks == tensor.dimension_counts


def test_newest_level_is_the_default(facts: OperatorFacts) -> None:
    assert compiled(descriptor(facts.operator)).level is FeatureLevel.V6_4

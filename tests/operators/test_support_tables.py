"""Every row of every support table, both ways: what the documentation lists is taken, everything else is refused."""

import re
from typing import Any

import pytest

from app.contract.constants import DataType, FeatureLevel
from app.contract.support import Row
from app.contract.tensors import MAX_RANK
from app.contract.violations import Violation
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from tests.contract.refusals import check_wording
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.facts import FACTS, OperatorFacts, TensorFacts

of_each_operator = pytest.mark.parametrize("facts", FACTS, ids=str)
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


def by_the_table(found: list[Violation]) -> list[Violation]:
    """Those refusals that come of the support table; others come of what tensors have to do with each other."""
    return [each for each in found if "at feature level" in each.message]


def member(violation: Violation) -> str:
    """The pointer of a refusal, without places in arrays of tensors: what holds for one holds for all."""
    return re.sub(r"/\d+(?=/)", "", violation.pointer)


def given(facts: OperatorFacts, name: str, desc: dict[str, Any]) -> Any:
    """`desc` for the tensor `name`, in an array by itself."""
    return [desc] if name in OPERATORS[facts.operator].array_names() else desc


TYPES_AND_RANKS = [
    (data_type, RANKS[(place + turn) % MAX_RANK]) for place, data_type in enumerate(DataType) for turn in (0, 3)
]
"""Every type with two ranks, every rank with several types: the table holds them apart."""


def test_types_and_ranks_are_all() -> None:
    assert {data_type for data_type, _ in TYPES_AND_RANKS} == set(DataType)
    assert {rank for _, rank in TYPES_AND_RANKS} == set(RANKS)


@of_each_operator
def test_every_data_type_and_rank_of_all_tensors(facts: OperatorFacts) -> None:
    names = facts.names("input_tensor", "output_tensor")
    for level in facts.levels():
        row = facts.at(level)
        for data_type, rank in TYPES_AND_RANKS:
            desc = {"DataType": data_type.value, "Sizes": [1] * rank}
            tensors = {name: given(facts, name, desc) for name in names}
            found = refusals(descriptor(facts.operator, desc, **tensors), level)
            if row is None:
                (refusal,) = found
                assert (refusal.pointer, refusal.given) == ("/Type", level.full_name)
            else:
                judged = by_the_table(found)
                assert {member(each): each.allowed for each in judged} == expected(row, data_type, rank)
                assert {each.given for each in judged} <= {data_type, rank}
            for each in found:
                check_wording(each)


def types_with(
    facts: OperatorFacts, row: dict[str, TensorFacts], name: str, data_type: DataType
) -> dict[str, DataType]:
    """Types for all tensors, of which `name` has `data_type`, that go together by the documented constraints."""
    types = {each: tensor.data_types[0] for each, tensor in row.items()}
    changed = {name: data_type}
    match facts.operator.removeprefix(PREFIX + "ELEMENT_WISE_"):
        case "QUANTIZE_LINEAR" if name == "InputTensor":
            changed["ScaleTensor"] = DataType.FLOAT32 if data_type is DataType.INT32 else data_type
        case "QUANTIZE_LINEAR" if name == "ScaleTensor":
            changed["InputTensor"] = data_type
        case "POW" if FeatureLevel.V3_0 not in [level for level in facts.support if facts.support[level] is row]:
            changed |= dict.fromkeys(row, data_type)
    for group in facts.same_types:
        for each in group:
            if changed.keys() & set(group):
                types[each] = next(changed[other] for other in group if other in changed)
    return types | changed


def nearest(rank: int, ranks: range) -> int:
    return min(max(rank, ranks[0]), ranks[-1])


@of_each_operator
def test_what_is_listed_is_taken(facts: OperatorFacts) -> None:
    for level in facts.levels():
        row = facts.at(level) or {}
        for name, tensor in row.items():
            for data_type in tensor.data_types:
                for rank in {tensor.dimension_counts[0], tensor.dimension_counts[-1]}:
                    types = types_with(facts, row, name, data_type)
                    descs = {
                        each: given(
                            facts,
                            each,
                            {"DataType": types[each].value, "Sizes": [1] * nearest(rank, other.dimension_counts)},
                        )
                        for each, other in row.items()
                    }
                    if "MinMaxDataType" in facts.names("attribute"):
                        descs["MinMaxDataType"] = types["InputTensor"].value
                    found = refusals(descriptor(facts.operator, **descs), level)
                    assert (found if OPERATORS[facts.operator].same_sizes is None else by_the_table(found)) == []


@of_each_operator
def test_one_tensor_out_of_line(facts: OperatorFacts) -> None:
    """One tensor's type or rank varies while the others keep to what is listed: that one tensor is named.

    That it also differs from the others is told as a refusal of its own, which gives one type or one list of sizes.
    """
    for level in facts.levels():
        row = facts.at(level) or {}
        fine = {
            name: given(
                facts, name, {"DataType": tensor.data_types[0].value, "Sizes": [1] * tensor.dimension_counts[0]}
            )
            for name, tensor in row.items()
        }
        for name, tensor in row.items():
            least, whole = tensor.dimension_counts[0], descriptor(facts.operator, **fine)
            varied = [(data_type, least) for data_type in DataType] + [(tensor.data_types[0], rank) for rank in RANKS]
            for data_type, rank in varied:
                odd = {"DataType": data_type.value, "Sizes": [1] * rank}
                found = refusals(whole | {name: given(facts, name, odd)}, level)
                judged = {member(each) for each in by_the_table(found)}
                assert judged == set(expected({name: tensor}, data_type, rank))


@of_each_operator
def test_left_out_output_is_judged_by_its_inputs_alone(facts: OperatorFacts) -> None:
    """By the tensors that are there: outputs that nothing implies among them, optional inputs not."""
    there = {name for name, value in descriptor(facts.operator).items() if value is not None}
    for level in facts.levels():
        row = facts.at(level)
        inputs = {name: tensor for name, tensor in (row or {}).items() if name in there}
        for data_type in DataType:
            desc = {"DataType": data_type.value, "Sizes": [1, 1, 1, 1]}
            found = refusals(descriptor(facts.operator, desc), level)
            if row is None:
                assert [each.pointer for each in found] == ["/Type"]
            else:
                assert {member(each) for each in by_the_table(found)} == set(expected(inputs, data_type, 4))


@of_each_operator
def test_refusal_says_from_which_level_on_it_would_do(facts: OperatorFacts) -> None:
    for level in facts.levels():
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
                told = [each.message for each in by_the_table(found) if member(each) == f"/{name}/DataType"]
                if later and told:
                    assert f"from {min(later)} on" in told[0]
                elif told:
                    assert " on." not in told[0]


@of_each_operator
def test_introduced(facts: OperatorFacts) -> None:
    support = OPERATORS[facts.operator].support
    assert support.introduced is facts.introduced
    for level in FeatureLevel:
        assert (facts.at(level) is not None) == (level >= facts.introduced)
        assert (support.at(level) is not None) == (level >= facts.introduced)


@of_each_operator
def test_rows_are_the_documented_ones(facts: OperatorFacts) -> None:
    rows: dict[FeatureLevel, Any] = {row.level: row for row in OPERATORS[facts.operator].support.rows}
    assert list(rows) == sorted(facts.support)
    for level, tensors in facts.support.items():
        for name, tensor in tensors.items():
            support = rows[level].of(name)
            assert list(support.data_types) == tensor.data_types
            assert support.ranks == tensor.dimension_counts


@of_each_operator
def test_every_level_has_the_row_of_the_highest_not_above_it(facts: OperatorFacts) -> None:
    for level in FeatureLevel:
        held, documented = OPERATORS[facts.operator].support.at(level), facts.at(level)
        assert (held is None) == (documented is None)
        if held and documented:
            assert {name: list(held.of(name).data_types) for name in documented} == {
                name: tensor.data_types for name, tensor in documented.items()
            }


@of_each_operator
def test_newest_level_is_the_default(facts: OperatorFacts) -> None:
    assert compiled(descriptor(facts.operator)).level is FeatureLevel.V6_4


# The notation


def test_a_row_in_one_line() -> None:
    row = Row.parse("2_1 4-5 F32-16 I32 U64-8, OutputTensor CountTensor U32 U8, FilterTensor BiasTensor 1-3 F16")
    assert (row.level, row.ranks) == (FeatureLevel.V2_1, (4, 5))
    assert row.of("InputTensor").dimension_counts == [4, 5]
    assert row.of("InputTensor").data_types == (
        *(DataType.FLOAT32, DataType.FLOAT16, DataType.INT32),
        *(DataType.UINT64, DataType.UINT32, DataType.UINT16, DataType.UINT8),
    )
    for name in ("OutputTensor", "CountTensor"):
        assert row.of(name).data_types == (DataType.UINT32, DataType.UINT8)
    for name in ("FilterTensor", "BiasTensor"):
        assert row.of(name).data_types == (DataType.FLOAT16,)
        assert row.of(name).dimension_counts == [1, 2, 3]
    assert row.of("CountTensor").dimension_counts == [4, 5]
    assert Row.parse("1_0 4 F16").ranks == (4, 4)


@pytest.mark.parametrize(
    "text", ["", "1_0", "9_9 4 F32", "1_0 x F32", "1_0 4 F32 OutputTensor", "1_0 4 F8-4", "1_0 4 I33"]
)
def test_what_is_no_row(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Row.parse(text)

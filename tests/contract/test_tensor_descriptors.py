"""Tensor descriptors: how many bytes a layout takes, and the rule of each member."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.constants import DataType
from app.contract.scalars import UINT_MAX
from app.contract.tensors import MAX_ELEMENTS, MAX_RANK, TensorDesc, packed_strides, path_of
from app.contract.violations import ContractError
from tests.contract.refusals import check_wording, refusals

FLOAT32 = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]}


def tensor(data_type: str, sizes: list[int], strides: list[int] | None = None, **members: Any) -> TensorDesc:
    return TensorDesc.model_validate({"DataType": data_type, "Sizes": sizes, "Strides": strides} | members)


# Bytes of a buffer: DMLCalcBufferTensorSize


@pytest.mark.parametrize(
    ("data_type", "sizes", "strides", "data_bytes", "minimum_bytes"),
    [
        # the documentation's own
        ("FLOAT16", [5], None, 10, 12),
        ("UINT8", [3], None, 3, 4),
        ("FLOAT32", [1, 1, 2, 3], None, 24, 24),
        ("FLOAT32", [3, 2, 5], [0, 0, 1], 20, 20),
        ("FLOAT32", [2, 2], [4, 1], 24, 24),
        # layouts it speaks of
        ("FLOAT32", [1, 1, 3, 5], [15, 15, 5, 1], 60, 60),
        ("FLOAT32", [1, 1, 3, 5], [15, 1, 5, 1], 60, 60),
        ("FLOAT16", [2, 3, 4, 5], [60, 1, 15, 3], 240, 240),
        # strides of dimensions of size 1 reach nowhere
        ("FLOAT32", [1, 1, 2, 3], [UINT_MAX, UINT_MAX, 3, 1], 24, 24),
        ("INT8", [1], [UINT_MAX], 1, 4),
        # two elements to a byte
        ("UINT4", [5], None, 3, 4),
        ("INT4", [8], None, 4, 4),
        ("INT4", [9], None, 5, 8),
        ("INT4", [2], [7], 4, 4),
        # sums that would wrap in 32 bits
        ("FLOAT32", [3], [1 << 31], 4 * ((1 << 32) + 1), 4 * ((1 << 32) + 1)),
        ("INT8", [2, 2], [UINT_MAX, 1], (1 << 32) + 1, (1 << 32) + 4),
        ("FLOAT64", [65535, 65537], None, 8 * UINT_MAX, 8 * UINT_MAX),
        ("INT8", [65536, 65536], [1 << 16, 1 << 16], 2 * 65535 * 65536 + 1, 2 * 65535 * 65536 + 4),
    ],
)
def test_bytes_of_a_layout(
    data_type: str, sizes: list[int], strides: list[int] | None, data_bytes: int, minimum_bytes: int
) -> None:
    desc = tensor(data_type, sizes, strides)
    assert desc.data_bytes == data_bytes
    assert desc.minimum_bytes == minimum_bytes
    assert desc.total_bytes == minimum_bytes


def test_bytes_beyond_64_bits_do_not_wrap() -> None:
    desc = tensor("FLOAT64", [UINT_MAX] * MAX_RANK, [UINT_MAX] * MAX_RANK)
    assert desc.reach == MAX_RANK * (UINT_MAX - 1) * UINT_MAX + 1
    assert desc.minimum_bytes == 8 * desc.reach > 1 << 64


@pytest.mark.parametrize("data_type", DataType)
def test_bytes_are_those_of_the_last_element_rounded_up_to_4(data_type: DataType) -> None:
    for elements in range(1, 20):
        desc = tensor(data_type, [elements])
        bits = elements * data_type.bits
        assert desc.data_bytes == bits // 8 + (bits % 8 > 0)
        assert desc.minimum_bytes % 4 == 0
        assert 0 <= desc.minimum_bytes - desc.data_bytes < 4


layouts = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40)), min_size=1, max_size=5)


@given(layouts)
def test_reach_is_the_furthest_coordinate(layout: list[tuple[int, int]]) -> None:
    sizes, strides = zip(*layout, strict=True)
    offsets = [
        sum(coordinate * stride for coordinate, stride in zip(place, strides, strict=True))
        for place in itertools.product(*map(range, sizes))
    ]
    desc = tensor("UINT8", list(sizes), list(strides))
    assert desc.reach == max(offsets) + 1
    assert desc.elements == len(offsets)


@given(layouts)
def test_packed_strides_are_numpys(layout: list[tuple[int, int]]) -> None:
    sizes, strides = map(list, zip(*layout, strict=True))
    packed = np.empty(sizes, np.uint8)
    assert packed_strides(sizes) == list(packed.strides)
    assert tensor("UINT8", sizes).is_packed
    assert tensor("UINT8", sizes, list(packed.strides)).is_packed
    view = np.lib.stride_tricks.as_strided(packed, sizes, strides)
    assert tensor("UINT8", sizes, strides).is_packed == view.flags.c_contiguous


def test_steps_are_strides_of_what_has_more_than_one_element() -> None:
    assert tensor("UINT8", [1, 2, 1, 3], [7, 3, 9, 1]).steps == [0, 3, 0, 1]
    assert tensor("UINT8", [1, 2, 1, 3]).steps == [0, 3, 0, 1]


def test_what_has_no_gaps() -> None:
    assert tensor("UINT8", [2, 3]).gapless
    assert tensor("UINT8", [2, 3], [1, 2]).gapless, "transposed"
    assert not tensor("UINT8", [2, 3], [4, 1]).gapless


def test_data_may_be_as_long_as_the_layout_reaches_or_rounded_up_or_as_stated() -> None:
    assert tensor("UINT8", [5]).data_lengths == {5, 8}
    assert tensor("UINT8", [5], TotalTensorSizeInBytes=16).data_lengths == {5, 8, 16}
    assert tensor("FLOAT32", [5]).data_lengths == {20}


def test_layouts_that_are_the_same() -> None:
    one = tensor("FLOAT32", [1, 2, 3])
    for same in (
        one,
        tensor("INT32", [1, 2, 3]),
        tensor("FLOAT32", [1, 2, 3], [9, 3, 1]),
        tensor("FLOAT32", [1, 2, 3], TotalTensorSizeInBytes=24),
    ):
        assert one.same_layout(same)
        assert same.same_layout(one)
    for other in (
        tensor("FLOAT16", [1, 2, 3], TotalTensorSizeInBytes=24),
        tensor("FLOAT32", [2, 3]),
        tensor("FLOAT32", [1, 2, 3], [9, 1, 2]),
        tensor("FLOAT32", [1, 2, 3], TotalTensorSizeInBytes=28),
    ):
        assert not one.same_layout(other)
        assert not other.same_layout(one)
    assert not tensor("INT8", [2, 2]).same_layout(tensor("INT8", [2, 2], [1, 2])), "transposed"


def test_too_many_elements_are_much_to_say() -> None:
    """As is all that may be left out."""
    assert tensor("INT8", [65535, 65537]).states_little
    assert not TensorDesc.model_validate({"DataType": "INT8", "Sizes": [65536, 65536]}).states_little
    assert not TensorDesc.model_validate(FLOAT32 | {"Flags": "OWNED_BY_DML"}).states_little


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("InputTensor", ("InputTensor",)),
        ("InputTensors[0]", ("InputTensors", 0)),
        ("InputTensors[127]", ("InputTensors", 127)),
        *(
            (name, (name,))
            for name in ("a[00]", "a[01]", "a[-1]", "a[", "[0]", "a[0][0]", f"a[{'9' * 5000}]", "a b[0]")
        ),
    ],
)
def test_names_of_tensors_and_where_these_are(name: str, path: tuple[str | int, ...]) -> None:
    assert path_of(name) == path


# Members


@pytest.mark.parametrize("total", [None, 0, 24, 28, 256, (1 << 64) - 4])
def test_total_size_may_be_absent_or_at_least_the_minimum(total: int | None) -> None:
    document = FLOAT32 | {"TotalTensorSizeInBytes": total}
    assert refusals(document) == []
    assert TensorDesc.model_validate(document).total_bytes == (total or 24)


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_alignment_is_a_power_of_two_not_below_the_element(element_bytes: int) -> None:
    document = {"DataType": f"UINT{8 * element_bytes}", "Sizes": [1]}
    powers = {1 << exponent for exponent in range(32)}
    accepted = {n for n in range(1025) if not refusals(document | {"GuaranteedBaseOffsetAlignment": n})}
    assert accepted == {0} | {n for n in powers if element_bytes <= n <= 1024}
    for power in powers - set(range(1025)):
        assert refusals(document | {"GuaranteedBaseOffsetAlignment": power}) == []


@pytest.mark.parametrize("data_type", ["UINT4", "INT4"])
def test_alignment_of_half_bytes(data_type: str) -> None:
    assert refusals({"DataType": data_type, "Sizes": [1], "GuaranteedBaseOffsetAlignment": 1}) == []


@pytest.mark.parametrize(
    ("flags", "owned"),
    [
        ([], False),
        ("NONE", False),
        ("DML_TENSOR_FLAG_NONE", False),
        (["NONE"], False),
        ("OWNED_BY_DML", True),
        ("DML_TENSOR_FLAG_OWNED_BY_DML", True),
        (["OWNED_BY_DML"], True),
        (["NONE", "DML_TENSOR_FLAG_OWNED_BY_DML", "OWNED_BY_DML"], True),
    ],
)
def test_flags_are_a_name_or_a_list(flags: object, owned: bool) -> None:
    document = FLOAT32 | {"Flags": flags}
    assert refusals(document) == []
    assert TensorDesc.model_validate(document).owned_by_dml == owned
    assert [refusal.pointer for refusal in refusals(document, output=True)] == (["/Flags"] if owned else [])


@pytest.mark.parametrize(
    "sizes", [[1], [1] * MAX_RANK, [UINT_MAX], [65535, 65537], [1, UINT_MAX, 1], [3, 5, 17, 257, 65537]]
)
def test_sizes_up_to_the_most_elements(sizes: list[int]) -> None:
    assert refusals({"DataType": "INT8", "Sizes": sizes}) == []


def test_dimension_count_may_be_stated() -> None:
    assert refusals(FLOAT32 | {"DimensionCount": 4}) == []


@pytest.mark.parametrize(
    "member", ["Strides", "Flags", "DimensionCount", "TotalTensorSizeInBytes", "GuaranteedBaseOffsetAlignment"]
)
def test_what_may_be_left_out_may_be_null(member: str) -> None:
    document = FLOAT32 | {member: None}
    assert refusals(document) == []
    assert TensorDesc.model_validate(document) == TensorDesc.model_validate(FLOAT32)


def test_broadcasting_strides_are_for_inputs() -> None:
    document = FLOAT32 | {"Strides": [0, 0, 0, 1]}
    assert refusals(document) == []
    assert [refusal.pointer for refusal in refusals(document, output=True)] == ["/Strides"]


@pytest.mark.parametrize(
    ("members", "pointer", "given_back", "allowed"),
    [
        ({"DataType": "UNKNOWN"}, "/DataType", "UNKNOWN", [each.value for each in DataType]),
        ({"DataType": "float32"}, "/DataType", "float32", [each.value for each in DataType]),
        ({"DataType": 1}, "/DataType", 1, [each.value for each in DataType]),
        ({"DataType": None}, "/DataType", None, [each.value for each in DataType]),
        ({"Sizes": []}, "/Sizes", 0, ">= 1"),
        ({"Sizes": [1] * 9}, "/Sizes", 9, "<= 8"),
        ({"Sizes": None}, "/Sizes", None, "an array"),
        ({"Sizes": 4}, "/Sizes", 4, "an array"),
        ({"Sizes": [1, 1, 0, 3]}, "/Sizes/2", 0, ">= 1"),
        ({"Sizes": [-1]}, "/Sizes/0", -1, ">= 1"),
        ({"Sizes": [1 << 32]}, "/Sizes/0", 1 << 32, f"<= {UINT_MAX}"),
        ({"Sizes": [10**400]}, "/Sizes/0", "an integer of 1329 bits", f"<= {UINT_MAX}"),
        ({"Sizes": [2.0]}, "/Sizes/0", 2.0, "an integer"),
        ({"Sizes": ["2"]}, "/Sizes/0", "2", "an integer"),
        ({"Sizes": [True]}, "/Sizes/0", True, "an integer"),
        ({"Sizes": [65536, 65536]}, "/Sizes", [65536, 65536], MAX_ELEMENTS),
        ({"Sizes": [UINT_MAX] * 8}, "/Sizes", [UINT_MAX] * 8, MAX_ELEMENTS),
        ({"Strides": []}, "/Strides", [], 4),
        ({"Strides": [3, 1]}, "/Strides", [3, 1], 4),
        ({"Strides": [6, 6, 6, 3, 1]}, "/Strides", [6, 6, 6, 3, 1], 4),
        ({"Strides": [1] * 9}, "/Strides", 9, "<= 8"),
        ({"Strides": [6, 6, -3, 1]}, "/Strides/2", -3, ">= 0"),
        ({"Strides": [6, 6, 1 << 32, 1]}, "/Strides/2", 1 << 32, f"<= {UINT_MAX}"),
        ({"Strides": [6, 6, 3.5, 1]}, "/Strides/2", 3.5, "an integer"),
        ({"Strides": "packed"}, "/Strides", "packed", "an array"),
        ({"Flags": 1}, "/Flags", 1, ["NONE", "OWNED_BY_DML"]),
        ({"Flags": ["NONE"] * 9}, "/Flags", 9, "<= 8"),
        ({"Flags": "OWNED"}, "/Flags", "OWNED", ["NONE", "OWNED_BY_DML"]),
        ({"Flags": ["NONE", 1]}, "/Flags/1", 1, ["NONE", "OWNED_BY_DML"]),
        ({"DimensionCount": 3}, "/DimensionCount", 3, 4),
        ({"DimensionCount": 0}, "/DimensionCount", 0, 4),
        ({"DimensionCount": -4}, "/DimensionCount", -4, ">= 0"),
        ({"DimensionCount": "4"}, "/DimensionCount", "4", "an integer"),
        ({"TotalTensorSizeInBytes": 20}, "/TotalTensorSizeInBytes", 20, ">= 24, or 0 to have it computed"),
        ({"TotalTensorSizeInBytes": 26}, "/TotalTensorSizeInBytes", 26, "a multiple of 4"),
        ({"TotalTensorSizeInBytes": -1}, "/TotalTensorSizeInBytes", -1, ">= 0"),
        (
            {"TotalTensorSizeInBytes": 1 << 64},
            "/TotalTensorSizeInBytes",
            "an integer of 65 bits",
            f"<= {(1 << 64) - 1}",
        ),
        ({"TotalTensorSizeInBytes": 24.0}, "/TotalTensorSizeInBytes", 24.0, "an integer"),
        # 10 bytes of data, but a buffer is a multiple of 4
        (
            {"DataType": "FLOAT16", "Sizes": [5], "TotalTensorSizeInBytes": 10},
            "/TotalTensorSizeInBytes",
            10,
            ">= 12, or 0 to have it computed",
        ),
        # a sum that wraps to 4 bytes in 32 bits
        (
            {"Sizes": [3], "Strides": [1 << 31], "TotalTensorSizeInBytes": 4},
            "/TotalTensorSizeInBytes",
            4,
            f">= {(1 << 34) + 4}, or 0 to have it computed",
        ),
        ({"GuaranteedBaseOffsetAlignment": 2}, "/GuaranteedBaseOffsetAlignment", 2, "0, or a power of two >= 4"),
        ({"GuaranteedBaseOffsetAlignment": 48}, "/GuaranteedBaseOffsetAlignment", 48, "0, or a power of two >= 4"),
        ({"GuaranteedBaseOffsetAlignment": -16}, "/GuaranteedBaseOffsetAlignment", -16, ">= 0"),
        ({"GuaranteedBaseOffsetAlignment": 1 << 32}, "/GuaranteedBaseOffsetAlignment", 1 << 32, f"<= {UINT_MAX}"),
        ({"Stride": [1]}, "/Stride", [1], sorted(TensorDesc.model_fields)),
        ({"dataType": "FLOAT32"}, "/dataType", "FLOAT32", sorted(TensorDesc.model_fields)),
    ],
)
def test_broken_rule_is_refused_in_one_sentence(
    members: dict[str, Any], pointer: str, given_back: object, allowed: object
) -> None:
    (refusal,) = refusals(FLOAT32 | members)
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == (pointer, given_back, allowed)


@pytest.mark.parametrize(
    ("members", "pointer", "given_back"),
    [
        ({"Flags": ["NONE", "OWNED_BY_DML"]}, "/Flags", "OWNED_BY_DML"),
        ({"Strides": [6, 6, 0, 1]}, "/Strides", [6, 6, 0, 1]),
        ({"Strides": [6, 6, 1, 1]}, "/Strides", [6, 6, 1, 1]),
    ],
)
def test_rule_of_outputs_is_not_one_of_inputs(members: dict[str, Any], pointer: str, given_back: object) -> None:
    assert refusals(FLOAT32 | members) == []
    (refusal,) = refusals(FLOAT32 | members, output=True)
    check_wording(refusal)
    assert (refusal.pointer, refusal.given) == (pointer, given_back)


@pytest.mark.parametrize("missing", ["DataType", "Sizes"])
def test_required_member(missing: str) -> None:
    (refusal,) = refusals({name: value for name, value in FLOAT32.items() if name != missing})
    check_wording(refusal)
    assert refusal.pointer == f"/{missing}"


def test_all_broken_rules_are_told_at_once() -> None:
    broken = {
        "DimensionCount": 2,
        "TotalTensorSizeInBytes": 4,
        "GuaranteedBaseOffsetAlignment": 3,
        "Flags": "OWNED_BY_DML",
    }
    pointers = {refusal.pointer for refusal in refusals(FLOAT32 | broken, output=True)}
    assert pointers == {f"/{name}" for name in broken}


@pytest.mark.parametrize("document", [None, 1, "FLOAT32", [], [FLOAT32], True])
def test_a_descriptor_is_an_object(document: Any) -> None:
    (refusal,) = refusals(document)
    assert refusal.pointer == ""
    assert refusal.allowed == "an object"


def test_descriptors_do_not_change() -> None:
    desc = TensorDesc.model_validate(FLOAT32)
    with pytest.raises(ValueError, match="frozen"):
        desc.Sizes = [1]  # type: ignore[misc]


@given(layouts, layouts)
def test_same_layout_means_the_same_place_for_each_coordinate(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    descs = [tensor("FLOAT32", [size for size, _ in layout], [stride for _, stride in layout]) for layout in (a, b)]
    places = [
        {
            place: sum(c * s for c, s in zip(place, desc.strides, strict=True))
            for place in itertools.product(*map(range, desc.Sizes))
        }
        for desc in descs
    ]
    assert descs[0].same_layout(descs[1]) == (places[0] == places[1])
    assert descs[0].same_layout(descs[0])


@pytest.mark.parametrize(
    ("members", "same"),
    [
        ({}, True),
        ({"Strides": [6, 6, 3, 1]}, True),
        ({"Strides": [99, 0, 3, 1]}, True),  # steps along dimensions of size 1
        ({"TotalTensorSizeInBytes": 24}, True),
        ({"DataType": "INT32"}, True),
        ({"GuaranteedBaseOffsetAlignment": 64, "DimensionCount": 4}, True),
        ({"TotalTensorSizeInBytes": 28}, False),
        ({"DataType": "FLOAT16"}, False),
        ({"Strides": [6, 6, 1, 2]}, False),
        ({"Sizes": [1, 1, 3, 2]}, False),
        ({"Sizes": [1, 2, 3]}, False),
    ],
)
def test_same_layout_of_the_other_members(members: dict[str, Any], same: bool) -> None:
    desc, other = TensorDesc.model_validate(FLOAT32), TensorDesc.model_validate(FLOAT32 | members)
    assert desc.same_layout(other) == same
    assert other.same_layout(desc) == same


def test_a_wrong_number_of_strides_is_the_only_complaint() -> None:
    """Nothing that depends on strides is asked of a descriptor that lacks some."""
    broken = FLOAT32 | {"Strides": [1], "TotalTensorSizeInBytes": 4, "GuaranteedBaseOffsetAlignment": 3}
    assert [refusal.pointer for refusal in refusals(broken, output=True)] == ["/Strides"]


def test_contract_error_says_everything() -> None:
    found = refusals(FLOAT32 | {"DimensionCount": 2, "TotalTensorSizeInBytes": 4})
    assert str(ContractError(found)) == " ".join(refusal.message for refusal in found)

"""Attention against loops over items, heads and queries in float64, written from the documented formula; refusals."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.contract.constants import NEWEST
from app.memory.arrays import Array
from app.operators.attention import pasts
from app.operators.attention.multihead import MultiheadAttention
from tests.contract.refusals import check_wording
from tests.operators.arrays import desc_of, laid_out
from tests.operators.calls import run
from tests.operators.descriptors import descriptor, refusals

MASKS = ["NONE", "KEY_SEQUENCE_LENGTH", "KEY_SEQUENCE_END_START", "KEY_QUERY_SEQUENCE_LENGTH_START_END", "BOOLEAN"]
FORMS = ["apart", "query and key", "key and value", "all", "past alone"]
FILTER = -3.0


class Case:
    """A random request, and what is right: arrays by hand, item by item."""

    def __init__(self, rng: np.random.Generator, dtype: str, form: str, mask: str, heads: int, key_heads: int) -> None:
        self.rng, self.dtype = rng, dtype
        self.batch, self.queries, self.size = (int(each) for each in rng.integers(1, 4, 3))
        self.heads, self.key_heads = heads, key_heads
        self.keys = self.queries if form in ("query and key", "all") else int(rng.integers(1, 5))
        if form == "past alone":
            self.keys = 0
        self.value_size = self.size if form in ("key and value", "all") else int(rng.integers(1, 4))
        self.past = int(rng.integers(1, 4)) if rng.random() < 0.5 or not self.keys else 0
        self.scale = 0.5
        q = self.random(self.batch, self.queries, heads, self.size)
        k = self.random(self.batch, self.keys, key_heads, self.size)
        v = self.random(self.batch, self.keys, key_heads, self.value_size)
        self.inputs: dict[str, Array | None] = self.stated(form, q, k, v)
        self.q, self.k, self.v = (each.astype(float).transpose(0, 2, 1, 3) for each in (q, k, v))
        if rng.random() < 0.5:
            self.add_bias()
        if self.past:
            self.add_past()
        self.total = self.past + self.keys
        self.added = np.zeros((self.batch, heads, self.queries, self.total))
        if rng.random() < 0.5:
            bias = self.random(self.batch, heads, self.queries, self.total)
            self.inputs["RelativePositionBiasTensor"] = bias
            self.added += bias.astype(float)
        if mask != "NONE":
            self.add_mask(mask)

    def random(self, *sizes: int) -> Array:
        return laid_out(self.rng, self.rng.normal(size=sizes).astype(self.dtype))

    def stated(self, form: str, q: Array, k: Array, v: Array) -> dict[str, Array | None]:
        """By the tensors that requests have."""

        def flat(x: Array) -> Array:
            leading = [1] * int(self.rng.integers(0, 3))
            return laid_out(self.rng, np.ascontiguousarray(x).reshape(*leading, *x.shape[:2], -1))

        if form == "apart":
            return {"QueryTensor": flat(q), "KeyTensor": flat(k), "ValueTensor": flat(v)}
        if form == "query and key":
            return {"StackedQueryKeyTensor": np.stack([q, k], 3), "ValueTensor": flat(v)}
        if form == "key and value":
            return {"QueryTensor": flat(q), "StackedKeyValueTensor": np.stack([k, v], 3)}
        if form == "past alone":
            return {"QueryTensor": flat(q)}
        return {"StackedQueryKeyValueTensor": np.stack([q, k, v], 3)}

    def add_bias(self) -> None:
        ends = np.cumsum([self.heads * self.size, self.key_heads * self.size, self.key_heads * self.value_size])
        bias = self.random(int(ends[-1]))
        self.inputs["BiasTensor"] = bias
        parts = np.split(bias.astype(float), ends[:-1])
        self.q, self.k, self.v = (
            x + part.reshape(x.shape[1], 1, -1) for x, part in zip((self.q, self.k, self.v), parts, strict=True)
        )

    def add_past(self) -> None:
        for name, new in (("PastKeyTensor", "k"), ("PastValueTensor", "v")):
            x = getattr(self, new)
            past = self.random(self.batch, self.key_heads, self.past, x.shape[-1])
            self.inputs[name] = past
            setattr(self, new, np.concatenate([past.astype(float), x], axis=2))

    def add_mask(self, kind: str) -> None:
        rng, batch = self.rng, self.batch
        ends = rng.integers(0, self.total + 2, batch)
        starts = rng.integers(0, self.total, batch)
        places = np.arange(self.total)
        outside = places >= ends[:, None]
        mask: Array
        if kind == "BOOLEAN":
            mask = rng.integers(0, 2, (batch, 1, 1, self.total)).astype(np.int32) * 7
            self.inputs["MaskTensor"] = np.broadcast_to(mask, self.added.shape)
            self.added += np.where(mask == 0, FILTER, 0)
            return
        if kind == "KEY_SEQUENCE_LENGTH":
            mask = ends[None]
        elif kind == "KEY_SEQUENCE_END_START":
            mask = np.stack([ends, starts])
            outside |= places < starts[:, None]
        else:
            mask = np.concatenate([ends, np.arange(batch + 1) * self.queries, np.arange(batch + 1) * self.total])[None]
        self.inputs["MaskTensor"] = mask.astype(np.int32)
        self.added += np.where(outside, FILTER, 0)[:, None, None]

    def expected(self, there: Array | None = None) -> dict[str, Array]:
        """`there`, { batch, keys }, are the keys that have a weight; by default all have."""
        made = np.zeros((self.batch, self.queries, self.heads, self.value_size))
        for b in range(self.batch):
            for h in range(self.heads):
                group = h * self.key_heads // self.heads
                for s in range(self.queries):
                    scores = self.scale * self.k[b, group] @ self.q[b, h, s] + self.added[b, h, s]
                    if there is not None:
                        scores = np.where(there[b], scores, -np.inf)
                    weights = np.exp(scores - scores.max())
                    made[b, s, h] = weights / weights.sum() @ self.v[b, group]
        return {
            "OutputTensor": made.reshape(self.batch, self.queries, -1),
            "OutputPresentKeyTensor": self.k,
            "OutputPresentValueTensor": self.v,
        }

    def document(self, kind: str, mask: str) -> dict[str, Any]:
        heads = {"HeadCount": self.heads}
        if kind == "MULTIHEAD_ATTENTION1":
            heads = {"QueryHeadCount": self.heads, "KeyValueHeadCount": self.key_heads}
        present = {
            f"OutputPresent{name}Tensor": desc_of(np.zeros(x.shape, self.dtype))
            for name, x in (("Key", self.k), ("Value", self.v))
            if self.rng.random() < 0.6
        }
        return {"Type": kind, "Scale": self.scale, "MaskFilterValue": FILTER, "MaskType": mask, **heads, **present}


def check(made: dict[str, Array], right: dict[str, Array], dtype: str) -> None:
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    for name, array in made.items():
        np.testing.assert_allclose(array, right[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scratch", [1 << 20, 32], ids=["whole", "pieces"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", MASKS)
def test_attention(mask: str, form: str, dtype: str, scratch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.operators.attention.multihead.SCRATCH", {"numpy": scratch})
    rng = np.random.default_rng(len(mask) + len(form))
    for _ in range(2):
        heads = int(rng.integers(1, 4))
        case = Case(rng, dtype, form, mask, heads, heads)
        for kind in ("MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1"):
            check(run(case.document(kind, mask), case.inputs), case.expected(), dtype)


@pytest.mark.parametrize("form", ["apart", "key and value"])
@pytest.mark.parametrize("mask", MASKS)
def test_groups_of_query_heads(mask: str, form: str) -> None:
    rng = np.random.default_rng(7)
    for key_heads, groups in ((1, 4), (2, 3), (3, 2)):
        case = Case(rng, "float32", form, mask, key_heads * groups, key_heads)
        check(run(case.document("MULTIHEAD_ATTENTION1", mask), case.inputs), case.expected(), "float32")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pasts_of_different_lengths(dtype: str) -> None:
    """The new key and value follow what there is of the past; the rest is 0, and without weight."""
    rng = np.random.default_rng(8)
    for lengths, of in (([0, 2, 3], dtype), ([-1, 7, np.nan], dtype), ([1, 1, 1], dtype), ([-1, 7, 2], "int32")):
        case = Case(rng, dtype, "apart", "NONE", 2, 1)
        while not (case.past == 3 and case.batch == 3):
            case = Case(rng, dtype, "apart", "NONE", 2, 1)
        case.inputs["PastSequenceLengthsTensor"] = np.array(lengths, of)
        valid = [int(min(max(np.nan_to_num(each), 0), 3)) for each in lengths]
        for x in (case.k, case.v):
            for b, length in enumerate(valid):
                new = x[b, :, 3:].copy()
                x[b, :, length:] = 0
                x[b, :, length : length + case.keys] = new
        there = np.arange(case.total) < np.array(valid)[:, None] + case.keys
        check(run(case.document("MULTIHEAD_ATTENTION1", "NONE"), case.inputs), case.expected(there), dtype)


@pytest.mark.parametrize("keys", [4, 60])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["BOOLEAN", "KEY_SEQUENCE_LENGTH"])
def test_keys_that_are_masked_by_an_infinity_are_as_good_as_none(kind: str, dtype: str, keys: int) -> None:
    """And a query of which all keys are masked has nothing to take a mean of."""
    rng = np.random.default_rng(9)
    query, key, value = (rng.normal(size=(2, each, 8)).astype(dtype) for each in (keys, keys, keys))
    document = {"Type": "MULTIHEAD_ATTENTION", "Scale": 0.5, "HeadCount": 2}
    length = keys - 1
    right = run(
        document | {"MaskType": "NONE"},
        {"QueryTensor": query, "KeyTensor": key[:, :length], "ValueTensor": value[:, :length]},
    )["OutputTensor"]
    mask = np.full((1, 2), length, np.int32)
    mask[0, 1] = 0
    if kind == "BOOLEAN":
        there = np.arange(keys) < mask.reshape(2, 1, 1, 1)
        mask = np.broadcast_to(there, (2, 2, keys, keys)).astype(np.int32)
    made = run(
        document | {"MaskType": kind, "MaskFilterValue": -np.inf},
        {"QueryTensor": query, "KeyTensor": key, "ValueTensor": value, "MaskTensor": mask},
    )["OutputTensor"]
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(made[0], right[0], rtol=tolerance, atol=tolerance)
    assert np.isnan(made[1]).all()


def test_large_scores_do_not_overflow() -> None:
    x = np.full((1, 2, 2), 1e18, np.float32)
    value = np.array([[[1, 2], [3, 4]]], np.float32)
    made = run(
        {"Type": "MULTIHEAD_ATTENTION", "Scale": 1, "HeadCount": 1, "MaskType": "NONE"},
        {"QueryTensor": x, "KeyTensor": x, "ValueTensor": value},
    )
    assert made["OutputTensor"].tolist() == [[[2, 3], [2, 3]]]


def desc(*sizes: int, data_type: str = "FLOAT32") -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


@pytest.mark.parametrize(
    ("members", "pointer", "allowed"),
    [
        ({"KeyTensor": desc(2, 3, 4)}, "/KeyTensor/Sizes", [1, 3, 4]),
        ({"KeyTensor": desc(1, 3, 6)}, "/KeyTensor/Sizes", [1, 3, 4]),
        ({"ValueTensor": desc(1, 2, 4)}, "/ValueTensor/Sizes", [1, 3, 4]),
        ({"ValueTensor": None}, "/ValueTensor", ["ValueTensor", "StackedKeyValueTensor", "StackedQueryKeyValueTensor"]),
        ({"BiasTensor": desc(13)}, "/BiasTensor/Sizes", [12]),
        *(
            (
                {"PastKeyTensor": desc(1, 2, 5, 2), "PastValueTensor": desc(1, 2, 5, 2), name: None},
                f"/{name}",
                [name, *more, "StackedKeyValueTensor", "StackedQueryKeyValueTensor"],
            )
            for name, more in (("KeyTensor", ["StackedQueryKeyTensor"]), ("ValueTensor", []))
        ),
        (
            {"PastKeyTensor": desc(1, 2, 5, 3), "PastValueTensor": desc(1, 2, 5, 2)}
            | dict.fromkeys(("KeyTensor", "ValueTensor")),
            "/PastKeyTensor/Sizes",
            [1, 2, 5, 2],
        ),
        ({"RelativePositionBiasTensor": desc(1, 1, 2, 3)}, "/RelativePositionBiasTensor/Sizes", [1, 2, 2, 3]),
        ({"PastKeyTensor": desc(1, 2, 5, 2)}, "/PastValueTensor", "a tensor"),
        (
            {"PastKeyTensor": desc(1, 2, 5, 2), "PastValueTensor": desc(1, 2, 4, 2)},
            "/PastValueTensor/Sizes",
            [1, 2, 5, 2],
        ),
        ({"OutputTensor": desc(1, 2, 6)}, "/OutputTensor/Sizes", [1, 2, 4]),
        ({"OutputPresentKeyTensor": desc(1, 2, 2, 2)}, "/OutputPresentKeyTensor/Sizes", [1, 2, 3, 2]),
        ({"MaskTensor": desc(1, 1, data_type="INT32")}, "/MaskType", MASKS[1:]),
        ({"MaskType": "BOOLEAN"}, "/MaskType", ["NONE"]),
    ],
)
@pytest.mark.parametrize("kind", ["MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1"])
def test_refusals(kind: str, members: dict[str, Any], pointer: str, allowed: object) -> None:
    whole = descriptor(f"DML_OPERATOR_{kind}")
    assert refusals(whole) == []
    (refusal,) = refusals(whole | members)
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == (pointer, allowed)


def test_sources_exclude_each_other() -> None:
    whole = descriptor("DML_OPERATOR_MULTIHEAD_ATTENTION")
    found = refusals(whole | {"StackedKeyValueTensor": desc(1, 3, 2, 2, 2)})
    assert [each.pointer for each in found] == ["/StackedKeyValueTensor"] * 2
    for each in found:
        check_wording(each)


@pytest.mark.parametrize(("kind", "size"), [*zip(MASKS[1:], ([1, 1], [2, 1], [1, 5], [1, 2, 2, 3]), strict=True)])
def test_sizes_of_masks(kind: str, size: list[int]) -> None:
    whole = descriptor("DML_OPERATOR_MULTIHEAD_ATTENTION") | {"MaskType": kind}
    assert refusals(whole | {"MaskTensor": desc(*size, data_type="INT32")}) == []
    (refusal,) = refusals(whole | {"MaskTensor": desc(*size[:-1], 9, data_type="INT32")})
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == ("/MaskTensor/Sizes", size)
    assert all(name in refusal.message for name in ("QueryTensor", "KeyTensor", "HeadCount", kind))


@pytest.mark.parametrize("kind", ["MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1"])
def test_of_sizes_that_do_not_fit_all_tensors_are_told_that_they_follow_from(kind: str) -> None:
    whole = descriptor(f"DML_OPERATOR_{kind}", PastKeyTensor=desc(1, 2, 4, 2), PastValueTensor=desc(1, 2, 5, 2))
    (refusal,) = refusals(whole)
    check_wording(refusal)
    assert refusal.pointer == "/PastValueTensor/Sizes"
    heads = ["HeadCount"] if kind == "MULTIHEAD_ATTENTION" else ["QueryHeadCount", "KeyValueHeadCount"]
    assert all(name in refusal.message for name in ("QueryTensor", "KeyTensor", "ValueTensor", "PastKeyTensor", *heads))
    (refusal,) = refusals(descriptor(f"DML_OPERATOR_{kind}", OutputPresentKeyTensor=desc(1, 1, 3, 4)))
    check_wording(refusal)
    assert refusal.pointer == "/OutputPresentKeyTensor/Sizes"
    assert all(name in refusal.message for name in ("QueryTensor", "KeyTensor", "ValueTensor", *heads))


@pytest.mark.parametrize(
    ("members", "pointers"),
    [
        ({"QueryHeadCount": 3}, ["/QueryHeadCount", "/QueryHeadCount"]),
        ({"KeyValueHeadCount": 4}, ["/QueryHeadCount"]),
        ({"QueryHeadCount": 0}, ["/QueryHeadCount"]),
        ({"PastSequenceLengthsTensor": desc(1)}, ["/PastSequenceLengthsTensor"]),
        (
            {"KeyTensor": None, "ValueTensor": None, "StackedKeyValueTensor": desc(1, 3, 1, 2, 2)},
            ["/StackedKeyValueTensor/Sizes"] * 2,
        ),
    ],
)
def test_numbers_of_heads(members: dict[str, Any], pointers: list[str]) -> None:
    found = refusals(descriptor("DML_OPERATOR_MULTIHEAD_ATTENTION1") | members)
    for each in found:
        check_wording(each)
    assert [each.pointer for each in found] == pointers


def test_heads_that_have_a_dimension_of_their_own_are_as_many() -> None:
    members = {"KeyTensor": None, "ValueTensor": None, "StackedKeyValueTensor": desc(1, 3, 1, 2, 2)}
    found = refusals(descriptor("DML_OPERATOR_MULTIHEAD_ATTENTION1") | members)
    assert [(each.given, each.allowed) for each in found] == [([1, 3, 1, 2, 2], [1, 3, 2, 2, 2])] * 2


@pytest.mark.parametrize(
    ("dtype", "more", "given", "added"),
    [
        *(("float16", [], "float16", None), ("float32", [], "float32", None), ("float16", ["bias"], "float32", None)),
        *(("float16", ["mask"], "float16", (1, 1, 1, 5)), ("float32", ["relative"], "float32", (2, 4, 3, 5))),
        *(
            ("float16", ["past", "lengths"], "float16", (2, 1, 1, 7)),
            ("float32", ["mask", "relative"], "float32", (2, 4, 3, 5)),
        ),
    ],
)
def test_what_kernels_are_given(
    dtype: str, more: list[str], given: str, added: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU: heads before items, where the tensors lie, in the type in which they are stored unless something is
    added to them, and what is added to the scores without what is repeated. cuDNN is asked first for float16."""
    asked: list[tuple[str, tuple[Any, ...]]] = []

    def stands_for(module: str, made: Array | None) -> None:
        def attention(_: Any, *arguments: Any, **more: bool) -> Any:
            asked.append((module, arguments))
            return made

        monkeypatch.setattr(f"app.operators.attention.{module}.attention", attention)

    stands_for("library", None)
    stands_for("tiles", np.ones((2, 3, 4, 8), given))
    monkeypatch.setattr(pasts, "_follow_on_gpu", pasts._follow)
    inputs: dict[str, Array] = {name: np.zeros((2, items, 32), dtype) for name, items in _ITEMS.items()}
    members: dict[str, Any] = {"MaskType": "NONE"}
    if "bias" in more:
        inputs["BiasTensor"] = np.ones(96, dtype)
    if "past" in more:
        inputs |= {f"Past{part}Tensor": np.zeros((2, 4, 2, 8), dtype) for part in ("Key", "Value")}
    keys = 7 if "past" in more else 5
    if "mask" in more:
        inputs["MaskTensor"] = np.broadcast_to(np.zeros((1, 1, 1, keys), np.int32), (2, 4, 3, keys))
        members["MaskType"] = "BOOLEAN"
    if "lengths" in more:
        inputs["MaskTensor"], members["MaskType"] = np.zeros(2, np.int32), "KEY_SEQUENCE_LENGTH"
    if "relative" in more:
        inputs["RelativePositionBiasTensor"] = np.zeros((2, 4, 3, keys), dtype)
    stated = {"Type": "MULTIHEAD_ATTENTION", "Scale": 0.5, "HeadCount": 4} | members
    operator = MultiheadAttention.model_validate(stated | {name: desc_of(each) for name, each in inputs.items()})
    operator = operator.model_copy(update={"OutputTensor": operator.implied("OutputTensor", NEWEST)})
    made = operator.call(_CUPY, inputs)["OutputTensor"]
    assert (made.shape, made.dtype) == ((2, 3, 32), np.dtype(dtype))
    assert [module for module, _ in asked] == ["library"] * (given == "float16") + ["tiles"]
    for _, (query, key, value, scale, terms, into) in asked:
        assert (query.shape, key.shape, value.shape) == ((2, 4, 3, 8), (2, 4, keys, 8), (2, 4, keys, 8))
        assert {each.dtype for each in (query, key, value)} == {np.dtype(given)}
        assert (scale, into, None if terms is None else terms.shape) == (0.5, None, added)
        assert np.shares_memory(query, inputs["QueryTensor"]) == ("bias" not in more)
        assert np.shares_memory(key, inputs["KeyTensor"]) == (not {"bias", "past"} & {*more})


_ITEMS = {"QueryTensor": 3, "KeyTensor": 5, "ValueTensor": 5}
_CUPY = SimpleNamespace(**{name: getattr(np, name) for name in ("where", "arange", "empty", "inf")}, __name__="cupy")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_present_outputs_are_filled_where_they_lie(dtype: str) -> None:
    """Those that are packed, and of the type that is computed in."""
    rng = np.random.default_rng(3)
    case = Case(rng, dtype, "apart", "NONE", 2, 2)
    while not case.past:
        case = Case(rng, dtype, "apart", "NONE", 2, 2)
    operator = MultiheadAttention.model_validate(
        case.document("MULTIHEAD_ATTENTION", "NONE")
        | {name: desc_of(x) for name, x in case.inputs.items() if x is not None}
    )
    names = ("OutputTensor", "OutputPresentKeyTensor", "OutputPresentValueTensor")
    for name in names:
        operator = operator.model_copy(update={name: operator.implied(name, NEWEST)})
    into = {name: np.empty(operator.implied_sizes(name), dtype) for name in names}
    made = operator.call(np, case.inputs, into)
    check({name: made[name] for name in names}, case.expected(), dtype)
    assert all((made[name] is into[name]) == (dtype == "float32") for name in names)

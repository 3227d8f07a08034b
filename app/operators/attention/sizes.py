"""What the tensors of an attention say of its sizes, and of each other."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from app.contract.constants import MultiheadAttentionMaskType
from app.contract.tensors import TensorDesc
from app.contract.violations import Violation

SOURCES: dict[str, tuple[str, ...]] = {
    "query": ("QueryTensor", "StackedQueryKeyTensor", "StackedQueryKeyValueTensor"),
    "key": ("KeyTensor", "StackedQueryKeyTensor", "StackedKeyValueTensor", "StackedQueryKeyValueTensor"),
    "value": ("ValueTensor", "StackedKeyValueTensor", "StackedQueryKeyValueTensor"),
}
"""The tensors that each may come from, exactly one of them."""

PASTS = {"key": "PastKeyTensor", "value": "PastValueTensor"}
"""What is there of each before; it may be all, where nothing new follows."""

PLACES: dict[str, tuple[str, ...]] = {
    "StackedQueryKeyTensor": ("query", "key"),
    "StackedKeyValueTensor": ("key", "value"),
    "StackedQueryKeyValueTensor": ("query", "key", "value"),
}
"""What is stacked in a tensor, in its order."""


class Sizes(NamedTuple):
    """Of an attention whose sources are known."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    """New ones."""
    past: int
    size: int
    """Of a head of queries and keys."""
    value_size: int
    """Of a head of values."""

    @property
    def total(self) -> int:
        """Keys, those of the past too."""
        return self.past + self.keys


def source(part: str, tensors: Mapping[str, Any]) -> str:
    """The tensor that `part` comes from: that of the past, where nothing new follows."""
    return next((name for name in SOURCES[part] if name in tensors), PASTS.get(part, ""))


def source_violations(tensors: Mapping[str, TensorDesc]) -> Iterator[Violation]:
    """Query, key and value have one source each; key and value may be those of the past alone."""
    is_past = tensors.keys() >= {*PASTS.values()} and not tensors.keys() & {*SOURCES["key"], *SOURCES["value"]}
    for part, names in SOURCES.items():
        there = [name for name in names if name in tensors]
        if not there and not (is_past and part in PASTS):
            yield Violation(
                (names[0],),
                f"{names[0]} is null and so are all other sources of the {part}; it needs one of {' or '.join(names)}.",
                None,
                list(names),
            )
        for name in there[1:]:
            yield Violation(
                (name,),
                f"{name} holds the {part}, which {there[0]} holds as well; the {part} has one source alone.",
                name,
                None,
            )


def sizes_of(tensors: Mapping[str, TensorDesc], heads: int, key_heads: int) -> Sizes:
    """By the sources, which `source_violations` found right; divisions are rounded down."""
    names = [source(part, tensors) for part in SOURCES]
    query, key, value = (tensors[name].Sizes for name in names)
    past = tensors["PastKeyTensor"].Sizes[-2] if "PastKeyTensor" in tensors else 0

    def of_head(name: str, sizes: list[int], count: int) -> int:
        return sizes[-1] if name in PLACES or name in PASTS.values() else max(sizes[-1] // count, 1)

    size = of_head(names[0], query, heads)
    value_size = of_head(names[2], value, key_heads)
    batch, queries = query[:2] if names[0] in PLACES else query[-3:-1]
    keys = 0 if names[1] == PASTS["key"] else key[1] if names[1] in PLACES else key[-2]
    return Sizes(batch, heads, key_heads, queries, keys, past, size, value_size)


def expected(sizes: Sizes) -> dict[str, list[int]]:
    """The sizes of all tensors but MaskTensor, without leading dimensions of 1 that some may have besides."""
    present = [sizes.batch, sizes.key_heads, sizes.total]
    past = [sizes.batch, sizes.key_heads, sizes.past]
    hidden, value_hidden = sizes.key_heads * sizes.size, sizes.key_heads * sizes.value_size
    return {
        "QueryTensor": [sizes.batch, sizes.queries, sizes.heads * sizes.size],
        "KeyTensor": [sizes.batch, sizes.keys, hidden],
        "ValueTensor": [sizes.batch, sizes.keys, value_hidden],
        "StackedQueryKeyTensor": [sizes.batch, sizes.queries, sizes.heads, 2, sizes.size],
        "StackedKeyValueTensor": [sizes.batch, sizes.keys, sizes.key_heads, 2, sizes.size],
        "StackedQueryKeyValueTensor": [sizes.batch, sizes.queries, sizes.heads, 3, sizes.size],
        "BiasTensor": [sizes.heads * sizes.size + hidden + value_hidden],
        "RelativePositionBiasTensor": [sizes.batch, sizes.heads, sizes.queries, sizes.total],
        "PastKeyTensor": [*past, sizes.size],
        "PastValueTensor": [*past, sizes.value_size],
        "PastSequenceLengthsTensor": [sizes.batch],
        "OutputTensor": [sizes.batch, sizes.queries, sizes.heads * sizes.value_size],
        "OutputPresentKeyTensor": [*present, sizes.size],
        "OutputPresentValueTensor": [*present, sizes.value_size],
    }


def mask_sizes(kind: MultiheadAttentionMaskType, sizes: Sizes) -> list[int]:
    """The sizes of MaskTensor, without leading dimensions of 1."""
    match kind:
        case MultiheadAttentionMaskType.KEY_SEQUENCE_LENGTH:
            return [sizes.batch]
        case MultiheadAttentionMaskType.KEY_SEQUENCE_END_START:
            return [2, sizes.batch]
        case MultiheadAttentionMaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END:
            return [3 * sizes.batch + 2]
    return [sizes.batch, sizes.heads, sizes.queries, sizes.total]


def leading(given: list[int], right: list[int]) -> list[int]:
    """`right` with leading dimensions of 1, as many as `given` has."""
    return [1] * (len(given) - len(right)) + right


def wrong_sizes(name: str, desc: TensorDesc, right: list[int], why: str) -> Iterator[Violation]:
    """Whether `desc` has the sizes `right`, or these with leading dimensions of 1."""
    right = leading(desc.Sizes, right)
    if desc.Sizes != right:
        yield Violation(
            (name, "Sizes"),
            f"{name} has Sizes {desc.Sizes}; it must have {right}, {why}.",
            desc.Sizes,
            right,
        )

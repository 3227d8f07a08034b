"""Attention of several heads.

Source: the DML_MULTIHEAD_ATTENTION_OPERATOR_DESC and DML_MULTIHEAD_ATTENTION1_OPERATOR_DESC pages of DirectML's
reference. What they leave open is as in ONNX Runtime's operators, which call them.
"""

import math
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.contract.constants import DataType, FeatureLevel, MultiheadAttentionMaskType
from app.contract.scalars import Float, FloatOrInfinity, Uint
from app.contract.support import SupportTable
from app.contract.tensors import TensorDesc, members
from app.contract.violations import Violation
from app.operators.accuracy import Accuracy
from app.operators.arrays import SCRATCH, boxes, for_blas, multiplied, stored, unrepeated
from app.operators.attention import library, pasts, tiles
from app.operators.attention import sizes as shapes
from app.operators.attention.parts import with_bias
from app.operators.attention.softmax import Added, Softmax, softmax
from app.operators.operator import (
    Operator,
    OptionalInputTensorDesc,
    OptionalOutputTensorDesc,
    OutputTensorDesc,
    Role,
)

Heads = Annotated[Uint, Field(ge=1, examples=[1])]
MaskKind = Annotated[
    MultiheadAttentionMaskType, Field(description="What MaskTensor says, or that there is none.", examples=["NONE"])
]
_FLOATS = (
    *("QueryTensor", "KeyTensor", "ValueTensor", "StackedQueryKeyTensor", "StackedKeyValueTensor"),
    *("StackedQueryKeyValueTensor", "BiasTensor", "RelativePositionBiasTensor", "PastKeyTensor", "PastValueTensor"),
)
_OUTPUTS = ("OutputTensor", "OutputPresentKeyTensor", "OutputPresentValueTensor")
_SUPPORT = (
    "3-5 F32-16, StackedQueryKeyTensor StackedKeyValueTensor StackedQueryKeyValueTensor 5 F32-16, BiasTensor 1-5 "
    "F32-16, MaskTensor 1-5 I32, RelativePositionBiasTensor PastKeyTensor PastValueTensor OutputPresentKeyTensor "
    "OutputPresentValueTensor 4-5 F32-16"
)
_FORMULA = (
    "y = softmax(Scale * (Q + Bq) x (K + Bk)^T + RelativePositionBias + mask) x (V + Bv), for each batch item and head"
)
_EXAMPLE: dict[str, Any] = {
    "QueryTensor": {"Sizes": [1, 2, 4]},
    "KeyTensor": {"Sizes": [1, 3, 4]},
    "ValueTensor": {"Sizes": [1, 3, 4]},
    **dict.fromkeys(
        (
            *("StackedQueryKeyTensor", "StackedKeyValueTensor", "StackedQueryKeyValueTensor", "BiasTensor"),
            *("MaskTensor", "RelativePositionBiasTensor", "PastKeyTensor", "PastValueTensor"),
            "PastSequenceLengthsTensor",
        )
    ),
}
_NOTES = (
    "Computed in float32, FLOAT16 too, and rounded once: of the present outputs, of products, and of softmax, whose "
    "largest exponential is 1, each sum of K terms is within K * 2^-24 of the sum of their magnitudes.",
    "On a GPU exponentials err by 2^-21. With cuDNN there, those of large FLOAT16, without a BiasTensor and where "
    "RelativePositionBiasTensor is null or repeats, are rounded to FLOAT16 before they weight their values: 2^-11 of "
    "each.",
    "MaskFilterValue is added where the mask masks. DirectML's documentation also has it take the score's place.",
    "Of KEY_QUERY_SEQUENCE_LENGTH_START_END the key lengths have an effect alone: starts and ends are those of the "
    "padded tensors. DirectML's documentation does not say.",
    "RelativePositionBiasTensor and the BOOLEAN mask are { batch, heads, queries, keys }, and repeat by strides of 0; "
    "of the mask all but 0 is true.",
    "PastKeyTensor and PastValueTensor are given both, or neither. They may be all keys and values, as onnxruntime "
    "states those of another sequence; a bias is added to new ones alone.",
)


_ACCURACY = Accuracy(
    4,
    "the largest magnitude of a value, times one more than the largest sum of magnitudes in a score",
    0.5,
    "the elements of a head, and the keys",
)


class Attention(Operator):
    if TYPE_CHECKING:  # they stand where the structures of DirectML have them, each in its own order
        MaskTensor: TensorDesc | None
        OutputTensor: TensorDesc | None
        Scale: float
        MaskFilterValue: float
        MaskType: MultiheadAttentionMaskType

    only_queues = makes_in = True
    same_sizes = ()
    sizes_from = (*(name for name in _FLOATS if not name.endswith("BiasTensor")),)
    head_counts: ClassVar[tuple[str, str]]
    """Attributes: heads of queries, and of keys and values."""

    def implied_sizes(self, name: str) -> list[int]:
        right = shapes.expected(self._sizes())[name]
        stated = self.tensors().get(name)
        return shapes.leading(stated.Sizes, right) if stated else right

    def implied_type(self, name: str, level: FeatureLevel) -> DataType:
        return next(iter(self.tensors(Role.INPUT).values())).DataType

    def batch_axes(self) -> Iterator[Mapping[str, int]]:
        if self.MaskType is MultiheadAttentionMaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END:
            return  # items are in several places of one dimension of the mask
        sizes = self._sizes()
        right = shapes.expected(sizes) | {"MaskTensor": shapes.mask_sizes(self.MaskType, sizes)}
        found = {name: desc.rank - len(right[name]) for name, desc in self.tensors().items() if name != "BiasTensor"}
        if self.MaskType is MultiheadAttentionMaskType.KEY_SEQUENCE_END_START:
            found["MaskTensor"] += 1
        yield {**dict.fromkeys(_OUTPUTS, 0), **found}

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        tensors = self.tensors(Role.INPUT)
        found = list(shapes.source_violations(tensors)) or [*self._head_violations(tensors), *self._mask_violations()]
        pasts = [name for name in ("PastKeyTensor", "PastValueTensor") if name in tensors]
        missing = {"PastKeyTensor": "PastValueTensor", "PastValueTensor": "PastKeyTensor"}.get(
            pasts[0] if pasts else ""
        )
        if len(pasts) == 1 and missing:
            found.append(
                Violation(
                    (missing,), f"{missing} is null but {pasts[0]} is not; they are given both.", None, "a tensor"
                )
            )
        if not found:
            found = list(self._size_violations(tensors))
        yield from found

    def _head_violations(self, tensors: Mapping[str, TensorDesc]) -> Iterator[Violation]:
        """Numbers of heads are those that tensors have, or divide what they have."""
        query_name, key_name = self.head_counts
        heads, key_heads = self._heads
        if heads % key_heads:
            yield Violation(
                (query_name,),
                f"{query_name} is {heads}; it must be a multiple of {key_name}, which is {key_heads}.",
                heads,
                f"a multiple of {key_heads}",
            )
        for part, count, attribute in (
            ("query", heads, query_name),
            ("key", key_heads, key_name),
            ("value", key_heads, key_name),
        ):
            name = shapes.source(part, tensors)
            sizes = tensors[name].Sizes
            if name == shapes.PASTS.get(part):
                continue  # by its sizes
            if name in shapes.PLACES:
                if sizes[2] != count:
                    right = [*sizes[:2], count, *sizes[3:]]
                    yield Violation(
                        (name, "Sizes"),
                        f"{name} has Sizes {sizes}; its third dimension must be {count}, which is {attribute}.",
                        sizes,
                        right,
                    )
            elif sizes[-1] % count:
                yield Violation(
                    (attribute,),
                    f"{attribute} is {count}; it must divide the last dimension of {name}, which is {sizes[-1]}.",
                    count,
                    f"a divisor of {sizes[-1]}",
                )

    def _mask_violations(self) -> Iterator[Violation]:
        if (self.MaskType is MultiheadAttentionMaskType.NONE) == (self.MaskTensor is not None):
            yield Violation(
                ("MaskType",),
                f"MaskType is {self.MaskType} but MaskTensor is {'there' if self.MaskTensor else 'null'}; NONE is "
                "for no mask.",
                self.MaskType,
                [each for each in MultiheadAttentionMaskType if (each == "NONE") == (self.MaskTensor is None)],
            )

    def _size_violations(self, tensors: Mapping[str, TensorDesc]) -> Iterator[Violation]:
        sizes = self._sizes()
        sources = dict.fromkeys(shapes.source(part, tensors) for part in ("query", "key", "value"))
        told = [*dict.fromkeys((*sources, *members(("PastKeyTensor",), tensors), *self.head_counts))]
        for name, right in shapes.expected(sizes).items():
            if name in tensors:
                others = [each for each in told if each != name]
                why = f"which {', '.join(others)} {'imply' if len(others) > 1 else 'implies'}"
                yield from shapes.wrong_sizes(name, tensors[name], right, why)
        if self.MaskTensor:
            right = shapes.mask_sizes(self.MaskType, sizes)
            why = f"which {', '.join(told)} imply, since MaskType is {self.MaskType}"
            yield from shapes.wrong_sizes("MaskTensor", self.MaskTensor, right, why)

    def call(
        self, xp: Any, inputs: Mapping[str, Any], into: Mapping[str, Any] | None = None, by: Softmax = softmax
    ) -> Mapping[str, Any]:
        sizes = self._sizes()
        groups = sizes.heads // sizes.key_heads
        query, key, value = with_bias(inputs, sizes)
        present = pasts.made_in_place(into or {}, key)
        key, value, beyond = pasts.with_past(xp, inputs, key, value, present)
        relative = inputs.get("RelativePositionBiasTensor")
        masked, of_keys = self._masks(xp, inputs, sizes)
        if beyond is not None:
            of_keys = xp.where(beyond, -xp.inf, xp.zeros((), "float32") if of_keys is None else of_keys)
        results = {"OutputPresentKeyTensor": key, "OutputPresentValueTensor": value} | present
        output = into["OutputTensor"] if into else None
        if xp.__name__ == "cupy":
            made = self._by_kernel(xp, (query, key, value), (relative, masked, of_keys), output)
            if made is not None:
                return self._made(inputs, results | {"OutputTensor": made})
            query, key, value = (xp.ascontiguousarray(each, "float32") for each in (query, key, value))
        else:
            query, key, value = (for_blas(xp, stored(each, DataType.FLOAT32)) for each in (query, key, value))
        relative, masked = _grouped(relative, sizes), _grouped(masked, sizes)
        query = query.reshape(sizes.batch, sizes.key_heads, groups, sizes.queries, sizes.size)
        turned, values = for_blas(xp, key.swapaxes(-1, -2)), for_blas(xp, value)
        shape = (sizes.batch, sizes.queries, sizes.key_heads, groups, sizes.value_size)
        if output is not None and not (output.flags.c_contiguous and output.dtype == "float32"):
            output = None
        made = xp.empty(shape, "float32") if output is None else output.reshape(shape)
        for box in boxes([sizes.batch, sizes.key_heads, groups, sizes.queries], self._most(xp, sizes)):
            b, h, g, s = (slice(along.start, along.stop) for along in box)
            scores = multiplied(xp, query[b, h, g, s], turned[b, h, None])
            added = Added(
                None if relative is None else relative[b, h, g, s],
                None if masked is None else masked[b, h, g, s],
                None if of_keys is None else of_keys[b, None, None, None],
                self.MaskFilterValue,
            )
            by(xp, scores, self.Scale, added)
            made[b, s, h, g] = multiplied(xp, scores, values[b, h, None]).transpose(0, 3, 1, 2, 4)
        return self._made(inputs, results | {"OutputTensor": made if output is None else output})

    def _made(self, inputs: Mapping[str, Any], results: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs, as they are stored."""
        dtype = next(inputs[name].dtype for name in _FLOATS if name in inputs)
        made = {}
        for name in self.output_names():
            x, sizes = stored(results[name], DataType(dtype.name.upper())), self.implied_sizes(name)
            made[name] = x if list(x.shape) == sizes else x.reshape(sizes)  # what is made in its place stays that
        return made

    def _by_kernel(self, xp: Any, heads: tuple[Any, Any, Any], terms: tuple[Any, Any, Any], into: Any) -> Any:
        """By cuDNN or a kernel of ours, scores never in memory; None where neither does it. `heads` are those of query,
        key and value, `terms` what is added: as it is, where a mask is 0, and for each key."""
        relative, masked, of_keys = (None if each is None else unrepeated(each) for each in terms)
        added = [] if relative is None else [relative.reshape(relative.shape[-4:])]
        if masked is not None:
            filtered = xp.where(masked == 0, self.MaskFilterValue, 0).astype("float32")
            added.append(filtered.reshape(filtered.shape[-4:]))
        if of_keys is not None:
            added.append(of_keys[:, None, None])
        if len(added) > 1 and 4 * math.prod(map(max, *(each.shape for each in added))) > SCRATCH["cupy"]:
            return None
        more = reduce(add, added) if added else None
        made = None
        if heads[0].dtype == "float16":
            is_bounded = relative is None and abs(self.MaskFilterValue) <= -library.LEAST_ADDED
            is_bounded = is_bounded and "PastSequenceLengthsTensor" not in self.tensors(Role.INPUT)
            made = library.attention(xp, *heads, self.Scale, more, into, is_bounded=is_bounded)
        if made is None:
            made = tiles.attention(xp, *heads, self.Scale, more, into)
        is_there = made is not None and into is not None and made.data.ptr == into.data.ptr
        return into if is_there else made

    @staticmethod
    def _most(xp: Any, sizes: shapes.Sizes) -> int:
        """Queries at a time, of which the scores are in bounded memory."""
        return max(SCRATCH[xp.__name__] // (4 * sizes.total), 1)

    def _masks(self, xp: Any, inputs: Mapping[str, Any], sizes: shapes.Sizes) -> tuple[Any, Any]:
        """The mask of each score, or what is added to the scores of each key, { batch, keys }."""
        kind = self.MaskType
        if kind is MultiheadAttentionMaskType.NONE:
            return None, None
        mask = inputs["MaskTensor"]
        if kind is MultiheadAttentionMaskType.BOOLEAN:
            return mask, None
        places = xp.arange(sizes.total).reshape(1, -1)
        values = mask.reshape(-1)
        outside = places >= values[: sizes.batch].reshape(-1, 1)
        if kind is MultiheadAttentionMaskType.KEY_SEQUENCE_END_START:
            outside = outside | (places < values[sizes.batch :].reshape(-1, 1))
        return None, xp.where(outside, self.MaskFilterValue, 0).astype("float32")

    @property
    def _heads(self) -> tuple[int, int]:
        heads, key_heads = (getattr(self, name) for name in self.head_counts)
        return heads, key_heads

    def multiplications(self) -> int:
        sizes = self._sizes()
        weights = sizes.batch * sizes.heads * sizes.queries * sizes.total
        return weights * (sizes.size + sizes.value_size)

    def _sizes(self) -> shapes.Sizes:
        return shapes.sizes_of(self.tensors(Role.INPUT), *self._heads)


def _grouped(x: Any, sizes: shapes.Sizes) -> Any:
    """{ batch, heads, queries, keys } with the heads in groups of one key each."""
    if x is None:
        return None
    groups = sizes.heads // sizes.key_heads
    return x.reshape(sizes.batch, sizes.key_heads, groups, sizes.queries, sizes.total)


class MultiheadAttention(Attention):
    """For each query a mean of the values, weighted by how well their keys go with it, head by head."""

    Type: Literal["DML_OPERATOR_MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION"]
    QueryTensor: OptionalInputTensorDesc = None
    KeyTensor: OptionalInputTensorDesc = None
    ValueTensor: OptionalInputTensorDesc = None
    StackedQueryKeyTensor: OptionalInputTensorDesc = None
    StackedKeyValueTensor: OptionalInputTensorDesc = None
    StackedQueryKeyValueTensor: OptionalInputTensorDesc = None
    BiasTensor: OptionalInputTensorDesc = None
    MaskTensor: OptionalInputTensorDesc = None
    RelativePositionBiasTensor: OptionalInputTensorDesc = None
    PastKeyTensor: OptionalInputTensorDesc = None
    PastValueTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    OutputPresentKeyTensor: OptionalOutputTensorDesc = None
    OutputPresentValueTensor: OptionalOutputTensorDesc = None
    Scale: Float = Field(description="Factor of the scores, usually 1 / sqrt(size of a head).", examples=[0.5])
    MaskFilterValue: FloatOrInfinity = Field(-10000.0, description="Added to masked scores.")
    HeadCount: Heads = Field(description="Heads of queries, keys and values.", examples=[2])
    MaskType: MaskKind

    head_counts = ("HeadCount", "HeadCount")
    sizes_from = (*Attention.sizes_from, *dict.fromkeys(head_counts))
    formula_text = _FORMULA
    accuracy = _ACCURACY
    same_types = ((*_FLOATS, *_OUTPUTS),)
    support = SupportTable.of(f"6_1 {_SUPPORT}")
    example: ClassVar[Mapping[str, Any]] = {
        name: each for name, each in _EXAMPLE.items() if name != "PastSequenceLengthsTensor"
    }
    notes = _NOTES


class MultiheadAttention1(Attention):
    """The same, of queries that may have more heads than keys and values, of a past whose length differs by item."""

    Type: Literal["DML_OPERATOR_MULTIHEAD_ATTENTION1", "MULTIHEAD_ATTENTION1"]
    QueryTensor: OptionalInputTensorDesc = None
    KeyTensor: OptionalInputTensorDesc = None
    ValueTensor: OptionalInputTensorDesc = None
    StackedQueryKeyTensor: OptionalInputTensorDesc = None
    StackedKeyValueTensor: OptionalInputTensorDesc = None
    StackedQueryKeyValueTensor: OptionalInputTensorDesc = None
    BiasTensor: OptionalInputTensorDesc = None
    MaskTensor: OptionalInputTensorDesc = None
    RelativePositionBiasTensor: OptionalInputTensorDesc = None
    PastKeyTensor: OptionalInputTensorDesc = None
    PastValueTensor: OptionalInputTensorDesc = None
    PastSequenceLengthsTensor: OptionalInputTensorDesc = None
    OutputTensor: OutputTensorDesc = None
    OutputPresentKeyTensor: OptionalOutputTensorDesc = None
    OutputPresentValueTensor: OptionalOutputTensorDesc = None
    Scale: Float = Field(description="Factor of the scores, usually 1 / sqrt(size of a head).", examples=[0.5])
    MaskFilterValue: FloatOrInfinity = Field(-10000.0, description="Added to masked scores.")
    QueryHeadCount: Heads = Field(description="Heads of queries, a multiple of KeyValueHeadCount.", examples=[2])
    KeyValueHeadCount: Heads = Field(description="Heads of keys and values.", examples=[2])
    MaskType: MaskKind

    head_counts = ("QueryHeadCount", "KeyValueHeadCount")
    sizes_from = (*Attention.sizes_from, *dict.fromkeys(head_counts))
    formula_text = f"{_FORMULA}; query head h goes with key head floor(h * KeyValueHeadCount / QueryHeadCount)"
    accuracy = _ACCURACY
    same_types = ((*_FLOATS, *_OUTPUTS),)
    support = SupportTable.of(f"6_3 {_SUPPORT}, PastSequenceLengthsTensor 1-5 F32-16 I32")
    example: ClassVar[Mapping[str, Any]] = _EXAMPLE
    notes = (
        *_NOTES,
        "PastSequenceLengthsTensor may be INT32, as onnxruntime states it; the table of the operator's page has the "
        "types of the other tensors. Of an item, so many keys and values of the past are there; what is new follows "
        "them, also in the present outputs, and behind it these are 0 and have no weight. DirectML's documentation "
        "does not say.",
        "PastSequenceLengthsTensor needs PastKeyTensor. onnxruntime leaves that null: DirectML finds the past in the "
        "buffers of the present outputs, which have no contents before a dispatch here.",
        "No key is masked for coming after a query. onnxruntime states no mask for attention that is causal, so "
        "DirectML may mask such keys where PastSequenceLengthsTensor is there; its documentation does not say.",
    )

    def rules(self, level: FeatureLevel) -> Iterator[Violation]:
        found = list(super().rules(level))
        yield from found
        if not found and self.PastSequenceLengthsTensor and not self.PastKeyTensor:
            yield Violation(
                ("PastSequenceLengthsTensor",),
                "PastSequenceLengthsTensor is there but PastKeyTensor is null; lengths are those of a past.",
                "a tensor",
                None,
            )

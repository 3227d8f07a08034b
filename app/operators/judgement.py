"""The rules that operators only state: data types, ranks, sizes, counts. Paths start at the descriptor."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from app.contract.constants import DataType, FeatureLevel
from app.contract.scalars import Size2D
from app.contract.support import Row
from app.contract.tensors import MAX_ELEMENTS, TensorDesc, members, path_of
from app.contract.validation import abbreviate
from app.contract.violations import ContractError, Path, Violation
from app.operators.operator import Operator, Role


@dataclass(frozen=True, eq=False, slots=True)
class Kinds:
    """What follows from which operator it is, and from the data types and ranks of the tensors that it states."""

    inputs: tuple[str, ...]
    """Those that are there."""
    outputs: tuple[str, ...]
    """Those that are computed."""
    types: Mapping[str, DataType]
    """Of the outputs that are left out, where they follow from the inputs'."""
    tensors: tuple[tuple[str, DataType], ...] | None
    """All that are there or computed, if all their types follow."""
    like_first: tuple[str, ...]
    """The outputs that are left out and are of the type and sizes of the first input."""
    each: tuple[tuple[Violation, ...], ...]
    """What is wrong with each tensor."""
    together: tuple[Violation, ...]
    """What is wrong with all together."""
    counts: bool
    """Whether there are attributes that are the length of arrays."""
    rules: bool
    """Whether the operator has rules of its own."""
    same_sizes: bool
    """Whether the sizes of all tensors are equal."""
    by_coordinates: bool
    call: bool
    """Whether it is called, in the place of a formula."""


def kinds_of(operator: Operator, level: FeatureLevel, tensors: Mapping[str, TensorDesc]) -> Kinds:
    """Those of `tensors`, all that `operator` states. Raises ContractError at levels that do not have it."""
    return _kinds(type(operator), level, tuple([(name, d.DataType, len(d.Sizes)) for name, d in tensors.items()]))


def judge(operator: Operator, level: FeatureLevel, tensors: Mapping[str, TensorDesc], kinds: Kinds) -> None:
    """Raise ContractError with every rule that `operator`, which states `tensors` of these `kinds`, breaks on a device
    of `level`.

    Where all sizes are equal, all that is wrong is told at once. Otherwise the operator's own rules are asked only
    where all tensors are what they may be, and what is implied only where nothing is wrong.
    """
    found: list[Violation] = []
    for (name, desc), of_kind in zip(tensors.items(), kinds.each):  # noqa: B905 - they are of these kinds
        if of_kind:
            found += of_kind
        if not desc.states_little:
            for violation in desc.violations(output=name in operator.output_names()):
                found.append(violation.below(*path_of(name)))
    if len(tensors) > 1:
        found += _size_violations(operator, tensors)
    found += kinds.together
    if kinds.counts:
        found += count_violations(operator)
    if kinds.rules and (kinds.same_sizes or not found):
        found += operator.rules(level)
    if not (kinds.same_sizes or found):
        found += _output_violations(operator, level)
    if found:
        raise ContractError(found)


@lru_cache(1024)
def _kinds(operator: type[Operator], level: FeatureLevel, kinds: tuple[tuple[str, DataType, int], ...]) -> Kinds:
    """Judge tensors by name, data type and rank, few of which are ever seen. Raises ContractError at levels that do not
    have the operator."""
    row = operator.support.at(level)
    if row is None:
        raise ContractError([operator.missing(level)])
    types = {name: data_type for name, data_type, _ in kinds}
    ranks = {name: rank for name, _, rank in kinds}
    fields, outputs = operator.tensor_names(Role.INPUT), operator.computed(types)
    inputs = {name: data_type for name, data_type in types.items() if path_of(name)[0] in fields}
    left_out = [name for name in outputs if name not in types]
    follow = inputs and operator.implied_type is Operator.implied_type
    implied = {name: operator.type_like(inputs, name, level) for name in left_out} if follow else {}
    known = types | implied
    sizes_follow = inputs and operator.implied_sizes is Operator.implied_sizes
    every = tuple((name, known[name]) for name in (*inputs, *outputs)) if len(implied) == len(left_out) else None
    return Kinds(
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        types=implied,
        tensors=every,
        like_first=tuple(name for name in implied if sizes_follow and implied[name] == next(iter(inputs.values()))),
        each=tuple(tuple(_kind_violations(operator, level, row, *kind)) for kind in kinds),
        together=(*_different_types(operator, types), *_different_ranks(operator, ranks)),
        counts=bool(operator.counts),
        rules=operator.rules is not Operator.rules,
        same_sizes=operator.same_sizes is None,
        by_coordinates=operator.by_coordinates,
        call=operator.call is not None,
    )


def _kind_violations(
    operator: type[Operator], level: FeatureLevel, row: Row, name: str, data_type: DataType, rank: int
) -> Iterator[Violation]:
    """What the support table says against a tensor."""
    field, *place = path_of(name)
    allowed = row.of(str(field))
    if data_type not in allowed.data_types:
        since = operator.support.first_with(str(field), data_type)
        later = f", and {data_type} from {since} on" if since and since > level else ""
        yield Violation(
            (field, *place, "DataType"),
            f"{name} of {operator.name()} is {data_type}; at feature level {level} its DataType may be "
            f"{' or '.join(allowed.data_types)}{later}.",
            data_type,
            list(allowed.data_types),
        )
    if rank not in allowed.ranks:
        least, most = allowed.ranks[0], allowed.ranks[-1]
        yield Violation(
            (field, *place, "Sizes"),
            f"Sizes of {name} of {operator.name()} has {rank} dimensions; at feature level {level} it may "
            f"have {least if least == most else f'{least} to {most}'}, and leading dimensions of 1 make up for missing "
            "ones.",
            rank,
            allowed.dimension_counts,
        )


def _different_types(operator: type[Operator], types: Mapping[str, DataType]) -> Iterator[Violation]:
    """Data types are equal where the operator says."""
    for group in (tuple(types),) if operator.same_types is None else operator.same_types:
        there = members(group, types)
        for name in there[1:]:
            data_type, model = types[name], types[there[0]]
            if data_type != model:
                yield Violation(
                    (*path_of(name), "DataType"),
                    f"{name} is {data_type} but {there[0]} is {model}; their DataType must be equal.",
                    data_type,
                    model,
                )


def _different_ranks(operator: type[Operator], ranks: Mapping[str, int]) -> Iterator[Violation]:
    """Tensors have as many dimensions as others where the operator says."""
    for group in operator.same_ranks:
        there = members(group, ranks)
        for name in there[1:]:
            rank, model = ranks[name], ranks[there[0]]
            if rank != model:
                yield Violation(
                    (*path_of(name), "Sizes"),
                    f"Sizes of {name} has {rank} dimensions but {there[0]} has {model}; they must have equally many.",
                    rank,
                    model,
                )


def _size_violations(operator: Operator, tensors: Mapping[str, TensorDesc]) -> Iterator[Violation]:
    """Sizes are equal where the operator says. Nothing is broadcast."""
    if operator.same_sizes is None:
        first, *others = tensors
        for name in others:
            find = _one_element_violations if name in operator.one_element else _different_sizes
            yield from find(name, tensors[name], first, tensors[first])
        return
    for group in operator.same_sizes:
        there = members(group, tensors)
        for name in there[1:]:
            yield from _different_sizes(name, tensors[name], there[0], tensors[there[0]])


def _different_sizes(name: str, desc: TensorDesc, first_name: str, first: TensorDesc) -> Iterator[Violation]:
    if desc.Sizes != first.Sizes:
        yield Violation(
            (*path_of(name), "Sizes"),
            f"{name} has Sizes {desc.Sizes} but {first_name} has {first.Sizes}; they must be equal, and "
            "to broadcast is to give the full Sizes and stride 0 for the repeated dimensions.",
            desc.Sizes,
            first.Sizes,
        )


def _one_element_violations(name: str, desc: TensorDesc, first_name: str, first: TensorDesc) -> Iterator[Violation]:
    if desc.elements != 1 or desc.rank != first.rank:
        ones = [1] * first.rank
        yield Violation(
            (*path_of(name), "Sizes"),
            f"{name} has Sizes {desc.Sizes}; it must have one element and as many dimensions as {first_name}, "
            f"which is {ones}.",
            desc.Sizes,
            ones,
        )


def count_violations(operator: Operator) -> Iterator[Violation]:
    """Counts are the lengths of their arrays, which are therefore equally long."""
    for count, arrays in operator.counts.items():
        given = getattr(operator, count)
        lengths = {name: len(getattr(operator, name)) for name in arrays}
        # Where they differ, the count tells which is wrong, or else what most of them are.
        each = list(lengths.values())
        length = given if given in each else max(each, key=each.count)
        model = next(name for name, other in lengths.items() if other == length)
        if given not in (None, length):
            yield Violation(
                (count,),
                f"{count} is {given} but {model} has {length} entries; they must agree.",
                given,
                length,
            )
        for name, other in lengths.items():
            if other != length:
                yield Violation(
                    (name,),
                    f"{name} has {other} entries but {model} has {length}; {count} is the length of both.",
                    other,
                    length,
                )


def _output_violations(operator: Operator, level: FeatureLevel) -> Iterator[Violation]:
    """Outputs have the sizes that the rest of the descriptor implies, and these are sizes that a tensor may have."""
    stated = operator.tensors()
    row = operator.support.at(level)
    assert row is not None, "the operator has been judged"
    for name in operator.output_names():
        sizes = operator.implied_sizes(name)
        if sizes is None:
            continue
        path: Path = (*path_of(name), "Sizes")
        if min(sizes) < 1 or math.prod(sizes) > MAX_ELEMENTS:
            yield Violation(
                path,
                f"{name} would have Sizes {sizes}, which {_basis(operator)}; a tensor has at least one element "
                f"and at most {MAX_ELEMENTS}.",
                sizes,
                None,
            )
        elif name not in stated:
            yield from _kind_violations(
                type(operator), level, row, name, operator.implied_type(name, level), len(sizes)
            )
        elif stated[name].Sizes != sizes:
            yield Violation(
                path,
                f"{name} has Sizes {stated[name].Sizes}; {_basis(operator)} {sizes}.",
                stated[name].Sizes,
                sizes,
            )


def _basis(operator: Operator) -> str:
    """What implies sizes, in words with their verb."""
    tensors = operator.tensors()
    names = operator.sizes_from or tuple(operator.tensor_names())[:1]
    there = [f"{name} {tensors[name].Sizes}" for name in members(names, tensors)]
    fields = [name for name in names if name not in tensors and name in operator.attribute_names()]
    stated = [f"{name} {_shown(getattr(operator, name))}" for name in fields if getattr(operator, name) is not None]
    told = " with ".join(each for each in (" and ".join(there), ", ".join(stated)) if each) or operator.short_name()
    return f"{told} {'imply' if len(there or stated) > 1 else 'implies'}"


def _shown(value: object) -> object:
    return value if isinstance(value, list | str | Size2D) else abbreviate(value)

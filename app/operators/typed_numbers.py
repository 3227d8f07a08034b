"""Attributes that are numbers of a type which another attribute names, and numbers as bits of elements."""

import struct
from collections.abc import Iterator, Sequence

from app.contract.constants import DataType
from app.contract.scalars import ScalarUnion, scalar_value
from app.contract.validation import abbreviate, in_words
from app.contract.violations import Violation
from app.formula.values import Number, Parameter, converted, derived, is_float
from app.operators.operator import Operator

SCALAR = 'A number, or DML_SCALAR_UNION. Not NaN; infinities are "Infinity" and "-Infinity" in JSON.'


def number_violations(operator: Operator, type_name: str, names: Sequence[str], *tensors: str) -> Iterator[Violation]:
    """What is wrong with the numbers called `names` as numbers of the type in the field `type_name`, and that as the
    type of the first of `tensors` that is described."""
    tensor = next(name for name in tensors if getattr(operator, name))
    data_type, expected = getattr(operator, type_name), getattr(operator, tensor).DataType
    if data_type != expected:
        yield Violation(
            (type_name,),
            f"{type_name} is {data_type} but {tensor} is {expected}; they must be equal.",
            data_type,
            expected,
        )
        return
    for name in names:
        given = getattr(operator, name)
        try:
            scalar_value(given, data_type)
        except ValueError as error:
            shown = abbreviate("an object" if isinstance(given, ScalarUnion) else given)
            yield Violation((name,), f"{name} is {in_words(shown)}; it {error}.", shown, f"a number of {data_type}")


def typed_numbers(operator: Operator, type_name: str, *names: str) -> dict[str, Number]:
    """Those called `names`, as numbers of the type in the field `type_name`."""
    return {name: scalar_value(getattr(operator, name), getattr(operator, type_name)) for name in names}


def raw(parameter: Parameter, data_type: DataType) -> Parameter:
    """An attribute as the bits of an element of `data_type`, to which it is converted (`converted`)."""
    number, bits = converted(parameter, data_type), data_type.bits
    if not is_float(number.type):
        return derived(number, f"uint{bits}", lambda whole: int(whole) & ((1 << bits) - 1))
    of_float, of_bits = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}[bits]
    return derived(number, f"uint{bits}", lambda real: int(struct.unpack(of_bits, struct.pack(of_float, real))[0]))

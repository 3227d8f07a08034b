"""Sizes to compile models for ahead, as the setting has them: name=1x3x224x224; name=input:1x128,other:1x128."""

from typing import NamedTuple

from app.contract.scalars import UINT_MAX
from app.models.onnx.errors import WrongSizes, missing_sizes
from app.models.onnx.reading import Signature
from app.models.onnx.tensors import Sizes
from app.models.repository.model import SizesOfAll
from app.settings import Unusable

_ALLOWED = f"of sizes from 1 to {UINT_MAX}"

STATED = f"1x3x224x224, or input:1x128,other:1x128 for several inputs, {_ALLOWED}"
"""What a client is told to give."""


class Stated(NamedTuple):
    """Sizes of a model's inputs by name; without a name they are those of the only input that is free."""

    sizes: dict[str | None, Sizes]

    def of(self, ports: Signature) -> dict[str, Sizes]:
        """Of all inputs. Raises WrongSizes."""
        free = [name for name, port in ports.inputs.items() if port.is_free]
        if None in self.sizes and (len(free) > 1 or not ports.inputs):
            raise WrongSizes(f"Name the inputs whose sizes are given: {', '.join(free)}.", None, free)
        only = (free or list(ports.inputs))[:1]
        stated = {(only[0] if name is None else name): sizes for name, sizes in self.sizes.items()}
        for name in stated:
            if name not in ports.inputs:
                known = list(ports.inputs)
                raise WrongSizes(f"There is no input {name}; there is {', '.join(known) or 'none'}.", name, known)
        for name in free:
            if name not in stated:
                raise missing_sizes(name, ports.inputs[name].sizes)
        return {
            name: stated.get(name, tuple(size for size in port.sizes or () if isinstance(size, int)))
            for name, port in ports.inputs.items()
        }


class Warm(NamedTuple):
    """A model, and sizes of its inputs."""

    model: str
    stated: Stated

    def of(self, ports: Signature) -> SizesOfAll:
        """Of all inputs, in their order. Raises WrongSizes."""
        return tuple(self.stated.of(ports).values())


def parse_warm(text: str) -> list[Warm]:
    """Raises Unusable."""
    return [_parsed(each.strip()) for each in text.split(";") if each.strip()]


def parse_stated(text: str) -> Stated:
    """Of 1x3x224x224, or input:1x128,other:1x128. Raises ValueError."""
    sizes: dict[str | None, Sizes] = {}
    for each in text.split(",") if text else ():
        name, colon, stated = each.rpartition(":")
        input_ = name if colon else None
        if input_ in sizes or (sizes and None in (input_, *sizes)):
            raise ValueError("either all sizes have a name of their own, or there is one without")
        sizes[input_] = _sizes(stated)
    return Stated(sizes)


def _sizes(text: str) -> Sizes:
    sizes = tuple(int(each) for each in text.split("x")) if text else ()
    if any(not 1 <= each <= UINT_MAX for each in sizes):
        raise ValueError(_ALLOWED)
    return sizes


def _parsed(text: str) -> Warm:
    name, _, rest = text.partition("=")
    try:
        if not name or not rest:
            raise ValueError
        return Warm(name, parse_stated(rest))
    except ValueError:
        raise Unusable(
            f"What to warm is {text!r}; give name=1x3x224x224, or name=input:1x128,other:1x128 for several inputs, "
            f"{_ALLOWED}."
        ) from None

"""Sizes to compile models for ahead, as the setting has them: name=1x3x224x224; name=input:1x128,other:1x128."""

from typing import NamedTuple

from app.models.onnx.importer import WrongSizes
from app.models.onnx.reading import Signature
from app.models.onnx.tensors import Sizes
from app.models.repository.model import SizesOfAll
from app.settings import Unusable


class Warm(NamedTuple):
    """A model, and sizes of its inputs by name; without a name they are those of the only input that is free."""

    model: str
    sizes: dict[str | None, Sizes]

    def of(self, ports: Signature) -> SizesOfAll:
        """Of all inputs. Raises WrongSizes."""
        sizes = dict(self.sizes)
        free = [name for name, port in ports.inputs.items() if port.is_free]
        if None in sizes:
            if len(free) > 1:
                raise WrongSizes(f"To warm {self.model}, name the inputs whose sizes are free: {', '.join(free)}.")
            sizes[(free or list(ports.inputs))[0]] = sizes.pop(None)
        for name in sizes:
            if name not in ports.inputs:
                raise WrongSizes(f"{self.model} has no input {name} to warm; there is {', '.join(ports.inputs)}.")
        made = []
        for name, port in ports.inputs.items():
            if name in sizes:
                made.append(sizes[name])
            elif port.is_free:
                raise WrongSizes(f"To warm {self.model}, give sizes of {name} as well.")
            else:
                made.append(tuple(size for size in port.sizes or () if isinstance(size, int)))
        return tuple(made)


def parse_warm(text: str) -> list[Warm]:
    """Raises Unusable."""
    return [_parsed(each.strip()) for each in text.split(";") if each.strip()]


def parse_sizes(text: str) -> Sizes:
    """Of 1x3x224x224; of nothing none. Raises ValueError."""
    sizes = tuple(int(each) for each in text.split("x")) if text else ()
    if any(each < 1 for each in sizes):
        raise ValueError(f"sizes are at least 1, and {text} has a smaller one")
    return sizes


def _parsed(text: str) -> Warm:
    name, _, rest = text.partition("=")
    sizes: dict[str | None, Sizes] = {}
    try:
        for each in rest.split(","):
            port, colon, stated = each.rpartition(":")
            sizes[port if colon else None] = parse_sizes(stated)
        if not name or not rest or (None in sizes and len(sizes) > 1):
            raise ValueError
    except ValueError:
        raise Unusable(
            f"What to warm is {text!r}; give name=1x3x224x224, or name=input:1x128,other:1x128 for several inputs."
        ) from None
    return Warm(name, sizes)

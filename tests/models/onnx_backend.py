"""The importer as a backend of the `onnx` package's test suite, and what it is known to refuse there."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep

from app.models.onnx.errors import NotSupported
from app.models.onnx.importer import Imported, import_model
from app.models.onnx.reading import Unreadable, read_model, signature
from tests.models.onnx_runs import Array, run_imported, with_constants

REFUSED = Path(__file__).with_name("onnx_backend_refused.txt")
"""A case a line, `name: reason`; cases whose reason begins with "differs" give other results, all others are refused by
an error with the reason in it."""


def refused() -> dict[str, str]:
    """Reasons by case."""
    lines = REFUSED.read_text().splitlines()
    return dict(re.split(r":\s*", line, maxsplit=1) for line in lines if line and not line.startswith("#"))


class Prepared(BackendRep):
    """A model, which is imported for the sizes that come."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._inputs = list(signature(model).inputs)

    def run(self, inputs: Sequence[Array], **_: Any) -> tuple[Array, ...]:
        given = dict(zip(self._inputs, inputs, strict=True))
        imported = self._imported(given)
        outputs = run_imported(imported, given)
        return tuple(outputs[each.name] for each in self._model.graph.output)

    def _imported(self, given: Mapping[str, Array]) -> Imported:
        """Cases have no initializers: what must be constant is an input as all others are. As few of them as will do
        are taken for constants, and never the first one if it has floats: else nothing would be left to test."""
        for known in self._choices(given):
            sizes = {name: each.shape for name, each in given.items() if name not in known}
            try:
                return import_model(with_constants(self._model, known), sizes)
            except NotSupported as error:
                if "not constant" not in str(error):
                    raise
                last = error
        raise last

    @staticmethod
    def _choices(given: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        rest = list(given)[1:]
        yield {}
        yield {name: given[name] for name in rest if given[name].dtype.kind in "iub" and given[name].ndim < 2}
        yield {name: given[name] for name in rest if given[name].ndim < 2}
        yield {name: given[name] for name in rest}
        yield {name: each for name, each in given.items() if name in rest or each.dtype.kind in "iub"}


class OurBackend(Backend):
    """On NumPy and LLVM."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **_: Any) -> Prepared:
        return Prepared(read_model(model.SerializeToString()))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


REFUSALS = (NotSupported, Unreadable)
"""What it says to models that it cannot import."""

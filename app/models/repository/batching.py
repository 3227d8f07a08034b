"""Which requests to a model may be run together: those that differ along its first dimension, the batch, only."""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from app.models.onnx.reading import Port, Signature
from app.models.repository.config import BadConfig, number, require_known
from app.models.repository.text_format import Message
from app.settings import MOST_BATCH, Settings

log = logging.getLogger("app")

_FIELD, _DELAY = "dynamic_batching", "max_queue_delay_microseconds"


class Batching(NamedTuple):
    """How requests to a model are run together: at most so many rows, for which the first one waits at most so long."""

    most: int
    delay_us: int

    @property
    def sizes(self) -> list[int]:
        """Rows that batches are compiled for. Fewer are filled up, so that a model has not a graph for each number of
        rows: powers of two, which at most double the work, and the most."""
        return [1 << each for each in range(1, (self.most - 1).bit_length())] + [self.most]

    def padded(self, rows: int) -> int:
        """Rows of the batch that is computed for so many."""
        return next(each for each in self.sizes if each >= rows)


def batching_of(called: str, ports: Signature, config: Message, settings: Settings) -> Batching | None:
    """As its config says, or else the settings; None if requests to this model are not run together.

    Raises BadConfig if the config asks for what cannot be.
    """
    own = number(config, "max_batch_size", None)
    if _FIELD in config:
        if not own:
            raise BadConfig(f"config.pbtxt has {_FIELD} and no max_batch_size; give how many rows a batch may have.")
        stated = (config[_FIELD] or [None])[-1]
        if not isinstance(stated, dict):
            raise BadConfig(f"{_FIELD} in config.pbtxt is no message.")
        require_known(stated, (_DELAY,))
        delay = number(stated, _DELAY, 0) or 0
        most = own
    else:
        most = min(settings.max_batch, settings.max_batch if own is None else own)
        delay = settings.max_delay_us
    if most < 2:
        return None
    for why in _obstacles(ports, is_stated=bool(own)):
        if _FIELD in config:
            raise BadConfig(f"config.pbtxt has {_FIELD}, which this model cannot have: {why}.")
        log.info("Requests to model %s are not run together: %s.", called, why)
        return None
    return Batching(min(most, MOST_BATCH), delay)


def _obstacles(ports: Signature, *, is_stated: bool) -> Iterator[str]:
    """Why the first dimension is not the batch. Of a config that has a max_batch_size it is, unless it cannot be."""
    every = [*ports.inputs.values(), *ports.outputs.values()]
    if not ports.inputs:
        yield "it has no inputs"
    for port in every:
        if not port.sizes or isinstance(port.sizes[0], int):
            yield f"the first dimension of {port.name} is not free"
            return
    names = {_first(port) for port in every}
    if not is_stated and (len(names) > 1 or None in names):
        yield "the first dimensions of inputs and outputs have not the same name"
    for port in every:
        for size in (port.sizes or ())[1:]:
            if size is not None and size in names:
                yield f"{port.name} has the batch's dimension {size} in another place as well"


def _first(port: Port) -> int | str | None:
    return (port.sizes or (None,))[0]

"""The command `dmlserve` with a fault: a tensor that begins with a 13 fails, and that is said on standard error."""

import struct
import sys

from app.cli import main
from app.engine.prepared import Bound, Outcome, Prepared
from app.engine.service import Service
from app.stages import Stages

_compute = Service.compute


def compute(self: Service, prepared: Prepared, bound: Bound, stages: Stages | None = None) -> Outcome:
    if bytes(bound.inputs[0][:4]) == struct.pack("<f", 13):
        sys.stderr.write('"computing a 13"\n')
        raise RuntimeError("a fault in a kernel")
    return _compute(self, prepared, bound, stages)


Service.compute = compute  # type: ignore[method-assign]
main()

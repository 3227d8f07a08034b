"""The command `dmlserve` with a fault: a tensor that begins with a 13 fails, and that is said on standard error."""

import struct
import sys
from collections.abc import Callable

from app.cli import main
from app.devices.device import ExecutionRecord
from app.engine.prepared import Bound, Prepared

_dispatch = Prepared.dispatch


def dispatch(self: Prepared, bound: Bound, cancelled: Callable[[], bool]) -> ExecutionRecord:
    if bytes(bound.inputs[0][:4]) == struct.pack("<f", 13):
        sys.stderr.write('"computing a 13"\n')
        raise RuntimeError("a fault in a kernel")
    return _dispatch(self, bound, cancelled)


Prepared.dispatch = dispatch  # type: ignore[method-assign]
main()

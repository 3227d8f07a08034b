"""The script that is the first argument, with the rest of them, where threads receive and send bodies that are not even
large, however few processors there are."""

import os
import runpy
import sys

from app.http.server import reader, transfers

transfers.LENT = 1 << 14
transfers.PROBE = 1 << 12
reader.PROBE = 1 << 12  # type: ignore[attr-defined]  # it is no export
os.environ["DMLSERVE_TRANSFER_THREADS"] = "3"
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")

"""The script that is the first argument, with the rest of them, where threads receive and send bodies that are not even
large, however few processors there are."""

import os
import runpy
import sys

from app.http.server import reader, sender, transfers

for module in (transfers, reader, sender):
    for name, size in {"LENT": 1 << 14, "ALONE": 1 << 14, "PROBE": 1 << 12}.items():
        if hasattr(module, name):
            setattr(module, name, size)
os.environ["DMLSERVE_TRANSFER_THREADS"] = "3"
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")

"""The script that is the first argument, with the rest of them, where there is no uvloop: on asyncio's own loop."""

import runpy
import sys

sys.modules["uvloop"] = None  # type: ignore[assignment]  # to import it fails, as where it is not installed
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")

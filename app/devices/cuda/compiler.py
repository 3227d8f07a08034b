"""From CUDA C++ to binaries: NVRTC with options of our own, and a cache of what it made.

CuPy's own compiler is passed by because it adds -ftz=true, which would lose subnormal numbers.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain

from app.devices.binaries import Binaries
from app.settings import processors
from app.stages import inherited, staged

OPTIONS = ("-std=c++17", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-fmad=false", "-default-device")
"""Every operation rounds once, as IEEE 754 says, and subnormal numbers are numbers."""

WRITTEN = tuple("-fmad=true" if each == "-fmad=false" else each for each in OPTIONS)
"""The same for kernels that are written in CUDA C++: a product and a sum are one operation where they can be."""

KEPT = 1 << 11
"""Binaries in memory, the least recently used of which are dropped: once they are loaded, they are for other GPUs."""

_MINIMAL, _MINIMAL_SINCE = "-minimal", (12, 4)
"""Without textures, CUDA's runtime and launches from kernels, which it takes NVRTC a third of a short source's time to
declare."""


class CompilationError(Exception):
    """NVRTC refused a source, with its log: a defect of ours."""


def nvrtc_version() -> tuple[int, int]:
    """Major and minor. Raises ImportError or RuntimeError where there is no NVRTC to load."""
    from cupy_backends.cuda.libs import nvrtc  # noqa: PLC0415 - only with a GPU extra

    major, minor = nvrtc.getVersion()
    return int(major), int(minor)


def compile_source(source: str, architecture: int, options: Sequence[str] = OPTIONS) -> bytes:
    """The binary of `source` for `architecture` (90 is compute capability 9.0). Raises CompilationError."""
    from cupy_backends.cuda.libs import nvrtc  # noqa: PLC0415 - only with a GPU extra

    program = nvrtc.createProgram(source, "dmlserve.cu", [], [])
    more = [f"-arch=sm_{architecture}", *[_MINIMAL] * (nvrtc_version() >= _MINIMAL_SINCE)]
    try:
        nvrtc.compileProgram(program, [*options, *more])
        return bytes(nvrtc.getCUBIN(program)) + b"\0"  # CuPy takes a byte too many off its end
    except nvrtc.NVRTCError as error:
        raise CompilationError(f"{error}\n{nvrtc.getProgramLog(program)}\n{source}") from None
    finally:
        nvrtc.destroyProgram(program)


class KernelCache:
    """Binaries by source, options, architecture and NVRTC's version, KEPT of them in memory, and all those of
    `binaries`."""

    def __init__(
        self, binaries: Binaries, compiler: Callable[[str, int, Sequence[str]], bytes] = compile_source
    ) -> None:
        self._binaries = binaries
        self._compile = compiler
        self._version = "unknown"
        self._made: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self.compiled = 0
        """How often the compiler was called."""

    def __len__(self) -> int:
        return len(self._made)

    def binary(self, source: str, architecture: int, options: Sequence[str] = OPTIONS) -> bytes:
        """Compiled now, or before. Threads that want the same wait for one of them to make it."""
        key = self._key(source, architecture, options)
        with self._lock:
            made = self._made.get(key)
            mine = made is None
            if made is None:
                made = self._made[key] = Future()
                if len(self._made) > KEPT:  # whoever waits for it has it
                    self._made.popitem(last=False)
            else:
                self._made.move_to_end(key)
        if mine:
            try:
                made.set_result(self._binaries.read(key) or self._make(key, source, architecture, options))
            except BaseException as error:
                with self._lock:
                    self._made.pop(key, None)
                made.set_exception(error)
        return made.result()

    def fill(self, sources: Iterable[str], architecture: int) -> None:
        """Have the binaries of all `sources`, made by several threads at a time while others are still written."""
        rest = iter(sources)
        first = next(rest, None)
        if first is None:  # as for most dispatches, and threads have to be looked for
            return
        with ThreadPoolExecutor(processors()) as threads:
            made = [
                threads.submit(inherited(partial(self.binary, source, architecture))) for source in chain([first], rest)
            ]
        for each in made:
            each.result()

    def _key(self, source: str, architecture: int, options: Sequence[str]) -> str:
        if self._version == "unknown":
            self._version = ".".join(map(str, nvrtc_version()))
        parts = [source, *options, f"sm_{architecture}", f"NVRTC {self._version}"]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest() + ".cubin"

    def _make(self, key: str, source: str, architecture: int, options: Sequence[str]) -> bytes:
        binary = staged("compile", self._compile, source, architecture, options)
        with self._lock:
            self.compiled += 1
        self._binaries.write(key, binary)
        return binary

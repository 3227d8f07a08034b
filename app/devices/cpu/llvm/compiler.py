"""LLVM: from assembly to functions for this processor."""

import ctypes
import hashlib
import mmap
import platform
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from app.devices.binaries import Binaries
from app.devices.cpu.llvm import chosen, halves, vectors
from app.devices.cpu.llvm.calling import CallOver, call_over
from app.devices.cpu.llvm.symbols import undefined
from app.devices.cpu.llvm.vectors import Registers
from app.memory.addresses import address_of
from app.stages import staged

KEPT = 512
"""Compiled loops, the least recently used of which are dropped."""

NEEDED = {"x86_64": ("avx2", "fma", "f16c")}
"""Features without which LLVM would call functions that are not there, one element at a time."""

STEADY = "avx512vbmi2"
"""A feature of all processors whose clock is hardly slower while they use registers of 512 bits. Those before them slow
down for milliseconds, whatever else is computed meanwhile."""

PICKS_BYTES = "avx512vbmi"
"""The feature by which bytes are picked out of registers."""

_HEAD = re.compile(r"^define void @kernel\([^)]*\)", re.MULTILINE)

_REALIGNS = ' "frame-pointer"="all"'
"""Has LLVM keep a register by which it aligns the stack to vectors where it puts some there. Else every other one lies
across two cache lines, and loops that have more numbers than registers take up to a fifth longer."""

OF_HALVES = "avx512fp16"
"""A feature of processors that compute halves as such. They take longer to divide them than to divide float32."""

SCALABLE = "sve"
"""A feature of processors that have vectors whose length a program asks for. Of loops that are told how many elements
they take LLVM writes a remark to standard error where it could have used those."""

_FOR_ALL: list[Any] = []
"""What has the memory of functions that any compiled code in this process may call."""


class Function(Protocol):
    """Takes the address of its numbers."""

    address: int
    """Its own."""

    def __call__(self, frame: int, /) -> None: ...


class Unavailable(Exception):
    """There is no LLVM for this processor; says why."""


class Compiler:
    """LLVM in this process. Raises Unavailable. Safe to use from several threads.

    Of `binaries` it takes what was compiled before, and keeps there what was not.
    """

    def __init__(self, binaries: Binaries | None = None) -> None:
        try:
            from llvmlite import binding  # noqa: PLC0415 - the wheel does not exist for every platform
        except Exception as error:
            raise Unavailable(f"llvmlite cannot be loaded: {error}") from error
        self._llvm: Any = binding
        self._binaries = binaries
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self._features = binding.get_host_cpu_features()
        self._processor: str = binding.get_host_cpu_name()
        if not _may_execute():
            raise Unavailable("this process may not execute memory that it has written")
        missing = [each for each in NEEDED.get(platform.machine(), ()) if not self._features.get(each)]
        if missing:
            raise Unavailable(f"the processor lacks {', '.join(missing)}")
        self._lock = threading.Lock()
        self._compiling = threading.Lock()
        self._compiled: OrderedDict[str, Function] = OrderedDict()
        self.compiled = 0
        """How often a loop was compiled."""
        try:
            self.function("define void @kernel(ptr %frame) {\nret void\n}")(0)
            self.call_over: CallOver = call_over(self.functions)  # once there was an engine, LLVM knows what Python has
            """Calls a function over buffers."""
        except Exception as error:
            raise Unavailable(f"LLVM does not compile: {error}") from error

    @property
    def version(self) -> str:
        return ".".join(map(str, self._llvm.llvm_version_info))

    @property
    def vector_floats(self) -> int:
        """How many float32 a register has."""
        return 16 if self._features.get("avx512f") else 8 if self._features.get("avx2") else 4

    @property
    def registers(self) -> Registers:
        """What there are instructions for that LLVM is told of."""
        if self._features.get("avx512f") and self._features.get("avx512vl"):
            return "avx512"
        return "avx2" if self._features.get("avx2") else ""

    @property
    def computes_whole(self) -> bool:
        """Whether a register of 512 bits is computed at once, as Intel's processors do, of which none has SSE4a; others
        may take one half after the other."""
        return bool(self._features.get("avx512f")) and not self._features.get("sse4a")

    @property
    def adds_bytes(self) -> bool:
        """Whether there is an instruction, for vectors of those floats, that adds up four products of bytes."""
        if self.vector_floats == 16:
            return bool(self._features.get("avx512vnni"))
        return bool(self._features.get("avxvnni"))

    @property
    def kernels(self) -> int:
        """How many compiled loops are kept."""
        return len(self._compiled)

    def function(self, source: str) -> Function:
        """The function `kernel` of a module, compiled unless it is known, which takes 10 to 30 ms."""
        found = self._compiled.get(source)
        if found is None:
            with self._compiling:
                return self._compiled.get(source) or self._keep(source, staged("compile", self._compile, source))
        try:  # noqa: SIM105 - `suppress` takes three times as long, for each dispatch, and so would a lock
            self._compiled.move_to_end(source)
        except KeyError:  # it has been dropped since
            pass
        return found

    def has(self, source: str) -> bool:
        """Whether it is compiled already. Does not wait for what is being compiled."""
        return source in self._compiled

    def _keep(self, source: str, function: Function) -> Function:
        with self._lock:
            self._compiled[source] = function
            if len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return function

    def optimized(self, source: str, machine: Any, registers: Registers) -> Any:
        """A module as llvmlite has it, made quick for llvmlite's `machine`, which has these `registers`."""
        is_by_float32 = _divides_halves(source) or not self._features.get(OF_HALVES)
        loads_apart = is_by_float32 and " half " in source and machine.triple.startswith("x86_64")
        source, forms = self._given(source, registers)
        module = self._llvm.parse_assembly(source)
        module.verify()
        options = self._llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = True
        builder = self._llvm.create_pass_builder(machine, options)
        self._run(builder.getModulePassManager(), module, builder)
        if forms:
            module = self._llvm.parse_assembly(vectors.without_uses(str(module)))
            module.link_in(self._llvm.parse_assembly(forms))
            passes = self._llvm.create_new_module_pass_manager()
            passes.add_always_inliner_pass()
            passes.add_instruction_combine_pass()
            passes.add_global_dead_code_eliminate_pass()
            self._run(passes, module, builder)
        if loads_apart:
            module = self._llvm.parse_assembly(halves.loaded_apart(str(module)))
        return module

    def _run(self, passes: Any, module: Any, builder: Any) -> None:
        """Passes, once. llvmlite keeps them for ever: of two methods that dispose, its class inherits the one that does
        nothing first. They are 0.1 to 0.2 MiB for each loop."""
        passes.run(module, builder)
        self._llvm.newpassmanagers.NewPassManager._dispose(passes)
        passes.detach()

    def _given(self, source: str, registers: Registers) -> tuple[str, str]:
        """What LLVM is given for a module: its source for such `registers`, and the forms of functions for vectors."""
        source = _HEAD.sub(rf"\g<0>{_REALIGNS}", source)
        if not self._features.get(STEADY):
            source = source.replace(vectors.WIDE, "")
        if registers != "avx512":
            source = source.replace(vectors.FOUR_VECTORS, "")
        source = chosen.defined(source, registers)
        # Roots have forms where a guess is the one for which all of them were compared.
        has = {"root.float": self.computes_whole, "look.i8": self._features.get(PICKS_BYTES)}
        return vectors.prepared(source, registers, [name for name, there in has.items() if not there])

    def functions(self, source: str, types: Mapping[str, Any]) -> list[Any]:
        """The functions of a module that are named in `types`, each of that type of ctypes', which keep its memory."""
        engine = self._engine(source)
        made = []
        for name, type_ in types.items():
            address = engine.get_function_address(name)
            made.append(type_(address))
            made[-1].address, made[-1].engine = address, engine
        return made

    def _compile(self, source: str) -> Function:
        (function,) = self.functions(source, {"kernel": ctypes.CFUNCTYPE(None, ctypes.c_void_p)})
        self.compiled += 1
        compiled: Function = function
        return compiled

    def _features_for(self, source: str) -> str:
        """What LLVM is told of for a module: without vectors of any length, and where halves may be divided without
        that the processor can. The quotient is the same: float32 has more than twice as many digits."""
        features: str = self._features.flatten()
        unused = [SCALABLE, *([OF_HALVES] if _divides_halves(source) else [])]
        return ",".join([features, *(f"-{each}" for each in unused if self._features.get(each))])

    def _code(self, source: str) -> bytes:
        """A module's object file, compiled now or before."""
        if self._binaries is None:
            return self._emitted(source)
        key = self._key(source)
        found = self._binaries.read(key)
        if found is None:
            found = self._emitted(source)
            self._binaries.write(key, found)
        return found

    def _key(self, source: str) -> str:
        """A hash of all that an object file depends on."""
        told = source, self._given(source, self.registers), self._features_for(source), self._processor, self.version
        return hashlib.sha256(repr((told, _passes())).encode()).hexdigest() + ".o"

    def _emitted(self, source: str) -> bytes:
        machine = self._llvm.Target.from_default_triple().create_target_machine(
            cpu=self._processor, features=self._features_for(source), opt=3
        )
        module = self.optimized(source, machine, self.registers)
        module.data_layout = str(machine.target_data)
        code: bytes = machine.emit_object(module)
        return code

    def _engine(self, source: str) -> Any:
        """What has the memory that a module's code is in.

        It is given the code ready made, since one that has generated code keeps 0.8 MiB of what that takes.
        """
        code = self._code(source)
        missing = [name for name in undefined(code) if self._llvm.address_of_symbol(name) is None]
        if halves.NAME in missing:
            _FOR_ALL.append(self._engine(halves.source()))
            self._llvm.add_symbol(halves.NAME, _FOR_ALL[-1].get_function_address(halves.NAME))
            missing.remove(halves.NAME)
        if missing:
            raise RuntimeError(f"LLVM calls {', '.join(missing)}, which is not there")
        machine = self._llvm.Target.from_default_triple().create_target_machine()
        engine = self._llvm.create_mcjit_compiler(self._llvm.parse_assembly(""), machine)
        engine.add_object_file(self._llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return engine


@cache
def _passes() -> str:
    """A hash of how modules are compiled: of the code that does it."""
    files = [Path(each) for each in (__file__, vectors.__file__, halves.__file__)]
    return hashlib.sha256(b"".join([each.read_bytes() for each in files])).hexdigest()


def _divides_halves(source: str) -> bool:
    return " half " in source and " = fdiv float " in source


def _may_execute() -> bool:
    """Whether the system lets memory that was written be executed; where it does not, LLVM would end the process."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        address = address_of(memoryview(memory))
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        failed: int = ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, protection)
        return not failed

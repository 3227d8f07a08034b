"""Operators whose loops are for packed tensors, over tensors that lie otherwise: these are copied first, and what is
made in their place goes where it belongs at last. That takes as long as to read and write them; by coordinates each
element would look for its windows, and NumPy goes over all of them again and again."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from app.contract.tensors import TensorDesc, packed_strides
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.calls import Call, Calls, Of, in_own
from app.devices.cpu.copies import Copier, Copy
from app.devices.cpu.llvm.kernels import LoopCode
from app.memory.addresses import whole_lines
from app.operators.compiled import CompiledOperator

Make = Callable[[CompiledOperator], CallsKernel | None]


def packed_kernel(compiled: CompiledOperator, loops: LoopCode, make: Make) -> CallsKernel | None:
    """What `make` makes of packed tensors, for others; None if it makes nothing of them, or they repeat elements so
    often that copies would take more memory than all tensors do."""
    tensors = {**compiled.inputs, **compiled.outputs}
    packed = {
        name: TensorDesc(DataType=desc.DataType, Sizes=desc.Sizes)
        for name, desc in tensors.items()
        if not desc.is_packed
    }
    if not packed or any(each.DataType.bits < 8 for each in packed.values()):
        return None
    if sum(each.data_bytes for each in packed.values()) > sum(each.data_bytes for each in tensors.values()):
        return None
    inputs, outputs = (
        {name: packed.get(name, desc) for name, desc in each.items()} for each in (compiled.inputs, compiled.outputs)
    )
    operator = compiled.operator.model_copy(update=packed)
    made = make(replace(compiled, inputs=inputs, outputs=outputs, operator=operator))
    return _PackedKernel(compiled, made, packed, loops) if made else None


class _PackedKernel(CallsKernel):
    """Implements `Compiled`, by what was `made` for the same with some tensors `packed`."""

    def __init__(
        self, compiled: CompiledOperator, made: CallsKernel, packed: Mapping[str, TensorDesc], loops: LoopCode
    ) -> None:
        self._made = made  # whose calls have addresses of what it keeps
        calls = made.calls()
        own, places = whole_lines(calls.own_bytes), {}
        for of, tensors in ((Of.INPUT, compiled.inputs), (Of.OUTPUT, compiled.outputs)):
            for number, name in enumerate(tensors):
                if name in packed:
                    places[of, number] = own
                    own += whole_lines(packed[name].data_bytes)

        def copies(of: Of, tensors: Mapping[str, TensorDesc]) -> Iterator[Call]:
            for number, desc in enumerate(tensors.values()):
                if (of, number) in places:
                    yield from _copied(desc, of, number, places[of, number], loops)

        stages = [
            list(copies(Of.INPUT, compiled.inputs)),
            *in_own(calls, places),
            list(copies(Of.OUTPUT, compiled.outputs)),
        ]
        super().__init__(compiled, Calls([each for each in stages if each], own), loops.team)

    @property
    def kept_bytes(self) -> int:
        return super().kept_bytes + self._made.kept_bytes


def _copied(desc: TensorDesc, of: Of, number: int, place: int, loops: LoopCode) -> Iterator[Call]:
    """An input's elements, to where they are packed in memory of the kernel's own, or an output's from there."""
    size = desc.DataType.bits // 8
    away, own = ([step * size for step in steps] for steps in (desc.strides, packed_strides(desc.Sizes)))
    if of is Of.INPUT:
        yield from Copier(size, loops).calls(Copy(number, 0, place, desc.Sizes, [away, own]), Of.OWN)
        return
    for call in Copier(size, loops).calls(Copy(0, place, 0, desc.Sizes, [own, away], number)):
        read, written = call.pointers
        yield call._replace(pointers=[read._replace(of=Of.OWN), written])

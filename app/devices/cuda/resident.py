"""Operators over tensors that lie on a GPU: by kernels, or by calls of CuPy's functions."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from app.contract.tensors import TensorDesc
from app.devices.cuda.context import Context
from app.devices.cuda.kernels import CudaKernel
from app.devices.device import DeviceFailed
from app.memory.arrays import apart_in_shape, numpy_type, together
from app.operators.compiled import CompiledOperator
from app.operators.quantization.blocks import by_elements
from app.operators.quantization.elements import Dequantize, Quantize
from app.programs.dispatchable import Dispatchable

MOST_PRODUCTS = 1 << 48
"""That libraries are asked to add up at once: some seconds of an H200's time, since a call under way cannot be stopped.
More is NumPy's, which can."""


class Queued(Protocol):
    """Work over tensors on the device, ready to be queued."""

    def __call__(self, stream: Any) -> None:
        """Queue it on `stream`, CuPy's."""


class Resident:
    """An operator, over tensors that lie on the device."""

    def __init__(self, compiled: Dispatchable, device: Context) -> None:
        if isinstance(compiled, CompiledOperator) and isinstance(compiled.operator, Quantize | Dequantize):
            compiled = by_elements(compiled, compiled.operator, device.structures)
        self.compiled = compiled
        self.kernels = [CudaKernel(compiled, output, device) for output in compiled.program.maps]
        """One for each output; none of a call."""
        self.device = device
        ending = compiled.ending(device.structures)
        self._ending = _Ending(ending, device) if ending else None
        """Of a call that leaves the ending of its product to a kernel."""

    @property
    def is_captured(self) -> bool:
        """Whether its work can be part of a CUDA graph: a call may wait for results."""
        return self.compiled.program.call is None or self.compiled.only_queues

    @property
    def values(self) -> int:
        """How many its kernels compute, those that are added up among them."""
        return sum(kernel.values for kernel in self.kernels)

    @property
    def is_loaded(self) -> bool:
        """Whether to bind its kernels compiles nothing and waits for nothing."""
        return all(kernel.is_loaded for kernel in self.kernels)

    def sources(self) -> list[str]:
        """Of its kernels."""
        kernels = [*self.kernels, self._ending.kernel] if self._ending else self.kernels
        return [source for kernel in kernels for source in kernel.sources()]

    def bind(self, reads: Sequence[int], writes: Sequence[int], pool: Any = None) -> list[Queued]:
        """All its work, over inputs and outputs on the device at these addresses. Memory that it needs besides it
        takes from `pool`, the device's if there is none."""
        if self.compiled.program.call:
            return [_Call(self.compiled, self._ending, self.device, reads, writes, pool or self.device.pool)]
        return [kernel.bind([*reads, write], pool) for kernel, write in zip(self.kernels, writes, strict=True)]


class _Ending:
    """What is done to a product, by a kernel of its own."""

    def __init__(self, ending: Dispatchable, device: Context) -> None:
        (output,) = ending.outputs
        self.kernel = CudaKernel(ending, output, device)
        self._inputs = ending.inputs

    def __call__(self, made: Mapping[str, Any], inputs: Mapping[str, Any], output: Any, pool: Any, stream: Any) -> None:
        """Queue it, from what was made with the product and the operator's inputs to its output, all arrays on the
        GPU. Raises TypeError unless what was made is as it was said to be."""
        arrays = []
        for name, desc in self._inputs.items():
            if name in made:
                _check(name, desc, made[name])
            arrays.append(made[name] if name in made else inputs[name])
        self.kernel.bind([each.data.ptr for each in (*arrays, output)], pool)(stream)


def _check(name: str, desc: TensorDesc, array: Any) -> None:
    steps = [0 if size == 1 else step // array.itemsize for size, step in zip(array.shape, array.strides, strict=True)]
    if array.dtype != numpy_type(desc.DataType) or array.shape != tuple(desc.Sizes) or steps != list(desc.steps):
        raise TypeError(f"{name} is {desc.DataType} {desc.Sizes}, and was made as {array.dtype} {array.shape}")


class _Call:
    """An operator's `call` over tensors on the device, or its `product` and that one's ending. Results that `call` has
    not made in the outputs are copied there."""

    def __init__(
        self,
        compiled: Dispatchable,
        ending: _Ending | None,
        device: Context,
        reads: Sequence[int],
        writes: Sequence[int],
        pool: Any,
    ) -> None:
        self._compiled = compiled
        self._ending = ending
        self._device = device
        self._inputs = [*zip(compiled.inputs.items(), reads, strict=True)]
        self._outputs = [*zip(compiled.outputs.items(), writes, strict=True)]
        self._pool = pool

    def __call__(self, stream: Any) -> None:
        """Compute, and queue what of it need not be waited for. Raises DeviceFailed if CuPy lacks something, or it
        would keep the GPU busy for long."""
        products = self._compiled.multiplications
        if products > MOST_PRODUCTS:
            raise DeviceFailed("error", f"{self._device.name} cannot be stopped once it adds up {products} products")
        with self._device.functions_on(stream, self._pool) as cupy, np.errstate(all="ignore"):
            inputs = {name: self._read(cupy, name, desc, address) for (name, desc), address in self._inputs}
            outputs = {name: self._array(name, desc, address) for (name, desc), address in self._outputs}
            try:
                if self._ending:
                    assert self._compiled.product, "its ending is of that"
                    (output,) = outputs.values()
                    self._ending(self._compiled.product(cupy, inputs), inputs, output, self._pool, stream)
                elif self._compiled.only_queues:  # those that a graph records may not wait
                    self._make(cupy, inputs, outputs)
                else:
                    with self._device.first_alone((self._compiled.name, *self._compiled.stored_types.values())):
                        self._make(cupy, inputs, outputs)
            except (ImportError, NotImplementedError) as error:
                reason = f"{self._device.name} cannot compute {self._compiled.name}: {error}"
                raise DeviceFailed("error", reason) from error

    def _make(self, cupy: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        call = self._compiled.call
        assert call, "its program says so"
        made = call(cupy, inputs, outputs) if self._compiled.makes_in else call(cupy, inputs)
        self._compiled.check_results(made)
        for name, output in outputs.items():
            if made[name] is not output:
                desc = self._compiled.outputs[name]
                cupy.copyto(output, together(made[name], cupy, desc) if desc.DataType.bits < 8 else made[name])

    def _read(self, cupy: Any, name: str, desc: TensorDesc, address: int) -> Any:
        """The elements, a byte each where they lie two to a byte."""
        array = self._array(name, desc, address)
        if desc.DataType.bits >= 8:
            return array
        return apart_in_shape(array, desc, cupy)

    def _array(self, name: str, desc: TensorDesc, address: int) -> Any:
        """The elements where they lie; of those that lie two to a byte, the bytes."""
        if desc.DataType.bits < 8:
            return self._device.array(address, desc.data_bytes, [desc.data_bytes], np.dtype(np.uint8), [1])
        dtype = numpy_type(self._compiled.stored_types[name])
        strides = [step * dtype.itemsize for step in desc.strides]
        return self._device.array(address, desc.data_bytes, desc.Sizes, dtype, strides)

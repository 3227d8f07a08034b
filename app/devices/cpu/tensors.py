"""Tensors in buffers on the host."""

import numpy as np

from app.contract.tensors import TensorDesc
from app.devices.cpu.numpy.coordinates import Stored
from app.memory.arrays import Array, apart_in_shape, numpy_type, together
from app.memory.buffers import Buffer
from app.programs.dispatchable import Dispatchable


class Tensor:
    """A tensor of an operator, and how it lies in its buffer."""

    def __init__(self, compiled: Dispatchable, name: str, desc: TensorDesc) -> None:
        self.name = name
        self.desc = desc
        self._dtype = numpy_type(compiled.stored_types[name])
        self.strides = [step * self._dtype.itemsize for step in desc.strides]
        """In bytes."""

    @property
    def copied_bytes(self) -> int:
        """What loops over packed elements of 4 bytes copy to read them; nothing of one that lies so."""
        is_read = self.desc.is_packed and self.desc.DataType.bits == 32
        return 0 if is_read else 4 * self.desc.elements

    def stored(self, buffer: Buffer) -> Stored:
        """Its elements, and those between them."""
        elements: Array = np.frombuffer(buffer, self._dtype, self.desc.reach)
        return Stored(elements, self.desc.Sizes, self.desc.strides)

    def view(self, buffer: Buffer) -> Array:
        """Its elements, in its shape."""
        return np.ndarray(self.desc.Sizes, self._dtype, buffer, 0, self.strides)

    def elements(self, buffer: Buffer) -> Array:
        """The same to be read, also where they lie two to a byte."""
        if self.desc.DataType.bits >= 8:
            return self.view(buffer)
        packed = np.frombuffer(buffer, np.uint8, self.desc.data_bytes)
        elements: Array = apart_in_shape(packed, self.desc)
        return elements

    def store(self, made: Array, buffer: Buffer) -> None:
        """Write its elements."""
        if self.desc.DataType.bits >= 8:
            np.copyto(self.view(buffer), made)
        else:
            np.copyto(np.ndarray(self.desc.data_bytes, np.uint8, buffer), together(made, desc=self.desc))

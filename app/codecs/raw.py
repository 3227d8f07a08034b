"""application/octet-stream: the elements of one tensor and nothing else."""

from collections.abc import Mapping

from app.codecs.codec import Body, Encoded, Span
from app.codecs.tensor_files import FileLimits, FileTensor
from app.contract.tensors import TensorDesc
from app.memory.accounts import MemoryShare
from app.memory.buffers import Buffer


class Raw:
    """Implements `TensorFormat`. Type and sizes are for the rest of the request to say."""

    media_type = "application/octet-stream"
    expands = False

    def data_start(self, beginning: bytes, length: int) -> int:
        return 0

    def read(
        self, body: Body, file: Span, first: str, limits: FileLimits, memory: MemoryShare
    ) -> Mapping[str, FileTensor]:
        return {first: FileTensor(None, None, None, file)}

    def write(self, tensors: Mapping[str, tuple[TensorDesc, Buffer]]) -> Encoded:
        ((_, data),) = tensors.values()
        return Encoded(data.nbytes, (data,))

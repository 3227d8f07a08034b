"""Products of arrays by loops, for operators that multiply in the middle of other things."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from app.contract.constants import NEWEST, DataType, MatrixTransform
from app.contract.tensors import TensorDesc
from app.contract.violations import ContractError
from app.devices.cpu.alone import Making
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.products import LEAST_ALONE, product_calls
from app.memory.arrays import Array
from app.operators.arrays import SCRATCH
from app.operators.compiled import compile_operator
from app.operators.linear_algebra.products import Gemm

MOST_RANK, KEPT = 4, 64
"""Dimensions of a product's tensors, and forms of which calls are kept: to cut them takes as long as many a product."""


class _Layout(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""


class LoopedProducts:
    """Multiplies float32 where loops are quicker than a BLAS. Safe to use from several threads."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._making = lru_cache(KEPT)(self._made)

    def multiplied(self, a: Array, b: Array, out: Array | None) -> Array | None:
        """The products of matrices, in `out` if that is given, which may not be packed, or lie over them; None where
        they are a BLAS'."""
        if a.dtype != np.float32 or b.dtype != np.float32 or a.shape[:-2] != b.shape[:-2]:
            return None
        if a.size * b.shape[-1] < LEAST_ALONE or not (a.flags.aligned and b.flags.aligned):
            return None
        sizes = (*a.shape[:-1], b.shape[-1])
        if out is None:
            out = np.empty(sizes, np.float32)
        elif out.dtype != np.float32 or not out.flags.c_contiguous or any(np.may_share_memory(out, x) for x in (a, b)):
            return None
        making = self._making(_Layout(a.shape, a.strides), _Layout(b.shape, b.strides))
        if making is None:
            return None
        making.over([a, b], [out], lambda: False)
        return out

    def _made(self, a: _Layout, b: _Layout) -> Making | None:
        first, second = (_desc(*each) for each in (a, b))
        if first is None or second is None:
            return None
        none = MatrixTransform.NONE
        operator = Gemm(Type="GEMM", ATensor=first, BTensor=second, TransA=none, TransB=none, Alpha=1.0, Beta=0.0)
        try:
            compiled = compile_operator(operator, NEWEST)
        except ContractError:  # nobody's request, but what no tensor is
            return None
        calls = product_calls(compiled, self._team)
        return Making(calls, 2, 1, self._team) if calls and calls.own_bytes <= SCRATCH["numpy"] else None


def _desc(shape: Sequence[int], strides: Sequence[int]) -> TensorDesc | None:
    """None if it is no tensor of an operator's."""
    axes = [(size, step) for size, step in zip(shape[:-2], strides, strict=False) if size > 1]
    axes += [(size, step if size > 1 else 4) for size, step in zip(shape[-2:], strides[-2:], strict=True)]
    if len(axes) > MOST_RANK or any(size == 0 or step <= 0 or step % 4 for size, step in axes):
        return None
    sizes, steps = zip(*axes, strict=True)
    return TensorDesc(DataType=DataType.FLOAT32, Sizes=[*sizes], Strides=[step // 4 for step in steps])

"""Where items of heads lie, for kernels."""

from typing import Any

import numpy as np

STEPS = """
struct steps { unsigned long long item, head, batch; };
"""
"""In CUDA C++, what `steps_of` gives."""

_STEPS = np.dtype([("item", np.uint64), ("head", np.uint64), ("batch", np.uint64)])


def steps_of(x: Any, word: int = 0) -> Any:
    """Of { batch, heads, items, size }, in words of so many bytes; by default in elements."""
    batch, head, item, _ = (step // (word or x.itemsize) for step in x.strides)
    return np.array([(item, head, batch)], _STEPS)[0]

"""Keys and values behind a past, on GPUs: the kernel under NVRTC, which needs none, and on one."""

import numpy as np
import pytest

from app.memory.arrays import Array
from app.operators.attention import pasts
from tests.gpu import assert_compiles, first_gpu
from tests.operators import calls
from tests.operators.arrays import desc_of
from tests.operators.calls import run


@pytest.mark.parametrize("word", [2, 4, 16])
def test_kernels_compile(word: int) -> None:
    assert_compiles(pasts.source(word), 80)


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lengths", [None, [0, 5, 2]])
@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_a_gpu(
    dtype: str, size: int, lengths: list[int] | None, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Present outputs bit for bit, and attention to them as on a CPU."""
    rng = np.random.default_rng(2)
    batch, heads, key_heads, items, past = 3, 4, 2, 6, 5
    inputs: dict[str, Array | None] = {"QueryTensor": rng.normal(size=(batch, items, heads * size)).astype(dtype)}
    for part in ("Key", "Value"):
        inputs[f"{part}Tensor"] = rng.normal(size=(batch, items, key_heads * size)).astype(dtype)
        turned = rng.normal(size=(batch, past, key_heads, size)).astype(dtype)
        inputs[f"Past{part}Tensor"] = turned.transpose(0, 2, 1, 3)  # which lies as keys do
    if lengths is not None:
        inputs["PastSequenceLengthsTensor"] = np.array(lengths, dtype)
    if bias:
        inputs["BiasTensor"] = rng.normal(size=(heads + 2 * key_heads) * size).astype(dtype)
    whole = desc_of(np.zeros((batch, key_heads, past + items, size), dtype))
    document = {"Type": "MULTIHEAD_ATTENTION1", "Scale": 0.5, "MaskType": "NONE"}
    document |= {"QueryHeadCount": heads, "KeyValueHeadCount": key_heads}
    document |= {f"OutputPresent{part}Tensor": whole for part in ("Key", "Value")}
    right = run(document, inputs)
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    made = run(document, inputs)
    for part in ("Key", "Value"):
        np.testing.assert_array_equal(made[f"OutputPresent{part}Tensor"], right[f"OutputPresent{part}Tensor"])
    bound = 2e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(made["OutputTensor"], right["OutputTensor"], rtol=bound, atol=bound)

"""RANDOM_GENERATOR against the known answers of Philox's authors and a plain loop, and what it refuses."""

from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.indexing.running import run

KIND = "DML_OPERATOR_RANDOM_GENERATOR"
KNOWN = [
    ((0,) * 6, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 6, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""State and words: kat_vectors of Random123, philox4x32 with 10 rounds."""


def philox(counter: int, key: int) -> list[int]:
    """In Python's integers."""
    words = [counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        one, other = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [other >> 32 ^ words[1] ^ low, other & 0xFFFFFFFF, one >> 32 ^ words[3] ^ high, one & 0xFFFFFFFF]
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return words


def generate(state: Array, output: Array, **outputs: Array) -> Any:
    return run(
        KIND,
        {"InputStateTensor": state},
        {"OutputTensor": output, **outputs},
        GeneratorType="PHILOX_4X32_10",
    )


@pytest.mark.parametrize(("state", "words"), KNOWN)
def test_known_answers(state: tuple[int, ...], words: tuple[int, ...]) -> None:
    made = generate(np.array(state, np.uint32), np.zeros(4, np.uint32))
    assert tuple(made["OutputTensor"].tolist()) == words
    assert list(made) == ["OutputTensor"]  # the state is not asked for


@pytest.mark.parametrize(
    "counter", [0, 1, 2**32 - 2, 2**64 - 3, 2**96 - 1, 2**128 - 2, 0x0123456789ABCDEF00000000FFFFFFFF]
)
@pytest.mark.parametrize("sizes", [[1], [4], [3, 7], [2, 1, 1, 3, 1, 1, 1, 3]])
def test_words_go_on_from_counter_to_counter(counter: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(len(sizes))
    key = 0xDEADBEEFCAFEF00D
    words = [counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    state = np.array([*words, key & 0xFFFFFFFF, key >> 32], np.uint32).reshape(1, 1, 6)
    output = laid_out(rng, np.zeros(sizes, np.uint32))
    made = generate(laid_out(rng, state), output, OutputStateTensor=laid_out(rng, state))
    count = (output.size + 3) // 4
    expected = [word for turn in range(count) for word in philox((counter + turn) % 2**128, key)]
    assert made["OutputTensor"].ravel().tolist() == expected[: output.size]
    after = (counter + count) % 2**128
    expected = [after >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    assert made["OutputStateTensor"].tolist() == [[[*expected, key & 0xFFFFFFFF, key >> 32]]]


def test_the_next_state_goes_on_where_the_last_one_ended() -> None:
    state = np.array([5, 0, 0, 0, 1, 2], np.uint32)
    whole = generate(state, np.zeros(64, np.uint32))["OutputTensor"]
    first = generate(state, np.zeros(40, np.uint32), OutputStateTensor=state)
    second = generate(first["OutputStateTensor"], np.zeros(24, np.uint32))
    np.testing.assert_array_equal(np.concatenate([first["OutputTensor"], second["OutputTensor"]]), whole)


def tensor(*sizes: int) -> dict[str, Any]:
    return {"DataType": "UINT32", "Sizes": list(sizes)}


@pytest.mark.parametrize(
    ("members", "pointer", "given", "allowed"),
    [
        ({"InputStateTensor": tensor(5), "OutputStateTensor": None}, "/InputStateTensor/Sizes", [5], [6]),
        ({"InputStateTensor": tensor(2, 6), "OutputStateTensor": None}, "/InputStateTensor/Sizes", [2, 6], [1, 6]),
        ({"OutputStateTensor": tensor(1, 6)}, "/OutputStateTensor/Sizes", [1, 6], [1, 1, 1, 6]),
        ({"GeneratorType": "PHILOX"}, "/GeneratorType", "PHILOX", ["PHILOX_4X32_10"]),
    ],
)
def test_refusals(members: dict[str, Any], pointer: str, given: Any, allowed: Any) -> None:
    (refusal,) = refusals(descriptor(KIND, **members))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given) == (pointer, given)
    assert refusal.allowed == allowed or pointer == "/GeneratorType"


@pytest.mark.parametrize("name", ["PHILOX_4X32_10", "DML_RANDOM_GENERATOR_TYPE_PHILOX_4X32_10"])
def test_generator_type(name: str) -> None:
    assert compiled(descriptor(KIND, GeneratorType=name)).name == KIND

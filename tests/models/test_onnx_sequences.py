"""Recurrent networks, and attention as onnxruntime's own operators have it, beside onnxruntime."""

from typing import Any

import numpy as np
import pytest

from app.models.onnx.errors import NotSupported
from app.models.onnx.importer import import_model
from tests.models.onnx_nodes import RANDOM, OneNode, floats, integers
from tests.models.onnx_runs import Array, run

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OURS = "com.microsoft"
BATCH, HEADS, SIZE = 2, 3, 4
HIDDEN = HEADS * SIZE


def recurrent(operator: str, directions: int, *, whole: bool, **attributes: Any) -> OneNode:
    """Of 3 steps of 2 sequences; `whole` is with all inputs that may be left out."""
    rows = 5 * GATES[operator]
    inputs = [floats(3, 2, 4), floats(directions, rows, 4), floats(directions, rows, 5)]
    if whole:
        inputs += [floats(directions, 2 * rows), np.array([2, 3], np.int32), floats(directions, 2, 5)]
        inputs += [floats(directions, 2, 5), floats(directions, 15)] if operator == "LSTM" else []
    outputs = 3 if operator == "LSTM" else 2
    return OneNode(operator, inputs, outputs=outputs, opset=14, hidden_size=5, **attributes)


@pytest.mark.parametrize("operator", GATES)
def test_recurrent(operator: str) -> None:
    recurrent(operator, 1, whole=False).compare()
    recurrent(operator, 2, whole=True, direction="bidirectional").compare()
    activations = {
        "RNN": {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]},
        "GRU": {"activations": ["HardSigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.2], "linear_before_reset": 1},
        "LSTM": {"activations": ["Sigmoid", "Softsign", "Tanh"], "input_forget": 1},
    }
    recurrent(operator, 1, whole=True, direction="reverse", **activations[operator]).compare()


@pytest.mark.parametrize("attributes", [{}, {"clip": 0.25}])
def test_lstm_clips_what_activations_take(attributes: dict[str, float]) -> None:
    """As DirectML does, that of the last one included, which onnxruntime leaves as it is."""
    made = recurrent("LSTM", 1, whole=False, **attributes).model([floats(1)] * 3)
    (node,) = import_model(made, {}).graph.document["Nodes"]
    clip = node["Desc"]["UseClipThreshold"], node["Desc"]["ClipThreshold"]
    assert clip == (bool(attributes), attributes.get("clip", 0))


def dynamic(
    directions: int, weights: str = "uint8", *, whole: bool, by_gate: bool = False, **attributes: Any
) -> OneNode:
    """Of 4 steps of 3 sequences, with bytes of `weights`; scales are of directions, or of their gates."""

    def quantized(size: int) -> list[Array]:
        x = floats(directions, size, 20)
        least, most = np.iinfo(weights).min, np.iinfo(weights).max
        shape = (directions, 20) if by_gate else (directions,)
        scale = RANDOM.uniform(0.02, 0.03, shape).astype(np.float32)
        zero = np.full(shape, 0 if least else 128, weights)
        by_column, behind = (each.reshape(directions, 1, -1) for each in (scale, zero.astype(np.float32)))
        return [np.clip(np.rint(x / by_column) + behind, least, most).astype(weights), scale, zero]

    (w, *of_w), (r, *of_r) = quantized(4), quantized(5)
    inputs: list[Array | None] = [2 * floats(4, 3, 4), w, r, *[None] * 5, *of_w, *of_r]
    if whole:
        inputs[3:5] = [floats(directions, 40), np.array([2, 4, 3], np.int32)]
        inputs[5:8] = [floats(directions, 3, 5), floats(directions, 3, 5), floats(directions, 15)]
    return OneNode("DynamicQuantizeLSTM", inputs, range(8, 12), outputs=3, domain=OURS, hidden_size=5, **attributes)


@pytest.mark.parametrize(("weights", "by_gate"), [("uint8", False), ("int8", False), ("uint8", True), ("int8", True)])
def test_lstm_of_quantized_weights(weights: str, by_gate: bool) -> None:
    """Input and states are quantized, too: what is computed is not what LSTM makes of the weights alone."""
    dynamic(1, weights, whole=False, by_gate=by_gate).compare()
    dynamic(2, weights, whole=True, by_gate=by_gate, direction="bidirectional").compare()
    activations = ["HardSigmoid", "Softsign", "Tanh"]
    reverse = {"activation_alpha": [0.3], "activation_beta": [0.4], "input_forget": 1}
    dynamic(1, weights, whole=True, by_gate=by_gate, direction="reverse", activations=activations, **reverse).compare()


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_what_no_row_reaches_is_not_quantized(direction: str) -> None:
    """Its range would be that of what is there, too."""
    node = dynamic(2 if direction == "bidirectional" else 1, whole=True, direction=direction)
    x = np.concatenate([floats(2, 3, 4), np.full((2, 3, 4), 40, np.float32)])
    node.replaced(0, x).replaced(4, np.array([1, 2, 1], np.int32)).compare()


def test_states_are_quantized_for_each_step() -> None:
    """Of one step there are as many operators again for each one more."""
    counts = []
    for steps in (1, 2, 3):
        made = dynamic(1, whole=False).model([floats(1)] * 3)
        made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = steps
        nodes = import_model(made, {}).graph.document["Nodes"]
        counts.append(sum(each.get("Desc", {}).get("Type") == "DYNAMIC_QUANTIZE_LINEAR" for each in nodes))
    assert counts == [1, 2, 3]


def test_recurrent_with_the_batch_first() -> None:
    node = recurrent("GRU", 1, whole=True)
    x, weights, recurrence, bias, lengths, state = node.inputs.values()
    expected, last = node.expected()
    turned = [x.swapaxes(0, 1), weights, recurrence, bias, lengths, state.swapaxes(0, 1)]
    other = OneNode("GRU", [*map(np.ascontiguousarray, turned)], outputs=2, opset=14, hidden_size=5, layout=1)
    made = other.made([expected.transpose(2, 0, 1, 3), last.swapaxes(0, 1)])
    np.testing.assert_allclose(made[0], expected.transpose(2, 0, 1, 3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made[1], last.swapaxes(0, 1), rtol=1e-4, atol=1e-5)


def many_headed(queries: int, keys: int, *more: Any, past: int = 0, **attributes: Any) -> OneNode:
    tensors = [floats(BATCH, each, HIDDEN) for each in (queries, keys, keys)]
    before = [floats(BATCH, HEADS, past, SIZE) for _ in range(2)] if past else []
    outputs = 3 if past else 1
    given = [*tensors, *more, *[None] * (3 - len(more)), *before] if past else [*tensors, *more]
    return OneNode("MultiHeadAttention", given, outputs=outputs, domain=OURS, num_heads=HEADS, **attributes)


def mask(*sizes: int) -> np.ndarray[Any, Any]:
    made = RANDOM.integers(0, 2, sizes).astype(np.int32)
    made[..., 0] = 1
    return made


@pytest.mark.parametrize(
    "node",
    [
        many_headed(3, 5, floats(3 * HIDDEN), scale=0.3),
        many_headed(3, 5, None, mask(BATCH, 5), floats(BATCH, HEADS, 3, 5)),
        many_headed(4, 4, None, None, floats(1, HEADS, 4, 4), unidirectional=1),
        many_headed(1, 4, unidirectional=1),  # the last query, of all keys
        many_headed(2, 1, past=3),
        *(
            OneNode(
                "MultiHeadAttention",
                [floats(BATCH, 3, HIDDEN), *[floats(BATCH, HEADS, 5, SIZE)] * 2, bias, of_keys],
                domain=OURS,
                num_heads=HEADS,
            )
            for bias in (None, floats(3 * HIDDEN))
            for of_keys in (None, mask(BATCH, 5))
        ),
        OneNode(
            "Attention",
            [floats(BATCH, 3, 5), floats(5, 2 * HIDDEN + 6), floats(2 * HIDDEN + 6), mask(BATCH, 3, 3)],
            domain=OURS,
            num_heads=HEADS,
            qkv_hidden_sizes=[HIDDEN, HIDDEN, 6],
        ),
        OneNode(
            "Attention",
            [floats(BATCH, 3, 5), floats(5, 3 * HIDDEN), floats(3 * HIDDEN), np.array([2, 3], np.int32)],
            domain=OURS,
            num_heads=HEADS,
            unidirectional=1,
        ),
        OneNode(
            "Attention",
            [floats(BATCH, 3, 5), floats(5, 3 * HIDDEN), floats(3 * HIDDEN), np.array([2, 3, 0, 1], np.int32)],
            domain=OURS,
            num_heads=HEADS,
        ),
        *(
            OneNode(
                "Attention",
                [*(floats(*each) for each in ((BATCH, 2, 5), (5, 3 * HIDDEN), (3 * HIDDEN,))), None, past],
                outputs=2,
                domain=OURS,
                num_heads=HEADS,
            )
            for past in (floats(2, BATCH, HEADS, 3, SIZE), floats(2, BATCH, HEADS, 0, SIZE))
        ),
        OneNode(
            "QAttention",
            [
                *(RANDOM.integers(0, 256, (BATCH, 3, 5)).astype(np.uint8), mask(5, 3 * HIDDEN).astype(np.int8)),
                *(floats(3 * HIDDEN), np.array([0.02], np.float32), np.array([0.5], np.float32), None),
                *(np.array([120], np.uint8), np.array([1], np.int8)),
            ],
            [1, 2, 3, 4, 6, 7],
            domain=OURS,
            num_heads=HEADS,
        ),
        OneNode(
            "QAttention",
            [
                *(RANDOM.integers(0, 256, (BATCH, 2, 5)).astype(np.uint8), mask(5, 3 * HIDDEN).astype(np.int8)),
                *(floats(3 * HIDDEN), np.array([0.02], np.float32), np.array([0.5], np.float32), mask(BATCH, 5)),
                *(None, None, floats(2, BATCH, HEADS, 3, SIZE)),
            ],
            [1, 2, 3, 4],
            outputs=2,
            domain=OURS,
            num_heads=HEADS,
        ),
        OneNode(
            "RotaryEmbedding",
            [floats(BATCH, 3, HIDDEN), RANDOM.integers(0, 6, (BATCH, 3)), floats(6, 2), floats(6, 2)],
            domain=OURS,
            num_heads=HEADS,
        ),
        OneNode(
            "RotaryEmbedding",
            [floats(BATCH, HEADS, 3, 6), integers(2), floats(6, 2), floats(6, 2)],
            domain=OURS,
            num_heads=HEADS,
            rotary_embedding_dim=4,
            interleaved=1,
        ),
    ],
    ids=repr,
)
def test_attention(node: OneNode) -> None:
    node.compare(1e-4)


@pytest.mark.parametrize(
    ("length", "past", "lengths", "is_packed"),
    [(3, 0, [2, 2], True), (3, 8, [2, 2], False), (1, 4, [4, 4], False), (1, 8, [3, 6], True)],
)
@pytest.mark.parametrize(("window", "cap"), [(-1, 0.0), (2, 0.0), (-1, 1.5)])
def test_grouped_attention(
    length: int, past: int, lengths: list[int], *, is_packed: bool, window: int, cap: float
) -> None:
    """Of 4 heads with 2 of keys, from a beginning, in a buffer or not, and behind pasts as long or not; of all keys or
    the last ones; with all scores, or within a cap."""
    parts = [floats(2, length, heads * 16) for heads in (4, 2, 2)]
    before = [floats(2, 2, past, 16) if past else None for _ in range(2)]
    given: list[Any] = [np.concatenate(parts, 2), None, None] if is_packed else [*parts]
    total = np.array(max(lengths) + 1, np.int32)
    given += [*before, np.array(lengths, np.int32), total, floats(9, 8), floats(9, 8)]
    attributes: dict[str, Any] = {
        "num_heads": 4,
        "kv_num_heads": 2,
        "do_rotary": 1,
        "local_window_size": window,
        "softcap": cap,
    }
    OneNode("GroupQueryAttention", given, [6], outputs=3, domain=OURS, **attributes).compare(1e-4)


def grouped(length: int, past: int, lengths: list[int], *more: Any, **attributes: Any) -> OneNode:
    """Of 4 heads with 2 of keys."""
    parts = [floats(len(lengths), length, heads * 16) for heads in (4, 2, 2)]
    before = [floats(len(lengths), 2, past, 16) if past else None for _ in range(2)]
    given = [*parts, *before, np.array(lengths, np.int32), np.array(max(lengths) + 1, np.int32), *more]
    heads = {"num_heads": 4, "kv_num_heads": 2}
    return OneNode("GroupQueryAttention", given, [6], outputs=3, domain=OURS, **heads, **attributes)


@pytest.mark.parametrize(
    "node",
    [
        # All keys of an item, where the last one is behind the query, too.
        *(
            grouped(length, past, lengths, causal=0)
            for length, past, lengths in ((3, 0, [2, 2]), (3, 0, [2, 0]), (3, 8, [6]), (1, 4, [4, 2]))
        ),
        # Places of a beginning are counted from the first that is given, of all items.
        grouped(3, 0, [2, 2], floats(20, 8), floats(20, 8), np.array([[7, 9, 8], [2, 3, 4]]), do_rotary=1),
        grouped(1, 4, [4, 4], floats(20, 8), floats(20, 8), np.array([[7], [2]]), do_rotary=1),
        grouped(3, 0, [2, 2], smooth_softmax=-1, scale=0.3),
    ],
    ids=repr,
)
def test_grouped_attention_by_attributes_and_places(node: OneNode) -> None:
    node.compare(1e-4)


@pytest.mark.parametrize(
    "node",
    [
        OneNode(
            "MultiHeadAttention",
            [*[floats(BATCH, 3, HIDDEN)] * 3, None, None, None, *[floats(BATCH, HEADS, 0, SIZE)] * 2],
            outputs=3,
            domain=OURS,
            num_heads=HEADS,
        ),
        grouped(3, 0, [2, 2]).replaced(3, floats(2, 2, 0, 16)).replaced(4, floats(2, 2, 0, 16)),
    ],
    ids=repr,
)
def test_a_past_of_no_keys(node: OneNode) -> None:
    node.compare(1e-4)


def test_stacked_attention_is_that_of_its_parts() -> None:
    """Which onnxruntime does not have on the CPU."""
    query, key, value = (floats(BATCH, 3, HEADS, SIZE) for _ in range(3))
    apart = [each.reshape(BATCH, 3, HIDDEN) for each in (query, key, value)]
    (expected,) = OneNode("MultiHeadAttention", apart, domain=OURS, num_heads=HEADS).expected()
    for inputs in ([np.stack([query, key, value], 3)], [apart[0], np.stack([key, value], 3)]):
        (made,) = OneNode("MultiHeadAttention", inputs, domain=OURS, num_heads=HEADS).made([expected])
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    key, value = (floats(BATCH, 5, HEADS, SIZE) for _ in range(2))
    more = [None, mask(BATCH, 5)]
    given: list[Any] = [apart[0], *(each.reshape(BATCH, 5, HIDDEN) for each in (key, value)), *more]
    (expected,) = OneNode("MultiHeadAttention", given, domain=OURS, num_heads=HEADS).expected()
    stacked: list[Any] = [apart[0], np.stack([key, value], 3), None, *more]
    (made,) = OneNode("MultiHeadAttention", stacked, domain=OURS, num_heads=HEADS).made([expected])
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ((BATCH,), "KEY_SEQUENCE_LENGTH"),
        ((2 * BATCH,), "KEY_SEQUENCE_END_START"),
        ((3 * BATCH + 2,), "KEY_QUERY_SEQUENCE_LENGTH_START_END"),
        ((BATCH, 5), "BOOLEAN"),
    ],
)
def test_the_kind_of_a_mask_is_told_by_its_sizes(sizes: tuple[int, ...], kind: str) -> None:
    made = many_headed(3, 5, None, np.ones(sizes, np.int32)).model([floats(1)])
    (node,) = import_model(made, {}).graph.document["Nodes"]
    assert node["Desc"]["MaskType"] == kind


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (recurrent("RNN", 1, whole=False, clip=0.5), "its clip is for LSTM alone"),
        (recurrent("GRU", 1, whole=False, clip=0.5), "its clip is for LSTM alone"),
        (recurrent("GRU", 1, whole=False, activations=["Exp", "Tanh"]), "Exp is none of DirectML's"),
        (recurrent("GRU", 1, whole=False, activations=["Tanh"]), "it has 1 activations, not 2"),
        (recurrent("GRU", 1, whole=False, direction="sideways"), "its direction is sideways"),
        *(
            (recurrent(operator, 1, whole=False).replaced(0, floats(3, 4)), r"sizes \[3, 4\], where")
            for operator in GATES
        ),
        (many_headed(3, 5, None, mask(BATCH, 4)), "its mask has sizes"),
        (many_headed(3, 5, None, mask(BATCH, 5).astype(np.int64)), "its mask is INT64"),
        *(
            (many_headed(3, 5, *[None] * (more - 3), np.array([1], np.int32)), "it has a past of stated lengths")
            for more in (8, 9)
        ),
        (
            OneNode("MultiHeadAttention", [floats(1, 3, 4)] * 3, outputs=4, domain=OURS, num_heads=1),
            "gives its scores away",
        ),
        *(
            (
                OneNode("Attention", [floats(1, 2, 3), floats(3, 12)], (), 1, 17, OURS, num_heads=1, **{more: 1}),
                "its past lies in shared memory, or it turns its keys",
            )
            for more in ("do_rotary", "past_present_share_buffer")
        ),
        (dynamic(1, whole=False, direction="sideways"), "its direction is sideways"),
        (dynamic(1, whole=False).replaced(0, np.zeros((4, 3, 4))), "its input is FLOAT64, not FLOAT32"),
        (dynamic(1, whole=False).replaced(0, floats(3, 4)), r"its input has sizes \[3, 4\], where it takes three"),
        (dynamic(1, whole=False).replaced(8, floats(3)), r"its input 8 has sizes \[3\], not \[1\] or \[1, 20\]"),
        (dynamic(1, whole=True).replaced(3, floats(2, 40)), r"sizes \[2, 40\], which are not of 1"),
        (dynamic(1, whole=False, direction="bidirectional"), r"its input 1 has sizes \[1, 4, 20\], not \[2, 4, 20\]"),
    ],
    ids=repr,
)
def test_refused(node: OneNode, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        run(node.model([floats(1)] * 4), node.inputs)

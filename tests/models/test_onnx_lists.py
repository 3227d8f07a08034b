"""Sequences of tensors, and optional ones, between nodes: they are unrolled, beside onnxruntime."""

import numpy as np
import onnxruntime
import pytest

from app.models.onnx import sequences
from app.models.onnx.errors import NotSupported
from app.models.onnx.importer import import_model
from app.models.onnx.reading import read_model
from tests.models.documents import model
from tests.models.onnx_runs import Array, run

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
NUMBERS: dict[str, Array] = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "last": np.array(-1), "many": np.array(9),
    "parts": np.array([1, 3]), "yes": np.array(True), "known": np.array([[1, 2, 3, 4]], np.float32),
}  # fmt: skip
LOOP = """(float[3,4] x) => (float[3,8] y) {
  none = SequenceEmpty()
  all = Loop<body = b (int64 i, bool go, seq(float[3,4]) before) => (bool on, seq(float[3,4]) after) {
    on = Identity(go) f = Cast<to = 1>(i) z = Add(x, f) after = SequenceInsert(before, z)
  }> (two, yes, none)
  y = ConcatFromSequence<axis = 1>(all) }"""

MAP = """(float[3,4] x) => (float[3,8] y, bool[1,8] z) {
  n = Neg(x) s = SequenceConstruct(x, n) t = SequenceConstruct(known, known)
  u, v = SequenceMap<body = b (float[3,4] p, float[1,4] q, float[3,4] r) => (float[3,4] a, bool[1,4] c) {
    d = Mul(p, q) e = Add(d, r) a = Add(e, x) f = Constant<value_float = 2.0>() c = Less(q, f)
  }> (s, t, n)
  y = ConcatFromSequence<axis = 1>(u) z = ConcatFromSequence<axis = 1>(v) }"""


@pytest.mark.parametrize(
    "text",
    [
        "(float[3,4] x) => (float[6,4] y) "
        "{ n = Neg(x) s = SequenceConstruct(x, n) y = ConcatFromSequence<axis = 0>(s) }",
        "(float[3,4] x) => (float[3,2,4] y) "
        "{ n = Neg(x) s = SequenceConstruct(x, n) y = ConcatFromSequence<axis = -2, new_axis = 1>(s) }",
        "(float[3,4] x) => (float[4,4] y) { s = SequenceConstruct(known, x) y = ConcatFromSequence<axis = 0>(s) }",
        "(float[3,4] x) => (float[1,8] z) "
        "{ s = SequenceConstruct(known, known) y = ConcatFromSequence<axis = 1>(s) a = ReduceSum(x) z = Add(y, a) }",
        "(float[3,4] x) => (float[3,3] y) { s = SplitToSequence<axis = 1>(x, parts) y = SequenceAt(s, last) }",
        "(float[3,4] x) => (float[1,4] y, int64 n) "
        "{ s = SplitToSequence(x, two) y = SequenceAt(s, one) n = SequenceLength(s) }",
        "(float[3,4] x) => (float[3] y) { s = SplitToSequence<axis = -1, keepdims = 0>(x) y = SequenceAt(s, two) }",
        "(float[3,4] x) => (float[1,2] z) "
        "{ s = SplitToSequence<axis = 1>(known, two) y = SequenceAt(s, last) a = ReduceMax(x) z = Mul(y, a) }",
        "(float[3,4] x) => (float[3,4] y, int64 n) { e = SequenceEmpty() p = Neg(x) a = SequenceInsert(e, x) "
        "b = SequenceInsert(a, p, zero) c = SequenceInsert(b, x, last) d = SequenceErase(c, zero) "
        "q = SequenceErase(d) r = Identity(q) y = SequenceAt(r, zero) n = SequenceLength(d) }",
        "(float[3,4] x) => (bool[6,4] y, int64[1,4] w) { b = Less(x, known) n = Not(b) s = SequenceConstruct(b, n) "
        "y = ConcatFromSequence<axis = 0>(s) t = SplitToSequence(y) a = SequenceAt(t, last) w = Cast<to = 7>(a) }",
        "(float[3,4] x) => (float[3,4] y, bool b) "
        "{ o = Optional(x) y = OptionalGetElement(o) b = OptionalHasElement(o) }",
        LOOP,
        MAP,
        "(float[3,4] x) => (float[3,4] y) { s = SequenceConstruct(x, x) t = If<"
        "then_branch = p () => (seq(float[3,4]) a) { n = Neg(x) a = SequenceInsert(s, n, zero) }, "
        "else_branch = q () => (seq(float[3,4]) a) { a = SequenceErase(s) }> (yes) y = SequenceAt(t, zero) }",
    ],
)
def test_sequences(text: str) -> None:
    made = model(f"m {text}", **NUMBERS)
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
    found = run(read_model(made.SerializeToString()), {"x": X})
    for output, expected in zip(made.graph.output, session.run(None, {"x": X}), strict=True):
        assert found[output.name].dtype == expected.dtype
        np.testing.assert_array_equal(found[output.name], expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s = SequenceConstruct(x, x) y = Neg(s)", "its inputs is a sequence"),
        ("y = SequenceConstruct(x, x)", "y .*it is a sequence"),
        ("s = SequenceConstruct(x) y = SequenceAt(s, many)", "its position is 9, of 1 dimensions"),
        ("s = SequenceEmpty() y = ConcatFromSequence<axis = 0>(s)", "its sequence is empty"),
        ("s = SequenceConstruct(x) i = ArgMax<keepdims = 0>(x) y = SequenceAt(s, i)", "its position is not constant"),
        ("y = SequenceAt(x, one)", "its first input is no sequence"),
        ("s = SequenceConstruct(x) t = SequenceConstruct(s) y = SequenceAt(t, zero)", "are not all tensors"),
        ("s = SplitToSequence(x, parts) y = SequenceAt(s, zero)", "do not make up 3 elements"),
        ("s = SplitToSequence(x, zero) y = SequenceAt(s, zero)", "its split is 0"),
        ("o = Optional() y = OptionalGetElement(o)", "is left out"),
        ("s = SequenceConstruct(x) y = If<then_branch = p () => (float a) { a = Neg(x) }, "
         "else_branch = q () => (float a) { a = Neg(x) }> (s)", "its condition is not constant"),
        ("y = Scan<num_scan_inputs = 1, body = b (float a) => (seq(float) s) { s = SequenceConstruct(a) }> (x)",
         "a sequence in each turn"),
        ("s = SequenceMap<body = b (float[3] a) => (float[3] c) { c = Neg(a) }> (x) y = SequenceAt(s, zero)",
         "its first input is no sequence"),
        ("s = SequenceConstruct(x) t = SequenceConstruct(x, x) "
         "u = SequenceMap<body = b (float[3] a, float[3] c) => (float[3] d) { d = Add(a, c) }> (s, t) "
         "y = SequenceAt(u, zero)", r"its sequences have \[1, 2\] elements"),
        ("s = SequenceConstruct(x) t = SequenceMap<body = b (float[3] a) => (seq(float[3]) c) "
         "{ c = SequenceConstruct(a) }> (s) y = SequenceAt(t, zero)", "a sequence in each turn"),
    ],
)  # fmt: skip
def test_refused(text: str, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        import_model(model(f"m (float[3] x) => (float y) {{ {text} }}", **NUMBERS), {})


@pytest.mark.parametrize("split", ["", ", one"])
def test_a_tensor_has_so_many_parts_at_most(split: str) -> None:
    """Each is a node of the graph."""
    size = sequences._MOST_PARTS + 1
    text = f"m (float[{size}] x) => (float[1] y) {{ s = SplitToSequence(x{split}) y = SequenceAt(s, zero) }}"
    with pytest.raises(NotSupported, match="parts"):
        import_model(model(text, **NUMBERS), {})

"""What is written to where a mask is true, and computed of what lies there: sizes on the way follow from elements, and
those of the result do not."""

from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from app.models.onnx.errors import NotSupported
from app.models.onnx.importer import import_model
from tests.models.documents import model
from tests.models.onnx_runs import Array, run

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)
Y = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)
M = X > 0.3
ROWS = np.array([[1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0]], bool)
KNOWN: dict[str, Any] = {
    "all": np.array([-1]),
    "half": np.array([0.5], np.float32),
    "line": np.array([1, 2, 3, 4, 5], np.float32),
    "column": np.array([[1], [2], [3], [4]], np.float32),
    "square": RANDOM.standard_normal((5, 5)).astype(np.float32),
    "bytes": RANDOM.integers(0, 256, (5, 3), np.uint8),
    "scales": np.array([0.5, 0.25, 0.5, 0.5, 0.5], np.float32),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "three": np.array([3]),
    "four": np.array(4, np.int32),
    "four64": np.array(4),
    "up": np.array([[0], [1], [2]]),
    "five": np.array([5]),
    "first": np.array(0),
    "second": np.array(1),
    "third": np.array(2),
    "ones": np.array([1, 1, 1]),
    "rows": np.array([-1, 5]),
    "same": np.array([0, -1]),
    "pair": np.array([1, 1]),
    "parts": np.array([2, 3]),
    "fives": np.array([1, 5]),
}
COUNT = "f = Reshape(m, all) i = Cast<to=7>(f) n = ReduceSum<keepdims=1>(i)"
AT = "p = NonZero(m) at = Transpose<perm=[1,0]>(p)"
LENGTH = "s = Shape(at) n = Gather<axis=0>(s, zero)"
WRITTEN = {
    "a number": f"{AT} {COUNT} e = Expand(half, n) u = Reshape(e, all) z = ScatterND(x, at, u)",
    "elements": f"{AT} v = GatherND(y, at) {COUNT} e = Expand(v, n) u = Reshape(e, all) z = ScatterND(x, at, u)",
    "computed": f"{AT} v = GatherND(y, at) w = GatherND(x, at) a = Exp(v) b = Mul(a, w) c = Add(b, half)"
    " d = Less(v, w) u = Where(d, c, half) z = ScatterND(x, at, u)",
    "in turn": f"{AT} f = Reshape(y, all) {LENGTH} u = Slice(f, zero, n, zero) z = ScatterND(x, at, u)",
    "by slices": f"{AT} a0 = Slice(at, zero, one, one) a1 = Slice(at, one, two, one) a2 = Slice(at, two, three, one)"
    " b0 = Squeeze(a0, one) b1 = Squeeze(a1, one) b2 = Squeeze(a2, one) n = Shape(b0) u = Expand(half, n)"
    " c0 = Unsqueeze(b0, all) c1 = Unsqueeze(b1, all) c2 = Unsqueeze(b2, all)"
    " d = Concat<axis=-1>(c0, c1, c2) z = ScatterND(x, d, u)",
    "by parts": f"{AT} a0, a1, a2 = Split<axis=1>(at, ones) b0 = Squeeze(a0, one) b1 = Squeeze(a1, one)"
    " b2 = Squeeze(a2, one) t = Add(b0, b1) w = Add(t, b2) n = Shape(w) e0 = Expand(b0, n) e1 = Expand(b1, n)"
    " e2 = Expand(b2, n) c0 = Unsqueeze(e0, one) c1 = Unsqueeze(e1, one) c2 = Unsqueeze(e2, one)"
    " d = Concat<axis=1>(c0, c1, c2) e = Expand(half, n) u = Reshape(e, n) z = ScatterND(x, d, u)",
    "by places": f"{AT} b0 = Gather<axis=1>(at, first) b1 = Gather<axis=1>(at, second) b2 = Gather<axis=1>(at, third)"
    " n = Shape(b1) u = Expand(half, n) c0 = Unsqueeze(b0, one) c1 = Unsqueeze(b1, one) c2 = Unsqueeze(b2, one)"
    " d = Concat<axis=1>(c0, c1, c2) z = ScatterND(x, d, u)",
    "added": f"{AT} v = GatherND(y, at) z = ScatterND<reduction='add'>(x, at, v)",
    "multiplied": f"{AT} v = GatherND(y, at) w = Abs(v) z = ScatterND<reduction='mul'>(x, at, w)",
    "shares": f"{AT} v = GatherND(y, at) w = Softmax(v) z = ScatterND(x, at, w)",
    "not zero": "p = NonZero(x) at = Transpose(p) v = GatherND(y, at) u = Neg(v) z = ScatterND(x, at, u)",
}
ALL_AT = "k = Unsqueeze(r, all) t = Shape(x) m = Expand(k, t)"
ROW_COUNT = "f = Reshape(r, all) i = Cast<to=7>(f) c = ReduceSum<keepdims=1>(i) n = Concat<axis=0>(c, five)"
OF_ROWS = {
    "a number": f"{ALL_AT} {AT} {ROW_COUNT} e = Expand(half, n) u = Reshape(e, all) z = ScatterND(x, at, u)",
    "a line": f"{ALL_AT} {AT} {ROW_COUNT} e = Expand(line, n) u = Reshape(e, all) z = ScatterND(x, at, u)",
    "lines": f"{ALL_AT} {AT} q = NonZero(r) o = Transpose<perm=[1,0]>(q) v = GatherND(y, o) w = Mul(v, line)"
    f" {ROW_COUNT} e = Expand(w, n) u = Reshape(e, all) z = ScatterND(x, at, u)",
    "by a layer": "q = NonZero(r) o = Transpose<perm=[1,0]>(q) v = GatherND(y, o) a = MatMul(v, square) b = Softmax(a)"
    " c = Gemm<transB=1>(b, square, line) d = LayerNormalization(c, line) u = Add(d, line) z = ScatterND(x, o, u)",
    "shares of columns": "q = NonZero(r) o = Transpose(q) v = GatherND(y, o) w = LogSoftmax<axis=0>(v)"
    " z = ScatterND(x, o, w)",
    "as rows": "q = NonZero(r) o = Transpose<perm=[1,0]>(q) v = GatherND(y, o) u = Relu(v) z = ScatterND(x, o, u)",
    "in turn": f"{ALL_AT} {AT} f = Reshape(y, all) {LENGTH} u = Slice(f, zero, n, zero) z = ScatterND(x, at, u)",
}
HEAD = "m (float[3,4,5] x, float[3,4,5] y, bool[3,4,5] m, bool[3,4] r) => (float[3,4,5] z) {{ {} }}"


@pytest.mark.parametrize("nodes", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("mask", [M, np.zeros_like(M), np.ones_like(M)], ids=["some", "none", "all"])
def test_what_is_written_to_where_a_mask_is_true(nodes: str, mask: Array) -> None:
    text = HEAD.replace("bool[3,4] r", "bool[3,4] _").format(nodes).replace("'", '"')
    compare(text, {"x": X, "y": Y, "m": mask, "_": ROWS})


@pytest.mark.parametrize("nodes", OF_ROWS.values(), ids=OF_ROWS)
def test_what_is_written_to_rows_for_which_a_mask_is_true(nodes: str) -> None:
    compare(HEAD.replace("bool[3,4,5] m", "bool[3,4,5] _").format(nodes), {"x": X, "y": Y, "r": ROWS, "_": M})


def test_what_is_chosen_of_a_vector() -> None:
    nodes = "p = NonZero(m) a = Squeeze(p, zero) v = Gather<axis=0>(x, a) u = Tanh(v) at = Unsqueeze(a, all)"
    text = f"m (float[4,5] x, bool[4] m) => (float[4,5] z) {{ {nodes} z = ScatterND(x, at, u) }}"
    compare(text, {"x": X[0], "m": ROWS[0]})


def test_what_is_written_is_bool_where_it_is() -> None:
    nodes = f"{AT} v = GatherND(x, at) w = GatherND(y, at) u = Greater(v, w) b = ScatterND(m, at, u)"
    text = f"m (float[3,4,5] x, float[3,4,5] y, bool[3,4,5] m) => (float[3,4,5] z) {{ {nodes} z = Cast<to=1>(b) }}"
    compare(text, {"x": X, "y": Y, "m": M})


def test_in_bodies_of_functions() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    m (float[3,4,5] x, bool[3,4,5] m) => (float[3,4,5] z) { at = own.places(m) z = own.kept(x, at) }
    <domain: "own", opset_import: ["" : 17]> places (m) => (at) { p = NonZero(m) at = Transpose<perm=[1,0]>(p) }
    <domain: "own", opset_import: ["" : 17]> kept (x, at)
    => (z) { v = GatherND(x, at) u = Neg(v) z = ScatterND(x, at, u) }
    """
    made = parser.parse_model(text)
    (expected,) = ReferenceEvaluator(made).run(None, {"x": X, "m": M})
    np.testing.assert_array_equal(run(made, {"x": X, "m": M})["z"], expected)


TAKEN = f"{AT} v = GatherND(y, at)"
OF_EACH_ROW = "q = NonZero(r) o = Transpose<perm=[1,0]>(q) v = GatherND(y, o)"
TOTALS = {
    "sum": f"{TAKEN} z = ReduceSum<keepdims=0>(v)",
    "mean": f"{TAKEN} z = ReduceMean(v)",
    "product": f"{TAKEN} w = Tanh(v) z = ReduceProd(w)",
    "largest": f"{TAKEN} z = ReduceMax<keepdims=0>(v)",
    "smallest": f"{TAKEN} w = Cast<to=7>(v) u = ReduceMin(w) z = Cast<to=1>(u)",
    "of lines": f"{OF_EACH_ROW} z = ReduceSum<keepdims=0>(v, zero)",
    "of all lines": f"{OF_EACH_ROW} w = Mul(v, line) z = ReduceMean<keepdims=0>(w)",
    "within lines": f"{OF_EACH_ROW} w = ReduceMean<axes=[1]>(v) u = Sub(v, w) s = ReduceL2<axes=[1], keepdims=0>(u)"
    " z = ReduceSum<keepdims=0>(s)",
    "parts of lines": f"{OF_EACH_ROW} a, b = Split<axis=1>(v, parts) c = Slice(v, two, five, one) d = Mul(b, c)"
    " z = ReduceSum<keepdims=0>(d, zero)",
    "beside each other": f"{OF_EACH_ROW} a = Unsqueeze(v, zero) t = Transpose<perm=[2,1,0]>(a) b = Squeeze(t, two)"
    " z = ReduceMax<axes=[1]>(b)",
    "with zeros of their sizes": f"{TAKEN} s = Shape(v) o = ConstantOfShape(s) w = Add(o, v) e = Expand(w, s)"
    " f = Reshape(e, all) z = ReduceSum(f)",
    "of columns": "k = Gather<axis=0>(r, first) p = NonZero(k) i = Squeeze(p, zero) v = Gather<axis=1>(y, i)"
    " w = Exp(v) z = ReduceSum<keepdims=0>(w, one)",
    "quantized": f"{OF_EACH_ROW} i, s, b = DynamicQuantizeLinear(v) j = MatMulInteger(i, bytes, b) f = Cast<to=1>(j)"
    " w = Mul(f, s) k = QuantizeLinear(w, half) d = DequantizeLinear(k, half) z = ReduceSum(d)",
    "shares": f"{OF_EACH_ROW} a = Softmax<axis=0>(v) w = Mul(a, v) z = ReduceSum<keepdims=0>(w, zero)",
    "side by side": f"{OF_EACH_ROW} a = Greater(v, line) b = Less(v, line) c = Concat<axis=1>(a, b, a)"
    " d = Cast<to=1>(c) z = ReduceSum<keepdims=0>(d, zero)",
    "in a row": f"{OF_EACH_ROW} f = Reshape(v, all) a = ReduceL2<keepdims=0>(f) b = ReduceMean<keepdims=0>(f)"
    " z = Add(a, b)",
    "their number": f"{TAKEN} s = Shape(v) n = Gather<axis=0>(s, first) f = Cast<to=1>(n) z = Mul(f, line)",
    "numbers of elements": f"{OF_EACH_ROW} s = Shape(v) a = ReduceProd<keepdims=1>(s) b = Size(v) t = Gather(s, first)"
    " c = Mul(third, t) d = Cast<to=6>(c) e = Mul(d, four) f = Cast<to=1>(a) g = Cast<to=1>(b) h = Cast<to=1>(e)"
    " k = Mul(f, half) l = Add(g, h) z = Add(k, l)",
    "whether they are more": f"{TAKEN} s = Shape(v) n = Squeeze(s) a = Greater(n, third) b = Less(s, five)"
    " c = Where(a, half, line) z = Where(b, c, line)",
    "variance": f"{OF_EACH_ROW} a = ReduceMean<axes=[0]>(v) b = Sub(v, a) c = Mul(b, b) d = ReduceMean<axes=[0]>(c)"
    " s = Shape(v) g = Gather<axis=0>(s, zero) p = ReduceProd<keepdims=0>(g) n = Cast<to=1>(p) e = Mul(d, n)"
    " f = Sub(n, half) z = Div(e, f)",
    "flattened": f"{OF_EACH_ROW} a = Unsqueeze(v, one) b = Flatten<axis=-2>(a) c = MatMul(b, square)"
    " d = Flatten<axis=0>(c) e = ReduceSum<keepdims=0>(d) f = Flatten(v) g = ReduceMax<axes=[0], keepdims=0>(f)"
    " z = Add(e, g)",
    "as long as before": f"{OF_EACH_ROW} a = Reshape(v, same) b = Mul(a, line) z = ReduceSum<keepdims=0>(b, zero)",
    "parts of their sizes": f"{OF_EACH_ROW} s = Shape(v) a = Slice(s, zero, one) b = Slice(s, one, two)"
    " c = Concat<axis=0>(a, b) h = ConstantOfShape(c) w = Add(h, v) d = Expand(half, b) e = Mul(w, d)"
    " z = ReduceSum<keepdims=0>(e, zero)",
    "their sizes, none of which is -1": f"{OF_EACH_ROW} s = Shape(v) a = Equal(s, all) b = Where(a, pair, s)"
    " c = Expand(v, b) z = ReduceSum<keepdims=0>(c, zero)",
    "their dimensions": f"{OF_EACH_ROW} s = Shape(v) t = Shape(s) f = Cast<to=1>(t) a = ReduceSum<keepdims=0>(v)"
    " z = Mul(a, f)",
    "looked up": "p = NonZero(x) at = Transpose(p) f = Floor(x) i = Cast<to=7>(f) j = GatherND(i, at)"
    " t = Gather<axis=0>(line, j) z = ReduceSum(t)",
}


@pytest.mark.parametrize("nodes", TOTALS.values(), ids=TOTALS)
def test_what_is_computed_of_all_that_is_taken(nodes: str) -> None:
    """Whatever lies where nothing is taken."""
    text = HEAD.replace("float[3,4,5] z", "float[size] z").format(nodes)
    made = model(text, **KNOWN)
    if "DequantizeLinear" in nodes:
        made.opset_import[0].version = 19  # the reference has none of before
    x = X.clip(-4, 4)
    y = np.where(np.broadcast_to(ROWS[..., None], M.shape) if "NonZero(r)" in nodes else M, Y, np.float32(np.nan))
    inputs = {"x": x, "y": Y if "Gather<axis=1>" in nodes else y.astype(np.float32), "m": M, "r": ROWS}
    (expected,) = ReferenceEvaluator(made).run(None, inputs)
    given = {name: inputs[name] for name in inputs}
    np.testing.assert_allclose(run(made, given)["z"], np.asarray(expected), 1e-5, 1e-6)


@pytest.mark.parametrize(("operator", "expected"), [("ReduceMean", np.nan), ("ReduceSum", 0), ("ReduceMax", -np.inf)])
def test_what_is_computed_of_none(operator: str, expected: float) -> None:
    made = model(HEAD.replace("[3,4,5] z", "[size] z").format(f"{TAKEN} z = {operator}<keepdims=0>(v)"), **KNOWN)
    np.testing.assert_array_equal(run(made, {"x": X, "y": Y, "m": M & ~M, "r": ROWS})["z"], np.float32(expected))


GRID = (
    "k = Gather<axis=0>(r, first) q = NonZero(k) g = Add(up, q) s = Shape(g) g0 = Expand(up, s) g1 = Expand(q, s)"
    " {} h0 = Unsqueeze(g0, all) h1 = Unsqueeze(g2, all) d = Concat<axis=-1>(h0, h1)"
)
COLUMNS = {
    "a number": f"{GRID} n = Concat<axis=0>(s, five) e = Expand(half, n) u = Reshape(e, n) z = ScatterND(x, d, u)",
    "elements": f"{GRID} i = Squeeze(q, zero) v = Gather<axis=1>(y, i) u = Exp(v) z = ScatterND(x, d, u)",
    "bools": f"{GRID} i = Squeeze(q, zero) v = Gather<axis=1>(y, i) u = Greater(v, half) b = Less(x, half)"
    " c = ScatterND(b, d, u) z = Cast<to=1>(c)",
    "single ones": f"{GRID} h2 = Mul(h1, zero) d3 = Concat<axis=-1>(d, h2) t = Cast<to=1>(g2) z = ScatterND(x, d3, t)",
}


@pytest.mark.parametrize("nodes", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("numbers", ["g2 = Identity(g1)", "g2 = Sub(g1, four64)", "g2 = Sub(three, g1)"])
@pytest.mark.parametrize("mask", [ROWS, np.zeros_like(ROWS), np.ones_like(ROWS)], ids=["some", "none", "all"])
def test_what_is_written_to_columns(nodes: str, numbers: str, mask: Array) -> None:
    """x[:, mask] = v, by the number of a row and one that is computed of the mask, as below 0 from the end."""
    text = HEAD.replace("bool[3,4,5] m", "bool[3,4,5] _").format(nodes.format(numbers))
    compare(text, {"x": X, "y": Y, "r": mask, "_": M})


LEADING = "a0 = Slice(at, zero, one, one) a1 = Slice(at, one, two, one) b0 = Squeeze(a0, one) b1 = Squeeze(a1, one)"
AS_TUPLES = "c0 = Unsqueeze(b0, all) c1 = Unsqueeze(b1, all)"
MIXTURES = {
    "added": f"{LEADING} {AS_TUPLES} u0 = Unsqueeze(x, zero) t0 = Transpose<perm=[1,0,2]>(u0) g0 = GatherND(t0, c1)"
    " t1 = Transpose<perm=[1,0,2]>(g0) h = Reshape(t1, rows) k = MatMul(h, square) d = Concat<axis=-1>(c1, c0)"
    " u1 = Unsqueeze(w, two) v = GatherND(u1, d) p = Mul(k, v) z = ScatterND<reduction='add'>(x, c1, p)",
    "added by rows": f"{LEADING} h = Gather<axis=0>(x, b1) k = Gemm(h, square, line) i = Mul(b1, two) j = Add(i, b0)"
    " f = Reshape(w, all) v = Gather<axis=0>(f, j) s = Shape(j) g = Concat<axis=0>(s, one) e = Reshape(v, g)"
    " p = Mul(k, e) q = Expand(p, fives) c1 = Unsqueeze(b1, one) l = Shape(q) o = Expand(c1, l)"
    " z = ScatterElements<axis=0, reduction='add'>(x, o, q)",
    "largest": f"{LEADING} {AS_TUPLES} h = GatherND(x, c1) k = Exp(h) z = ScatterND<reduction='max'>(x, c1, k)",
    "written": f"{LEADING} {AS_TUPLES} h = GatherND(x, c1) d = Concat<axis=1>(c1, c0) v = GatherND(w, d)"
    " e = Unsqueeze(v, one) p = Mul(h, e) z = ScatterND(x, c1, p)",
}


@pytest.mark.parametrize("nodes", MIXTURES.values(), ids=MIXTURES)
def test_mixtures_of_experts(nodes: str) -> None:
    """As they are exported: those rows of x that have chosen this expert, as their first or as their second."""
    text = "m (float[6,5] x, float[6,2] w, bool[2,6] m) => (float[6,5] z) { p9 = NonZero(m) at = Transpose(p9) "
    x, w, chosen = RANDOM.standard_normal((6, 5)), RANDOM.random((6, 2)), RANDOM.integers(0, 2, (2, 6)) > 0
    x[~chosen.any(0)] = np.inf
    inputs = {"x": x.astype(np.float32), "w": w.astype(np.float32), "m": chosen}
    compare(text + nodes.replace("'", '"') + " }", inputs)


REFUSED = {
    "another mask": f"{AT} o = Not(m) q = NonZero(o) w = Transpose(q) v = GatherND(y, w) z = ScatterND(x, at, v)",
    "in pairs": f"{AT} v = GatherND(y, at) a = Unsqueeze(v, one) b = Unsqueeze(v, zero) c = Mul(a, b)"
    " d = ReduceSum<keepdims=0>(c) z = Mul(d, y)",
    "added again and again": f"{AT} v = GatherND(y, at) {COUNT} e = Expand(v, n)"
    " z = ScatterND<reduction='add'>(x, at, e)",
    "of each column": "q = NonZero(r) o = Transpose(q) v = GatherND(y, o) d = ReduceLogSumExp(v) z = Mul(d, y)",
    "quantized by columns": f"{OF_EACH_ROW} k = QuantizeLinear(v, scales) d = DequantizeLinear(k, scales)"
    " e = ReduceSum<keepdims=0>(d) z = Mul(e, y)",
    "beside what is known": f"{OF_EACH_ROW} a = Concat<axis=1>(v, square) z = ReduceSum(a)",
    "one after another": f"{OF_EACH_ROW} a = Concat<axis=0>(v, v) z = ReduceSum(a)",
    "beside those of another mask": f"{OF_EACH_ROW} n = Not(r) g = NonZero(n) h = Transpose(g) w = GatherND(y, h)"
    " a = Concat<axis=1>(v, w) z = ReduceSum(a)",
    "in a row of the last": f"{OF_EACH_ROW} f = Reshape(v, all) a = ReduceSum(f, zero) z = Mul(a, y)",
    "kept in a row": f"{OF_EACH_ROW} f = Reshape(v, all) a = ReduceSum<keepdims=1>(f) z = Mul(a, y)",
    "their sizes as numbers": f"{OF_EACH_ROW} s = Shape(v) f = Cast<to=1>(s) a = ReduceSum(f) z = Mul(a, y)",
    "their number once each": f"{TAKEN} s = Shape(v) t = Gather(s, first) n = Mul(t, ones) f = Cast<to=1>(n)"
    " a = ReduceSum(f) z = Mul(a, y)",
    "their number in bytes": f"{TAKEN} s = Shape(v) b = Add(s, one) f = Cast<to=1>(b) z = Mul(f, y)",
    "to columns again and again": f"{GRID.format('g2 = Identity(g1)')} i = Squeeze(q, zero)"
    " v = Gather<axis=1>(y, i) z = ScatterND<reduction='add'>(x, d, v)",
    "to columns of others": f"{GRID.format('g2 = Identity(g1)')} o = Not(k) p = NonZero(o) i = Squeeze(p, zero)"
    " v = Gather<axis=1>(y, i) z = ScatterND(x, d, v)",
    "to columns of another type": f"{GRID.format('g2 = Identity(g1)')} i = Squeeze(q, zero) v = Gather<axis=1>(y, i)"
    " w = Cast<to=10>(v) z = ScatterND(x, d, w)",
    "to columns of a number": f"{GRID.format('g2 = Identity(g1)')} i = Squeeze(q, zero) v = Gather<axis=1>(y, i)"
    " w = Slice(v, zero, one, two) z = ScatterND(x, d, w)",
    "by too many numbers": f"{GRID.format('g2 = Identity(g1)')} t = Cast<to=1>(g2)"
    " o = Concat<axis=-1>(h0, h1, h0, h1) z = ScatterND(x, o, t)",
    "other order": f"{AT} v = GatherND(y, at) k = Concat<axis=0>(two, one, zero) o = Gather<axis=1>(at, k)"
    " z = ScatterND(x, o, v)",
    "a part": f"{AT} v = GatherND(y, at) o = Slice(at, zero, two, one) z = ScatterND(x, o, v)",
    "of a line": f"{AT} v = GatherND(y, at) w = Add(v, line) z = ScatterND(x, at, w)",
    "a line": f"{AT} {LENGTH} e = Expand(line, n) z = ScatterND(x, at, e)",
    "a column": f"{AT} {LENGTH} e = Expand(column, n) u = Reshape(e, all) z = ScatterND(x, at, u)",
    "from the second": f"{AT} f = Reshape(y, all) {LENGTH} u = Slice(f, one, n, zero) z = ScatterND(x, at, u)",
    "as the first of others": f"{AT} {LENGTH} f = Reshape(y, all) z = Slice(f, zero, n, zero)",
    "another type": f"{AT} v = GatherND(y, at) w = Cast<to=10>(v) z = ScatterND(x, at, w)",
    "in a sequence": f"{AT} v = GatherND(y, at) q = SequenceConstruct(v) z = ConcatFromSequence<axis=0>(q)",
    "in a branch": f"{AT} k = ReduceMax<keepdims=0>(y) c = Cast<to=9>(k) v = If(c) <then_branch = a () => (float[n] b)"
    " { b = GatherND(x, at) }, else_branch = d () => (float[n] e) { e = GatherND(y, at) }> z = ScatterND(x, at, v)",
    "as an output": f"{AT} z = GatherND(y, at)",
}


@pytest.mark.parametrize("nodes", REFUSED.values(), ids=REFUSED)
def test_what_needs_to_know_how_many_there_are_is_refused(nodes: str) -> None:
    """With the node that makes sizes follow from elements."""
    made = model(HEAD.format(nodes).replace("'", '"'), **KNOWN)
    with pytest.raises(NotSupported) as raised:
        import_model(made, {})
    assert {each.operator for each in raised.value.nodes} == {"NonZero"}
    assert "follow from elements that are not" in str(raised.value)


def compare(text: str, inputs: dict[str, Array]) -> None:
    made = model(text, **KNOWN)
    (expected,) = ReferenceEvaluator(made).run(None, inputs)
    np.testing.assert_allclose(run(made, inputs)["z"], np.asarray(expected), 1e-5, 1e-6)

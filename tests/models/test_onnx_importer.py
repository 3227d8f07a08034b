"""ONNX models become graphs: what is read another way, what is known before, what is unrolled, what is refused."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, TypeProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from app.models.onnx import importer, protos
from app.models.onnx.errors import NotSupported, WrongSizes
from app.models.onnx.folding import SMALL
from app.models.onnx.importer import KnownParts, Parts, import_model, never_supported
from app.models.onnx.parsing import PIECE
from app.models.onnx.reading import Unreadable, detached, read_model, signature
from tests.models.documents import affine, model, unsupported, with_external_data
from tests.models.onnx_runs import Array, run

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7
VIEWS = {
    "transpose": "float[2,3,4] x) => (float[4,2,3] y) { y = Transpose<perm=[2,0,1]>(x) }",
    "reshape": "float[2,3,4] x) => (float[n] y) { t = Transpose(x) y = Reshape(t, all) }",
    "flatten": "float[2,3,4] x) => (float[2,12] y) { y = Flatten<axis=-2>(x) }",
    "squeeze": "float[2,3,4] x) => (float[2,3,4] y) { t = Unsqueeze(x, ends) y = Squeeze(t) }",
    "expand": "float[2,3,4] x) => (float[2,2,3,4] y) { y = Expand(x, twice) }",
    "dropout": "float[2,3,4] x) => (float[2,3,4] y, bool[2,3,4] mask) { y, mask = Dropout(x) }",
    "shape": "float[2,3,4] x) => (int64[n] y, int64 z) { y = Shape<start=1>(x) z = Size(x) }",
    "filled": "float[2,3,4] x) => (float[n,m,k] y) { s = Shape(x) z = ConstantOfShape(s) y = Add(x, z) }",
    "computed": "float[2,3,4] x) => (float[6,4] y)"
    "{ s = Shape<start=2>(x) t = Concat<axis=0>(rest, s) y = Reshape(x, t) }",
    "twice": "float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) { y = Identity(x) z = Identity(y) }",
    "selected": "float[2,3,4] x) => (float[4] y) { y = If<"
    "then_branch = a () => (float[4] u) { u = ReduceMax<axes=[0,1],keepdims=0>(x) },"
    "else_branch = b () => (float[4] v) { v = NonZero(x) }>(yes) }",
}
KNOWN = {
    "all": np.array([-1]),
    "ends": np.array([0, -1]),
    "twice": np.array([2, 1, 3, 1]),
    "rest": np.array([-1]),
    "yes": np.array(True),
}


def test_a_graph_is_looked_through_once_for_all_sizes() -> None:
    """What it needs is known from the first ones, but where that would keep arrays which the model does not count."""
    made = model("m (float[n] x) => (float[n] y) { z = Add(x, w) y = Relu(z) }", w=np.array(1.0, np.float32))
    arrays: dict[str, Array] = {}
    made = detached(made, arrays)
    known: dict[KnownParts, Parts] = {}
    with mock.patch.object(importer, "needed", wraps=protos.needed) as looked:
        graphs = [import_model(made, {"x": [size]}, arrays, known=known).graph for size in (2, 3, 2)]
    assert looked.call_count == 1
    assert len(known) == 1
    assert graphs[2].document == graphs[0].document
    assert graphs[1].document != graphs[0].document
    known.clear()
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(arrays["w"], "w"))
    import_model(made, {"x": [2]}, known=known)
    assert not known


@pytest.mark.parametrize("text", VIEWS.values(), ids=VIEWS)
def test_what_is_only_read_another_way(text: str) -> None:
    made = model(f"m ({text}", **KNOWN)
    check(made, {"x": X})


def check(made: ModelProto, inputs: Mapping[str, Array]) -> None:
    """That it gives what the reference does."""
    expected = ReferenceEvaluator(made).run(None, dict(inputs))
    ours = run(made, inputs)
    for output, wanted in zip(made.graph.output, expected, strict=True):
        np.testing.assert_allclose(ours[output.name], wanted, 1e-6)
        assert ours[output.name].dtype == wanted.dtype


def test_views_are_no_nodes() -> None:
    made = model(
        "m (float[2,3] x) => (float[3,2] y) { t = Transpose(x) u = Unsqueeze(t, a) v = Squeeze(u) y = Add(v, v) }",
        a=np.array([0]),
    )
    (node,) = import_model(made, {}).graph.document["Nodes"]
    assert node["Desc"]["ATensor"]["Strides"] == [1, 3]


def test_a_large_fill_takes_no_memory() -> None:
    made = model(
        "m (float[1] x) => (float[1] y) { z = ConstantOfShape(s) t = Add(x, z) y = ReduceSum(t, a) }",
        s=np.array([1 << 28]),
        a=np.array([0]),
    )
    imported = import_model(made, {})
    assert sum(each.nbytes for each in imported.graph.constants.values()) < 1 << 10


LOOP = """m (float[2] x) => (float[2] y, float[n,2] all) {
  y, all = Loop<body = b (int64 i, bool go, float[2] c) => (bool on, float[2] d, float[2] e) {
    on = Less(i, two) f = Cast<to=1>(i) d = Add(c, f) e = Mul(d, d) }>(trips, yes, x) }"""
SCAN = """m (float[3,2] x) => (float[2] y, float[3,2] all) {
  y, all = Scan<num_scan_inputs=1, scan_output_directions=[1],
    body = b (float[2] c, float[2] r) => (float[2] d, float[2] e) {
    d = Add(c, r) e = Identity(d) }>(zero, x) }"""


CHOICE = """(float[2] x, bool c) => (float[2] y) {
  y = If<then_branch = a () => (float[2] u) { u = Neg(x) }, else_branch = b () => (float[2] v) { v = Abs(x) }>(c) }"""


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize(
    ("type_", "then", "other"),
    [
        ("float[2]", "Neg(x)", "Abs(x)"),
        ("float[2]", "Neg(x)", "Constant<value_floats=[1.0,2.0]>()"),
        ("int64[2]", "Constant<value_ints=[1,2]>()", "Constant<value_ints=[1,3]>()"),
        ("float", "ReduceSum<keepdims=0>(x)", "ReduceMax<keepdims=0>(x)"),
        ("bool[2]", "Less(x, zero)", "Greater(x, zero)"),
        ("float[0]", "Slice(x, nothing, nothing)", "Identity(empty)"),
        ("bool[0]", "Less(empty, empty)", "Identity(empty_bool)"),
    ],
)
def test_branches_of_a_condition_that_is_not_known(type_: str, then: str, other: str, condition: bool) -> None:
    """What bool is, is so afterwards: as a number it is 0 or 1."""
    made = model(
        f"m (float[2] x, bool[1] c) => ({type_} y, float[] z) {{ y = If<"
        f"then_branch = a () => ({type_} u) {{ u = {then} }},"
        f"else_branch = b () => ({type_} v) {{ v = {other} }}>(c)"
        "f = Cast<to=1>(y) z = ReduceSum<keepdims=0>(f) }",
        zero=np.array(0, np.float32),
        nothing=np.array([0]),
        empty=np.zeros(0, np.float32),
        empty_bool=np.zeros(0, np.bool_),
    )
    if type_.endswith("[0]"):
        made.graph.output.pop(0)  # which has no elements
    check(made, {"x": np.array([-1, 2], np.float32), "c": np.array([condition])})


@pytest.mark.parametrize("condition", [True, False])
def test_branches_that_differ_in_the_sign_of_0(condition: bool) -> None:
    made = model(
        "m (bool c) => (float y) { y = If<then_branch = a () => (float u) { u = Identity(zero) },"
        "else_branch = b () => (float v) { v = Identity(other) }>(c) }",
        zero=np.array(0, np.float32),
        other=np.array(-0.0, np.float32),
    )
    assert np.signbit(run(made, {"c": np.array(condition)})["y"]) == (not condition)


def test_what_both_branches_make_is_known() -> None:
    made = model(
        "m (float[2,3] x, bool c) => (float[m,n] y) { s = If<"
        "then_branch = a () => (int64[2] u) { u = Identity(k) },"
        "else_branch = b () => (int64[2] v) { v = Abs(k) }>(c)"
        "y = Reshape(x, s) }",
        k=np.array([3, 2]),
    )
    check(made, {"x": X[0, :2, :3], "c": np.array(True)})


def test_loops_are_unrolled() -> None:
    known = {"trips": np.array(9), "yes": np.array(True), "two": np.array(2), "zero": np.zeros(2, np.float32)}
    check(model(LOOP, **known), {"x": np.array([1, 2], np.float32)})
    rows = X[0, :, :2]
    sums = run(model(SCAN, **known), {"x": rows})  # the reference knows no directions
    np.testing.assert_array_equal(sums["y"], rows.sum(0))
    np.testing.assert_array_equal(sums["all"], np.cumsum(rows, 0)[::-1])
    with pytest.raises(NotSupported, match="too many nodes"):
        import_model(model(LOOP.replace("Less(i, two)", "Identity(go)"), **known | {"trips": np.array(1 << 40)}), {})


SCAN_OF_BATCHES = """m (float[2,3,2] x) => (float[2,2] y, float[2,3,2] all) {
  y, all = Scan<num_scan_inputs=1, directions=[1],
    body = b (float[2] c, float[2] r) => (float[2] d, float[2] e) {
    d = Add(c, r) e = Identity(d) }>(LENGTHS, zero, x) }"""


def test_scans_of_batches_as_of_opset_8() -> None:
    known = {"zero": np.zeros((2, 2), np.float32), "whole": np.array([3, 3]), "shorter": np.array([3, 2])}
    rows = X[0, :, :2][None] * np.array([1, -2], np.float32).reshape(2, 1, 1)

    def scanned(lengths: str) -> ModelProto:
        made = model(SCAN_OF_BATCHES.replace("LENGTHS", lengths), **known)
        made.opset_import[0].version = 8
        return made

    for lengths in ("", "whole"):
        made = run(scanned(lengths), {"x": rows})
        np.testing.assert_array_equal(made["all"], np.cumsum(rows[:, ::-1], 1, dtype=np.float32))
        np.testing.assert_array_equal(made["y"], made["all"][:, -1])
    with pytest.raises(NotSupported, match="differ in length"):
        import_model(scanned("shorter"), {})


ENDLESS = """m (float[2] x) => (float[2] y, float[2] z) {
  y, z = Loop<body = b (int64 i, bool go, float[2] c, float[2] k) => (bool go, float[2] c, float[2] k) { }>
    (trips, yes, x, zero) }"""


def test_turns_without_nodes_carry_what_is_known_and_are_counted() -> None:
    known = {"yes": np.array(True), "zero": np.zeros(2, np.float32)}
    rows = X[0, 0, :2]
    made = run(model(ENDLESS, **known, trips=np.array(3)), {"x": rows})
    np.testing.assert_array_equal(made["y"], rows)
    np.testing.assert_array_equal(made["z"], known["zero"])
    paused: list[None] = []
    import_model(model(ENDLESS, **known, trips=np.array(3)), {}, pause=lambda: paused.append(None))
    assert len(paused) == 4  # and once for the loop
    with pytest.raises(NotSupported, match="too many nodes"):
        import_model(model(ENDLESS, **known, trips=np.array(1 << 40)), {})


@pytest.mark.parametrize("inputs", ["trips", "trips, ", "trips, , ", ", , "])
@pytest.mark.parametrize(("last", "turns"), [(2, 3), (9, 4)])
def test_a_loop_that_is_given_no_condition_ends_when_its_body_says_so(inputs: str, last: int, turns: int) -> None:
    """Whether it is left out or the last input before it is; as in onnxruntime."""
    made = model(
        f"m (float[2] x) => (float[n,2] all) {{ all = Loop<body = b (int64 i, bool go) => (bool on, float[2] e) {{"
        f"on = Less(i, last) f = Cast<to=1>(i) e = Add(x, f) }}>({inputs}) }}",
        trips=np.array(4),
        last=np.array(last),
    )
    expected = [X[0, 0, :2] + k for k in range(turns if "trips" in inputs else last + 1)]
    np.testing.assert_array_equal(run(made, {"x": X[0, 0, :2]})["all"], expected)


def test_a_loop_with_a_condition_alone() -> None:
    known = {"yes": np.array(True), "no": np.array(False), "two": np.array(2)}
    made = run(model(LOOP.replace("(trips, yes, x)", "(, yes, x)"), **known), {"x": np.array([1, 2], np.float32)})
    assert len(made["all"]) == 3
    going = LOOP.replace("on = Less(i, two)", "on = Identity(go)")  # as it is told
    made = run(model(going, **known, trips=np.array(3)), {"x": np.array([1, 2], np.float32)})
    assert len(made["all"]) == 3
    for trips, condition in ((0, "yes"), (3, "no")):
        with pytest.raises(NotSupported, match="it has no turns"):
            import_model(model(LOOP.replace("yes", condition), **known, trips=np.array(trips)), {})


def test_scans_along_other_axes() -> None:
    made = model(
        """m (float[2,3] x, float[4,3] z) => (float[2] y, float[2,3] sums, float[4,3] kept) {
        y, sums, kept = Scan<num_scan_inputs=2, scan_input_axes=[1,-1], scan_input_directions=[0,1],
          scan_output_axes=[-1,1], scan_output_directions=[1,0],
          body = b (float[2] c, float[2] r, float[4] s) => (float[2] d, float[2] e, float[4] t) {
          d = Add(c, r) e = Identity(d) t = Neg(s) }>(zero, x, z) }""",
        zero=np.zeros(2, np.float32),
    )
    x, z = X[:, 0, :3], X.reshape(8, 3)[:4]
    found = run(made, {"x": x, "z": z})
    np.testing.assert_array_equal(found["y"], x.sum(1))
    np.testing.assert_array_equal(found["sums"], np.cumsum(x, 1)[:, ::-1])
    np.testing.assert_array_equal(found["kept"], -z[:, ::-1])


@pytest.mark.parametrize(
    ("text", "opset", "why"),
    [
        ("y = Scan<num_scan_inputs=0, BODY>(x)", 17, "its num_scan_inputs is 0, and it has 1 inputs"),
        ("y = Scan<num_scan_inputs=2, BODY>(x)", 17, "its num_scan_inputs is 2, and it has 1 inputs"),
        ("w = Transpose(x) y = Scan<num_scan_inputs=2, BODY>(x, w)", 17, "its inputs have [2, 3] elements"),
        ("w = Transpose(x) y = Scan<num_scan_inputs=2, BODY>(, x, w)", 8, "its inputs differ in their first two sizes"),
        ("y = Scan<num_scan_inputs=1, BODY>(, x)", 8, "Det"),
        (
            "c = ReduceMax<keepdims=0>(x) d = Cast<to=9>(c) y = If(d) <then_branch = p () => (float a) { a = Det(x) },"
            "else_branch = q () => (float[2,3] a) { a = Neg(x) }>",
            17,
            "Det",
        ),
        (
            "c = ReduceMax<keepdims=0>(x) d = Cast<to=9>(c) y = If(d) <then_branch = p () => (float[2,3] a) "
            "{ a = Neg(x) }, else_branch = q () => (float a) { a = Det(x) }>",
            17,
            "Det",
        ),
        *(
            (
                "s = SequenceConstruct(x) c = ReduceMax<keepdims=0>(x) d = Cast<to=9>(c) y = If(d) "
                f"<then_branch = p () => (float[2,3] a) {{ {a} }}, else_branch = q () => (float[2,3] b) {{ {b} }}>",
                17,
                "it makes a sequence, and its condition is not constant",
            )
            for a, b in (("a = Neg(x)", "b = Identity(s)"), ("a = Identity(s)", "b = Neg(x)"))
        ),
        (
            "w = Cast<to=22>(x) v = Transpose(w) c = ReduceMax<keepdims=0>(x) d = Cast<to=9>(c) y = If(d) "
            "<then_branch = p () => (int4[2,3] a) { a = Identity(w) }, "
            "else_branch = q () => (int4[2,3] b) { b = Reshape(v, same) }>",
            17,
            "ELEMENT_WISE_IF takes no INT4 as ATensor",
        ),
    ],
)
def test_loops_and_branches_that_are_refused(text: str, opset: int, why: str) -> None:
    body = "body = b (float[3] r) => (float[n] e) { e = Det(r) }"
    made = model(f"m (float[2,3] x) => (float[n] y) {{ {text.replace('BODY', body)} }}", same=np.array([2, 3]))
    made.opset_import[0].version = opset
    with pytest.raises(NotSupported, match=re.escape(why)) as raised:
        import_model(made, {})
    assert len(raised.value.nodes) == 1


def test_of_a_turn_that_is_not_supported_nothing_else_is_said() -> None:
    loop = """m (float[2,2] x) => (float[n,m] y, float[k] z) {
      y, all = Loop<body = b (int64 i, bool go, float[2,2] c) => (bool go, float[2,2] d, float[n] e) {
        d = Identity(c) e = Det(c) }>(trips, yes, x) z = Neg(all) }"""
    scan = """m (float[3,2,2] x) => (float[n,m] y, float[k] z) {
      y, all = Scan<num_scan_inputs=1, body = b (float[2,2] c, float[2,2] r) => (float[2,2] d, float[n] e) {
        d = Add(c, r) e = Det(r) }>(zero, x) z = Neg(all) }"""
    known = {"trips": np.array(3), "yes": np.array(True), "zero": np.zeros((2, 2), np.float32)}
    for text in (loop, scan):
        with pytest.raises(NotSupported) as raised:
            import_model(model(text, **known), {})
        assert {each.operator for each in raised.value.nodes} == {"Det"}


def test_functions_are_what_they_are_made_of() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    m (float[2] x) => (float[2] y) { y = own.Scaled<by=3.0>(x) }
    <domain: "own", opset_import: ["" : 17]> Scaled<by>(a) => (b) {
      c = Constant<value_float: float = @by>() b = Mul(a, c) }"""
    np.testing.assert_array_equal(run(parser.parse_model(text), {"x": X[0, 0, :2]})["y"], X[0, 0, :2] * 3)


def test_an_output_that_is_left_out_is_not_wanted_for_an_input_that_is() -> None:
    """Both have no name. Language models have such nodes, beside attention without separate keys and values."""
    made = model(
        "m (float[1,2,4] x) => (float[1,2,4] z) { z = Clip(sum, , most) }", w=np.ones(4, np.float32), most=X[1, 2, 3]
    )
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization", ["x", "x", "w"], ["", "", "", "sum"], domain="com.microsoft"
    )
    made.graph.node.insert(0, node)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = X[:1, :2]
    np.testing.assert_array_equal(run(made, {"x": x})["z"], np.minimum(x + x, X[1, 2, 3]))


def test_functions_of_one_name_are_told_apart_by_their_overload() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    overloads = {"negated": "Neg", "whole": "Abs"}
    functions = [
        helper.make_function(
            "own", "F", ["a"], ["b"], [helper.make_node(type_, ["a"], ["b"])], opsets[:1], overload=overload
        )
        for overload, type_ in overloads.items()
    ]
    made = model("m (float[2] x) => (float[2] negated, float[2] whole) {}")
    made.functions.extend(functions)
    made.opset_import.append(opsets[1])
    made.graph.node.extend(helper.make_node("F", ["x"], [each], domain="own", overload=each) for each in overloads)
    x = np.array([-2, 3], np.float32)
    outputs = run(made, {"x": x})
    np.testing.assert_array_equal(outputs["negated"], -x)
    np.testing.assert_array_equal(outputs["whole"], abs(x))


def test_a_default_is_that_of_the_opset() -> None:
    """Of Selu it had five digits until opset 6."""
    text = '<ir_version: 3, opset_import: ["" : OPSET]> m (float[2,3,4] x) => (float[2,3,4] y) { y = Selu(x) }'
    for opset, alpha, gamma in ((1, 1.6732, 1.0507), (6, 1.6732632, 1.050701)):
        made = run(parser.parse_model(text.replace("OPSET", str(opset))), {"x": X})["y"]
        np.testing.assert_allclose(made, np.where(X > 0, gamma * X, gamma * alpha * np.expm1(X)), 1e-6)


def test_an_operator_that_is_newer_than_the_opset_has_its_own_defaults() -> None:
    """Converters and optimizers write it into models of older opsets."""
    made = [
        parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {{1, 2, 3}}> {{ y = LayerNormalization(x, w) }}""")
        for opset in (11, 17)
    ]
    old, new = (import_model(each, {}).graph.document for each in made)
    assert old == new


def test_a_function_may_leave_out_what_its_caller_does() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    m (float[2] x, float low) => (float[2] y, float[2] z) { y = own.From(x) z = own.From(x, low) }
    <domain: "own", opset_import: ["" : 17]> From(a, least) => (b) { b = Clip(a, least) }"""
    x = np.array([-2, 3], np.float32)
    made = run(parser.parse_model(text), {"x": x, "low": np.array(0, np.float32)})
    np.testing.assert_array_equal(made["y"], x)
    np.testing.assert_array_equal(made["z"], [0, 3])


@pytest.mark.parametrize(
    ("places", "dense"),
    [
        ([0, 4], [[7, 0, 0], [0, 8, 0]]),
        ([[0, 1], [1, 2]], [[0, 7, 0], [0, 0, 8]]),
        (np.zeros((0, 2)), np.zeros((2, 3))),
    ],
)
def test_sparse_initializers(places: Any, dense: Any) -> None:
    """Their places are counted through, or by dimension."""
    values, indices = np.array([7, 8], np.float32)[: len(places)], np.array(places, np.int64)
    tensors = helper.make_tensor("w", 1, values.shape, values), helper.make_tensor("", 7, indices.shape, indices)
    made = model("m (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(tensors[0], tensors[1], [2, 3]))
    np.testing.assert_array_equal(run(made, {"x": np.ones((2, 3), np.float32)})["y"], np.array(dense) + 1)
    made.graph.sparse_initializer[0].dims[0] = 1 << 40
    with pytest.raises(NotSupported, match=r"w \(initializer\): .* is too large"):
        import_model(made, {})
    made.graph.sparse_initializer[0].dims[0] = 2
    made.graph.sparse_initializer[0].indices.int64_data.append(-1)
    made.graph.sparse_initializer[0].indices.dims[0] += 1
    with pytest.raises(NotSupported, match=r"w \(initializer\): it is invalid"):
        import_model(made, {})


def test_inputs_that_nobody_reads_and_constant_outputs() -> None:
    made = model(
        "m (float[2] x, float[n] unused) => (float[2] y, float[2] w) { y = Add(x, w) }", w=np.ones(2, np.float32)
    )
    imported = import_model(made, {"unused": (5,)})
    assert imported.unread == {"unused"}
    np.testing.assert_array_equal(run(made, {"x": X[0, 0, :2], "unused": X[0, 0]})["w"], [1, 1])


def test_all_that_is_not_supported_is_told_of() -> None:
    with pytest.raises(NotSupported) as raised:
        import_model(unsupported(), {})
    assert [(each.operator, each.opset) for each in raised.value.nodes] == [("Det", 17), ("NonZero", 17)]
    assert "d" in raised.value.nodes[0].name
    assert raised.value.nodes[0].why == "DirectML has no operator for it"
    assert "follow from elements" in raised.value.nodes[1].why  # DirectML has one, of another kind


def test_what_reads_of_an_unsupported_node_is_told_of_if_it_has_no_operator_either() -> None:
    made = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    m (float[2,2] x, int64[2] t) => (float[n] y, float[n] z, float[n] r, float[n] w, float[n] v, float[n] u) {
      d = Det(x) y = Neg(d) z = own.Twice(d) s = SequenceConstruct(d) r = SequenceAt(s, t)
      w = If(d) <then_branch = a () => (float p) { p = Neg(d) }, else_branch = b () => (float q) { q = Abs(d) }>
      v = Bernoulli(d) u = own.Nobodys(d) }
    <domain: "own", opset_import: ["" : 17]> Twice(a) => (b) { b = Add(a, a) }""")
    with pytest.raises(NotSupported) as raised:
        import_model(made, {})
    assert [(each.operator, each.opset, each.why) for each in raised.value.nodes] == [
        ("Det", 17, "DirectML has no operator for it"),
        ("own.Nobodys", 1, "DirectML has no operator for it"),
    ]


@pytest.mark.parametrize("node", ["If(yes)", "SequenceAt(x, yes)", "Loop(x)", "Neg(x)"])
def test_an_operator_of_another_domain_is_another(node: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    m (float[2] x, bool yes) => (float[2] y) {{ y = own.{node} }}"""
    with pytest.raises(NotSupported, match=r"own\.\w+, opset 1\): DirectML has no operator"):
        import_model(parser.parse_model(text), {})


def test_an_output_that_is_a_sequence() -> None:
    made = model("m (float[2] x) => (float[2] y) { y = SequenceConstruct(x) }")
    with pytest.raises(NotSupported) as raised:
        import_model(made, {})
    assert str(raised.value) == "y (output, opset 17): it is a sequence"


def test_nodes_have_labels_of_what_they_are_made_for() -> None:
    made = model("m (float[2,3] x) => (float[3,2] y, float[2,3] z) { y = Transpose(x) a = Neg(x) z = Abs(a) }")
    made.graph.node[1].name = "minus"
    assert sorted(import_model(made, {}).graph.labels) == ["Abs(z)", "minus", "y"]


@pytest.mark.parametrize(
    ("inputs", "condition", "never"),
    [
        ("float[rows] x", "GreaterOrEqual(one, s)", []),
        ("float[rows] x, float[2] z", "GreaterOrEqual(one, s)", []),
        ("float[rows] x", "GreaterOrEqual(s, many)", []),
        ("float[rows] x", "GreaterOrEqual(s, one)", ["Det"]),
        ("float[1] x", "GreaterOrEqual(one, s)", ["Det"]),
        ("float[] x", "Less(n, one)", []),
        ("float[] x, float[2] z", "Less(n, one)", []),
    ],
)
def test_what_only_some_sizes_show_is_not_for_good(inputs: str, condition: str, never: list[str]) -> None:
    """A model is tried with sizes of 1 and of 64, if all inputs have a rank."""
    made = model(
        f"m ({inputs}) => (float[k] y) {{ s = Shape(x) n = Size(s) c = {condition} y = If(c) <"
        "then_branch = a () => (float[k] u) { u = Det(x) }, else_branch = b () => (float[k] v) { v = Neg(x) }> }",
        one=np.array([1]),
        many=np.array([64]),
    )
    assert [each.operator for each in never_supported(made, signature(made))] == never


def test_channels_that_are_free_may_be_as_many_as_there_are_biases() -> None:
    made = model("m (float[1,channels,2,2] x) => (float[n,c,h,w] y) { y = ImageScaler<bias=[1.0,2.0,3.0]>(x) }")
    assert never_supported(made, signature(made)) == []
    with pytest.raises(NotSupported, match=r"sizes \[1, 1, 2, 2\] and 3 biases"):
        import_model(made, {"x": (1, 1, 2, 2)})


def test_of_inputs_without_a_rank_nodes_without_an_operator_are_for_good() -> None:
    made = model(
        "m (float[] x) => (float[] y, float[] d, int64[] p) {"
        "c = Softmax(x) y = Neg(c) d = Det(y) p = NonZero(y) unread = Det(x) }"
    )
    assert [each.name for each in never_supported(made, signature(made))] == ["Det(d)"]


def test_constants_may_take_several_times_what_the_model_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "_FREE_BYTES", 0)
    made = model(
        "m (float[512] x) => (float[512] y, float[512] z) { a = Concat<axis=0>(w, v) b, c = Split<axis=0>(a, s)"
        "y = Add(x, b) z = Add(x, c) }",
        w=np.arange(256, dtype=np.float32),
        v=np.arange(768, dtype=np.float32),
        s=np.array([512, 512]),
    )
    assert import_model(made, {}).graph.constants


def test_names_of_initializers_within_a_branch_are_its_own() -> None:
    """Those of the graph around it are not in the model any more, and given apart."""
    made = model(
        CHOICE.replace("(float[2] x, bool c)", "m (float[2] x)").replace("Neg(x)", "Add(x, w)"), c=np.array(True)
    )
    made.graph.initializer.extend(
        model("m (float[2] x) => (float[2] y) { y = Neg(x) }", w=np.array([1, 2], np.float32)).graph.initializer
    )
    branch = made.graph.node[0].attribute[0].g
    branch.initializer.extend(
        model("m (float[2] x) => (float[2] y) { y = Neg(x) }", w=np.array([3, 4], np.float32)).graph.initializer
    )
    arrays: dict[str, np.ndarray] = {}
    imported = import_model(detached(made, arrays), {}, arrays=arrays)
    assert [bytes(each) for each in imported.graph.constants.values()] == [np.array([3, 4], np.float32).tobytes()]


def test_a_convolution_that_each_turn_reads_is_computed_once() -> None:
    """A factor is put into the filters of no other than one that nothing else reads."""
    made = model(
        """m (float[1,1,4,4] x) => (float[1,1,2,2] y) { k = Conv(x, w)
        y = Loop<body = b (int64 i, bool go, float[1,1,2,2] c) => (bool go, float[1,1,2,2] d) {
          f = Mul(k, two) d = Add(c, f) }>(trips, yes, zero) }""",
        w=np.ones((1, 1, 3, 3), np.float32),
        two=np.full(1, 2, np.float32),
        trips=np.array(3),
        yes=np.array(True),
        zero=np.zeros((1, 1, 2, 2), np.float32),
    )
    nodes = import_model(made, {}).graph.document["Nodes"]
    assert sum(each["Type"] == "OPERATOR" and each["Desc"]["Type"] == "CONVOLUTION" for each in nodes) == 1


def test_nodes_may_be_in_any_order() -> None:
    """onnxruntime's converter to float16 has its casts behind all nodes that read them."""
    wanted = import_model(
        model("m (float[2] x) => (float[2] y) { a = Neg(x) b = Abs(x) c = Add(a, b) y = Exp(c) }"), {}
    )
    made = import_model(model("m (float[2] x) => (float[2] y) { y = Exp(c) c = Add(a, b) a = Neg(x) b = Abs(x) }"), {})
    assert made.graph.document == wanted.graph.document
    branch = """m (float[2] x) => (float[2] y) { y = If(yes) <then_branch = g () => (float[2] z) {
        z = Exp(a) a = Neg(b) }, else_branch = h () => (float[2] z) { z = Abs(x) }> b = Abs(x) yes = Not(no) }"""
    nodes = import_model(model(branch, no=np.array(False)), {}).graph.document["Nodes"]
    assert [each["Desc"]["Type"].removeprefix("ELEMENT_WISE_") for each in nodes] == ["ABS", "NEGATE", "EXP"]


def test_a_branch_may_have_a_name_that_is_made_behind_it() -> None:
    text = """m (float[2] x) => (float[2] a) { y = If(yes) <then_branch = g () => (float[2] z) {
        a = Neg(x) z = Abs(a) }, else_branch = h () => (float[2] z) { z = Exp(x) }> a = Sqrt(y) }"""
    nodes = import_model(model(text, yes=np.array(True)), {}).graph.document["Nodes"]
    assert [each["Desc"]["Type"].removeprefix("ELEMENT_WISE_") for each in nodes] == ["NEGATE", "ABS", "SQRT"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CHOICE.replace("bool c", "bool[2] c"), "its condition has 2 elements"),
        (CHOICE.replace("Abs(x)", "Concat<axis=0>(x, x)"), r"its branches make tensors of sizes \[2\] and \[4\]"),
        (CHOICE.replace("Abs(x)", "Cast<to=7>(x)"), "its branches make tensors of FLOAT32 and INT64"),
        (CHOICE.replace("Abs(x)", "Det(x)"), r"^.*Det.*DirectML has no operator"),
        ("(float[2] x) => (int64[2] y) { y = Neg(x) }", r"^y \(output, opset 17\): it is FLOAT32, where .* int64"),
        ("(float[2] x) => (bool[2] y) { y = Neg(x) }", "it is FLOAT32, where the model has bool"),
        ("(float[2] x, int64[1] s) => (float[n] y) { y = Reshape(x, s) }", "shape is not constant"),
        ("(float[2] x) => (float[3] y) { y = Reshape(x, k) }", "cannot become"),
        ("(float[2] x) => (float[n] y) { y = Add(x, nobody) }", r"^nobody \(tensor\): no node before"),
        ("(float[2] x) => (float[2] y) { y = Add(x, z) z = Neg(y) }", r"^z \(tensor\): no node before"),
        ("(float[2] x) => (float[n] y) { y = Transpose<perm=[0,0]>(x) }", "perm"),
        ("(bfloat16[2] x) => (bfloat16[2] y) { y = Neg(x) }", r"^x \(input\): DirectML has no type"),
    ],
)  # fmt: skip
def test_refusals(text: str, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        import_model(model(f"m {text}", k=np.array([3])), {})


def test_sizes() -> None:
    for sizes, why in (
        ({}, "Sizes of x are missing; they are free: batch, 3."),
        ({"x": (2, 4)}, "x is 2x4, where the model has batchx3."),
        ({"x": (2,)}, "x is 2, where the model has batchx3."),
        ({"x": (2, 3), "z": (1,)}, "There is no input z; there are x."),
    ):
        with pytest.raises(WrongSizes, match=f"^{re.escape(why)}$"):
            import_model(affine(), sizes)
    assert signature(affine()).inputs["x"].sizes == ("batch", 3)
    alone = model("m (float x) => (float y) { y = Neg(x) }")
    with pytest.raises(WrongSizes, match=r"^x is 2x3, where the model has a scalar\.$"):
        import_model(alone, {"x": (2, 3)})


def test_sizes_without_a_name() -> None:
    made = affine()
    made.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    with pytest.raises(WrongSizes, match=r"free: \?, 3\.$"):
        import_model(made, {})
    with pytest.raises(WrongSizes, match=r"the model has \?x3\.$"):
        import_model(made, {"x": (2, 4)})
    made.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(WrongSizes, match=r"free: sizes\.$"):
        import_model(made, {})
    assert import_model(made, {"x": (1, 3)}).inputs["x"].sizes == (1, 3)


def test_inputs_without_elements_are_known() -> None:
    made = model("m (float[n,3] x, float[1,3] z) => (int64[1] y, float[1,3] w) { y = Size(x) w = Neg(z) }")
    imported = import_model(made, {"x": (0, 3)})
    assert imported.unread == {"x"}
    assert [bytes(each) for each in imported.graph.constants.values()] == [bytes(8)]


def test_a_large_constant_of_a_loop_is_there_once() -> None:
    count = SMALL + 1
    made = model(
        f"""m (float[{count}] x) => (float[n] y) {{
        y = Loop<body = b (int64 i, bool go, float[{count}] c) => (bool go, float[{count}] d) {{
          k = Constant<value = float[{count}] {{ {", ".join("1" * count)} }}>() d = Add(c, k) }}>(trips, yes, x) }}""",
        trips=np.array(3),
        yes=np.array(True),
    )
    assert sum(each.nbytes for each in import_model(made, {}).graph.constants.values()) == 4 * count


@pytest.mark.parametrize("data", [b"", b"\0\1\2", b"no model at all", affine().SerializeToString()[:-20]])
def test_what_is_no_model(data: bytes) -> None:
    with pytest.raises((Unreadable, NotSupported)):
        import_model(read_model(data), {"x": (1, 3)})


def test_what_is_a_model_in_the_format_of_onnxruntime() -> None:
    with pytest.raises(Unreadable, match="no ONNX model, but one in onnxruntime's own format"):
        read_model(b"\x20\0\0\0ORTM" + bytes(64))


@pytest.mark.parametrize(
    ("type_", "why"),
    [
        (TypeProto(), "^y has no type"),
        (TypeProto(sequence_type=TypeProto.Sequence()), r"^y is a sequence, where only tensors are taken\.$"),
        (TypeProto(map_type=TypeProto.Map()), "^y is a map, where only tensors are taken"),
        (TypeProto(optional_type=TypeProto.Optional()), "^y is optional, where only tensors are taken"),
        (TypeProto(tensor_type=TypeProto.Tensor()), "^y has no element type"),
        (TypeProto(tensor_type=TypeProto.Tensor(elem_type=99)), "^y has no element type"),
    ],
)
def test_what_takes_or_gives_no_tensor(type_: TypeProto, why: str) -> None:
    made = model("m (float[1] x) => (float[1] y) { y = Neg(x) }")
    made.graph.output[0].type.CopyFrom(type_)
    with pytest.raises(Unreadable, match=why):
        signature(made)


def test_classifiers_of_skl2onnx_with_maps() -> None:
    """As it makes them if nothing is said."""
    made = model("m (float[1] x) => (float[1] y) { y = Neg(x) }")
    made.graph.node[0].op_type = "ZipMap"
    made.graph.output[0].type.CopyFrom(TypeProto(sequence_type=TypeProto.Sequence()))
    with pytest.raises(Unreadable, match=r"^y is a sequence.* skl2onnx leaves out with options=.'zipmap': False"):
        signature(made)


@pytest.mark.parametrize("version", [1 << 31, -(1 << 63)])
def test_what_is_no_version_of_an_operator_set(version: int) -> None:
    made = model("m (float[1] x) => (float[1] y) { y = Neg(x) }")
    made.opset_import[0].version = version
    with pytest.raises(Unreadable, match=f"{version} is no version"):
        read_model(made.SerializeToString())
    made.opset_import[0].version = 18
    made.functions.add(name="f", domain="d").opset_import.add(version=version)
    with pytest.raises(Unreadable, match=f"{version} is no version"):
        read_model(made.SerializeToString())


def test_external_data_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (tmp_path / "outside", folder / "inside"):
        file.write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    (folder / "link").symlink_to(tmp_path / "outside")
    inside, plain = with_external_data(folder, "inside").SerializeToString(), affine().SerializeToString()
    np.testing.assert_array_equal(run(read_model(inside, folder), {"x": np.ones(3, np.float32)})["y"], [2, 3, 4])
    for location in ("../outside", str(tmp_path / "outside"), "link", "missing", "", "."):
        with pytest.raises(Unreadable):
            read_model(with_external_data(folder, location).SerializeToString(), folder)
    with pytest.raises(Unreadable, match="did not come with"):
        read_model(inside)
    constant = model(
        "m (float[3] x) => (float[3] y) { k = Constant<value = float[3] {1.0, 2.0, 3.0}>() y = Add(x, k) }"
    )
    constant.graph.node[0].attribute[0].t.CopyFrom(with_external_data(folder, "inside").graph.initializer[0])
    in_node = constant.SerializeToString()
    np.testing.assert_array_equal(run(read_model(in_node, folder), {"x": np.ones(3, np.float32)})["y"], [2, 3, 4])
    with pytest.raises(Unreadable, match="did not come with"):
        read_model(in_node)
    assert read_model(inside, folder, len(inside) + 12)
    with pytest.raises(Unreadable, match="are left"):
        read_model(inside, folder, len(inside) + 11)
    with mock.patch("os.path.getsize", return_value=16), pytest.raises(Unreadable, match="has too few bytes"):
        read_model(inside, folder)  # since it became shorter meanwhile
    assert read_model(plain, None, len(plain))
    with pytest.raises(Unreadable, match=f"It has {len(plain)} bytes, where {len(plain) - 1} are allowed"):
        read_model(plain, None, len(plain) - 1)


def with_data_of(tensor: TensorProto, place: str) -> ModelProto:
    """A model whose output is `tensor`, which lies where the onnx package would read its file: wherever it is."""
    plain = numpy_helper.from_array(np.arange(3), "i")
    sparse = helper.make_sparse_tensor(tensor, plain, [3])
    node = helper.make_node("Constant", [], ["w"])
    match place:
        case "function":
            node.attribute.append(helper.make_attribute("value", tensor))
        case "sparse_value":
            node.attribute.append(helper.make_attribute("sparse_value", sparse))
    made = model("m () => (float[3] y) { y = Identity(w) }")
    match place:
        case "function":
            made.functions.append(helper.make_function("own", "F", [], ["w"], [node], made.opset_import))
            made.opset_import.append(helper.make_opsetid("own", 1))
            made.graph.node.insert(0, helper.make_node("F", [], ["w"], domain="own"))
        case "sparse_value":
            made.graph.node.insert(0, node)
        case "sparse_initializer":
            made.graph.sparse_initializer.append(sparse)
        case "numbers":  # which do not matter beside a file
            made.graph.initializer.append(tensor)
            made.graph.initializer[0].float_data.extend([0.0] * (PIECE + 1))
    return made


@pytest.mark.parametrize("place", ["function", "sparse_value", "sparse_initializer", "numbers"])
def test_external_data_wherever_a_tensor_may_be(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from the model's folder, and never from the working directory."""
    made = with_data_of(with_external_data(tmp_path, "w.bin").graph.initializer[0], place)
    data, expected = made.SerializeToString(), np.array([1, 2, 3], np.float32)
    (tmp_path / "w.bin").write_bytes(expected.tobytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unreadable, match="did not come with"):
        read_model(data, arrays={})
    with pytest.raises(NotSupported, match="its data are in a file"):
        import_model(made, {})
    if place != "numbers":
        np.testing.assert_array_equal(run(read_model(data, tmp_path), {})["y"], expected)


@pytest.mark.parametrize(
    ("field", "given", "why"),
    [
        ("offset", "-4", "offset '-4', which is no number of bytes"),
        ("offset", "9" * 20, "no number of bytes"),
        ("length", "", "length '', which is no number of bytes"),
        ("offset", "8", "too few bytes: 12, where 12 from byte 8 on are asked for"),
        ("length", "13", "too few bytes: 12, where 13 from byte 0 on are asked for"),
    ],
)
def test_external_data_beyond_their_file(tmp_path: Path, field: str, given: str, why: str) -> None:
    made = with_external_data(tmp_path, "w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(12))
    data = made.graph.initializer[0].external_data
    for key, value in {"length": "12", field: given}.items():
        entry = data.add()
        entry.key, entry.value = key, value
    with pytest.raises(Unreadable, match=why):
        read_model(made.SerializeToString(), tmp_path)


@pytest.mark.parametrize(("field", "why"), [("dims", r"its sizes are \[-1\]"), ("data_type", "its data type is 99")])
def test_a_tensor_that_onnx_does_not_have(field: str, why: str) -> None:
    made = affine()
    tensor = made.graph.initializer[0]
    if field == "dims":
        tensor.dims[0] = -1
    else:
        tensor.data_type = 99
    with pytest.raises(NotSupported, match=rf"w \(initializer\): it is invalid: {why}"):
        import_model(made, {"x": (1, 3)})
    made.graph.node[0].input[1] = "b"
    assert import_model(made, {"x": (1, 3)}), "what nobody reads is not looked at"


@pytest.mark.parametrize(("given", "type_"), [("'a'", "STRING"), ("[1, 2]", "INTS")], ids=["text", "several"])
def test_attributes_of_another_type_are_named(given: str, type_: str) -> None:
    made = model(f"m (float[2,3] x) => (float[2,3] y) {{ y = Softmax<axis={given}>(x) }}".replace("'", '"'))
    with pytest.raises(NotSupported, match=f"its axis is {type_}, where ONNX has INT"):
        import_model(made, {})


def test_strings_are_called_so() -> None:
    made = model("m (string[2] x, float[2] f) => (string[2] y, string[1] z) { y = Identity(x) z = Identity(w) }")
    made.graph.initializer.append(numpy_helper.from_array(np.array(["a"]), "w"))
    with pytest.raises(NotSupported, match="DirectML has no type for string"):
        import_model(made, {})
    del made.graph.output[0], made.graph.input[0]
    with pytest.raises(NotSupported, match="DirectML has no type for string"):
        import_model(made, {})


def test_a_tensor_whose_data_are_too_few() -> None:
    made = affine()
    made.graph.initializer[0].dims[0] = 1 << 40
    with pytest.raises(NotSupported, match=r"w \(initializer\): it is invalid: "):
        import_model(made, {"x": (1, 3)})


def test_bodies_within_bodies_have_an_end() -> None:
    recursive = helper.make_function(
        "own", "F", ["a"], ["b"], [helper.make_node("F", ["a"], ["b"], domain="own")], [helper.make_opsetid("own", 1)]
    )
    graph = helper.make_graph(
        [helper.make_node("F", ["x"], ["y"], domain="own")],
        "m",
        [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", 1, [2])],
    )
    made = helper.make_model(
        graph, functions=[recursive], opset_imports=[helper.make_opsetid("own", 1), helper.make_opsetid("", 17)]
    )
    with pytest.raises(NotSupported, match=r"too deep in one another; they may lie 32 deep$"):
        import_model(made, {})


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(float[8589934592] x) => (float[n] y) { y = Neg(x) }", "elements"),
        ("(float[2147483648,1099511627776] x) => (float[n,m] y) { y = Transpose(x) }", "elements"),
        ("(float[2] x) => (float[n] y) { y = Expand(x, large) }", "elements"),
        ("(float[2] x) => (float[n] y) { z = ConstantOfShape(large) y = CastLike(z, x) }", "elements"),
        ("(float[2,2] x) => (float[n,m] y) { y = Tile(x, large) }", "elements"),
        (SCAN.removeprefix("m ").replace("num_scan_inputs=1", "num_scan_inputs=9999999999"), "num_scan_inputs"),
    ],
)
def test_what_is_made_to_harm_is_refused_at_once(text: str, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        import_model(model(f"m {text}", large=np.array([1 << 36, 2]), zero=np.zeros(2, np.float32)), {})


def functions() -> ModelProto:
    return parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    m (float[2] x) => (float[2] y) { y = own.Twice(x) }
    <domain: "own", opset_import: ["" : 17]> Twice(a) => (b) { inner = Neg(a) b = Sub(a, inner) }""")


def test_names_are_given_once() -> None:
    of_function = functions()
    of_function.functions[0].node[0].output[0] = "a"
    beside_one = model("m (float[2] x) => (float[2] y) { y = Neg(x) y = Abs(x) }")
    beside_one.functions.add(name="f", domain="d")
    for made, name in (
        (model("m (float[2] x) => (float[2] y) { y = Neg(x) y = Abs(x) }"), "y"),
        (model("m (float[2] x) => (float[2] y) { x = Neg(x) y = Abs(x) }"), "x"),
        (model("m (float[2] x) => (float[2] y) { w = Neg(x) y = Abs(w) }", w=np.ones(2, np.float32)), "w"),
        (model("m (float[2] x, float[2] x) => (float[2] y) { y = Abs(x) }"), "x"),
        (of_function, "a"),
        (beside_one, "y"),
    ):
        with pytest.raises(Unreadable, match=f"{name} is made twice"):
            read_model(made.SerializeToString())
    unnamed = 'm (float[2] x) => (float[1] y) { y, "" = TopK(x, one) z, "" = TopK(x, one) }'
    assert read_model(model(unnamed, one=np.array([1])).SerializeToString())


def test_names_are_text() -> None:
    chosen = model(f"m {CHOICE}".replace("Neg(x)", "own.Named(x)"))
    chosen.graph.node[0].attribute[1].g.node[0].name = "inside"
    for made, name in (
        *((affine(), name) for name in ("batch", "positive")),
        *((chosen, name) for name in ("inside", "Named")),
        (functions(), "Twice"),
        (functions(), "inner"),
    ):
        data = made.SerializeToString()
        assert read_model(data)
        with pytest.raises(Unreadable, match="no UTF-8"):
            read_model(data.replace(name.encode(), b"\xff" * len(name)))

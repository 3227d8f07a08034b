"""ONNX models become graphs: what is read another way, what is known before, what is unrolled, what is refused."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper, parser
from onnx.reference import ReferenceEvaluator

from app.models.onnx.errors import NotSupported, WrongSizes
from app.models.onnx.importer import import_model
from app.models.onnx.reading import Unreadable, read_model, signature
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
    with pytest.raises(NotSupported, match="too many nodes"):
        import_model(model(ENDLESS, **known, trips=np.array(1 << 40)), {})


def test_functions_are_what_they_are_made_of() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    m (float[2] x) => (float[2] y) { y = own.Scaled<by=3.0>(x) }
    <domain: "own", opset_import: ["" : 17]> Scaled<by>(a) => (b) {
      c = Constant<value_float: float = @by>() b = Mul(a, c) }"""
    np.testing.assert_array_equal(run(parser.parse_model(text), {"x": X[0, 0, :2]})["y"], X[0, 0, :2] * 3)


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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CHOICE, "condition is not constant"),
        ("(float[2] x, int64[1] s) => (float[n] y) { y = Reshape(x, s) }", "shape is not constant"),
        ("(float[2] x) => (float[3] y) { y = Reshape(x, k) }", "cannot become"),
        ("(float[2] x) => (float[n] y) { y = Add(x, nobody) }", "no node before makes it"),
        ("(float[2] x) => (float[n] y) { y = Transpose<perm=[0,0]>(x) }", "perm"),
        ("(bfloat16[2] x) => (bfloat16[2] y) { y = Neg(x) }", "no type for bfloat16"),
    ],
)  # fmt: skip
def test_refusals(text: str, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        import_model(model(f"m {text}", k=np.array([3])), {})


def test_sizes() -> None:
    for sizes, why in (
        ({}, "missing"),
        ({"x": (2, 4)}, "2x4"),
        ({"x": (2,)}, "has batchx3"),
        ({"x": (2, 3), "z": (1,)}, "no input z"),
    ):
        with pytest.raises(WrongSizes, match=why):
            import_model(affine(), sizes)
    assert signature(affine()).inputs["x"].sizes == ("batch", 3)


@pytest.mark.parametrize("data", [b"", b"\0\1\2", b"no model at all", affine().SerializeToString()[:-20]])
def test_what_is_no_model(data: bytes) -> None:
    with pytest.raises((Unreadable, NotSupported)):
        import_model(read_model(data), {"x": (1, 3)})


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
    inside = with_external_data(folder, "inside").SerializeToString()
    np.testing.assert_array_equal(run(read_model(inside, folder), {"x": np.ones(3, np.float32)})["y"], [2, 3, 4])
    for location in ("../outside", str(tmp_path / "outside"), "link", "missing", "", "."):
        with pytest.raises(Unreadable):
            read_model(with_external_data(folder, location).SerializeToString(), folder)
    with pytest.raises(Unreadable, match="did not come with"):
        read_model(inside)
    with pytest.raises(Unreadable, match="are left"):
        read_model(inside, folder, len(inside) + 11)


def test_a_tensor_whose_data_are_too_few() -> None:
    made = affine()
    made.graph.initializer[0].dims[0] = 1 << 40
    with pytest.raises(NotSupported, match="initializer"):
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
    with pytest.raises(NotSupported, match="too deep"):
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


def test_names_are_text() -> None:
    data = affine().SerializeToString().replace(b"batch", b"\xff\xfe\xfd\xfc\xfb")
    with pytest.raises(Unreadable, match="no UTF-8"):
        read_model(data)

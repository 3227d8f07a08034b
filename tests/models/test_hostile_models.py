"""Files that are made to do harm: each is refused, and does no more than that."""

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from app.engine.service import Service
from app.models.onnx import builder, importer
from app.models.onnx.errors import NotSupported
from app.models.onnx.importer import MOST_NODES, import_model, never_supported
from app.models.onnx.protos import needed
from app.models.onnx.reading import Unreadable, detached, read_model, signature
from app.models.repository import layout, repository
from app.models.repository.config import BadConfig, parse
from app.models.repository.model import LoadedModel
from app.models.repository.repository import Failed, Repository
from app.settings import Settings
from tests.models.documents import affine, model, with_external_data

X = np.array([[-4, -2, 0], [1, 2, 4]], np.float32)

LOOP = """m (float[2,3] x) => (float[2,3] y) {
  y = Loop<body = b (int64 i, bool go, float[2,3] c) => (bool on, float[2,3] d) { on = Identity(go) BODY }>
    (trips, yes, x) }"""


def loop(body: str, trips: int) -> ModelProto:
    return model(LOOP.replace("BODY", body), trips=np.array(trips), yes=np.array(True))


@pytest.mark.parametrize("location", ["a\0b", "a" * 5000, "/dev/zero"])
def test_external_data_with_names_that_no_file_can_have(tmp_path: Path, location: str) -> None:
    with pytest.raises(Unreadable, match="no file in the model's folder") as raised:
        read_model(with_external_data(tmp_path, location).SerializeToString(), tmp_path)
    assert len(str(raised.value)) < 500


def test_an_initializer_of_no_type() -> None:
    made = affine()
    made.graph.initializer[0].data_type = 99
    with pytest.raises(Unreadable, match="Initializer w cannot be read"):
        detached(made, {})


@pytest.mark.parametrize("is_node", [False, True])
def test_turns_share_what_is_constant(is_node: bool) -> None:
    """A large tensor is there once, however often its graph is run."""
    made = loop("d = Add(c, w)", 50)
    (attribute,) = made.graph.node[0].attribute
    large = numpy_helper.from_array(np.zeros((1 << 13, 2, 3), np.float32), "w")
    if is_node:
        attribute.g.node.insert(0, helper.make_node("Constant", [], ["w"], value=large))
    else:
        attribute.g.initializer.append(large)
    (constant,) = import_model(made, {}).graph.constants.values()
    assert len(constant) == 4 * 6 << 13


def test_constants_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "_FREE_BYTES", 0)
    monkeypatch.setattr(importer, "_TIMES", 0)
    with pytest.raises(NotSupported, match=r"constants take too many bytes; they may take 0$"):
        import_model(affine(), {"x": X.shape})


def test_what_is_computed_of_constants_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is held until the graph is there."""
    made = loop("t = Sin(w) s = ReduceSum<keepdims=0>(t) u = Cast<to=1>(s) d = Add(c, u)", 64)
    made.graph.initializer.append(numpy_helper.from_array(np.zeros(1 << 10), "w"))
    import_model(made, {})
    monkeypatch.setattr(importer, "_FREE_BYTES", 1 << 18)
    with pytest.raises(NotSupported, match="too many bytes"):
        import_model(made, {})


def test_what_is_needed_of_a_body_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or many turns times many nodes that nobody needs would be looked at."""
    asked: list[object] = []

    def counted(*given: object) -> object:
        asked.append(given)
        return needed(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(importer, "needed", counted)
    import_model(loop("d = Neg(c) e = Abs(c) f = Abs(e)", 100), {})
    assert len(asked) == 2


def test_operators_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a node may ask for as many as there are steps."""
    monkeypatch.setattr(builder, "MOST_NODES", 1 << 10)
    made = model(
        "m (float[10000000,1,2] x) => (float[10000000,1,1,2] y)"
        "{ y = com.microsoft.DynamicQuantizeLSTM<hidden_size=2>(x, w, w, , , , , , s, z, s, z) }",
        w=np.zeros((1, 2, 8), np.uint8),
        s=np.ones(1, np.float32),
        z=np.zeros(1, np.uint8),
    )
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(NotSupported, match=r"the graph has too many operators; it may have 1024$"):
        import_model(made, {})


def test_nothing_is_looked_at_behind_the_last_node(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[None] = []
    many = helper.make_graph(
        [helper.make_node("Nope", ["x"], [f"y{k}"]) for k in range(2 * MOST_NODES)], "many", [], []
    )
    made = model("m (float[2] x) => (float[2] y0) { y0 = Neg(x) }")
    del made.graph.node[:]
    made.graph.node.extend(many.node)
    made.graph.output.extend(helper.make_tensor_value_info(f"y{k}", 1, [2]) for k in range(1, 2 * MOST_NODES))
    with pytest.raises(NotSupported) as raised:
        import_model(made, {}, pause=lambda: paused.append(None))
    assert len(paused) == MOST_NODES + 1
    counted = f"with those of each turn of its loops it may have {MOST_NODES}"
    assert raised.value.nodes[-1].why == f"the graph has too many nodes; {counted}"
    assert str(raised.value).endswith(f"; and {MOST_NODES + 1 - 100} more")


def test_a_model_whose_sizes_are_fixed_is_tried_once() -> None:
    paused: list[None] = []
    made = model("m (float[2,2] x) => (float d) { d = Det(x) }")
    assert never_supported(made, signature(made), pause=lambda: paused.append(None))
    assert len(paused) == 1


def test_an_output_that_is_what_a_node_was_not_given() -> None:
    made = loop("d = Add(c, c)", 0)
    made.graph.node[0].input[2] = ""
    with pytest.raises(NotSupported, match="it stands for an input that is left out"):
        import_model(made, {})


def test_sizes_of_complex_numbers() -> None:
    """NumPy would drop the imaginary parts, and print a warning."""
    made = model("m (float[2] x) => (float[n] y) { y = Tile(x, r) }", r=np.array([2 + 1j], np.complex64))
    with pytest.raises(NotSupported, match="its repeats is of complex numbers"):
        import_model(made, {})


@pytest.mark.parametrize("opset", [9, 10, 17])
def test_scales_beyond_what_float32_has(opset: int) -> None:
    node = {9: "Upsample(x, s)", 10: "Resize(x, s)", 17: "Resize(x, , s)"}[opset]
    scales = np.array([1, 1, 1, 3e38], np.float32)
    made = model(f"m (float[1,1,2,2] x) => (float[a,b,c,d] y) {{ y = {node} }}", s=scales)
    made.opset_import[0].version = opset
    with pytest.raises(NotSupported, match=r"its scale \S+e\+38 is too large for 2 elements"):
        import_model(made, {})


def test_messages_are_short() -> None:
    made = model("m (float[2] x) => (float[2] y) { y = Det(x) }")
    made.graph.node[0].name = "n" * 10**6
    with pytest.raises(NotSupported) as raised:
        import_model(made, {})
    assert len(str(raised.value)) < 1000


def test_comments_that_lead_to_nothing() -> None:
    """They could be read in a million ways, none of which is right."""
    with pytest.raises(BadConfig, match="cannot be read"):
        parse("#\n" * 60 + "@")


def test_file_names_that_cannot_be_printed(tmp_path: Path) -> None:
    for name in (b"\xff.onnx", b"a\nb.onnx", b".hidden.onnx", b"good.onnx"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    assert layout.names_in(tmp_path) == ["good"]


@pytest.mark.parametrize("place", ["read", "compile"])
def test_a_fault_of_ours_stops_no_other_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    if place == "read":
        monkeypatch.setattr(repository, "read", fail)
    else:
        monkeypatch.setattr(LoadedModel, "compile", fail)
    (tmp_path / "one.onnx").write_bytes(model("m (float[2] x) => (float[2] y) { y = Neg(x) }").SerializeToString())
    service = Service(Settings(models=str(tmp_path), gpus="none", llvm=False))
    opened = Repository(service)
    opened.open()
    ((_, _, found),) = opened.all()
    assert isinstance(found, Failed)
    assert "by a fault" in found.reason
    assert service.memory.used == 0
    service.close()
